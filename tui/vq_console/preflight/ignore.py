"""Lists of layers to leave alone: what `ignore` of a checkpoint and of `--quantization-config` reaches.

Pure. Patterns are exact names, `re:` regular expressions, and (online, vLLM 0.32 and later) fnmatch patterns; a
checkpoint's entry without wildcard also reaches what lies below it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vq_console.preflight.shapes import Linear


@dataclass(frozen=True, slots=True)
class Reach:
    """What a list of patterns reaches: names of layers that are left alone, patterns that match nothing, and fused
    layers of which only some parts are named (vLLM refuses those)."""

    skipped: frozenset[str]
    unmatched: tuple[str, ...]
    torn: tuple[str, ...]


def matches(pattern: str, name: str, *, globs: bool = True) -> bool:
    """Whether a pattern names a layer. `name` may be the tail of a full name: prefixes of the model are ignored."""
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error:
            return False
        return bool(expression.match(name) or expression.match("model.layers.0." + name))
    if globs and any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch("model.layers.0." + name, pattern)
    tail = re.sub(r"^(?:model\.|language_model\.|layers\.\d+\.|\*\.)+", "", pattern)
    return name == tail or name.startswith(tail + ".") or name.endswith("." + tail)


def reach(patterns: Iterable[str], linears: Sequence[Linear], *, globs: bool = True) -> Reach:
    """What `patterns` reach among the model's linear layers, `lm_head` included."""
    given = list(patterns)
    used: set[str] = set()
    skipped: set[str] = set()
    torn: list[str] = []
    for layer in linears:
        whole_hit = [pattern for pattern in given if matches(pattern, layer.name, globs=globs)]
        parts = {part: [p for p in given if matches(p, part, globs=globs)] for part in layer.parts}
        used.update(whole_hit, *parts.values())
        hit = [part for part, by in parts.items() if by]
        if whole_hit or (hit and len(hit) == len(layer.parts)):
            skipped.add(layer.name)
        elif hit and len(layer.parts) > 1:
            torn.append(layer.name)
    for special in ("lm_head", "embed_tokens"):
        hits = [pattern for pattern in given if matches(pattern, special, globs=globs)]
        if hits:
            skipped.add(special)
            used.update(hits)
    numbered = {p for p in given if re.search(r"layers\.\d+\.", p)}
    return Reach(frozenset(skipped), tuple(p for p in given if p not in used and p not in numbered), tuple(torn))
