"""Clock, throttling and power of the GPUs under a block, sampled in a thread beside the generator's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vq_console.hardware.model import Gpu
    from vq_console.hardware.probe import GpuPoller

_INTERVAL_S = 0.2


class GpuWatch:
    """Watches some GPUs by UUID; without any, or without a driver, everything it says is None."""

    def __init__(self, uuids: Sequence[str], poller: GpuPoller | None = None) -> None:
        self._uuids = frozenset(uuids)
        self._poller = poller
        if self._uuids and poller is None:
            from vq_console.hardware.probe import GpuPoller

            self._poller = GpuPoller(processes=False)
        self._samples: list[tuple[float, tuple[Gpu, ...]]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _sample(self) -> None:
        if self._poller is not None:
            gpus = tuple(gpu for gpu in self._poller.sample() if gpu.uuid in self._uuids)
            self._samples.append((time.monotonic(), gpus))

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._sample()

    def __enter__(self) -> GpuWatch:
        self._samples.clear()
        self._stop.clear()
        if self._poller is not None:
            self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)
            self._thread = None

    def clocks(self) -> tuple[int | None, int | None]:
        """Median SM clock of the first and the second half of the block, in MHz, over loaded GPUs."""
        values = [gpu.sm_clock_mhz for _, gpus in self._samples for gpu in gpus if gpu.sm_clock_mhz is not None]
        if len(values) < 8:
            return None, None
        # The first samples still show the clock of an idle GPU.
        values = values[len(values) // 4 :]
        half = len(values) // 2
        return sorted(values[:half])[half // 2], sorted(values[half:])[(len(values) - half) // 2]

    def throttle(self) -> tuple[str, ...]:
        """Reasons seen in at least a fifth of the samples; idling is none."""
        counts: dict[str, int] = {}
        for _, gpus in self._samples:
            for reason in {reason for gpu in gpus for reason in gpu.throttle}:
                counts[reason] = counts.get(reason, 0) + 1
        most = max(1, len(self._samples) // 5)
        return tuple(
            sorted(reason for reason, count in counts.items() if count >= most and "idle" not in reason.lower())
        )

    def idle_utilization(self, samples: int = 3) -> int | None:
        """Median utilisation in percent while nothing of ours runs; None where unknown."""
        values = []
        for _ in range(samples if self._poller is not None else 0):
            self._sample()
            values += [gpu.utilization_pct for gpu in self._samples[-1][1] if gpu.utilization_pct is not None]
            time.sleep(_INTERVAL_S)
        return sorted(values)[len(values) // 2] if values else None

    def power(self) -> tuple[tuple[int, float], ...]:
        """(monotonic nanoseconds, watts over all watched GPUs) of each sample that has a power for every GPU."""
        return tuple(
            (round(at * 1e9), round(sum(gpu.power_w or 0.0 for gpu in gpus), 2))
            for at, gpus in self._samples
            if gpus and all(gpu.power_w is not None for gpu in gpus)
        )

    def close(self) -> None:
        """Close the driver."""
        if self._poller is not None:
            self._poller.close()
