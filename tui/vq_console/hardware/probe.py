"""Reading the machine: once for `detect` and preflight, again and again at low cost for the screen and the keeper."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vq_console.core.text import redact, strip_control
from vq_console.hardware.gpus import MIB, build_gpu, lost_gpu, mark_visible, read_dynamic, read_static
from vq_console.hardware.host import read_host, refresh_host
from vq_console.hardware.model import Gpu, Host, Machine
from vq_console.hardware.raw import LOST, GpuSource, NoGpuSourceError, UnreadableError

_SMI_INTERVAL_S = 2.0
_LOOK_AGAIN_S = 30.0
_COMMAND_CHARACTERS = 400
_SHARED_MEMORY = re.compile(r"\bGB10\b|\bThor\b|\bOrin\b")
"""GPUs without memory of their own, of which NVML says none; CUDA gives them the machine's."""


def open_source() -> GpuSource:
    """NVML, or nvidia-smi where NVML cannot be opened. Raises NoGpuSourceError with both reasons."""
    from vq_console.hardware.nvml import NvmlSource

    try:
        return NvmlSource()
    except NoGpuSourceError as first:
        from vq_console.hardware.smi import SmiSource

        try:
            return SmiSource()
        except NoGpuSourceError as second:
            raise NoGpuSourceError(f"{first.message}; {second.message}") from second


def read_machine(*, processes: bool = True) -> Machine:
    """The GPUs and the host now. Never raises: without a driver `gpus` is empty and `gpu_reason` says why."""
    host = read_host()
    try:
        source = open_source()
    except NoGpuSourceError as error:
        return Machine(host=host, gpu_reason=error.message)
    try:
        return machine_from(source, host, os.environ, processes=processes)
    finally:
        source.close()


def machine_from(
    source: GpuSource,
    host: Host,
    environment: Mapping[str, str],
    *,
    processes: bool = True,
    names: Callable[[int], tuple[str | None, str | None, str | None]] | None = None,
) -> Machine:
    """The machine as `source` describes it; the part of `read_machine` that recorded snapshots replay."""
    poller = GpuPoller(source, environment=environment, processes=processes, names=names)
    gpus = poller.sample()
    return Machine(
        host=host,
        gpus=gpus,
        driver=_system(source, "driver"),
        cuda=_system(source, "cuda"),
        gpu_source=source.label,
        gpu_reason=None if gpus else poller.reason or "the driver answers and reports no GPU",
    )


class GpuPoller:
    """Samples the GPUs again and again with the driver kept open; what cannot change is read once.

    Costs about a millisecond per GPU with NVML. With nvidia-smi the values are at most 2 s old. Without a driver
    `sample` gives nothing and `reason` says why. A GPU that falls off the bus keeps its name and loses its numbers.
    """

    def __init__(
        self,
        source: GpuSource | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        processes: bool = True,
        names: Callable[[int], tuple[str | None, str | None, str | None]] | None = None,
    ) -> None:
        self.reason: str | None = None
        self._source = source
        self._environment = os.environ if environment is None else environment
        self._processes = processes
        self._names = names or ProcessNamer()
        self._static: dict[int, tuple[dict[str, Any], dict[str, str]]] = {}
        self._known: dict[int, Gpu] = {}
        self._refreshed = time.monotonic()
        if source is None:
            try:
                self._source = open_source()
            except NoGpuSourceError as error:
                self.reason = error.message

    @property
    def source(self) -> GpuSource | None:
        """What is asked; None without a driver."""
        return self._source

    def sample(self) -> tuple[Gpu, ...]:
        """All GPUs now, in nvidia-smi's order. Never raises."""
        source = self._source
        if source is None:
            return ()
        try:
            self._refresh(source)
            count = source.count()
        except (UnreadableError, NoGpuSourceError) as error:
            self.reason = str(error)
            return tuple(_without_numbers(gpu, str(error)) for gpu in self._known.values())
        gpus = tuple(self._one(source, index) for index in range(count))
        gone = tuple(
            _without_numbers(gpu, "the driver no longer lists this GPU")
            for index, gpu in self._known.items()
            if index >= count
        )
        cores = {index: values["cores"] for index, (values, _) in self._static.items() if "cores" in values}
        return mark_visible((*gpus, *gone), self._environment, cores)

    def close(self) -> None:
        """Let go of the driver; `sample` then gives nothing."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _one(self, source: GpuSource, index: int) -> Gpu:
        if index not in self._static:
            static = read_static(source, index)
            if "uuid" in static[0]:
                self._static[index] = static
        else:
            static = self._static[index]
        dynamic = read_dynamic(source, index, processes=self._processes)
        gpu = build_gpu(index, {**static[0], **dynamic[0]}, {**static[1], **dynamic[1]}, self._names)
        if gpu.memory_total_mib is None and LOST not in dynamic[1].values() and _SHARED_MEMORY.search(gpu.name or ""):
            gpu = _with_the_machines_memory(gpu)
        known = self._known.get(index)
        if known is not None and lost_gpu(known, dynamic[1]):
            return _without_numbers(known, next(iter(dynamic[1].values())))
        if gpu.uuid is not None:
            self._known[index] = gpu
        return gpu

    def _refresh(self, source: GpuSource) -> None:
        refresh = getattr(source, "refresh", None)
        if refresh is not None and time.monotonic() - self._refreshed >= _SMI_INTERVAL_S:
            refresh()
            self._refreshed = time.monotonic()


class MachineWatch:
    """The whole machine again and again, for the screen: the driver stays open, what cannot change is read once.

    Where there is no driver, one is looked for again every 30 s.
    """

    def __init__(self) -> None:
        self._poller: GpuPoller | None = None
        self._looked = 0.0
        self._host: Host | None = None

    def read(self) -> Machine:
        """The machine now. Never raises; the first call costs as much as `read_machine`."""
        self._host = read_host() if self._host is None else refresh_host(self._host)
        poller = self._poller
        if poller is None or (poller.source is None and time.monotonic() - self._looked >= _LOOK_AGAIN_S):
            self._looked = time.monotonic()
            poller = self._poller = GpuPoller()
        gpus = poller.sample()
        if poller.source is None:
            return Machine(host=self._host, gpu_reason=poller.reason)
        return Machine(
            host=self._host,
            gpus=gpus,
            driver=_system(poller.source, "driver"),
            cuda=_system(poller.source, "cuda"),
            gpu_source=poller.source.label,
            gpu_reason=None if gpus else poller.reason or "the driver answers and reports no GPU",
        )

    def close(self) -> None:
        """Let go of the driver."""
        if self._poller is not None:
            self._poller.close()
            self._poller = None


_IDENTITY = frozenset({"index", "name", "uuid", "sm", "memory_total_mib", "visible", "missing"})


def _with_the_machines_memory(gpu: Gpu) -> Gpu:
    import psutil

    memory = psutil.virtual_memory()
    total = memory.total // MIB
    missing = {name: reason for name, reason in gpu.missing.items() if not name.startswith("memory_")}
    missing["memory"] = "this GPU shares the machine's memory: the figures are those of the machine"
    return replace(gpu, memory_total_mib=total, memory_used_mib=total - memory.available // MIB, missing=missing)


def _without_numbers(gpu: Gpu, reason: str) -> Gpu:
    """The same GPU with everything that can change unknown, because of `reason`."""
    empty = Gpu(gpu.index)
    fields = [name for name in Gpu.__slots__ if name not in _IDENTITY]
    values: dict[str, Any] = {name: getattr(empty, name) for name in fields}
    return replace(gpu, **values, missing=dict.fromkeys(fields, reason))


class ProcessNamer:
    """Who a pid is, remembered by pid and start time so that a poll costs one /proc read per process."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], tuple[str | None, str | None, str | None]] = {}

    def __call__(self, pid: int) -> tuple[str | None, str | None, str | None]:
        import psutil

        try:
            process = psutil.Process(pid)
            key = (pid, process.create_time())
        except psutil.NoSuchProcess:
            return None, None, f"pid {pid} is not visible here (another container, or hidden by /proc's hidepid)"
        except (psutil.Error, OSError):
            return None, None, f"pid {pid} may not be read by this user"
        if key not in self._seen:
            if len(self._seen) > 512:
                self._seen.clear()
            self._seen[key] = _describe(process)
        return self._seen[key]


def _describe(process: Any) -> tuple[str | None, str | None, str | None]:
    import psutil

    user = command = reason = None
    try:
        user = process.username()
    except (psutil.Error, OSError, KeyError):
        reason = f"the owner of pid {process.pid} may not be read by this user"
    try:
        command = " ".join(process.cmdline()) or process.name()
    except (psutil.Error, OSError):
        reason = f"the command of pid {process.pid} may not be read by this user"
    if command is not None:
        command = redact(strip_control(command).replace("\n", " "))[:_COMMAND_CHARACTERS]
    return user, command, reason


def _system(source: GpuSource, field: str) -> str | None:
    try:
        return source.system(field)
    except UnreadableError:
        return None
