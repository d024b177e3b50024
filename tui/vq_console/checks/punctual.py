"""How punctual the load generator is: lag of its loop, its processor time, and its place before other processes.

Runs inside the generator's process. Measures the generator, never a server.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import sys
import time

_LAG_STEP_S = 0.005


class LagMeter:
    """How late the loop hears of an event, against a kernel timer that ticks 200 times a second.

    A timer file descriptor is woken like a socket, so the lag is what a chunk suffers too; `asyncio.sleep` would add
    up to a millisecond by the rounding of epoll's timeout.
    """

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._handle = -1
        self._began = 0.0
        self._ticks = 0

    def start(self) -> None:
        """Begin to tick; without timer descriptors nothing is sampled and the lag stays unknown."""
        try:
            self._handle = _timer(_LAG_STEP_S)
        except OSError:
            return
        self._began = time.perf_counter()
        asyncio.get_running_loop().add_reader(self._handle, self._tick)

    def _tick(self) -> None:
        now = time.perf_counter()
        self._ticks += int.from_bytes(os.read(self._handle, 8), sys.byteorder)
        self.samples.append(now - self._began - self._ticks * _LAG_STEP_S)

    def stop(self) -> None:
        """End."""
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    def summary(self) -> dict[str, float | None]:
        """p50, p99 and maximum in milliseconds."""
        data = sorted(self.samples)
        if not data:
            return {"p50_ms": None, "p99_ms": None, "max_ms": None}

        def at(q: float) -> float:
            return round(max(0.0, data[min(len(data) - 1, int(q * len(data)))]) * 1000, 3)

        return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


def _timer(step_s: float) -> int:
    """A non-blocking CLOCK_MONOTONIC timer descriptor with this period. OSError where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        create, settime = libc.timerfd_create, libc.timerfd_settime
    except AttributeError as error:
        raise OSError("no timerfd") from error
    handle = int(create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    if handle < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    step = (0, round(step_s * 1e9))
    times = (ctypes.c_long * 4)(*step, *step)
    if settime(handle, 0, ctypes.byref(times), None) != 0:
        os.close(handle)
        raise OSError(ctypes.get_errno(), "timerfd_settime")
    return handle


def ask_for_priority() -> str:
    """Run before other processes when a chunk arrives, where this user may ask for it (root, CAP_SYS_NICE).

    On two cores that an engine keeps busy the scheduler otherwise lets a woken process wait for a whole tick (4 ms).
    The kernel still keeps 5 % of each core for others, and a generator that uses much CPU voids its blocks.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return "real-time"
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        return "raised"
    except OSError:
        return "normal"


def cpu_s() -> float:
    """Processor time that this process has used, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
