"""From raw readings to `Gpu` values: units, words for throttling, who is visible to CUDA.

Pure apart from what it asks its source; a reading that fails becomes None with its reason, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vq_console.core.text import strip_control
from vq_console.hardware.model import Gpu, GpuProcess, MigDevice
from vq_console.hardware.raw import DYNAMIC_FIELDS, LOST, PROCESSES, STATIC_FIELDS, GpuSource, UnreadableError

MIB = 1024 * 1024

ProcessNames = Callable[[int], tuple[str | None, str | None, str | None]]
"""Of a pid: user, command, and why one of them is unknown."""

_THROTTLE = (
    (0x0000000000000004, "power cap"),
    (0x0000000000000008, "hardware slowdown"),
    (0x0000000000000010, "sync boost"),
    (0x0000000000000020, "software thermal limit"),
    (0x0000000000000040, "hardware thermal limit"),
    (0x0000000000000080, "power brake"),
    (0x0000000000000002, "clocks set by the user"),
    (0x0000000000000100, "display clocks"),
    (0x0000000000000001, "idle"),
)
"""NVML's nvmlClocksEventReason bits; `idle` is a state rather than a trouble and comes last."""


def read_static(source: GpuSource, index: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What does not change while the machine runs: values and reasons by field of `raw.py`."""
    return _read(source, index, STATIC_FIELDS)


def read_dynamic(source: GpuSource, index: int, *, processes: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """What changes from second to second: values and reasons by field of `raw.py`."""
    return _read(source, index, (*DYNAMIC_FIELDS, PROCESSES) if processes else DYNAMIC_FIELDS)


def _read(source: GpuSource, index: int, fields: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    lost = ""
    for field in fields:
        if lost:
            reasons[field] = lost
            continue
        try:
            values[field] = source.read(index, field)
        except UnreadableError as error:
            reasons[field] = error.reason
            lost = error.reason if error.lost else ""
    return values, reasons


def build_gpu(index: int, values: Mapping[str, Any], reasons: Mapping[str, str], names: ProcessNames) -> Gpu:
    """One GPU from its readings. Keys of `missing` are the names of `Gpu`'s own fields."""
    missing = {ours: reasons[raw] for raw, own in _OWN.items() if raw in reasons for ours in own}
    total, used, reserved = (*(values.get("memory") or ()), None, None, None)[:3]
    capability = values.get("capability")
    processes, unknown = _processes(values.get(PROCESSES) or (), names)
    if unknown:
        missing.setdefault("processes", unknown)
    mig, mig_devices = _mig(values.get("mig"))
    return Gpu(
        index=index,
        name=_clean(values.get("name")),
        uuid=_clean(values.get("uuid")),
        sm=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_total_mib=_mib(total),
        memory_used_mib=_mib(used),
        memory_reserved_mib=_mib(reserved),
        utilization_pct=values.get("utilization"),
        power_w=_watts(values.get("power")),
        power_limit_w=_watts(values.get("power_limit")),
        temperature_c=values.get("temperature"),
        sm_clock_mhz=values.get("sm_clock"),
        sm_clock_max_mhz=values.get("sm_clock_max"),
        memory_clock_mhz=values.get("memory_clock"),
        memory_clock_max_mhz=values.get("memory_clock_max"),
        memory_bus_bits=values.get("memory_bus"),
        throttle=throttle_words(values.get("throttle")),
        pcie=_pcie(values.get("pcie")),
        nvlinks=values.get("nvlinks"),
        mig=mig,
        mig_devices=mig_devices,
        ecc=_ecc(values.get("ecc")),
        display=values.get("display"),
        processes=processes,
        missing=missing,
    )


_OWN = {
    "name": ("name",),
    "uuid": ("uuid",),
    "capability": ("sm",),
    "memory": ("memory_total_mib", "memory_used_mib"),
    "utilization": ("utilization_pct",),
    "power": ("power_w",),
    "power_limit": ("power_limit_w",),
    "temperature": ("temperature_c",),
    "sm_clock": ("sm_clock_mhz",),
    "sm_clock_max": ("sm_clock_max_mhz",),
    "memory_clock": ("memory_clock_mhz",),
    "memory_clock_max": ("memory_clock_max_mhz",),
    "memory_bus": ("memory_bus_bits",),
    "throttle": ("throttle",),
    "pcie": ("pcie",),
    "nvlinks": ("nvlinks",),
    "mig": ("mig",),
    "ecc": ("ecc",),
    "display": ("display",),
    PROCESSES: ("processes",),
}


def throttle_words(mask: int | None) -> tuple[str, ...]:
    """What holds the clocks down now, in words; empty when nothing does or when it is unknown."""
    if not mask:
        return ()
    return tuple(word for bit, word in _THROTTLE if mask & bit)


def _clean(value: Any) -> str | None:
    return None if value is None else strip_control(str(value))


def _mib(value: int | None) -> int | None:
    return None if value is None else round(value / MIB)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _pcie(value: Sequence[int] | None) -> str | None:
    if value is None:
        return None
    generation, width, top_generation, top_width = value
    now = f"gen {generation} x{width}"
    return (
        now if (generation, width) == (top_generation, top_width) else f"{now} (of gen {top_generation} x{top_width})"
    )


def _ecc(value: Mapping[str, Any] | None) -> str | None:
    if value is None:
        return None
    if not value.get("enabled"):
        return "off"
    uncorrected = value.get("uncorrected")
    return "on" if not uncorrected else f"on, {uncorrected} uncorrected since the driver started"


def _mig(value: Mapping[str, Any] | None) -> tuple[str | None, tuple[MigDevice, ...]]:
    if value is None:
        return None, ()
    if not value.get("enabled"):
        return "off", ()
    devices = []
    for device in value.get("devices") or ():
        profile = re.search(r"\d+g\.\d+gb\S*", str(device.get("name") or ""))
        total, used = device.get("memory") or (None, None)
        devices.append(MigDevice(_clean(device.get("uuid")), profile and profile.group(), _mib(total), _mib(used)))
    if not devices:
        return "on, no instances", ()
    counts: dict[str, int] = {}
    for part in devices:
        counts[part.profile or "instance"] = counts.get(part.profile or "instance", 0) + 1
    return "on, " + ", ".join(f"{count}x {profile}" for profile, count in counts.items()), tuple(devices)


def _processes(rows: Sequence[Sequence[Any]], names: ProcessNames) -> tuple[tuple[GpuProcess, ...], str]:
    merged: dict[int, tuple[int | None, str]] = {}
    for pid, used, kind in rows:
        before = merged.get(pid)
        if before is None:
            merged[pid] = (used, kind)
        else:
            # graphics and compute report the same process twice, with the same memory
            known = [value for value in (before[0], used) if value is not None]
            merged[pid] = (max(known, default=None), kind if before[1] == kind else "both")
    processes = []
    reason = ""
    for pid, (used, kind) in sorted(merged.items(), key=lambda item: -(item[1][0] or 0)):
        user, command, unknown = names(pid)
        reason = reason or unknown or ""
        processes.append(GpuProcess(pid, _mib(used), user, command, kind))
    return tuple(processes), reason


def mark_visible(gpus: Sequence[Gpu], environment: Mapping[str, str], cores: Mapping[int, int]) -> tuple[Gpu, ...]:
    """Set `visible` as CUDA would: CUDA_VISIBLE_DEVICES by number, GPU or MIG UUID (or a beginning of one), up to the
    first entry that names nothing.

    Numbers follow CUDA_DEVICE_ORDER: PCI_BUS_ID is nvidia-smi's order; the default puts the fastest first, which is
    the same for equal GPUs and a guess (by cores times clock) for mixed ones; `missing["visible"]` then says so.
    Source: CUDA C++ Programming Guide, environment variables.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(gpus)
    order = list(range(len(gpus)))
    guessed = False
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        order.sort(key=lambda at: (-_speed(gpus[at], cores.get(gpus[at].index)), at))
        guessed = True
    seen: set[int] = set()
    by_number = False
    for entry in (part.strip() for part in listed.split(",")):
        if re.fullmatch(r"\d+", entry):
            if int(entry) >= len(order):
                break
            by_number = True
            seen.add(order[int(entry)])
            continue
        found = [at for at, gpu in enumerate(gpus) if entry and _named(gpu, entry)]
        if len(found) != 1:
            break
        seen.add(found[0])
    marked = []
    for at, gpu in enumerate(gpus):
        reasons = dict(gpu.missing)
        if guessed and by_number:
            reasons["visible"] = (
                "different GPUs and CUDA_DEVICE_ORDER is not PCI_BUS_ID: which number is which is CUDA's guess of speed"
            )
        marked.append(replace(gpu, visible=at in seen, missing=reasons))
    return tuple(marked)


def _named(gpu: Gpu, entry: str) -> bool:
    if entry.startswith("MIG-"):
        return any((part.uuid or "").startswith(entry) for part in gpu.mig_devices)
    return entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)


def _speed(gpu: Gpu, cores: int | None) -> float:
    return float((cores or 0) * (gpu.sm_clock_max_mhz or 0)) or float(gpu.memory_bandwidth_gbs or 0)


def lost_gpu(known: Gpu, reasons: Mapping[str, str]) -> bool:
    """Whether this GPU answered before and is gone now."""
    return known.uuid is not None and LOST in reasons.values()
