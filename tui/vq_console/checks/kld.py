"""From scores of the same text by two servers to divergence, agreement and perplexity, with intervals.

Pure. Counts every position that cannot be used; never drops one silently. Sequences are the units, never tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vq_console.checks.quality_data import MISSING_BELOW, FloatArray, Scored
from vq_console.checks.statistics import (
    Interval,
    anytime_t_halfwidth,
    cluster_mean,
    design_effect,
    kld_bucket,
    kld_position,
)

SO_FAR_ALPHA = 0.05
NOT_NORMALISED = 1.001
"""The k likeliest tokens cannot hold more than all probability; more means logits or processed values were sent."""


@dataclass(frozen=True, slots=True)
class KldResult:
    """Divergence of B from A over a text, nats per token. Shares are 0 to 1; None where it cannot be said."""

    value: float | None
    interval: Interval | None
    sequences: int
    tokens: int
    on_policy: bool
    top1_agreement: float | None = None
    ppl_ratio: float | None = None
    """exp of the mean of ln p_A(x) − ln p_B(x); on text sampled from A its logarithm is a noisier KLD."""
    ppl_interval: Interval | None = None
    probability_change: float | None = None
    """Root mean square of p_B(x) − p_A(x)."""
    mean_shift: float | None = None
    """Mean |ln p_B(x) − ln p_A(x)|."""
    design_effect: float | None = None
    lower_bound: float | None = None
    """The bucket value, which needs no assumption on who sampled the text."""
    missing_a: int = 0
    missing_b: int = 0
    failed_sequences: int = 0
    problem: str | None = None

    @property
    def missing_share(self) -> float:
        """Positions without a usable log-probability on either side, as a share of all."""
        total = self.tokens + self.missing_a + self.missing_b
        return (self.missing_a + self.missing_b) / total if total else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "ci": list(self.interval) if self.interval else None,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "on_policy": self.on_policy,
            "missing": {"a": self.missing_a, "b": self.missing_b},
            "failed_sequences": self.failed_sequences,
            "design_effect": self.design_effect,
            "lower_bound": self.lower_bound,
            "probability_change": self.probability_change,
            "problem": self.problem,
        }


def usable(value: float) -> bool:
    """Whether a log-probability is a finite number and not the stand-in for −inf."""
    return math.isfinite(value) and value > MISSING_BELOW


def head(scored: Scored, position: int) -> dict[int, float]:
    """The likeliest tokens of one position, id → log-probability."""
    return {
        int(token): float(lp)
        for token, lp in zip(scored.top_ids[position], scored.top_lp[position], strict=True)
        if token >= 0 and usable(float(lp))
    }


def normalised(scores: Sequence[Scored]) -> bool:
    """Whether the values are log-probabilities: at no position do the likeliest hold more than everything."""
    for scored in scores:
        if scored.tokens and float(np.nanmax(np.nansum(np.exp(_clipped(scored)), axis=1))) > NOT_NORMALISED:
            return False
    return True


def _clipped(scored: Scored) -> FloatArray:
    return np.minimum(scored.top_lp, np.float32(50.0))


@dataclass(slots=True)
class _Sums:
    """Per-token terms of one sequence."""

    kld: list[float]
    shift: list[float]
    agree: int = 0
    squared: float = 0.0
    bound: float = 0.0
    missing_a: int = 0
    missing_b: int = 0


def _compare(left: Scored, right: Scored, *, on_policy: bool) -> _Sums | None:
    """One sequence; None where one side failed to score it or scored other tokens."""
    if left.error or right.error or left.tokens != right.tokens or not np.array_equal(left.x, right.x):
        return None
    sums = _Sums([], [])
    for position in range(left.tokens):
        lp, lq = float(left.x_lp[position]), float(right.x_lp[position])
        p, q = head(left, position), head(right, position)
        bad_a, bad_b = not usable(lp) or not p, not usable(lq) or not q
        sums.missing_a += bad_a
        sums.missing_b += bad_b and not bad_a
        if bad_a or bad_b:
            continue
        token = int(left.x[position])
        bound = kld_bucket(p, q)
        sums.kld.append(kld_position(p, q, token, lp, lq) if on_policy else bound)
        sums.bound += bound
        sums.shift.append(lp - lq)
        sums.agree += max(p, key=p.__getitem__) == max(q, key=q.__getitem__)
        sums.squared += (math.exp(lq) - math.exp(lp)) ** 2
    return sums


class KldSoFar:
    """The divergence while sequences still come, with an interval that may be looked at after each of them."""

    def __init__(self, *, on_policy: bool) -> None:
        self._on_policy = on_policy
        self._sums: list[float] = []
        self._counts: list[int] = []

    def add(self, left: Scored, right: Scored) -> dict[str, Any] | None:
        """Take over one sequence; value and interval so far in the keys of `KldResult.to_json`, None without any."""
        sums = _compare(left, right, on_policy=self._on_policy)
        if sums is not None and sums.kld:
            self._sums.append(math.fsum(sums.kld))
            self._counts.append(len(sums.kld))
        if not self._counts:
            return None
        mean = cluster_mean(self._sums, self._counts)
        half = math.inf
        if mean.standard_error is not None:
            spread = mean.standard_error * math.sqrt(mean.clusters)
            half = anytime_t_halfwidth(mean.clusters, spread, SO_FAR_ALPHA)
        return {
            "value": mean.value,
            "ci": [mean.value - half, mean.value + half] if math.isfinite(half) else None,
            "sequences": mean.clusters,
            "tokens": mean.tokens,
            "on_policy": self._on_policy,
        }


def compare_scores(a: Sequence[Scored], b: Sequence[Scored], *, on_policy: bool) -> KldResult:
    """KLD(A‖B) over sequences that both servers scored; `a[i]` and `b[i]` must be of the same tokens.

    `on_policy`: A sampled these very token IDs at temperature 1, so the unbiased estimator applies; otherwise the
    value is the bucket lower bound. Sequences that one side failed to score are counted.
    """
    sequences: list[_Sums] = []
    missing_a = missing_b = failed = 0
    for left, right in zip(a, b, strict=True):
        sums = _compare(left, right, on_policy=on_policy)
        if sums is None:
            failed += 1
            continue
        missing_a += sums.missing_a
        missing_b += sums.missing_b
        if sums.kld:
            sequences.append(sums)
        elif left.tokens:
            failed += 1
    return _summarise(
        sequences,
        missing=(missing_a, missing_b),
        failed=failed,
        on_policy=on_policy,
        problem=None if normalised(a) and normalised(b) else "the server does not send plain log-probabilities",
    )


def _summarise(
    sequences: Sequence[_Sums], *, missing: tuple[int, int], failed: int, on_policy: bool, problem: str | None
) -> KldResult:
    tokens = sum(len(sums.kld) for sums in sequences)
    if not tokens:
        return KldResult(
            None, None, 0, 0, on_policy, missing_a=missing[0], missing_b=missing[1], failed_sequences=failed,
            problem=problem or "no position could be compared",
        )  # fmt: skip
    counts = [len(sums.kld) for sums in sequences]
    kld = cluster_mean([math.fsum(sums.kld) for sums in sequences], counts, skewed=True)
    ppl = cluster_mean([math.fsum(sums.shift) for sums in sequences], counts)
    return KldResult(
        value=kld.value,
        interval=kld.interval,
        sequences=len(sequences),
        tokens=tokens,
        on_policy=on_policy,
        top1_agreement=sum(sums.agree for sums in sequences) / tokens,
        ppl_ratio=math.exp(min(ppl.value, 700.0)),
        ppl_interval=(
            (math.exp(min(ppl.interval[0], 700.0)), math.exp(min(ppl.interval[1], 700.0))) if ppl.interval else None
        ),
        probability_change=math.sqrt(sum(sums.squared for sums in sequences) / tokens),
        mean_shift=math.fsum(abs(value) for sums in sequences for value in sums.shift) / tokens,
        design_effect=design_effect([sums.kld for sums in sequences]),
        lower_bound=sum(sums.bound for sums in sequences) / tokens,
        missing_a=missing[0],
        missing_b=missing[1],
        failed_sequences=failed,
        problem=problem,
    )


def noise_floor(scores: Sequence[Scored], again: Mapping[int, Scored], *, on_policy: bool) -> KldResult | None:
    """Divergence of the baseline from itself, scored twice at different batch sizes; None when it was not."""
    if not again:
        return None
    order = sorted(again)
    return compare_scores([scores[i] for i in order], [again[i] for i in order], on_policy=on_policy)


@dataclass(frozen=True, slots=True)
class Consistency:
    """How far log-probabilities of decoding are from the same server's prefill scores of the same tokens."""

    mean_shift: float
    far_share: float
    """Tokens more than one nat apart, as a share."""
    tokens: int

    def passes(self, floor_shift: float | None, *, limit: float, floor_factor: float, far_limit: float) -> bool:
        """Whether the two paths agree within what scoring twice already differs by."""
        return self.mean_shift <= max(limit, floor_factor * (floor_shift or 0.0)) and self.far_share <= far_limit

    def to_json(self) -> dict[str, Any]:
        return {"mean_shift": self.mean_shift, "far_share": self.far_share, "tokens": self.tokens}


def consistency(pairs: Sequence[tuple[FloatArray, Scored]]) -> Consistency | None:
    """Compare decode log-probabilities with scores of the same tokens; None when no token has both."""
    shifts: list[float] = []
    for decoded, scored in pairs:
        if scored.error or len(decoded) != scored.tokens:
            continue
        for one, other in zip(decoded, scored.x_lp, strict=True):
            if usable(float(one)) and usable(float(other)):
                shifts.append(abs(float(one) - float(other)))
    if not shifts:
        return None
    return Consistency(math.fsum(shifts) / len(shifts), sum(shift > 1 for shift in shifts) / len(shifts), len(shifts))
