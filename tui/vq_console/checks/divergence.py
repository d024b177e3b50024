"""Where two greedy answers to the same prompt first part, and how often per token that happens.

Pure. Finds faults of the decode path that scoring by prefill cannot see. A sequence is exposed up to and including
the token at which it parts, or as far as both go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.quality_data import Generated
from vq_console.checks.statistics import Interval, hazard_interval


@dataclass(frozen=True, slots=True)
class Hazard:
    """First divergences per exposed token, with its exact interval."""

    divergences: int
    tokens: int
    sequences: int
    value: float
    interval: Interval

    def to_json(self) -> dict[str, Any]:
        return {
            "hazard": self.value,
            "ci": list(self.interval),
            "divergences": self.divergences,
            "tokens": self.tokens,
            "sequences": self.sequences,
        }


@dataclass(frozen=True, slots=True)
class Parted:
    """The first token where two answers differ; token IDs, and each side's probability of both (0 to 1, or None)."""

    prompt: int
    index: int
    a_token: int | None
    b_token: int | None
    a_of_a: float | None
    a_of_b: float | None
    b_of_a: float | None
    b_of_b: float | None


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first differing token, one side ending first counts; None when both are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def hazard(pairs: Sequence[tuple[Generated, Generated]]) -> Hazard | None:
    """The rate over all pairs that both sides answered; None without any.

    Answers that are alike up to their end or parting are one observation: prompts that lead to the same text say
    nothing new.
    """
    divergences = tokens = sequences = 0
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for a, b in pairs:
        if a.error or b.error:
            continue
        index = first_difference(a.ids, b.ids)
        path = (a.ids, b.ids) if index is None else (a.ids[: index + 1], b.ids[: index + 1])
        if path in seen:
            continue
        seen.add(path)
        sequences += 1
        if index is None:
            tokens += len(a.ids)
        else:
            divergences += 1
            tokens += index + 1
    if not tokens:
        return None
    low, high = hazard_interval(divergences, tokens)
    return Hazard(divergences, tokens, sequences, divergences / tokens, (low, min(high, 1.0)))


def _chance(answer: Generated, index: int, token: int | None) -> float | None:
    if token is None or index >= len(answer.ids):
        return None
    value = answer.top[index].get(token) if index < len(answer.top) else None
    if value is None and answer.ids[index] == token and index < len(answer.logprobs):
        value = float(answer.logprobs[index])
    return math.exp(value) if value is not None and math.isfinite(value) else None


def partings(pairs: Sequence[tuple[Generated, Generated]]) -> list[Parted]:
    """The first difference of each pair that has one. `a_of_b` is A's probability of B's token, and so on."""
    found: list[Parted] = []
    for a, b in pairs:
        if a.error or b.error:
            continue
        index = first_difference(a.ids, b.ids)
        if index is None:
            continue
        left = a.ids[index] if index < len(a.ids) else None
        right = b.ids[index] if index < len(b.ids) else None
        found.append(
            Parted(
                a.prompt, index, left, right,
                _chance(a, index, left), _chance(a, index, right), _chance(b, index, left), _chance(b, index, right),
            )
        )  # fmt: skip
    return found


def repeated_pairs(greedy: Sequence[Generated], repeat: Mapping[int, Generated]) -> list[tuple[Generated, Generated]]:
    """The baseline against itself."""
    return [(greedy[index], again) for index, again in sorted(repeat.items()) if index < len(greedy)]
