"""Lists of layers to leave alone: what `ignore` of a checkpoint and of `--quantization-config` reaches.

Pure. Patterns are exact names, `re:` regular expressions, and (online, vLLM 0.32 and later) fnmatch patterns; a
checkpoint's entry without wildcard also reaches what lies below it. An entry that names one layer by its number
reaches that one only.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from vq_console.preflight.shapes import Linear

_PREFIX = re.compile(r"^(?:(?:\*\.)|(?:[A-Za-z_]*model\.)|(?:layers\.(?P<number>\d+)\.))+")
_SPECIAL = ("lm_head", "embed_tokens")


@dataclass(frozen=True, slots=True)
class Reach:
    """What a list of patterns reaches.

    `skipped`: names all of whose layers are left alone. `partly`: name → how many of its layers are. `unmatched`:
    patterns that match nothing. `torn`: fused layers of which only some parts are named (vLLM refuses those).
    """

    skipped: frozenset[str]
    unmatched: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    partly: Mapping[str, int] = field(default_factory=dict)


NOTHING = Reach(frozenset())


@dataclass(frozen=True, slots=True)
class Hits:
    """What patterns reach of one kind of layer: numbers of decoder layers reached as a whole, numbers of those that
    only some parts of a fused layer are named of, and the patterns that reached anything. Numbers count the layers
    that have this kind, so in models where only some do they are not the model's own."""

    whole: frozenset[int]
    torn: frozenset[int]
    used: frozenset[str]


def matches(pattern: str, name: str, *, globs: bool = True, number: int = 0) -> bool:
    """Whether a pattern names the layer `name` (without the model's prefix) of decoder layer `number`."""
    full = f"model.layers.{number}.{name}"
    if pattern.startswith("re:"):
        expression = _compiled(pattern[3:])
        if expression is None:
            return False
        return bool(expression.match(name) or expression.match(full) or expression.match("language_model." + full))
    if globs and any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(full, pattern)
    wanted, tail = _split(pattern)
    if wanted is not None and wanted != number:
        return False
    return name == tail or name.startswith(tail + ".") or name.endswith("." + tail)


@lru_cache(maxsize=256)
def _compiled(expression: str) -> re.Pattern[str] | None:
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _split(pattern: str) -> tuple[int | None, str]:
    """(number of the decoder layer, rest of the name) of an exact pattern."""
    found = _PREFIX.match(pattern)
    if found is None:
        return None, pattern
    number = found["number"]
    return (int(number) if number is not None else None), pattern[found.end() :]


def hits(patterns: Iterable[str], layer: Linear, *, globs: bool = True, parts: bool = True) -> Hits:
    """What `patterns` reach of one kind of layer; with `parts` also through the names that vLLM fuses into it."""
    given = tuple(dict.fromkeys(patterns))
    used: set[str] = set()
    # vLLM holds the experts of a layer as one module.
    names = (layer.name, layer.name.rpartition(".")[0]) if layer.kind == "moe" else (layer.name,)
    whole = {number for name in names for number in _numbers(name, layer.layers, given, used, globs)}
    inner = [_numbers(part, layer.layers, given, used, globs) for part in layer.parts] if parts else []
    every = set.intersection(*inner) if inner else set()
    some = set.union(*inner) if inner else set()
    left = whole | every
    return Hits(frozenset(left), frozenset(some - left if len(inner) > 1 else ()), frozenset(used))


def reach(patterns: Iterable[str], linears: Sequence[Linear], *, globs: bool = True) -> Reach:
    """What `patterns` reach among the model's linear layers, `lm_head` and the embedding included."""
    given = list(dict.fromkeys(patterns))
    if not given:
        return NOTHING
    used: set[str] = set()
    skipped: set[str] = set()
    partly: dict[str, int] = {}
    torn: list[str] = []
    for layer in linears:
        found = hits(given, layer, globs=globs)
        used |= found.used
        if found.torn:
            torn.append(layer.name)
        if found.whole and len(found.whole) >= layer.layers:
            skipped.add(layer.name)
        elif found.whole:
            partly[layer.name] = len(found.whole) * layer.per_layer
    for special in _SPECIAL:
        named = [pattern for pattern in given if matches(pattern, special, globs=globs)]
        if named:
            skipped.add(special)
            used.update(named)
    return Reach(frozenset(skipped), tuple(p for p in given if p not in used), tuple(torn), partly)


def _numbers(name: str, layers: int, patterns: Sequence[str], used: set[str], globs: bool) -> set[int]:
    """Numbers of the decoder layers whose `name` is reached. Models that use a name in some layers only number them
    differently: then the count is right and the numbers are not."""
    found: set[int] = set()
    for pattern in patterns:
        if not (pattern.startswith("re:") or (globs and any(sign in pattern for sign in "*?["))):
            number, tail = _split(pattern)
            if name == tail or name.startswith(tail + ".") or name.endswith("." + tail):
                used.add(pattern)
                found.update(range(layers) if number is None else (number,))
            continue
        numbered = any(sign.isdigit() for sign in pattern)
        for number in range(layers) if numbered else range(1):
            if matches(pattern, name, globs=globs, number=number):
                used.add(pattern)
                found.update((number,) if numbered else range(layers))
    return found
