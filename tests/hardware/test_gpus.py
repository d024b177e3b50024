"""Recorded machines replayed through everything above NVML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vq_console.hardware.gpus import throttle_words
from vq_console.hardware.host import read_host
from vq_console.hardware.model import Gpu, Host, Machine
from vq_console.hardware.probe import GpuPoller, machine_from
from vq_console.hardware.raw import DYNAMIC_FIELDS, LOST, RecordedSource

DATA = Path(__file__).parents[1] / "data/hardware"
HOST = Host("box")


def load(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return value


def nobody(pid: int) -> tuple[str | None, str | None, str | None]:
    return None, None, f"pid {pid} is not visible here"


def somebody(pid: int) -> tuple[str | None, str | None, str | None]:
    return "ana", f"VLLM::EngineCore {pid}", None


def machine(name: str, environment: dict[str, str] | None = None, names: Any = somebody) -> Machine:
    return machine_from(RecordedSource(load(name)), HOST, environment or {}, names=names)


def test_two_3090() -> None:
    found = machine("2x3090")
    busy, idle = found.gpus
    assert (found.driver, found.cuda, found.gpu_source) == ("550.144.03", "12.4", "nvml")
    assert (busy.sm, busy.sm_number, busy.memory_total_mib, busy.memory_used_mib) == ("8.6", 86, 24576, 21933)
    assert busy.memory_free_mib == 24576 - 21933
    assert busy.throttle == ("power cap", "software thermal limit")
    assert idle.throttle == ("idle",)
    assert (busy.pcie, idle.pcie) == ("gen 4 x16", "gen 1 x16 (of gen 4 x16)")
    assert busy.memory_bandwidth_gbs == pytest.approx(936.1, abs=0.1)
    assert busy.nvlinks == 4
    assert busy.processes[0].user == "ana"
    assert busy.processes[0].used_mib == 21570
    assert busy.mig is None
    assert "mig" in busy.missing
    assert idle.processes == ()
    assert "processes" not in idle.missing


def test_4090_with_a_display_merges_what_is_listed_twice() -> None:
    (gpu,) = machine("4090-display").gpus
    assert gpu.display is True
    assert [(p.pid, p.used_mib, p.kind) for p in gpu.processes] == [
        (5121, 640, "both"),
        (2210, 512, "graphics"),
        (2488, 180, "graphics"),
    ]
    assert gpu.nvlinks is None
    assert gpu.ecc == "off"


def test_eight_h100_one_lost() -> None:
    gpus = machine("8xh100-nvlink").gpus
    assert len(gpus) == 8
    assert {gpu.nvlinks for gpu in gpus[:7]} == {18}
    assert gpus[5].ecc == "on, 3 uncorrected since the driver started"
    lost = gpus[7]
    assert lost.index == 7
    assert lost.name is None
    assert lost.memory_total_mib is None
    assert set(lost.missing.values()) == {LOST}
    assert {"name", "uuid", "sm", "memory_used_mib", "processes"} <= set(lost.missing)


def test_mig_instances_and_their_visibility() -> None:
    (gpu,) = machine("mig").gpus
    assert gpu.mig == "on, 1x 3g.40gb, 2x 2g.20gb"
    assert [part.memory_total_mib for part in gpu.mig_devices] == [40320, 20096, 20096]
    assert gpu.utilization_pct is None
    assert "utilization_pct" in gpu.missing
    assert machine("mig", {"CUDA_VISIBLE_DEVICES": "MIG-22222222-aaaa"}).gpus[0].visible
    assert not machine("mig", {"CUDA_VISIBLE_DEVICES": "MIG-99999999"}).gpus[0].visible


def test_wsl_and_container_miss_things_with_reasons() -> None:
    (laptop,) = machine("wsl").gpus
    assert laptop.processes == ()
    assert {"processes", "power_limit_w", "ecc", "throttle"} <= set(laptop.missing)
    (shared,) = machine("container", names=nobody).gpus
    assert [(p.pid, p.used_mib, p.user, p.command) for p in shared.processes] == [
        (4000001, 39000, None, None),
        (4000002, None, None, None),
    ]
    assert shared.missing["processes"] == "pid 4000001 is not visible here"
    assert shared.missing["ecc"] == "this user may not read it"


def test_no_driver() -> None:
    found = machine("no-driver")
    assert found.gpus == ()
    assert found.driver is None
    assert found.gpu_reason


@pytest.mark.parametrize(
    ("name", "environment", "visible"),
    [
        ("2x3090", {}, [True, True]),
        ("2x3090", {"CUDA_VISIBLE_DEVICES": "1"}, [False, True]),
        ("2x3090", {"CUDA_VISIBLE_DEVICES": ""}, [False, False]),
        ("2x3090", {"CUDA_VISIBLE_DEVICES": "-1,0"}, [False, False]),
        ("2x3090", {"CUDA_VISIBLE_DEVICES": "1,7,0"}, [False, True]),
        ("2x3090", {"CUDA_VISIBLE_DEVICES": "GPU-1f0c5a34"}, [True, False]),
        ("2x3090", {"CUDA_VISIBLE_DEVICES": "GPU-"}, [False, False]),
        ("mixed", {"CUDA_VISIBLE_DEVICES": "0"}, [False, True]),
        ("mixed", {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [True, False]),
        ("mixed", {"CUDA_VISIBLE_DEVICES": "GPU-44444444"}, [True, False]),
    ],
)
def test_visibility_follows_cuda(name: str, environment: dict[str, str], visible: list[bool]) -> None:
    assert [gpu.visible for gpu in machine(name, environment).gpus] == visible


def test_the_guessed_order_of_mixed_gpus_says_that_it_is_a_guess() -> None:
    assert "visible" in machine("mixed", {"CUDA_VISIBLE_DEVICES": "0"}).gpus[0].missing
    pinned = machine("mixed", {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert "visible" not in pinned.gpus[0].missing


def test_a_gpu_that_falls_off_the_bus_while_polled_keeps_its_name() -> None:
    snapshot = load("2x3090")
    poller = GpuPoller(RecordedSource(snapshot), environment={}, names=somebody)
    before = poller.sample()
    for field in (*DYNAMIC_FIELDS, "processes"):
        snapshot["gpus"][0][field] = {"error": LOST}
    after = poller.sample()
    assert after[0].name == before[0].name
    assert after[0].uuid == before[0].uuid
    assert after[0].memory_used_mib is None
    assert after[0].processes == ()
    assert after[0].missing["memory_used_mib"] == LOST
    assert after[1] == before[1]


def test_a_gpu_that_is_no_longer_listed_is_still_shown() -> None:
    snapshot = load("2x3090")
    poller = GpuPoller(RecordedSource(snapshot), environment={}, names=somebody)
    poller.sample()
    snapshot["gpus"].pop()
    first, second = poller.sample()
    assert first.memory_used_mib == 21933
    assert second.name == "NVIDIA GeForce RTX 3090"
    assert second.memory_used_mib is None
    poller.close()
    assert poller.sample() == ()


def test_static_readings_are_made_once() -> None:
    class Counting(RecordedSource):
        reads: list[str]

        def read(self, index: int, field: str) -> Any:
            self.reads.append(field)
            return super().read(index, field)

    source = Counting(load("2x3090"))
    source.reads = []
    poller = GpuPoller(source, environment={}, processes=False, names=somebody)
    poller.sample()
    first = len(source.reads)
    poller.sample()
    assert sorted(source.reads[first:]) == sorted(2 * DYNAMIC_FIELDS)


def test_every_field_may_be_missing() -> None:
    found = machine_from(RecordedSource({"gpus": [{}]}), HOST, {"CUDA_VISIBLE_DEVICES": "0"})
    (gpu,) = found.gpus
    known = {name for name in Gpu.__slots__ if getattr(gpu, name) not in (None, (), {})}
    assert known == {"index", "visible", "missing"}


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (None, ()),
        (0, ()),
        (0x48, ("hardware slowdown", "hardware thermal limit")),
        (0x80, ("power brake",)),
        (1, ("idle",)),
    ],
)
def test_throttle_words(mask: int | None, words: tuple[str, ...]) -> None:
    assert throttle_words(mask) == words


def test_a_gpu_that_shares_the_machines_memory() -> None:
    source = RecordedSource({"gpus": [{"name": "NVIDIA GB10", "uuid": "GPU-1", "capability": [12, 1]}]})
    (gpu,) = machine_from(source, HOST, {}).gpus
    assert gpu.sm_number == 121
    assert 0 < (gpu.memory_free_mib or 0) < (gpu.memory_total_mib or 0)
    assert "shares the machine's memory" in gpu.missing["memory"]


def test_control_sequences_in_names_are_removed() -> None:
    found = machine_from(RecordedSource({"gpus": [{"name": "GPU\x1b[31m evil\x07", "uuid": "GPU-1"}]}), HOST, {})
    assert found.gpus[0].name == "GPU evil"


def test_reading_this_machine_never_fails() -> None:
    from vq_console.hardware.probe import read_machine

    found = read_machine()
    assert found.host.cpu_count
    assert found.host.ram_total_mib
    assert found.gpus or found.gpu_reason
    assert read_host().cpu_pct is not None
