"""The generators by name, and the choice of a difficulty at which the baseline is right in 50 to 90 % of items.

Items are a function of (generator, seed, level, number) alone, so a recorded baseline and a later arm see the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from vq_console.checks.tasks import arithmetic, context, languages, structured
from vq_console.checks.tasks.model import Item
from vq_console.core.errors import UsageError
from vq_console.core.text import nearest

VERSION = 1
"""Raised whenever a generator would make another item from the same seed."""

TARGET_LOW, TARGET_HIGH = 0.5, 0.9

Maker: TypeAlias = Callable[[random.Random, int, int], Item]


@dataclass(frozen=True, slots=True)
class Generator:
    """A kind of item. `count` is what a standard run asks; `tokens` what one item costs in answers, at most."""

    name: str
    title: str
    about: str
    make: Maker
    levels: int
    count: int
    tokens: int


GENERATORS: dict[str, Generator] = {
    generator.name: generator
    for generator in (
        Generator("words", "word problems", "two to six arithmetic steps in a story, an integer answer",
                  arithmetic.word_problem, 5, 200, 200),
        Generator("json", "JSON extraction", "one JSON object against a schema, without guided decoding",
                  structured.json_extraction, 5, 100, 168),
        Generator("rules", "instructions", "one to five verifiable constraints out of fifteen",
                  structured.instructions, 5, 100, 160),
        Generator("table", "table look-up", "cells, sums and maxima of a table in the prompt",
                  arithmetic.table_lookup, 5, 100, 96),
        Generator("lang", "languages", "numbers and dates in English, German, French, Spanish, Russian, Chinese",
                  languages.language_item, 5, 120, 40),
        Generator("tools", "tool calls", "the right tool with the right arguments out of two to five",
                  structured.tool_call, 4, 100, 96),
        Generator("recall", "three-turn recall", "a fact told in the first turn and asked in the third",
                  context.recall, 4, 40, 120),
    )
}  # fmt: skip


def generator(name: str) -> Generator:
    """The generator of that name. Raises UsageError with the nearest name."""
    found = GENERATORS.get(name)
    if found is None:
        near = nearest(name, GENERATORS)
        raise UsageError(
            f"no task generator is called {name!r}",
            f"Did you mean {near!r}?" if near else "Generators: " + ", ".join(GENERATORS),
        )
    return found


def make_items(name: str, *, seed: int, level: int, count: int, pilot: bool = False) -> list[Item]:
    """`count` items of one generator and level. Pilot items, which choose the level, are never the tested ones."""
    kind = generator(name)
    part = "pilot" if pilot else "test"
    return [
        kind.make(random.Random(f"{name}:{seed}:{part}:{level}:{number}"), level, number) for number in range(count)
    ]


def next_level(tried: dict[int, float], levels: int) -> int | None:
    """The level to try next given the share of right pilot answers at those tried; None when the search is over.

    Starts in the middle, goes up while the baseline is right too often and down while it is wrong too often.
    """
    if not tried:
        return (levels + 1) // 2
    last = list(tried)[-1]
    if TARGET_LOW <= tried[last] <= TARGET_HIGH:
        return None
    step = 1 if tried[last] > TARGET_HIGH else -1
    candidate = last + step
    return candidate if 1 <= candidate <= levels and candidate not in tried else None


def best_level(tried: dict[int, float]) -> int:
    """The tried level whose share of right answers lies nearest to the middle of the wanted range."""
    middle = (TARGET_LOW + TARGET_HIGH) / 2
    return min(tried, key=lambda level: (abs(tried[level] - middle), level))
