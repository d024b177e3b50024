"""The formulas against the reference implementation of the method and against closed forms."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vq_console.checks import statistics as s

REFERENCE = Path(__file__).parent.parent / "data" / "statistics" / "reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("statistics_reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n", [2, 3, 6, 30])
def test_t_interval_equals_reference(reference: ModuleType, n: int) -> None:
    data = np.random.default_rng(n).normal(0.1, 0.3, n)
    assert s.t_interval(list(data)) == pytest.approx(reference.t_ci(data))


def test_one_value_has_no_interval() -> None:
    assert s.t_interval([1.0]) is None
    assert s.ratio_interval([0.5]) == (pytest.approx(math.exp(0.5)), None, 1)
    with pytest.raises(ValueError, match="at least one pair"):
        s.ratio_interval([])


def test_ratio_interval_is_the_exponential() -> None:
    data = [0.1, 0.12, 0.08, 0.11]
    low, high = s.t_interval(data) or (0, 0)
    ratio = s.ratio_interval(data)
    assert ratio.interval == pytest.approx((math.exp(low), math.exp(high)))
    assert ratio.units == 4


@pytest.mark.parametrize("n", [2, 6, 12, 40])
@pytest.mark.parametrize("alpha", [0.02, 0.05])
def test_anytime_halfwidth_equals_reference(reference: ModuleType, n: int, alpha: float) -> None:
    assert s.anytime_t_halfwidth(n, 0.05, alpha) == pytest.approx(float(reference.anytime_t_halfwidth(n, 0.05, alpha)))


@pytest.mark.parametrize("seed", range(40))
def test_latency_decision_equals_reference(reference: ModuleType, seed: int) -> None:
    random = np.random.default_rng(seed)
    data = random.normal(
        random.choice([0, 0.02, -0.05, 0.3]), random.choice([0.005, 0.02, 0.1]), int(random.integers(2, 26))
    )
    word, interval = reference.latency_decision(data)
    got = s.latency_decision(list(data))
    assert got.word == word
    if interval is not None and np.isfinite(interval[1]):
        assert got.interval == pytest.approx(interval)
    turned = s.latency_decision(list(data), higher_is_better=True).word
    assert turned == {"faster": "slower", "slower": "faster"}.get(word, word)


def test_aba_without_drift_and_with() -> None:
    still = s.aba_ratio([1.0, 1.02], [1.5, 1.52], [1.0, 1.02])
    drift = s.aba_ratio([1.0, 1.02], [1.5, 1.52], [1.2, 1.22])
    assert still.value == pytest.approx(math.exp(0.5))
    assert still.interval is not None
    assert drift.interval is not None
    assert math.log(drift.interval[1] / drift.interval[0]) / 2 > 0.2
    assert math.log(still.interval[1] / still.interval[0]) / 2 < 0.06
    assert s.aba_ratio([1.0], [1.5], [1.0]).interval is None
    with pytest.raises(ValueError, match="each of the phases"):
        s.aba_ratio([], [1.0], [1.0])


@pytest.mark.parametrize(("q", "needed"), [(0.95, 72), (0.99, 368)])
def test_tail_quantiles_need_enough_values(q: float, needed: int) -> None:
    assert s.quantile_interval(list(range(needed - 1)), q)[1] is None
    assert s.quantile_interval(list(range(needed)), q)[1] == needed - 1


def test_median_interval_covers() -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(600):
        low, high = s.quantile_interval(list(random.exponential(1, 25)), 0.5)
        assert low is not None
        assert high is not None
        inside += low <= math.log(2) <= high
    assert inside / 600 >= 0.93


def test_quantile_of_nothing() -> None:
    assert s.quantile_interval([], 0.95) == (None, None)


def test_block_bootstrap_is_reproducible() -> None:
    blocks = [list(np.random.default_rng(i).normal(10, 1, 8)) for i in range(8)]
    first = s.block_bootstrap_quantile(blocks, 0.95, seed=3, draws=200)
    assert first == s.block_bootstrap_quantile(blocks, 0.95, seed=3, draws=200)
    assert first is not None
    assert first[1][0] <= first[0] <= first[1][1]
    assert s.block_bootstrap_quantile(blocks[:1], 0.95, seed=3) is None


def test_lag1_correlation() -> None:
    assert s.lag1_correlation([1, 2, 1, 2, 1, 2, 1, 2]) == pytest.approx(-7 / 8)
    assert s.lag1_correlation([1, 1, 1, 1]) is None
    assert s.lag1_correlation([1, 2]) is None


def test_cluster_mean_with_equal_counts_is_t_on_means() -> None:
    means = np.random.default_rng(2).normal(0.02, 0.01, 24)
    got = s.cluster_mean(list(means * 48), [48] * 24)
    assert got.value == pytest.approx(means.mean())
    assert got.interval == pytest.approx(s.t_interval(list(means)))
    assert got.tokens == 24 * 48


def test_cluster_mean_weights_by_tokens_and_drops_nothing() -> None:
    got = s.cluster_mean([10.0, 1.0, 0.0], [100, 1, 0])
    assert got.value == pytest.approx(11 / 101)
    assert got.clusters == 2
    with pytest.raises(ValueError, match="no tokens"):
        s.cluster_mean([], [])


def test_design_effect() -> None:
    random = np.random.default_rng(4)
    independent = [list(random.normal(0, 1, 50)) for _ in range(200)]
    clustered = [list(random.normal(0, 1) + random.normal(0, 1, 50)) for _ in range(200)]
    assert s.design_effect(independent) == pytest.approx(1, abs=0.3)
    assert (s.design_effect(clustered) or 0) > 15
    assert s.design_effect([[1.0]]) is None


@pytest.mark.parametrize(
    ("b", "c", "n"),
    [(0, 0, 50), (5, 0, 50), (0, 5, 50), (12, 7, 200), (30, 30, 200), (50, 0, 50), (0, 50, 50), (1, 0, 1)],
)
def test_tango_equals_reference(reference: ModuleType, b: int, c: int, n: int) -> None:
    got = s.tango_interval(b, c, n)
    if b + c < n:
        assert got == pytest.approx(reference.tango_ci(b, c, n), abs=1e-6)
    assert -1 <= got[0] <= (c - b) / n + 1e-6
    assert (c - b) / n - 1e-6 <= got[1] <= 1
    mirrored = s.tango_interval(c, b, n)
    assert got == pytest.approx((-mirrored[1], -mirrored[0]), abs=1e-6)


def test_tango_refuses_impossible_counts() -> None:
    with pytest.raises(ValueError, match="discordant"):
        s.tango_interval(3, 3, 5)


@pytest.mark.parametrize(("b", "c", "p"), [(0, 0, 1.0), (4, 4, 1.0), (5, 0, 1 / 32), (3, 1, 0.375), (1, 3, 0.375)])
def test_mcnemar_midp(b: int, c: int, p: float) -> None:
    assert s.mcnemar_midp(b, c) == pytest.approx(p)


def test_mcnemar_harm_has_a_side() -> None:
    assert s.mcnemar_harm_p(5, 0) == pytest.approx(1 / 64)
    assert s.mcnemar_harm_p(0, 5) > 0.95
    assert s.mcnemar_harm_p(0, 0) == 1.0


@pytest.mark.parametrize(("b", "c"), [(0, 0), (3, 1), (20, 2), (2, 20), (60, 10)])
def test_harm_equals_reference(reference: ModuleType, b: int, c: int) -> None:
    assert s.harm_log_e(b, c) == pytest.approx(float(reference.harm_log_e(b, c)), rel=1e-9, abs=1e-9)


def test_harm_survives_far_tails() -> None:
    assert s.harm_log_e(0, 4000) < -1000
    assert s.harm_log_e(4000, 0) > 2000


@pytest.mark.parametrize(("events", "exposed"), [(0, 100), (3, 1000), (40, 900)])
def test_hazard_equals_reference(reference: ModuleType, events: int, exposed: int) -> None:
    assert s.hazard_interval(events, exposed) == pytest.approx(reference.hazard_ci(events, exposed))
    with pytest.raises(ValueError, match="exposure"):
        s.hazard_interval(0, 0)


@pytest.mark.parametrize(
    ("difference", "discordance", "items"),
    [
        (0.01, 0.05, 3922),
        (0.02, 0.05, 979),
        (0.03, 0.05, 434),
        (0.02, 0.08, 1567),
        (0.05, 0.15, 469),
        (0.01, 0.15, 11771),
    ],
)
def test_required_items_reproduce_the_table(difference: float, discordance: float, items: int) -> None:
    assert s.required_items(difference, discordance) == pytest.approx(items, abs=1)
    assert s.detectable_difference(items, discordance) == pytest.approx(difference, rel=1e-3)


def test_detectable_difference_at_its_ends() -> None:
    assert s.detectable_difference(0, 0.1) is None
    assert s.detectable_difference(3, 0.1) is None
    none_flipped = s.detectable_difference(200, 0.0)
    assert none_flipped is not None
    assert none_flipped > 3 / 200
    assert (s.detectable_difference(1000, 0.1) or 1) < (s.detectable_difference(100, 0.1) or 0)


def test_holm() -> None:
    assert s.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert s.holm([0.9, 0.001]) == pytest.approx([0.9, 0.002])
    assert s.holm([]) == []


def distributions(seed: int, vocabulary: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2.5, vocabulary)
    other = logits + random.normal(0, spread, vocabulary)
    normal = lambda z: z - np.log(np.exp(z - z.max()).sum()) - z.max()  # noqa: E731
    return normal(logits), normal(other)


def heads(lp: np.ndarray, k: int) -> dict[int, float]:
    return {int(i): float(lp[i]) for i in np.argsort(-lp)[:k]}


@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 5, 20]), spread=st.sampled_from([0.01, 0.3, 1.5]))
@settings(max_examples=60, deadline=None)
def test_estimator_is_unbiased_by_enumeration(seed: int, k: int, spread: float) -> None:
    lp, lq = distributions(seed, 300, spread)
    exact = float((np.exp(lp) * (lp - lq)).sum())
    p, q = heads(lp, k), heads(lq, k)
    expected = sum(math.exp(lp[x]) * s.kld_position(p, q, x, float(lp[x]), float(lq[x])) for x in range(len(lp)))
    assert expected == pytest.approx(exact, abs=1e-9)
    assert s.kld_bucket(p, q) <= exact + 1e-9


def test_estimator_equals_reference_and_identity_is_zero(reference: ModuleType) -> None:
    lp, lq = distributions(5, 200, 0.5)
    p, q = heads(lp, 20), heads(lq, 20)
    for x in (*list(p)[:3], 150, 151):
        ids = list(p)
        both = np.array([token in q for token in ids])
        got = s.kld_position(p, q, x, float(lp[x]), float(lq[x]))
        want = reference.kld_rb_cv(
            np.array([p[t] for t in ids]),
            np.array([q.get(t, -99.0) for t in ids]),
            both,
            float(lp[x]),
            float(lq[x]),
            x in p and x in q,
        )
        assert got == pytest.approx(want, abs=1e-12)
        assert s.kld_position(p, p, x, float(lp[x]), float(lp[x])) == 0.0
    assert s.kld_bucket(p, p) == pytest.approx(0.0, abs=1e-12)


def test_expected_disagreement_grows_with_the_root() -> None:
    assert s.top1_disagreement_expected(0.04) == pytest.approx(0.1)
    assert s.top1_disagreement_expected(-1e-9) == 0.0
