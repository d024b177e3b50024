"""From block values to words: pairs, anytime-valid decisions, and what each endpoint may say. Pure.

The unit is the block pair, d = ln x_B − ln x_A. Two endpoints are primary: TPOT at the lowest concurrency and
throughput at the highest; each level is measured until its primary endpoint is decided. Neither requests nor tokens
are ever units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.latency_blocks import METRICS, BlockResult
from vq_console.checks.latency_settings import LatencySettings
from vq_console.checks.schedule import ARMS
from vq_console.checks.statistics import (
    Decision,
    Interval,
    anytime_t_halfwidth,
    lag1_correlation,
    latency_decision,
    ratio_interval,
)

OPEN, DECIDED, CAP, BUDGET, CANCELLED = "open", "decided", "cap", "budget", "cancelled"
_CORRELATED = 0.3
_NEVER = 1e-12
"""An error level at which the anytime rule cannot decide with the few pairs of any run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One endpoint: geometric means of both arms, their ratio B/A with its interval, and a word about B."""

    metric: str
    concurrency: int
    a: float | None
    b: float | None
    ratio: float | None
    ci: Interval | None
    pairs: int
    word: str
    primary: bool
    confidence: str = ""
    """Which rule the interval follows: anytime, cap, fixed, or drift."""
    values: tuple[tuple[float, float], ...] = ()
    """Each pair's (A, B), in order."""

    def to_json(self) -> dict[str, Any]:
        """The endpoint of the contract, with its pairs for plots."""
        return {
            "metric": self.metric,
            "concurrency": self.concurrency,
            "a": self.a,
            "b": self.b,
            "ratio": self.ratio,
            "ci": list(self.ci) if self.ci is not None else None,
            "pairs": self.pairs,
            "word": self.word,
            "primary": self.primary,
            "confidence": self.confidence,
            "values": [list(pair) for pair in self.values],
        }


def primary_of(concurrencies: Sequence[int]) -> dict[int, str]:
    """The primary metric of each level that has one."""
    levels = sorted(concurrencies)
    return {levels[0]: "tpot", levels[-1]: "throughput"} if len(levels) > 1 else {levels[0]: "tpot"}


def pair_values(blocks: Sequence[BlockResult], metric: str, concurrency: int) -> list[tuple[float, float]]:
    """(A, B) of every pair whose two blocks are valid and have a value, in order."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for block in blocks:
        value = block.values.get(metric)
        if block.turn.concurrency == concurrency and block.valid and value is not None and value > 0:
            found.setdefault((block.turn.pair, block.turn.attempt), {})[block.turn.arm] = value
    return [(pair[ARMS[0]], pair[ARMS[1]]) for _, pair in sorted(found.items()) if len(pair) == 2]


def log_differences(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """ln B − ln A of each pair."""
    return [math.log(b) - math.log(a) for a, b in pairs]


def units_of(differences: Sequence[float]) -> tuple[list[float], bool]:
    """The units of the decision: pairs, or means of two successive pairs where neighbours are correlated.

    From eight pairs on a lag-1 correlation above 0.3 makes quads the units: with correlated pairs the anytime rule
    would claim a difference in 12 % of identical arms.
    """
    correlation = lag1_correlation(differences) if len(differences) >= 8 else None
    if correlation is None or correlation <= _CORRELATED:
        return list(differences), False
    data = list(differences)
    return [(data[i] + data[i + 1]) / 2 for i in range(0, len(data) - 1, 2)], True


def decide(
    differences: Sequence[float], metric: str, settings: LatencySettings, *, end: str, primary: bool
) -> tuple[Decision, str]:
    """The word and interval that these pairs allow, and the rule used.

    `end` says why no further pair comes (`open` while more may). A budget or a cancellation that ends a run does not
    depend on the data, so it counts as the cap. Below the least number of pairs no word is given; an interval then is
    the ordinary one, and only when the run is over. Where least and most are the same number nobody looks before the
    end, so the whole error budget goes to the ordinary t interval there.
    """
    n = len(differences)
    over = end in {CAP, BUDGET, CANCELLED}
    if n < settings.pairs_min:
        if end == OPEN or n < 2:
            return Decision("continue" if end == OPEN else "inconclusive", None, n), ""
        return Decision("inconclusive", ratio_interval(differences).interval, n), "fixed"
    units, quads = units_of(differences)
    fixed = settings.pairs_min >= settings.pairs_cap
    spent = settings.alpha_run + settings.alpha_cap
    if fixed:
        alphas = (_NEVER, spent)
    elif primary or over:
        alphas = (settings.alpha_run, settings.alpha_cap)
    else:
        # A secondary endpoint does not decide when to stop; all of its error budget goes to one look.
        alphas = (spent, settings.alpha_cap)
    decision = latency_decision(
        units,
        cap=len(units) if over else 10**9,
        minimum=min(settings.pairs_min, len(units)) if over else settings.pairs_min,
        equivalence=math.log(1 + settings.equivalence),
        alpha_run=alphas[0],
        alpha_cap=alphas[1],
        higher_is_better=metric == "throughput",
    )
    word = decision.word
    if word == "continue" and end != OPEN:
        word = "inconclusive"
    rule = ("fixed" if fixed and over else "cap" if over else "anytime") + (" on quads" if quads else "")
    return Decision(word, decision.interval, n), rule


def word_of(interval: Interval | None, metric: str, equivalence: float) -> str:
    """What a fixed interval of the ratio B/A lets one say of B; `equivalence` as a ratio (0.03 is ±3 %)."""
    if interval is None:
        return "inconclusive"
    low, high = (math.log(edge) for edge in interval)
    edge = math.log(1 + equivalence)
    if low > -edge and high < edge:
        return "equivalent"
    if low <= 0 <= high:
        return "inconclusive"
    return "faster" if (low > 0) == (metric == "throughput") else "slower"


def outcome(
    blocks: Sequence[BlockResult], metric: str, concurrency: int, settings: LatencySettings, *, end: str, primary: bool
) -> Outcome:
    """One endpoint from the blocks so far."""
    pairs = pair_values(blocks, metric, concurrency)
    if not pairs:
        word = "continue" if end == OPEN else "inconclusive"
        return Outcome(metric, concurrency, None, None, None, None, 0, word, primary)
    differences = log_differences(pairs)
    decision, rule = decide(differences, metric, settings, end=end, primary=primary)
    count = len(pairs)
    return Outcome(
        metric=metric,
        concurrency=concurrency,
        a=math.exp(sum(math.log(a) for a, _ in pairs) / count),
        b=math.exp(sum(math.log(b) for _, b in pairs) / count),
        ratio=math.exp(sum(differences) / count),
        ci=decision.interval,
        pairs=count,
        word=decision.word,
        primary=primary,
        confidence=rule,
        values=tuple(pairs),
    )


def outcomes(
    blocks: Sequence[BlockResult], concurrencies: Sequence[int], settings: LatencySettings, ends: Mapping[int, str]
) -> tuple[Outcome, ...]:
    """All endpoints, primary ones first. `ends` says for each level why it is over, or `open`."""
    primaries = primary_of(concurrencies)
    out = []
    for concurrency in sorted(concurrencies):
        for metric in METRICS:
            if metric == "throughput" and concurrency == 1:
                continue
            primary = primaries.get(concurrency) == metric
            end = ends.get(concurrency, OPEN)
            out.append(outcome(blocks, metric, concurrency, settings, end=end, primary=primary))
    return tuple(sorted(out, key=lambda one: (not one.primary, one.concurrency, METRICS.index(one.metric))))


def level_decided(blocks: Sequence[BlockResult], concurrency: int, metric: str, settings: LatencySettings) -> bool:
    """Whether a level's primary endpoint needs no further pair."""
    found = outcome(blocks, metric, concurrency, settings, end=OPEN, primary=True)
    return found.word not in {"continue", "inconclusive"}


def settle(
    blocks: Sequence[BlockResult], concurrencies: Sequence[int], settings: LatencySettings, ends: Mapping[int, str]
) -> dict[int, str]:
    """Why each level is over after these blocks, or `open`: decided, or at the cap.

    A level without a primary endpoint is measured along until the others are over; the cap holds for it too.
    """
    out = dict(ends)
    primaries = primary_of(concurrencies)
    for concurrency in concurrencies:
        if out.get(concurrency, OPEN) != OPEN:
            continue
        metric = primaries.get(concurrency)
        if metric is not None and level_decided(blocks, concurrency, metric, settings):
            out[concurrency] = DECIDED
        elif len(pair_values(blocks, metric or "tpot", concurrency)) >= settings.pairs_cap:
            out[concurrency] = CAP
    return out


def active_levels(concurrencies: Sequence[int], ends: Mapping[int, str]) -> list[int]:
    """Levels that still need pairs; none when every primary endpoint is over."""
    open_levels = [concurrency for concurrency in concurrencies if ends.get(concurrency, OPEN) == OPEN]
    return open_levels if set(open_levels) & set(primary_of(concurrencies)) else []


def pairs_left(differences: Sequence[float], settings: LatencySettings) -> int | None:
    """A guess of how many further pairs the decision needs, from the spread so far; for progress only."""
    n = len(differences)
    if n < 3:
        return None
    mean = sum(differences) / n
    spread = math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1))
    edge = math.log(1 + settings.equivalence)
    for more in range(settings.pairs_cap + 1):
        count = max(n + more, settings.pairs_min)
        half = anytime_t_halfwidth(count, spread, settings.alpha_run)
        if abs(mean) > half or (mean + half < edge and mean - half > -edge):
            return max(0, count - n)
        if count >= settings.pairs_cap:
            break
    return max(0, settings.pairs_cap - n)
