"""Divergence from scores: exact on average, zero for identity, and nothing dropped silently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checks_quality.scored import exact, random_pair, scored_from
from vq_console.checks.kld import KldSoFar, compare_scores, consistency, noise_floor, normalised
from vq_console.checks.quality_client import read_generated, read_scored
from vq_console.checks.quality_data import empty_scored


def pair(seed: int, noise: float, sequences: int = 12, tokens: int = 40):  # type: ignore[no-untyped-def]
    left, right, truth = [], [], []
    for index in range(sequences):
        a, b, x = random_pair(seed * 1000 + index, tokens, noise)
        left.append(scored_from(a, x))
        right.append(scored_from(b, x))
        truth.append(float(exact(a, b).mean()))
    return left, right, float(np.mean(truth))


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.8])
def test_estimate_is_near_the_exact_value(noise: float) -> None:
    left, right, truth = pair(1, noise, sequences=60)
    got = compare_scores(left, right, on_policy=True)
    assert got.value == pytest.approx(truth, rel=0.1)
    assert got.sequences == 60
    assert got.tokens == 60 * 40
    bucket = compare_scores(left, right, on_policy=False)
    assert bucket.value is not None
    assert bucket.value < truth
    assert not bucket.on_policy
    assert got.lower_bound == pytest.approx(bucket.value)


def test_identity_is_exactly_zero() -> None:
    left, _, _ = pair(2, 0.3)
    got = compare_scores(left, left, on_policy=True)
    assert got.value == 0.0
    assert got.interval == (0.0, 0.0)
    assert got.top1_agreement == 1.0
    assert got.ppl_ratio == 1.0
    assert got.mean_shift == 0.0


def test_fewer_top_tokens_stay_unbiased() -> None:
    values = []
    for seed in range(12):
        left, right, truth = [], [], []
        for index in range(12):
            a, b, x = random_pair(seed * 50 + index, 40, 0.5)
            left.append(scored_from(a, x, k=5))
            right.append(scored_from(b, x, k=5))
            truth.append(float(exact(a, b).mean()))
        got = compare_scores(left, right, on_policy=True)
        assert got.value is not None
        values.append(got.value / float(np.mean(truth)))
    assert np.mean(values) == pytest.approx(1.0, abs=0.06)


def test_missing_values_are_counted_not_dropped() -> None:
    left, right, _ = pair(3, 0.3, sequences=4)
    right[0].x_lp[3] = -9999.0
    right[1].x_lp[5] = np.nan
    left[2].x_lp[7] = -np.inf
    left[2].x_lp[8] = np.nan
    right[2].x_lp[8] = np.nan
    got = compare_scores(left, right, on_policy=True)
    assert (got.missing_a, got.missing_b) == (2, 2)
    assert got.tokens == 4 * 40 - 4
    assert got.missing_share == pytest.approx(4 / 160)


def test_the_divergence_so_far_ends_where_the_whole_one_is() -> None:
    left, right, _ = pair(6, 0.3, sequences=24)
    so_far = KldSoFar(on_policy=True)
    assert so_far.add(empty_scored("HTTP 500"), right[0]) is None
    shown = [so_far.add(a, b) for a, b in zip(left, right, strict=True)]
    whole = compare_scores(left, right, on_policy=True)
    assert whole.interval is not None
    assert shown[0] is not None
    assert shown[0]["ci"] is None, "one text has no spread"
    last = shown[-1]
    assert last is not None
    assert (last["value"], last["sequences"], last["tokens"]) == (pytest.approx(whole.value), 24, whole.tokens)
    # What may be looked at after every text is wider than what is looked at once.
    assert last["ci"][0] < whole.interval[0] < whole.interval[1] < last["ci"][1]
    widths = [one["ci"][1] - one["ci"][0] for one in shown if one is not None and one["ci"]]
    assert widths[-1] < widths[0]


def test_failed_and_misaligned_sequences_are_counted() -> None:
    left, right, _ = pair(4, 0.3, sequences=4)
    right[1] = empty_scored("HTTP 500")
    right[2] = replace(right[2], x=right[2].x + 1)
    got = compare_scores(left, right, on_policy=True)
    assert got.failed_sequences == 2
    assert got.sequences == 2


def test_nothing_to_compare_is_said() -> None:
    got = compare_scores([empty_scored("x")], [empty_scored("y")], on_policy=True)
    assert got.value is None
    assert got.problem == "no position could be compared"
    assert got.to_json()["ci"] is None


def test_logits_are_recognised_as_no_log_probabilities() -> None:
    left, right, _ = pair(5, 0.3, sequences=2)
    assert normalised(left)
    logits = replace(left[0], top_lp=left[0].top_lp + 4)
    assert not normalised([logits])
    assert compare_scores([logits], right[:1], on_policy=True).problem is not None


def test_floor_compares_the_same_sequences() -> None:
    left, right, _ = pair(6, 0.02, sequences=6)
    floor = noise_floor(left, {4: right[4], 1: right[1]}, on_policy=True)
    assert floor is not None
    assert floor.sequences == 2
    assert floor.value == pytest.approx(compare_scores([left[1], left[4]], [right[1], right[4]], on_policy=True).value)
    assert noise_floor(left, {}, on_policy=True) is None


def test_consistency_of_decode_and_prefill() -> None:
    left, _, _ = pair(7, 0.3, sequences=3)
    same = consistency([(scored.x_lp, scored) for scored in left])
    assert same is not None
    assert same.mean_shift == 0.0
    off = consistency([(scored.x_lp - 2, scored) for scored in left])
    assert off is not None
    assert off.far_share == 1.0
    assert same.passes(0.001, limit=0.05, floor_factor=5, far_limit=0.02)
    assert not off.passes(0.001, limit=0.05, floor_factor=5, far_limit=0.02)
    assert consistency([]) is None


def test_the_extra_observed_token_is_not_in_the_top() -> None:
    rows = [
        None,
        {"5": {"logprob": -3.0, "rank": 9}, "1": {"logprob": -0.1, "rank": 1}, "2": {"logprob": -2.5, "rank": 2}},
        {"1": {"logprob": -0.2, "rank": 1}, "2": {"logprob": -2.5, "rank": 2}},
        None,
    ]
    got = read_scored([7, 5, 1, 3], rows, 1, 2)
    assert list(got.x) == [5, 1, 3]
    assert got.x_lp[0] == pytest.approx(-3.0)
    assert set(got.top_ids[0].tolist()) == {1, 2}
    assert set(got.top_ids[1].tolist()) == {1, 2}
    assert np.isnan(got.x_lp[2])
    assert (got.top_ids[2] == -1).all()


def test_token_ids_come_from_either_form() -> None:
    logprobs = {
        "tokens": ["token_id:4", "token_id:9"],
        "token_logprobs": [-0.5, None],
        "top_logprobs": [{"token_id:4": -0.5, "token_id:8": -1.5}, None],
    }
    named = read_generated(3, {"text": "ab\x1b[2J", "logprobs": logprobs, "finish_reason": "stop"})
    assert named.ids == (4, 9)
    assert named.text == "ab"
    assert named.top[0] == {4: -0.5, 8: -1.5}
    assert np.isnan(named.logprobs[1])
    direct = read_generated(3, {"text": "ab", "token_ids": [4, 9], "logprobs": logprobs})
    assert direct.ids == (4, 9)
    words = read_generated(0, {"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1, -1]}})
    assert words.ids == ()


@pytest.mark.soak
def test_interval_covers_the_truth() -> None:
    """Sequences differ in their level, as real texts do; the truth is the mean over many of them."""
    random = np.random.default_rng(5)
    levels = random.gamma(4, 0.3 / 4, 24_000)
    means: list[float] = []
    intervals: list[tuple[float, float]] = []
    for run in range(1000):
        left, right = [], []
        for index in range(run * 24, run * 24 + 24):
            a, b, x = random_pair(index, 24, levels[index], vocabulary=120)
            left.append(scored_from(a, x))
            right.append(scored_from(b, x))
            means.append(float(exact(a, b).mean()))
        interval = compare_scores(left, right, on_policy=True).interval
        assert interval is not None
        intervals.append(interval)
    centre = float(np.mean(means))
    coverage = sum(low <= centre <= high for low, high in intervals) / len(intervals)
    print(f"soak: intervals of 24 texts cover the truth in {coverage:.1%} of {len(intervals)} runs")
    assert 0.92 <= coverage <= 0.97
