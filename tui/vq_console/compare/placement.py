"""Which design a comparison takes and how co-resident arms share the memory of one device. Only decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Design = Literal["swapped-gpus", "separate-gpus", "co-resident", "one-at-a-time"]

DEFAULT_SHARE = 0.92
"""vLLM's default of --gpu-memory-utilization (0.20 to 0.33)."""
HEADROOM = 0.03
"""Part of a GPU that stays free beside two engines: CUDA contexts and allocator slack."""
MIN_KV_SHARE = 0.02
"""An arm needs at least this part of the GPU beyond its weights to hold any useful KV cache."""


@dataclass(frozen=True, slots=True)
class ArmDemand:
    """What an arm needs of its device. Sizes in GiB per GPU; None where unknown."""

    label: str
    gpus: tuple[int, ...]
    share: float | None
    """`gpu_memory_utilization` as the profile asks, None for the default."""
    weights_gib: float | None
    load_peak_gib: float | None = None
    running: bool = False
    gpu_count: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The design, why it was taken, the GPUs of each arm, and the arguments that replace the profile's for this run."""

    design: Design
    why: str
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    same_kind: bool = True
    """False when the arms sit on GPUs of different kinds: no verdict on formats then."""


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """One visible GPU: what it is and what is free on it."""

    index: int
    name: str
    total_gib: float
    free_gib: float
    power_limit_w: float | None = None


def plan_placement(
    a: ArmDemand, b: ArmDemand, gpus: Sequence[GpuRoom], *, device: str | None, third: ArmDemand | None = None
) -> Placement:
    """Choose separate GPUs of one kind if there are enough, else one GPU with both resident, else one at a time.

    On a CPU both arms are resident and share the cores; they are never loaded at the same moment. `third` is the
    baseline of the quality check, which is resident too and whose speed nobody measures.
    """
    if device == "cpu" or not gpus:
        return Placement(
            "co-resident",
            "one CPU: both servers stay resident, only one is loaded at a time",
            {a.label: (), b.label: ()},
        )
    if a.running and b.running:
        shared = bool(set(a.gpus) & set(b.gpus))
        kinds = {(g.name, g.power_limit_w) for g in gpus if g.index in {*a.gpus, *b.gpus}}
        both = Placement(
            "co-resident" if shared else "separate-gpus",
            "both servers run already" + (" on the same GPU" if shared else " on different GPUs"),
            {a.label: a.gpus, b.label: b.gpus},
            same_kind=len(kinds) <= 1,
        )
        return _beside(both, third, gpus, taken=())
    pair = _separate(a, b, gpus)
    if pair is not None:
        apart = Placement(
            "swapped-gpus" if len(pair[0]) == len(pair[1]) else "separate-gpus",
            "GPUs of one kind with room: one server on each"
            + (", and half-way they change places" if len(pair[0]) == len(pair[1]) else ""),
            {a.label: pair[0], b.label: pair[1]},
        )
        if third is None or third.running or len(gpus) >= a.gpu_count + b.gpu_count + third.gpu_count:
            return _beside(apart, third, gpus, taken=(*pair[0], *pair[1]))
    home = (a.gpus if a.running else b.gpus if b.running else ()) or tuple(
        g.index for g in sorted(gpus, key=lambda g: -g.free_gib)[: max(a.gpu_count, b.gpu_count)]
    )
    room = min((g for g in gpus if g.index in home), key=lambda g: g.free_gib)
    free_share = room.free_gib / room.total_gib - HEADROOM
    waiting = [arm for arm in (a, b, third) if arm is not None and not arm.running]
    shares = _shares(waiting, free_share, room.total_gib)
    if shares is None:
        return Placement(
            "one-at-a-time",
            f"both do not fit on GPU {room.index} together ({room.free_gib:.1f} GiB free): A, then B, then A again",
            {a.label: home, b.label: home},
        )
    overrides = {
        label: {"gpu_memory_utilization": share}
        for label, share in shares.items()
        if abs(share - (next(x.share for x in waiting if x.label == label) or DEFAULT_SHARE)) > 1e-9
    }
    return Placement(
        "co-resident",
        f"one GPU: {'both' if third is None else 'all three'} servers stay resident on GPU {room.index}, "
        "only one is loaded at a time; KV cache reduced",
        {arm.label: home for arm in (a, b, third) if arm is not None},
        overrides,
    )


def _beside(made: Placement, third: ArmDemand | None, gpus: Sequence[GpuRoom], *, taken: tuple[int, ...]) -> Placement:
    """The placement with a GPU for the third arm: one that no arm takes, with the most room; its share fits there."""
    if third is None or third.running:
        return made
    free = sorted((g for g in gpus if g.index not in taken), key=lambda g: -g.free_gib)[: third.gpu_count]
    if not free:
        return made
    room = min(g.free_gib / g.total_gib for g in free) - HEADROOM
    asked = third.share or DEFAULT_SHARE
    overrides = dict(made.overrides)
    if asked > room > 0:
        overrides[third.label] = {"gpu_memory_utilization": _floor(room)}
    homes = {**made.gpus, third.label: tuple(g.index for g in free)}
    return replace(made, gpus=homes, overrides=overrides)


def _separate(a: ArmDemand, b: ArmDemand, gpus: Sequence[GpuRoom]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if a.running or b.running:
        return None
    kinds: dict[tuple[str, float | None], list[GpuRoom]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.name, gpu.power_limit_w), []).append(gpu)
    for group in kinds.values():
        free = [g for g in group if g.free_gib / g.total_gib >= max(a.share or DEFAULT_SHARE, b.share or DEFAULT_SHARE)]
        if len(free) >= a.gpu_count + b.gpu_count:
            indices = [g.index for g in free]
            return tuple(indices[: a.gpu_count]), tuple(indices[a.gpu_count : a.gpu_count + b.gpu_count])
    return None


def _shares(arms: Sequence[ArmDemand], free_share: float, total_gib: float) -> dict[str, float] | None:
    """Shares of the GPU for arms that are still to start, or None when they do not fit beside each other.

    The profiles' own shares are kept when they fit; otherwise both get the same KV room beyond their weights.
    """
    asked = {arm.label: arm.share or DEFAULT_SHARE for arm in arms}
    if sum(asked.values()) <= free_share:
        return asked
    if any(arm.weights_gib is None for arm in arms):
        even = _floor(free_share / len(arms))
        return {arm.label: even for arm in arms} if even >= 0.1 else None
    need = {arm.label: max(arm.weights_gib or 0.0, arm.load_peak_gib or 0.0) / total_gib for arm in arms}
    spare = (free_share - sum(need.values())) / len(arms)
    if spare < MIN_KV_SHARE:
        return None
    return {label: _floor(min(asked[label], share + spare)) for label, share in need.items()}


def _floor(share: float) -> float:
    return int(share * 1000) / 1000
