"""Two servers on two GPUs of one kind: half of the pairs, then the other half with the arms on each other's GPU.

No two cards are quite alike, and without the swap their difference would be read as one of the formats. The caller
runs `half_of` the settings on each placement; `combined` is the answer. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from vq_console.checks.latency_blocks import METRICS
from vq_console.checks.latency_decide import BUDGET, CANCELLED, Outcome, word_of
from vq_console.checks.latency_result import LatencyResult, run_flags
from vq_console.checks.latency_settings import LatencySettings
from vq_console.checks.schedule import PHASE_STEP
from vq_console.checks.statistics import swapped_ratio
from vq_console.checks.validity import Flag

FOLDER = "swapped"
"""The second half lies below the folder of the first."""
DESIGN = "swapped-gpus"
_LEAST = 3
"""Valid pairs that each half needs before a word is said."""
_WORST = (CANCELLED, BUDGET)


def half_of(settings: LatencySettings) -> LatencySettings:
    """Settings of one half: a fixed number of pairs, since nothing may be decided before the swap."""
    pairs = max(settings.pairs_min, settings.pairs_cap // 2)
    return replace(settings, pairs_min=pairs, pairs_cap=pairs, budget_s=settings.budget_s / 2)


def combined(first: LatencyResult, second: LatencyResult, settings: LatencySettings) -> LatencyResult:
    """The comparison over both halves, free of the difference of the GPUs, which is said beside it."""
    blocks = (
        *first.blocks,
        *(replace(block, turn=replace(block.turn, pair=block.turn.pair + PHASE_STEP)) for block in second.blocks),
    )
    ends = {
        level: next((end for end in _WORST if end in (first.ends[level], second.ends.get(level, CANCELLED))), "decided")
        for level in first.ends
    }
    later = {(one.metric, one.concurrency): one for one in second.outcomes}
    outcomes = [_joined(one, later.get((one.metric, one.concurrency)), settings) for one in first.outcomes]
    notes = dict.fromkeys(
        flag for flag in (*first.flags, *second.flags) if flag.flag not in {"few-pairs", "budget-ended", "cancelled"}
    )
    few = [
        Flag("few-pairs", f"{one.metric} at {one.concurrency}: each placement needs {_LEAST} valid pairs")
        for one in outcomes
        if one.primary and not one.confidence
    ]
    return LatencyResult(
        outcomes=tuple(sorted(outcomes, key=lambda one: (not one.primary, one.concurrency, METRICS.index(one.metric)))),
        blocks=blocks,
        plan=first.plan,
        settings=settings,
        ends=ends,
        flags=(*notes, *_ended(ends, settings), *few, *_devices(first, later)),
        design=DESIGN,
        seconds=first.seconds + second.seconds,
        extra={**first.extra, "swapped": True},
    )


def _differences(one: Outcome) -> list[float]:
    return [math.log(b) - math.log(a) for a, b in one.values]


def _joined(one: Outcome, other: Outcome | None, settings: LatencySettings) -> Outcome:
    mine, theirs = _differences(one), _differences(other) if other else []
    values = (*one.values, *(other.values if other else ()))
    if not (other and mine and theirs):
        return replace(one, ci=None, word="inconclusive", confidence="", pairs=len(values), values=values)
    found = swapped_ratio(mine, theirs)
    enough = min(len(mine), len(theirs)) >= _LEAST
    return Outcome(
        metric=one.metric,
        concurrency=one.concurrency,
        a=_mean([a for a, _ in values]),
        b=_mean([b for _, b in values]),
        ratio=found.value,
        ci=found.interval if enough else None,
        pairs=len(values),
        word=word_of(found.interval, one.metric, settings.equivalence) if enough else "inconclusive",
        primary=one.primary,
        confidence="swapped" if enough else "",
        values=values,
    )


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _ended(ends: dict[int, str], settings: LatencySettings) -> tuple[Flag, ...]:
    kept = run_flags((), ends, settings)
    return tuple(flag for flag in kept if flag.flag in {"budget-ended", "cancelled"})


def _devices(first: LatencyResult, later: dict[tuple[str, int], Outcome]) -> list[Flag]:
    """How far apart the GPUs are, from how the ratio moved when the arms changed places."""
    for one in first.outcomes:
        other = later.get((one.metric, one.concurrency))
        if one.metric == "tpot" and one.primary and other and one.ratio and other.ratio:
            apart = abs(math.sqrt(one.ratio / other.ratio) - 1) * 100
            detail = (
                f"time per token of B over A was {one.ratio:.3f}, and {other.ratio:.3f} with the arms on each other's "
                f"GPU: the GPUs differ by {apart:.1f} %, which the figures above are free of"
            )
            return [Flag("gpus-swapped", detail)]
    return []
