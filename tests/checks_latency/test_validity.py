"""Which blocks do not count (traps 6, 8, 12, 13, 16) and what is said of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checks_latency.synthetic import CLEAN, facts, record
from vq_console.checks.bench import hold_devices, share_device
from vq_console.checks.counters import Counters, parse_counters
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.validity import Flag, machine_notes, power_limited, run_notes, void_reasons
from vq_console.hardware.model import Gpu

GOOD = [record(number=k, send_s=k) for k in range(4)]
SENT = 4 * 64


def _flags(records: list, **changes: object) -> list[str]:
    return [flag.flag for flag in void_reasons(records, facts(**changes), tpot_s=0.02)]


def _after(**values: float) -> Counters:
    return replace(CLEAN, prompt_tokens=SENT, generation_tokens=64, **values)  # type: ignore[arg-type]


def test_a_clean_block_counts() -> None:
    assert _flags(GOOD, after=_after()) == []


@pytest.mark.parametrize(
    ("records", "changes", "flag"),
    [
        ([], {}, "no-load"),
        (GOOD, {"problem": "a connection could not be opened"}, "no-load"),
        ([*GOOD, replace(GOOD[0], end="failed", error="HTTP 500")], {}, "failed-requests"),
        ([*GOOD, record(tokens=7, asked=16)], {}, "short-requests"),
        (GOOD, {"before": replace(CLEAN, prefix_hits=0, prefix_queries=0),
                "after": _after(prefix_hits=16, prefix_queries=256)}, "prefix-cache-hits"),
        (GOOD, {"after": _after(preemptions=1)}, "preemptions"),
        (GOOD, {"lag_p99_ms": 2.1}, "generator-lag"),
        (GOOD, {"client_cpu": 0.81}, "generator-busy"),
        (GOOD, {"before": replace(CLEAN, running=1)}, "other-load"),
        (GOOD, {"after": replace(_after(), prompt_tokens=SENT + 64)}, "other-load"),
        (GOOD, {"idle_before": CLEAN, "idle_after": replace(CLEAN, generation_tokens=9)}, "other-load"),
        (GOOD, {"before": replace(CLEAN, generation_tokens=500), "after": _after()}, "server-restarted"),
        (GOOD, {"before": replace(CLEAN, process_start=1.0), "after": _after(process_start=60.0)}, "server-restarted"),
        (GOOD, {"clock_before_mhz": 1980, "clock_after_mhz": 1900}, "clock-shift"),
        (GOOD, {"throttle": ("sw thermal slowdown",)}, "throttled"),
    ],
)  # fmt: skip
def test_reasons(records: list, changes: dict[str, object], flag: str) -> None:
    assert flag in _flags(records, **changes)


@pytest.mark.parametrize(
    ("changes", "tpot"),
    [
        ({"lag_p99_ms": 9.0}, 0.1),
        ({"clock_before_mhz": 1980, "clock_after_mhz": 1950}, 0.02),
        ({"client_cpu": 0.79}, 0.02),
        ({"lag_p99_ms": 1.9}, 0.001),
        # an H200 under 64 streams is at its power limit in every block, and its clock moves there
        ({"throttle": ("power cap",), "clock_before_mhz": 1785, "clock_after_mhz": 1965}, 0.02),
    ],
)
def test_limits_are_not_narrower_than_said(changes: dict[str, object], tpot: float) -> None:
    assert void_reasons(GOOD, facts(after=_after(), **changes), tpot_s=tpot) == ()


def test_a_block_at_the_power_limit_counts_and_is_said() -> None:
    at_limit = facts(throttle=("power cap",), clock_before_mhz=1740, clock_after_mhz=1965)
    assert void_reasons(GOOD, at_limit, tpot_s=0.02) == ()
    assert power_limited(at_limit) == Flag("power-limited", "SM clock 1740 to 1965 MHz")
    assert power_limited(facts(throttle=("sw thermal slowdown",))) is None


def test_one_bad_request_in_a_thousand_is_reported_not_fatal() -> None:
    many = [record(number=k, send_s=k) for k in range(1000)]
    assert _flags([*many, replace(GOOD[0], end="failed", error="reset")]) == []


def test_concurrency_must_be_reached() -> None:
    found = void_reasons(GOOD, facts(concurrency=16), tpot_s=0.02, in_flight=13.0)
    assert [flag.flag for flag in found] == ["concurrency-not-reached"]
    assert void_reasons(GOOD, facts(concurrency=16), tpot_s=0.02, in_flight=15.2) == ()


def test_a_server_without_metrics_voids_nothing() -> None:
    assert _flags(GOOD, before=Counters(), after=Counters()) == []


def test_counters_are_summed_over_engines_and_labels() -> None:
    page = (
        '# HELP x\nvllm:num_requests_running{engine="0",model_name="a b"} 1.0\n'
        'vllm:num_requests_running{engine="1",model_name="a b"} 2.0\n'
        'process_start_time_seconds 1.79603e+09\nvllm:prompt_tokens_total{engine="0"} 7\n'
    )
    found = parse_counters(page)
    assert (found.running, found.prompt_tokens, found.process_start, found.preemptions) == (3.0, 7.0, 1.79603e9, None)


def test_notes_of_a_run() -> None:
    estimated = [replace(one, completion_tokens=None) for one in GOOD]
    assert [flag.flag for flag in run_notes(estimated)] == ["counts-estimated", "gap-is-not-token"]
    assert run_notes([record(all_chunks=True)]) == ()
    assert [flag.flag for flag in run_notes([replace(record(all_chunks=True), reconnected=True)])] == ["reconnected"]


def test_one_load_at_a_time_on_a_device(vq_home: Path) -> None:
    """Trap 16: a second check on the same GPU is refused; on another it is not."""
    from vq_console.core.errors import CheckError

    def endpoint(*uuids: str, device: str | None = "cuda") -> Endpoint:
        return Endpoint("x", "http://127.0.0.1:1", "m", device=device, gpu_uuids=uuids)

    with hold_devices((endpoint("GPU-1"), endpoint("GPU-2"))):
        with pytest.raises(CheckError, match="GPU-2"), hold_devices((endpoint("GPU-2"),)):
            pass
        with hold_devices((endpoint("GPU-3"),)):
            pass
    with hold_devices((endpoint("GPU-2"),)):
        pass
    assert share_device(endpoint("GPU-1"), endpoint("GPU-1", "GPU-2"))
    assert not share_device(endpoint("GPU-1"), endpoint("GPU-2"))
    assert share_device(endpoint(), endpoint(device="cpu"))  # unknown counts as shared


def test_a_kept_connection_that_stalls_is_found(tmp_path: Path, vq_home: Path) -> None:
    """Trap 10: 40 ms between a kept and a new connection."""
    from simulator.running import served
    from vq_console.checks.bench import Bench
    from vq_console.checks.progress import Silent

    found = {}
    for stall in (0.0, 40.0):
        folder = tmp_path / f"{stall:.0f}"
        folder.mkdir()
        with (
            served(folder, {"keepalive_stall_ms": stall, "ttft_sd": 0.0}) as running,
            Bench(folder / "b", Silent()) as bench,
        ):
            bench.add("A", running.endpoint)
            found[stall] = bench.stall_ms("A", 1)
    assert [flag.flag for flag in machine_notes("A", stall_ms=found[40.0], gpu_pct=None)] == ["keep-alive-stall"], found
    assert machine_notes("A", stall_ms=found[0.0], gpu_pct=None) == (), found


def test_a_gpu_that_others_use_is_said() -> None:
    assert [flag.flag for flag in machine_notes("A", stall_ms=None, gpu_pct=37)] == ["gpu-busy"]
    assert machine_notes("A", stall_ms=0.4, gpu_pct=3) == ()


class _Gpus:
    """GPU samples as NVML gives them, one GPU of ours and one of others."""

    def __init__(self, clocks: list[int], throttled: int = 0) -> None:
        self._clocks = clocks
        self._throttled = throttled
        self.count = 0

    def sample(self) -> tuple[Gpu, ...]:
        clock = self._clocks[min(self.count, len(self._clocks) - 1)]
        reason = ("sw power cap", "gpu idle") if self.count < self._throttled else ("gpu idle",)
        self.count += 1
        ours = Gpu(0, uuid="GPU-1", power_w=300.0, sm_clock_mhz=clock, utilization_pct=4, throttle=reason)
        return ours, Gpu(1, uuid="GPU-2", power_w=90.0, sm_clock_mhz=300, utilization_pct=99)

    def close(self) -> None:
        """Nothing is open."""


def test_gpus_are_watched_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from vq_console.checks import gpu_watch
    from vq_console.checks.gpu_watch import GpuWatch

    monkeypatch.setattr(gpu_watch, "_INTERVAL_S", 0.005)
    gpus = _Gpus([1200] * 10 + [1980] * 40 + [1700] * 60, throttled=60)
    watch = GpuWatch(("GPU-1",), gpus)  # type: ignore[arg-type]
    with watch:
        while gpus.count < 90:
            time.sleep(0.005)
    first, second = watch.clocks()
    assert first is not None
    assert second == 1700
    assert first > second
    assert watch.throttle() == ("sw power cap",)
    assert {watts for _, watts in watch.power()} == {300.0}
    assert watch.idle_utilization() == 4
    nothing = GpuWatch(())
    with nothing:
        pass
    assert nothing.clocks() == (None, None)
    assert nothing.power() == nothing.throttle() == ()
    assert nothing.idle_utilization() is None
