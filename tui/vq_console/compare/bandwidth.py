"""Memory bandwidth of the device of an arm: what NVML's bus width and clock give, or a copy that was timed.

Run by an engine's interpreter as a script it times that copy: `python bandwidth.py cpu|cuda INDEX` prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vq_console.compare.open import Arm

_BYTES = 256 * 2**20
_SECONDS = 1.5


def floors_of(
    arms: Sequence[Arm], latency: Mapping[str, Any], *, copy_test: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The floor beside the times of the arms, and flags that say why a copy that was asked for was not made."""
    from vq_console.compare.floor import arm_bytes, floor_rows

    sizes, rates, flags = {}, {}, []
    for arm in arms:
        gpus = tuple(arm.server.gpus) if arm.server else ()
        experts = any(layer.kind == "moe" for layer in arm.plan.layers) if arm.plan else False
        sizes[arm.side] = arm_bytes(arm.facts, asdict(arm.plan.fit) if arm.plan else {}, experts=experts)
        rates[arm.side] = nvml_bandwidth(gpus)
        if copy_test and arm.engine is not None and not arm.engine.simulated:
            rate, why = copied_bandwidth(arm.engine.python, arm.engine.device or "cpu", gpus[0] if gpus else 0)
            rates[arm.side] = rate or rates[arm.side]
            flags += [{"flag": "no-copy-test", "detail": f"{arm.label}: {why}"}] if why else []
    return floor_rows(latency, sizes, rates), flags


def nvml_bandwidth(indices: Sequence[int]) -> float | None:
    """The least peak bandwidth of these GPUs in GB/s; None where NVML does not say."""
    if not indices:
        return None
    from vq_console.hardware.probe import read_machine

    found = {gpu.index: gpu.memory_bandwidth_gbs for gpu in read_machine(processes=False).gpus}
    values = [found.get(index) for index in indices]
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


def copied_bandwidth(python: str, device: str, index: int = 0, *, timeout_s: float = 120.0) -> tuple[float | None, str]:
    """Bandwidth in GB/s (bytes read and written) that this engine's torch reaches, or None and why not."""
    try:
        done = subprocess.run(
            [python, __file__, device, str(index)], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"the copy took longer than {timeout_s:.0f} s"
    except OSError as error:
        return None, f"{python}: {error.strerror}"
    try:
        return float(json.loads(done.stdout.splitlines()[-1])["gb_s"]), ""
    except (ValueError, KeyError, IndexError):
        last = done.stderr.strip().splitlines()[-1:]
        return None, f"the engine's Python could not copy: {last[0] if last else 'no answer'}"


def best_rate(
    copy: Callable[[], None], moved: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The highest GB/s of repeated copies that move `moved` bytes each; the first one is not counted."""
    copy()
    best, end = 0.0, clock() + seconds
    while (began := clock()) < end or best == 0.0:
        copy()
        best = max(best, moved / max(clock() - began, 1e-9) / 1e9)
    return best


def _main() -> None:
    import torch  # type: ignore[import-not-found, unused-ignore]

    where = f"cuda:{int(sys.argv[2])}" if sys.argv[1] == "cuda" else "cpu"
    source = torch.ones(_BYTES, dtype=torch.uint8, device=where)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        if where != "cpu":
            torch.cuda.synchronize()

    print(json.dumps({"gb_s": best_rate(copy, 2 * _BYTES, _SECONDS)}))


if __name__ == "__main__":
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    _main()
