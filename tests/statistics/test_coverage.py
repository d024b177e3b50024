"""Do the intervals hold what they promise? Small here, large under the soak mark."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vq_console.checks import statistics as s


def noisy_pairs(random: np.random.Generator, pairs: int, ratio: float = 1.0) -> list[float]:
    """ln ratios of block geometric means: 8 requests a block with SD 2 %, block SD 1 %, slow drift."""
    drift = 0.0
    out = []
    for _ in range(pairs):
        values = []
        for side in (0.0, math.log(ratio)):
            drift = 0.9 * drift + random.normal(0, 0.0065)
            values.append(side + drift + random.normal(0, 0.01) + float(random.normal(0, 0.02, 8).mean()))
        out.append(values[1] - values[0])
    return out


def t_on_pairs_coverage(runs: int) -> float:
    random = np.random.default_rng(11)
    inside = 0
    for _ in range(runs):
        low, high = s.t_interval(noisy_pairs(random, 8)) or (1, -1)
        inside += low <= 0 <= high
    return inside / runs


def sequences(random: np.random.Generator, groups: int, tokens: int) -> tuple[list[float], list[int], float]:
    """Skewed per-token terms whose mean differs between sequences, of unequal length, like real KLD terms."""
    level = random.gamma(6, 0.02 / 6, groups)
    counts = random.integers(tokens // 2, tokens + 1, groups)
    sums = [float(random.gamma(0.3, mean / 0.3, n).sum()) for mean, n in zip(level, counts, strict=True)]
    return sums, [int(n) for n in counts], 0.02


def cluster_coverage(groups: int, runs: int) -> float:
    random = np.random.default_rng(groups)
    inside = 0
    for _ in range(runs):
        sums, counts, truth = sequences(random, groups, 96)
        low, high = s.cluster_mean(sums, counts).interval or (1, -1)
        inside += low <= truth <= high
    return inside / runs


def tango_coverage(n: int, runs: int) -> float:
    random = np.random.default_rng(n)
    p = np.array([0.08, 0.05, 0.87])
    inside = 0
    for b, c, _ in random.multinomial(n, p, runs):
        low, high = s.tango_interval(int(b), int(c), n)
        inside += low <= -0.03 <= high
    return inside / runs


def false_stops(runs: int, cap: int) -> float:
    random = np.random.default_rng(7)
    false = 0
    for _ in range(runs):
        data = list(random.normal(0, 0.05, cap))
        for n in range(6, cap + 1):
            word = s.latency_decision(data[:n], cap=cap).word
            if word != "continue":
                false += word in {"faster", "slower"}
                break
    return false / runs


def false_harm(runs: int, items: int) -> float:
    """Items flip to either side with 5 %; looked at after every item, McNemar at the cap."""
    random = np.random.default_rng(8)
    false = 0
    for _ in range(runs):
        flips = random.choice([-1, 0, 1], items, p=[0.05, 0.9, 0.05])
        b, c = np.cumsum(flips == -1), np.cumsum(flips == 1)
        changed = np.flatnonzero(flips)
        stopped = any(s.harm_log_e(int(b[i]), int(c[i])) >= math.log(50) for i in changed if b[i] > c[i] + 4)
        false += stopped or (b[-1] > c[-1] and s.mcnemar_midp(int(b[-1]), int(c[-1])) <= 0.03)
    return false / runs


def test_coverage_small() -> None:
    assert 0.91 <= t_on_pairs_coverage(400) <= 0.98
    assert 0.90 <= cluster_coverage(24, 400) <= 0.98
    assert 0.91 <= tango_coverage(200, 150) <= 0.99


def test_false_alarms_small() -> None:
    assert false_stops(100, 12) <= 0.06
    assert false_harm(60, 200) <= 0.07


@pytest.mark.soak
def test_coverage_large() -> None:
    assert 0.93 <= t_on_pairs_coverage(4000) <= 0.97
    for groups in (24, 64, 128):
        assert 0.92 <= cluster_coverage(groups, 4000) <= 0.97, groups
    for n in (100, 200, 500):
        assert 0.93 <= tango_coverage(n, 2000) <= 0.97, n


@pytest.mark.soak
def test_false_alarms_large() -> None:
    assert false_stops(2000, 12) <= 0.05
    assert false_stops(1000, 40) <= 0.05
    assert false_harm(1000, 500) <= 0.05


@pytest.mark.parametrize("clusters", [12, 24, 64])
def test_a_long_tail_is_covered_as_well(clusters: int) -> None:
    """Divergence per text has a long tail: there Student's t says too little too often."""
    random = np.random.default_rng(clusters)
    counts, low = [20] * clusters, {False: 0, True: 0}
    inside = {False: 0, True: 0}
    runs = 1500
    for values in random.gamma(4, 0.3 / 4, (runs, clusters)) ** 2:
        for skewed in (False, True):
            interval = s.cluster_mean([20 * value for value in values], counts, skewed=skewed).interval
            assert interval is not None
            truth = (0.3 / 4) ** 2 * 20  # E[X²] = θ² k (k + 1) with k = 4
            inside[skewed] += interval[0] <= truth <= interval[1]
            low[skewed] += interval[1] < truth
    assert 0.92 <= inside[True] / runs <= 0.97
    assert low[True] < 0.75 * low[False]
    assert inside[True] > inside[False]


def test_without_a_tail_the_correction_changes_nothing() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    plain, corrected = (s.cluster_mean(values, [1] * 5, skewed=skewed).interval for skewed in (False, True))
    assert plain == pytest.approx(corrected)
