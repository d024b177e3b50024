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


def matches(pattern: str, name: str, *, globs: bool = True, number: int = 0) -> bool:
    """Whether a pattern names the layer `name` (without the model's prefix) of decoder layer `number`."""
    full = f"model.layers.{number}.{name}"
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error:
            return False
        return bool(expression.match(name) or expression.match(full) or expression.match("language_model." + full))
    if globs and any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(full, pattern)
    wanted, tail = _split(pattern)
    if wanted is not None and wanted != number:
        return False
    return name == tail or name.startswith(tail + ".") or name.endswith("." + tail)


def _split(pattern: str) -> tuple[int | None, str]:
    """(number of the decoder layer, rest of the name) of an exact pattern."""
    found = _PREFIX.match(pattern)
    if found is None:
        return None, pattern
    number = found["number"]
    return (int(number) if number is not None else None), pattern[found.end() :]


def reach(patterns: Iterable[str], linears: Sequence[Linear], *, globs: bool = True) -> Reach:
    """What `patterns` reach among the model's linear layers, `lm_head` and the embedding included."""
    given = list(dict.fromkeys(patterns))
    if not given:
        return NOTHING
    wild = [p for p in given if p.startswith("re:") or (globs and any(sign in p for sign in "*?["))]
    exact = {p: _split(p) for p in given if p not in wild}
    used: set[str] = set()
    skipped: set[str] = set()
    partly: dict[str, int] = {}
    torn: list[str] = []
    for layer in linears:
        layers = layer.count if layer.kind == "linear" else 1
        whole = _numbers(layer.name, layers, wild, exact, used, globs)
        parts = [_numbers(part, layers, wild, exact, used, globs) for part in layer.parts]
        every = set.intersection(*parts) if parts else set()
        some = set.union(*parts) if parts else set()
        left = whole | every
        if some - left and len(parts) > 1:
            torn.append(layer.name)
        if left and len(left) >= layers:
            skipped.add(layer.name)
        elif left:
            partly[layer.name] = len(left)
    for special in _SPECIAL:
        hits = [pattern for pattern in given if matches(pattern, special, globs=globs)]
        if hits:
            skipped.add(special)
            used.update(hits)
    return Reach(frozenset(skipped), tuple(p for p in given if p not in used), tuple(torn), partly)


def _numbers(
    name: str,
    layers: int,
    wild: Sequence[str],
    exact: Mapping[str, tuple[int | None, str]],
    used: set[str],
    globs: bool,
) -> set[int]:
    """Numbers of the decoder layers whose `name` is reached. Models that use a name in some layers only number them
    differently: then the count is right and the numbers are not."""
    found: set[int] = set()
    for pattern, (number, tail) in exact.items():
        if name == tail or name.startswith(tail + ".") or name.endswith("." + tail):
            used.add(pattern)
            found.update(range(layers) if number is None else (number,))
    for pattern in wild:
        numbered = any(sign.isdigit() for sign in pattern)
        for number in range(layers) if numbered else range(1):
            if matches(pattern, name, globs=globs, number=number):
                used.add(pattern)
                found.update((number,) if numbered else range(layers))
    return found
