"""Order, lengths and budgets of a run (traps 13, 25) and the words of endpoints (trap 15)."""

from __future__ import annotations

import math

import pytest

from vq_console.checks.latency_decide import BUDGET, CAP, DECIDED, OPEN, decide, primary_of, units_of
from vq_console.checks.latency_settings import LatencySettings, settings_from_json
from vq_console.checks.schedule import (
    LatencyPlan,
    ProbeTimes,
    Turn,
    choose_plan,
    plan_from_json,
    refine_plan,
    turns_of_pair,
    warmup_s,
)
from vq_console.core.errors import UsageError

QUICK = LatencySettings.of("quick")
H200 = ProbeTimes(0.012, 0.0035, 64)
SLOW_CPU = ProbeTimes(0.4, 0.15, 64)


def test_coins_follow_from_the_seed() -> None:
    def orders(seed: int) -> list[str]:
        return ["".join(turn.arm for turn in turns_of_pair(seed, pair, [1])) for pair in range(200)]

    assert orders(1) == orders(1) != orders(2)
    assert 70 < orders(1).count("AB") < 130
    levels = {tuple(turn.concurrency for turn in turns_of_pair(1, pair, [1, 16])) for pair in range(20)}
    assert levels == {(1, 1, 16, 16), (16, 16, 1, 1)}


def test_halves_of_a_pair_share_prompts_and_nothing_else_does() -> None:
    turns = [
        turn for pair in range(3) for attempt in (0, 1) for turn in turns_of_pair(1, pair, [1, 4], attempt=attempt)
    ]
    keys = [turn.prompt_key for turn in turns]
    assert len(set(keys)) == len(keys) / 2
    assert Turn(-1, 1, "A", 0).prompt_key not in keys  # warm-up prompts are never used again
    assert len({turn.block for turn in turns}) == len(turns)


def test_a_fast_gpu_gets_full_lengths_and_minutes_are_enough() -> None:
    plan = choose_plan(QUICK, (H200, H200), cpu=False, left_s=290)
    assert (plan.prompt_tokens, plan.output_tokens) == (512, 128)
    assert [level.concurrency for level in plan.levels] == [1, 16]
    assert 8 * plan.pair_s < 290


def test_a_slow_cpu_gets_short_ones_that_fit() -> None:
    plan = choose_plan(QUICK, (SLOW_CPU, SLOW_CPU), cpu=True, left_s=240)
    assert plan.output_tokens <= 32
    assert plan.levels[-1].concurrency in (4, 8)
    lifetimes = [level.lifetime_s for level in plan.levels]
    assert 6 * plan.pair_s + warmup_s(QUICK, lifetimes) <= 240
    top = plan.levels[-1]
    assert top.window_s is not None
    assert top.window_s >= 2 * top.lifetime_s


def test_an_emulated_cpu_gets_two_streams_rather_than_no_verdict() -> None:
    """Figures of BF16 and W8A8 on two AVX2 cores that emulate both."""
    probes = (ProbeTimes(0.52, 0.236, 64), ProbeTimes(0.59, 0.271, 64))
    plan = choose_plan(QUICK, probes, cpu=True, left_s=190)
    assert [level.concurrency for level in plan.levels] == [1, 2]
    assert 6 * plan.pair_s + warmup_s(QUICK, [level.lifetime_s for level in plan.levels]) <= 190


def test_kernels_that_do_not_batch_are_met_with_two_streams_after_the_warm_up() -> None:
    """As W8A8 on an AVX2 CPU: four streams took twice the time that one stream let expect."""
    probes = (ProbeTimes(0.33, 0.154, 64), ProbeTimes(0.61, 0.213, 64))
    plan = choose_plan(QUICK, probes, cpu=True, left_s=180)
    assert [level.concurrency for level in plan.levels] == [1, 4]
    seen = {1: 1.9, 4: 4.4}
    kept = refine_plan(QUICK, plan, seen, 155)
    assert kept.pairs_in(155) < QUICK.pairs_min
    fewer = refine_plan(QUICK, plan, seen, 155, cpu=True)
    assert [level.concurrency for level in fewer.levels] == [1, 2]
    assert 1.9 < fewer.levels[1].lifetime_s < 4.4
    assert fewer.pairs_in(155) >= QUICK.pairs_min
    assert refine_plan(QUICK, plan, seen, 300, cpu=True).levels[-1].concurrency == 4, "where there is time, four stay"


def test_a_hopeless_budget_still_gives_a_plan_and_says_how_many_pairs_fit() -> None:
    plan = choose_plan(QUICK, (SLOW_CPU,), cpu=True, left_s=20)
    assert (plan.output_tokens, [level.concurrency for level in plan.levels]) == (8, [1, 2])
    assert plan.pairs_in(20) < QUICK.pairs_min


def test_windows_follow_what_the_warm_up_saw() -> None:
    plan = choose_plan(QUICK, (H200,), cpu=False, left_s=290)
    refined = refine_plan(QUICK, plan, {1: 0.5, 16: 3.0}, 290)
    assert refined.levels[1].lifetime_s == 3.0
    assert (refined.levels[1].window_s or 0) >= 6.0
    assert plan_from_json(refined.to_json()).levels == refined.levels


def test_two_levels_are_mandatory() -> None:
    with pytest.raises(UsageError):
        QUICK.with_levels(4)
    assert QUICK.with_levels(8, 2).levels == (2, 8)


def test_settings_survive_and_their_digest_ignores_only_the_budget() -> None:
    own = QUICK.with_levels(1, 4)
    assert settings_from_json(own.to_json()) == own
    assert LatencySettings.of("quick", budget_s=10).digest() == QUICK.digest() != own.digest()
    with pytest.raises(UsageError):
        LatencySettings.of("fast")


def test_primary_endpoints() -> None:
    assert primary_of([16, 1]) == {1: "tpot", 16: "throughput"}
    assert primary_of([1, 8, 32]) == {1: "tpot", 32: "throughput"}


FLAT = [0.001, -0.001, 0.0005, -0.0005, 0.0, 0.0008]
FASTER = [-0.30, -0.29, -0.31, -0.30, -0.305, -0.295]
WIDE = [0.2, -0.2, 0.1, -0.1, 0.15, -0.12]


@pytest.mark.parametrize(
    ("differences", "metric", "end", "word", "has_interval"),
    [
        (FLAT[:5], "tpot", OPEN, "continue", False),  # trap 15: nothing to show before the rule may look
        (FLAT[:5], "tpot", BUDGET, "inconclusive", True),
        (FLAT[:1], "tpot", BUDGET, "inconclusive", False),
        (FLAT, "tpot", OPEN, "equivalent", True),
        (FASTER, "tpot", OPEN, "faster", True),
        (FASTER, "throughput", OPEN, "slower", True),
        ([-d for d in FASTER], "tpot", OPEN, "slower", True),
        (WIDE, "tpot", OPEN, "continue", True),
        (WIDE, "tpot", CAP, "inconclusive", True),
        (WIDE, "tpot", DECIDED, "inconclusive", True),
    ],
)
def test_words(differences: list[float], metric: str, end: str, word: str, has_interval: bool) -> None:
    decision, _ = decide(differences, metric, QUICK, end=end, primary=True)
    assert decision.word == word
    assert (decision.interval is not None) == has_interval


def test_equivalence_region_can_be_chosen_before_the_run() -> None:
    from dataclasses import replace

    small = [0.04 + d for d in FLAT]
    assert decide(small, "tpot", QUICK, end=OPEN, primary=True)[0].word == "slower"
    assert decide(small, "tpot", replace(QUICK, equivalence=0.06), end=OPEN, primary=True)[0].word == "equivalent"


def test_correlated_neighbours_become_quads() -> None:
    waves = [0.05 * math.sin(k / 3) for k in range(12)]
    units, quads = units_of(waves)
    assert quads
    assert len(units) == 6
    assert units_of(FLAT) == (FLAT, False)


def test_interval_is_the_one_of_the_method() -> None:
    from vq_console.checks.statistics import anytime_t_halfwidth

    decision, rule = decide(FASTER, "tpot", QUICK, end=OPEN, primary=True)
    mean = sum(FASTER) / 6
    spread = math.sqrt(sum((d - mean) ** 2 for d in FASTER) / 5)
    half = anytime_t_halfwidth(6, spread, 0.02)
    assert rule == "anytime"
    assert decision.interval == pytest.approx((math.exp(mean - half), math.exp(mean + half)))


def test_a_plan_announces_its_pairs() -> None:
    plan = choose_plan(QUICK, (H200,), cpu=False, left_s=290)
    assert isinstance(plan, LatencyPlan)
    assert plan.pairs_in(plan.pair_s * 3.5) == 3
