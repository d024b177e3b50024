"""The narrow interface between whatever answers for GPUs and the rest: named readings of plain JSON values.

NVML and nvidia-smi implement it, and so does a recorded snapshot, which is how machines that are not here are
tested. Decides nothing and imports no driver library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vq_console.core.errors import MissingError

STATIC_FIELDS = (
    "name",
    "uuid",
    "capability",
    "power_limit",
    "sm_clock_max",
    "memory_clock_max",
    "memory_bus",
    "cores",
    "nvlinks",
    "mig",
    "ecc",
    "display",
)
DYNAMIC_FIELDS = (
    "memory",
    "utilization",
    "power",
    "temperature",
    "sm_clock",
    "memory_clock",
    "throttle",
    "pcie",
)
PROCESSES = "processes"
"""The three groups of readings, and their shapes:

name, uuid: str · capability: [major, minor] · memory: [total, used(, reserved)] in bytes · utilization: % · power,
power_limit: mW · temperature: °C · clocks: MHz · memory_bus: bits · cores: CUDA cores · throttle: NVML's bit mask ·
pcie: [generation, width, highest generation, highest width] · nvlinks: active links · mig: {enabled, devices: [{uuid,
name, memory}]} · ecc: {enabled, uncorrected} · display: bool · processes: [[pid, bytes or null, kind], …].
"""

LOST = "the GPU is lost (it fell off the bus)"


class UnreadableError(Exception):
    """One reading has no value; the text is the reason a person sees. `lost` says that no other will have one."""

    def __init__(self, reason: str, *, lost: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lost = lost


class NoGpuSourceError(MissingError):
    """Nothing here answers for GPUs."""


class GpuSource(Protocol):
    """What answers for the GPUs of this machine, numbered as nvidia-smi numbers them (PCI order)."""

    label: str
    """`nvml` or `nvidia-smi`."""

    def system(self, field: str) -> str:
        """`driver` or `cuda` (the highest version that the driver supports). Raises UnreadableError."""

    def count(self) -> int:
        """How many GPUs there are. Raises UnreadableError."""

    def read(self, index: int, field: str) -> Any:
        """One reading as a plain value. Raises UnreadableError."""

    def close(self) -> None:
        """Let go of the driver."""


class RecordedSource:
    """Answers from a recorded snapshot: `{label, driver, cuda, gpus: [{field: value}]}`.

    A value `{"error": reason}` is a reading that failed; a field that is not there was not supported.
    """

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self.label = str(snapshot.get("label") or "nvml")
        self._snapshot = snapshot

    def system(self, field: str) -> str:
        return str(_value(self._snapshot.get(field)))

    def count(self) -> int:
        return len(self._snapshot.get("gpus") or ())

    def read(self, index: int, field: str) -> Any:
        return _value(self._snapshot["gpus"][index].get(field))

    def close(self) -> None:
        return None


def _value(value: Any) -> Any:
    if isinstance(value, Mapping) and "error" in value:
        reason = str(value["error"])
        raise UnreadableError(reason, lost=reason == LOST)
    if value is None:
        raise UnreadableError("not supported by this GPU or driver")
    return value
