"""Which layers get which scheme: the checkpoint's groups, `targets` and what `--quantization-config` puts on top.

Pure. Follows vLLM 0.32 `layers/quantization/online/base.py` (`_find_matching_targets`), `base_config.py`
(`resolve_quant_method`) and compressed-tensors' `find_matched_target`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vq_console.preflight.ignore import hits, reach
from vq_console.preflight.method import Resolution, Target
from vq_console.preflight.scheme import NONE, Scheme
from vq_console.preflight.shapes import Anatomy, Linear
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import as_list

Shares = tuple[tuple[Scheme, int], ...]
"""Schemes of one kind of layer, each with how many of its layers (experts counted one by one) have it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Shares by the name of the layer, and what vLLM refuses or ignores of `targets`.

    `torn`: fused layers of which some parts match only. `twice`: layers that two targets, or a target and `ignore`,
    name. `undefined`: (pattern, kind of layer) where the shorthand has nothing for that kind. `requantized`: names of
    experts that the checkpoint has quantized already. `unmatched`: patterns that reach nothing.
    """

    shares: Mapping[str, Shares]
    torn: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    undefined: tuple[tuple[str, str], ...] = ()
    requantized: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


@dataclass(slots=True)
class _Faults:
    torn: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    undefined: list[tuple[str, str]] = field(default_factory=list)
    requantized: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


def assign(situation: Situation, resolution: Resolution, shape: Anatomy) -> Assignment:
    """The schemes of every kind of layer of a model."""
    ignore = ignored_patterns(situation, resolution)
    on_top = as_list((situation.quant_config or {}).get("ignore"))
    faults = _Faults()
    shares: dict[str, Shares] = {}
    for layer in shape.linears:
        base = _base(layer, resolution, ignore)
        if resolution.targets:
            base = _with_targets(layer, resolution, base, on_top, faults)
        shares[layer.name] = _counted(base, layer)
    unmatched = tuple(t.pattern for t in resolution.targets if t.pattern not in faults.used and t.pattern != EVERY)
    return Assignment(
        shares,
        tuple(faults.torn),
        tuple(dict.fromkeys(faults.twice)),
        tuple(dict.fromkeys(faults.undefined)),
        tuple(faults.requantized),
        unmatched,
    )


EVERY = "re:.*"
"""The pattern of a scheme that is meant for all layers of its kind."""


def ignored_patterns(situation: Situation, resolution: Resolution) -> list[str]:
    """The ignore list that counts for the method itself: online that of the flag, else that of config.json."""
    if resolution.online:
        return as_list((situation.quant_config or {}).get("ignore"))
    return as_list(
        situation.fact("ignore") or situation.fact("modules_to_not_convert") or situation.fact("exclude_modules")
    )


def skipped(situation: Situation, resolution: Resolution, shape: Anatomy) -> frozenset[str]:
    """Names of layers that the ignore list leaves in 16 bit altogether."""
    return reach(ignored_patterns(situation, resolution), shape.linears).skipped


def _base(layer: Linear, resolution: Resolution, ignore: list[str]) -> dict[int, Scheme]:
    """Scheme by number of the decoder layer, before `targets`."""
    plain = (resolution.moe if layer.kind == "moe" else resolution.linear) or NONE
    if resolution.online and resolution.targets:
        plain = NONE
    result = dict.fromkeys(range(layer.layers), plain)
    if resolution.groups:
        result = _by_groups(layer, resolution, result)
    if ignore:
        for number in _first(hits(ignore, layer).whole, result):
            result[number] = NONE
    return result


def _by_groups(layer: Linear, resolution: Resolution, numbers: Iterable[int]) -> dict[int, Scheme]:
    """Groups of a checkpoint: one that names the layer goes before one that names its class."""
    result: dict[int, Scheme] = {}
    named = [(hits(group.names, layer), group.scheme) for group in resolution.groups if group.names]
    general = next((group.scheme for group in resolution.groups if group.every), NONE)
    for number in numbers:
        found = (scheme for reached, scheme in named if number in reached.whole)
        result[number] = next(found, general)
    return result


def _with_targets(
    layer: Linear, resolution: Resolution, base: dict[int, Scheme], ignore: list[str], faults: _Faults
) -> dict[int, Scheme]:
    """Targets on top of what was there: nothing for an online launch, the checkpoint's own schemes otherwise."""
    experts = layer.kind == "moe"
    left = hits(ignore, layer).whole if ignore else frozenset()
    result = dict(base)
    taken: dict[int, str] = {}
    by_name: dict[str, list[Target]] = {}
    for target in resolution.targets:
        by_name.setdefault(target.shorthand, []).append(target)
    _overlaps(layer, resolution.targets, faults)
    for targets in by_name.values():
        reached = hits([target.pattern for target in targets], layer, parts=not experts)
        faults.used |= reached.used
        if reached.torn:
            faults.torn.append(layer.name)
        scheme = targets[0].moe if experts else targets[0].linear
        for number in _first(reached.whole, result):
            if targets[0].pattern == EVERY and (number in left or scheme is None):
                continue
            if number in left or number in taken:
                faults.twice.append(layer.name)
                continue
            taken[number] = targets[0].shorthand
            if scheme is None or not scheme.quantized:
                faults.undefined.append((targets[0].pattern, "experts" if experts else "linear layers"))
                continue
            if experts and base[number].quantized:
                faults.requantized.append(layer.name)
                continue
            result[number] = scheme
    return result


def _overlaps(layer: Linear, targets: tuple[Target, ...], faults: _Faults) -> None:
    """Two patterns that name the same layer, even for the same shorthand: vLLM takes at most one."""
    seen: dict[int, str] = {}
    for target in targets:
        if target.pattern == EVERY:
            continue
        for number in hits([target.pattern], layer, parts=False).whole:
            if seen.setdefault(number, target.pattern) != target.pattern:
                faults.twice.append(layer.name)
                return


def _first(numbers: Iterable[int], known: Mapping[int, Scheme]) -> list[int]:
    """As many of the known numbers as were reached: names that stand in some layers only are numbered otherwise."""
    wanted = set(numbers)
    inside = sorted(wanted & set(known))
    free = [number for number in known if number not in wanted]
    return inside + free[: len(wanted - set(known))]


def _counted(schemes: Mapping[int, Scheme], layer: Linear) -> Shares:
    found: dict[Scheme, int] = {}
    for scheme in schemes.values():
        found[scheme] = found.get(scheme, 0) + layer.per_layer
    return tuple(found.items())
