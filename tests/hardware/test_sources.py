"""The two real sources: NVML's calls with its own error types, and nvidia-smi's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from vq_console.hardware.model import Host
from vq_console.hardware.nvml import NvmlSource
from vq_console.hardware.probe import MachineWatch, ProcessNamer, machine_from, open_source
from vq_console.hardware.raw import LOST, NoGpuSourceError, UnreadableError
from vq_console.hardware.smi import SmiSource

DATA = Path(__file__).parents[1] / "data/hardware"
MIB = 1024 * 1024


def _raises(code: int) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return function


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver with one GPU in place of libnvidia-ml, below nvidia-ml-py's own functions and errors."""
    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.95.05",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle-{index}",
        "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=143771 * MIB, free=143000 * MIB, used=5 * MIB),
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=12, memory=3),
        "nvmlDeviceGetPowerUsage": lambda _: 76543,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700000,
        "nvmlDeviceGetTemperature": lambda _handle, _sensor: 31,
        "nvmlDeviceGetClockInfo": lambda _handle, kind: {pynvml.NVML_CLOCK_SM: 345, pynvml.NVML_CLOCK_MEM: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda _handle, kind: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[
            kind
        ],
        "nvmlDeviceGetMemoryBusWidth": lambda _: 6144,
        "nvmlDeviceGetNumGpuCores": lambda _: 16896,
        "nvmlDeviceGetCurrentClocksEventReasons": _raises(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 1,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetNvLinkState": lambda _handle, link: 1 if link < 16 else 0,
        "nvmlDeviceGetMigMode": lambda _: (0, 0),
        "nvmlDeviceGetEccMode": lambda _: (1, 1),
        "nvmlDeviceGetTotalEccErrors": lambda *_: 0,
        "nvmlDeviceGetDisplayActive": lambda _: 0,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=1, usedGpuMemory=None)],
        "nvmlDeviceGetGraphicsRunningProcesses": _raises(pynvml.NVML_ERROR_NOT_SUPPORTED),
    }
    for name, function in answers.items():
        monkeypatch.setattr(pynvml, name, function)
    return monkeypatch


def test_nvml_readings(nvml: pytest.MonkeyPatch) -> None:
    found = machine_from(NvmlSource(), Host("box"), {}, names=ProcessNamer())
    (gpu,) = found.gpus
    assert (found.driver, found.cuda) == ("580.95.05", "13.1")
    assert (gpu.name, gpu.sm, gpu.nvlinks, gpu.ecc, gpu.mig, gpu.display) == (
        "NVIDIA H200",
        "9.0",
        16,
        "on",
        "off",
        False,
    )
    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (143771, 771), "what the driver reserves is not free"
    assert gpu.throttle == ("idle",)
    assert gpu.memory_bandwidth_gbs == pytest.approx(4917, abs=1)
    assert gpu.processes[0].pid == 1
    assert gpu.missing == {}


def test_nvml_errors_become_reasons(nvml: pytest.MonkeyPatch) -> None:
    nvml.setattr(pynvml, "nvmlDeviceGetPowerUsage", _raises(pynvml.NVML_ERROR_NO_PERMISSION))
    nvml.setattr(pynvml, "nvmlDeviceGetNvLinkState", _raises(pynvml.NVML_ERROR_NOT_SUPPORTED))
    nvml.setattr(pynvml, "nvmlDeviceGetUtilizationRates", _raises(pynvml.NVML_ERROR_GPU_IS_LOST))
    source = NvmlSource()
    for field, reason, lost in (
        ("power", "this user may not read it", False),
        ("nvlinks", "not supported by this GPU or driver", False),
        ("utilization", LOST, True),
    ):
        with pytest.raises(UnreadableError) as caught:
            source.read(0, field)
        assert (caught.value.reason, caught.value.lost) == (reason, lost)


def test_nvml_lists_mig_instances(nvml: pytest.MonkeyPatch) -> None:
    nvml.setattr(pynvml, "nvmlDeviceGetMigMode", lambda _: (1, 1))
    nvml.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda _: 7)

    def part(_: Any, number: int) -> str:
        if number not in (0, 3):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"part-{number}"

    nvml.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", part)
    assert len(NvmlSource().read(0, "mig")["devices"]) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "updated while it is loaded"),
    ],
)
def test_without_nvml_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", _raises(code))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NoGpuSourceError, match=words):
        open_source()


class Smi:
    """Answers as nvidia-smi would, from recorded text; knows only some fields where `unknown` says so."""

    def __init__(self, unknown: Sequence[str] = ()) -> None:
        self.unknown = unknown
        self.calls: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> tuple[int, str]:
        self.calls.append(arguments)
        if arguments[0] == "--version":
            return 0, "NVIDIA-SMI version  : 550.144.03\nDRIVER version      : 550.144.03\nCUDA Version        : 12.4\n"
        if arguments[0].startswith("--query-compute-apps"):
            return 0, (DATA / "smi-apps.csv").read_text()
        asked = arguments[0].partition("=")[2].split(",")
        for name in self.unknown:
            if name in asked:
                return 2, f'Field "{name}" is not a valid field to query.\n'
        lines = (DATA / "smi-2x3090.csv").read_text().splitlines()
        from vq_console.hardware.smi import QUERY

        keep = [QUERY.index(name) for name in asked]
        return 0, "\n".join(", ".join(line.split(", ")[at] for at in keep) for line in lines) + "\n"


def test_nvidia_smi_says_the_same_as_nvml() -> None:
    import json

    from vq_console.hardware.raw import RecordedSource

    def names(pid: int) -> tuple[str | None, str | None, str | None]:
        return "ana", "vllm", None

    host = Host("box")
    smi = machine_from(SmiSource(Smi()), host, {}, names=names)
    nvml = machine_from(RecordedSource(json.loads((DATA / "2x3090.json").read_text())), host, {}, names=names)
    assert (smi.driver, smi.cuda, smi.gpu_source) == ("550.144.03", "12.4", "nvidia-smi")
    for ours, theirs in zip(smi.gpus, nvml.gpus, strict=True):
        for field in (
            "name",
            "uuid",
            "sm",
            "memory_total_mib",
            "memory_used_mib",
            "utilization_pct",
            "power_w",
            "power_limit_w",
            "temperature_c",
            "sm_clock_mhz",
            "sm_clock_max_mhz",
            "memory_clock_max_mhz",
            "throttle",
            "pcie",
            "mig",
            "ecc",
            "display",
        ):
            assert getattr(ours, field) == getattr(theirs, field), field
    assert smi.gpus[0].processes[0].used_mib == 21570
    assert smi.gpus[1].processes[0].used_mib is None
    assert smi.gpus[0].nvlinks is None
    assert "NVML" in smi.gpus[0].missing["nvlinks"]


def test_an_old_nvidia_smi_is_asked_for_less() -> None:
    smi = Smi(unknown=("compute_cap", "mig.mode.current", "clocks_event_reasons.active"))
    found = machine_from(SmiSource(smi), Host("box"), {})
    assert found.gpus[0].sm is None
    assert "sm" in found.gpus[0].missing
    assert found.gpus[0].throttle == ("power cap", "software thermal limit")


def test_a_failing_nvidia_smi_gives_its_own_words() -> None:
    def run(_: Sequence[str]) -> tuple[int, str]:
        return 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"

    with pytest.raises(NoGpuSourceError, match="couldn't communicate"):
        SmiSource(run)


def test_a_real_process_is_named_and_its_secrets_are_not() -> None:
    import subprocess
    import sys

    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(30)", "--api-key", "sk-abcdefghijklmnop1234"]
    )
    try:
        import time

        name = ProcessNamer()
        for _ in range(100):
            user, command, reason = name(child.pid)
            if command and "sleep" in command:
                break
            time.sleep(0.02)
            name = ProcessNamer()
        assert user
        assert reason is None
        assert command is not None
        assert "time.sleep" in command
        assert "abcdefghijklmnop" not in command
    finally:
        child.kill()
        child.wait()
    assert ProcessNamer()(child.pid)[2]


def test_a_recording_replays_as_the_machine_it_was_made_on(nvml: pytest.MonkeyPatch) -> None:
    import json

    from vq_console.hardware.raw import RecordedSource
    from vq_console.hardware.record import record

    nvml.setattr(pynvml, "nvmlDeviceGetPowerUsage", _raises(pynvml.NVML_ERROR_NO_PERMISSION))
    host = Host("box")
    again = RecordedSource(json.loads(json.dumps(record(NvmlSource()))))
    assert machine_from(again, host, {}) == machine_from(NvmlSource(), host, {})


def test_a_watch_opens_the_driver_once_and_reads_what_changes(nvml: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    nvml.setattr(pynvml, "nvmlInit", lambda: opened.append(1))
    watch = MachineWatch()
    first = watch.read()
    nvml.setattr(pynvml, "nvmlDeviceGetTemperature", lambda _handle, _sensor: 77)
    second = watch.read()
    assert [gpu.temperature_c for gpu in (*first.gpus, *second.gpus)] == [31, 77]
    assert second.driver == "580.95.05"
    assert opened == [1]
    assert second.host.cpu_model == first.host.cpu_model
    assert second.host.cpu_pct is not None
    watch.close()


def test_a_watch_without_a_driver_looks_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setenv("PATH", "/nonexistent")
    now = 1000.0
    monkeypatch.setattr("vq_console.hardware.probe.time.monotonic", lambda: now)
    watch = MachineWatch()
    assert [watch.read().gpus for _ in range(3)] == [(), (), ()]
    assert len(tried) == 1
    assert "no NVIDIA driver library" in str(watch.read().gpu_reason)
    now += 31
    watch.read()
    assert len(tried) == 2
