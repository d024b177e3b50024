"""Intervals for means, ratios of geometric means, quantiles and means of clusters.

Owns fixed-sample formulas only; what may be looked at during a run is in `statistics_sequential`. Never treats single
tokens or requests as independent: callers pass block pairs or sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import stats

Interval: TypeAlias = tuple[float, float]


class Ratio(NamedTuple):
    """A ratio B/A with its interval; None where fewer than two units are there."""

    value: float
    interval: Interval | None
    units: int


class ClusterMean(NamedTuple):
    """A mean per token over sequences of unequal length; the sequences are the units of the interval."""

    value: float
    interval: Interval | None
    standard_error: float | None
    clusters: int
    tokens: int


def t_interval(values: Sequence[float], alpha: float = 0.05) -> Interval | None:
    """Student's t interval of the mean at level 1 − alpha; None below two values."""
    data = np.asarray(values, float)
    n = len(data)
    if n < 2:
        return None
    half = stats.t.ppf(1 - alpha / 2, n - 1) * data.std(ddof=1) / math.sqrt(n)
    mean = data.mean()
    return float(mean - half), float(mean + half)


def ratio_interval(log_differences: Sequence[float], alpha: float = 0.05) -> Ratio:
    """exp of the mean of ln x_B − ln x_A over block pairs, with the exp of its t interval. Needs one pair."""
    if not len(log_differences):
        raise ValueError("a ratio needs at least one pair")
    interval = t_interval(log_differences, alpha)
    value = math.exp(float(np.mean(log_differences)))
    if interval is None:
        return Ratio(value, None, len(log_differences))
    return Ratio(value, (math.exp(interval[0]), math.exp(interval[1])), len(log_differences))


def aba_ratio(first_a: Sequence[float], b: Sequence[float], second_a: Sequence[float], alpha: float = 0.05) -> Ratio:
    """Ratio B/A from one-at-a-time serving A, B, A again; arguments are ln of block values.

    d = mean(b) − (mean(a1) + mean(a2))/2. Half-width √(h² + (mean(a2) − mean(a1))²): h is the t half-width from the
    block variance pooled over the three phases, the other term is the drift that was seen between the two A phases.
    Without the drift term coverage falls to 77 to 85 % under realistic drift. Each phase needs one block, and the
    three together four; with fewer the interval is None.
    """
    phases = [np.asarray(phase, float) for phase in (first_a, b, second_a)]
    if any(not len(phase) for phase in phases):
        raise ValueError("each of the phases A, B, A needs at least one block")
    a1, middle, a2 = phases
    d = float(middle.mean() - (a1.mean() + a2.mean()) / 2)
    units = len(middle)
    freedom = sum(len(phase) for phase in phases) - 3
    if freedom < 1:
        return Ratio(math.exp(d), None, units)
    variance = sum(float(((phase - phase.mean()) ** 2).sum()) for phase in phases) / freedom
    spread = math.sqrt(variance * (1 / len(middle) + (1 / len(a1) + 1 / len(a2)) / 4))
    block = float(stats.t.ppf(1 - alpha / 2, freedom)) * spread
    half = math.hypot(block, float(a2.mean() - a1.mean()))
    return Ratio(math.exp(d), (math.exp(d - half), math.exp(d + half)), units)


def swapped_ratio(first: Sequence[float], second: Sequence[float], alpha: float = 0.05) -> Ratio:
    """Ratio B/A from pairs on two devices (`first`) and as many or fewer with the arms on each other's (`second`).

    Arguments are ln x_B − ln x_A of block pairs. The mean of the two means is free of the difference of the devices,
    which enters them with opposite signs. Welch's interval; None where a half has fewer than two pairs. Each needs one.
    """
    halves = [np.asarray(half, float) for half in (first, second)]
    if any(not len(half) for half in halves):
        raise ValueError("each half needs at least one pair")
    d = float(halves[0].mean() + halves[1].mean()) / 2
    units = len(halves[0]) + len(halves[1])
    if min(len(half) for half in halves) < 2:
        return Ratio(math.exp(d), None, units)
    parts = [float(half.var(ddof=1)) / len(half) / 4 for half in halves]
    spread = sum(parts)
    if spread == 0:
        return Ratio(math.exp(d), (math.exp(d), math.exp(d)), units)
    freedom = spread**2 / sum(part**2 / (len(half) - 1) for part, half in zip(parts, halves, strict=True))
    half_width = float(stats.t.ppf(1 - alpha / 2, freedom)) * math.sqrt(spread)
    return Ratio(math.exp(d), (math.exp(d - half_width), math.exp(d + half_width)), units)


def quantile_interval(values: Sequence[float], q: float, alpha: float = 0.05) -> tuple[float | None, float | None]:
    """Distribution-free interval of the q-quantile from order statistics, each tail at alpha/2.

    A bound that the sample cannot give is None: a finite upper bound needs q**n ≤ alpha/2, that is n ≥ 72 for p95 and
    n ≥ 368 for p99 at alpha = 0.05.
    """
    data = np.sort(np.asarray(values, float))
    n = len(data)
    if n == 0:
        return None, None
    # P(k-th smallest ≤ quantile) = P(Binomial(n, q) ≥ k), so the k-th is a lower bound when that is ≥ 1 − alpha/2.
    ranks = np.arange(1, n + 1)
    at_least = stats.binom.sf(ranks - 1, n, q)
    lower = np.flatnonzero(at_least >= 1 - alpha / 2)
    upper = np.flatnonzero(at_least <= alpha / 2)
    low = float(data[lower[-1]]) if len(lower) else None
    high = float(data[upper[0]]) if len(upper) else None
    return low, high


def block_bootstrap_quantile(
    blocks: Sequence[Sequence[float]], q: float, *, seed: int, draws: int = 2000, alpha: float = 0.05
) -> tuple[float, Interval] | None:
    """A pooled quantile with a percentile interval from resampling whole blocks.

    Descriptive only. None below two blocks.
    """
    kept = [np.asarray(block, float) for block in blocks if len(block)]
    if len(kept) < 2:
        return None
    random = np.random.default_rng(seed)

    def pooled(picks: Iterable[int]) -> float:
        return float(np.quantile(np.concatenate([kept[i] for i in picks]), q))

    sample = [pooled(random.integers(0, len(kept), len(kept))) for _ in range(draws)]
    low, high = np.quantile(sample, [alpha / 2, 1 - alpha / 2])
    return pooled(range(len(kept))), (float(low), float(high))


def lag1_correlation(values: Sequence[float]) -> float | None:
    """Lag-1 autocorrelation; above 0.3 the units should be ABBA quads. None below 4 values or without spread."""
    data = np.asarray(values, float)
    if len(data) < 4:
        return None
    centred = data - data.mean()
    total = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / total if total > 0 else None


def _hall(quantile: float, skew: float, n: int) -> float:
    """A quantile of the t statistic of n units with this skewness (Hall 1992, the monotone cubic transformation)."""
    if abs(skew) < 1e-9:
        return quantile
    root = math.sqrt(n)
    return 3 * root / skew * (math.cbrt(1 + skew / root * (quantile - skew / (6 * root))) - 1)


def cluster_mean(
    sums: Sequence[float], counts: Sequence[int], alpha: float = 0.05, *, skewed: bool = False
) -> ClusterMean:
    """Mean per token, Σ sums / Σ counts, with a t interval whose units are the clusters (sequences).

    With equal counts this is exactly Student's t on the per-sequence means; with unequal ones the linearised ratio
    estimator. `skewed`: the clusters have a long tail, as divergences do; t alone then covers 89 to 91 % at 12 to 32
    clusters and errs by saying too little, the transformation of Hall 92 to 94 %. Clusters without tokens carry nothing
    and are left out. Raises ValueError when no token is there.
    """
    total = np.asarray(sums, float)
    size = np.asarray(counts, float)
    total, size = total[size > 0], size[size > 0]
    groups = len(size)
    if groups == 0:
        raise ValueError("no tokens to average")
    value = float(total.sum() / size.sum())
    if groups < 2:
        return ClusterMean(value, None, None, groups, int(size.sum()))
    residual = (total - value * size) / size.mean()
    error = math.sqrt(float((residual**2).sum()) / (groups - 1) / groups)
    quantile = float(stats.t.ppf(1 - alpha / 2, groups - 1))
    spread = float((residual**2).mean())
    skew = float((residual**3).mean()) / spread**1.5 if skewed and spread > 0 else 0.0
    interval = value - error * _hall(quantile, skew, groups), value - error * _hall(-quantile, skew, groups)
    return ClusterMean(value, interval, error, groups, int(size.sum()))


def design_effect(clusters: Sequence[Sequence[float]]) -> float | None:
    """How many times the variance of a per-token mean exceeds that of independent tokens; None when undefined."""
    kept = [np.asarray(cluster, float) for cluster in clusters if len(cluster)]
    if len(kept) < 2:
        return None
    tokens = np.concatenate(kept)
    independent = float(tokens.var(ddof=1)) / len(tokens)
    error = cluster_mean([float(c.sum()) for c in kept], [len(c) for c in kept]).standard_error
    return error**2 / independent if error is not None and independent > 0 else None
