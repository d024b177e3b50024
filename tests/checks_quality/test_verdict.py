"""The table of verdicts, and what may not be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vq_console.checks.divergence import Hazard
from vq_console.checks.health import HealthResult
from vq_console.checks.kld import KldResult
from vq_console.checks.quality_settings import Thresholds
from vq_console.checks.quality_verdict import Evidence, Word, judge, sentence
from vq_console.checks.tasks.model import Outcome
from vq_console.checks.tasks.paired import compare_outcomes

T = Thresholds()


def kld(low: float, high: float, **more: object) -> KldResult:
    base = KldResult((low + high) / 2, (low, high), 64, 6144, True, top1_agreement=0.99)
    return replace(base, **more)  # type: ignore[arg-type]


def evidence(low: float, high: float, **more: object) -> Evidence:
    base = Evidence(kld(low, high), 0.0002, baseline_bits=16, parameters=8e9, consistent_a=True, consistent_b=True)
    return replace(base, **more)  # type: ignore[arg-type]


SICK = HealthResult("loop", 40, 0, 12, 0, 12, 0.0001, excess=True)
LOST = compare_outcomes("math", [(Outcome.RIGHT, Outcome.WRONG)] * 20 + [(Outcome.RIGHT, Outcome.RIGHT)] * 80)
EVEN = compare_outcomes("math", [(Outcome.RIGHT, Outcome.RIGHT)] * 100)


@pytest.mark.parametrize(
    ("low", "high", "floor", "word", "label"),
    [
        (0.0002, 0.0009, 0.0002, "INDISTINGUISHABLE", None),
        (0.0, 0.002, None, "INDISTINGUISHABLE", None),
        (0.002, 0.0049, 0.002, "INDISTINGUISHABLE", None),
        (0.002, 0.0049, 0.0001, "SMALL", "near-lossless"),
        (0.018, 0.025, 0.0002, "SMALL", None),
        (0.0, 0.0499, 0.0002, "SMALL", None),
        (0.05, 0.10, 0.0002, "NOTICEABLE", None),
        (0.06, 0.08, 0.0002, "NOTICEABLE", None),
        (0.101, 0.2, 0.0002, "DAMAGING", None),
        (0.04, 0.06, 0.0002, "UNRESOLVED", None),
        (0.09, 0.11, 0.0002, "UNRESOLVED", None),
        (0.001, 0.3, 0.0002, "UNRESOLVED", None),
    ],
)
def test_word_by_divergence(low: float, high: float, floor: float | None, word: str, label: str | None) -> None:
    got = judge(evidence(low, high, floor=floor), T)
    assert (got.word, got.label) == (word, label)


@pytest.mark.parametrize("more", [{"health": (SICK,)}, {"tasks": (LOST,)}])
def test_behaviour_outweighs_a_small_divergence(more: dict[str, object]) -> None:
    got = judge(evidence(0.0002, 0.0009, **more), T)
    assert got.word is Word.DAMAGING
    assert len(got.reasons) == 2


def test_no_harm_changes_nothing() -> None:
    assert judge(evidence(0.0002, 0.0009, tasks=(EVEN,)), T).word is Word.INDISTINGUISHABLE
    won = compare_outcomes("math", [(Outcome.WRONG, Outcome.RIGHT)] * 20 + [(Outcome.RIGHT, Outcome.RIGHT)] * 80)
    assert judge(evidence(0.0002, 0.0009, tasks=(won,)), T).word is Word.INDISTINGUISHABLE


def test_many_tasks_are_judged_together() -> None:
    """Six lost of six at random among twenty tasks is chance; alone it is harm."""
    unlucky = compare_outcomes("one", [(Outcome.RIGHT, Outcome.WRONG)] * 6 + [(Outcome.RIGHT, Outcome.RIGHT)] * 94)
    assert judge(evidence(0.01, 0.02, tasks=(unlucky,)), T).word is Word.DAMAGING
    assert judge(evidence(0.01, 0.02, tasks=(unlucky, *[EVEN] * 19)), T).word is Word.SMALL


def test_damage_needs_a_16_bit_baseline() -> None:
    quantized = judge(evidence(0.2, 0.3, baseline_bits=8), T)
    assert quantized.word is Word.NOTICEABLE
    assert "a difference, not damage" in quantized.reasons[-1]
    assert judge(evidence(0.2, 0.3, baseline_bits=None), T).word is Word.DAMAGING


def test_small_models_need_task_evidence() -> None:
    assert judge(evidence(0.2, 0.3, parameters=135e6), T).word is Word.NOTICEABLE
    assert judge(evidence(0.2, 0.3, parameters=135e6, tasks=(LOST,)), T).word is Word.DAMAGING
    assert judge(evidence(0.2, 0.3, parameters=None), T).word is Word.DAMAGING


@pytest.mark.parametrize("more", [{"health": (SICK,)}, {"tasks": (LOST,)}, {}])
def test_the_same_server_is_never_damaging(more: dict[str, object]) -> None:
    assert judge(evidence(0.2, 0.3, identical=True, **more), T).word is Word.UNRESOLVED


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"blocked": "other tokens"}, "other tokens"),
        ({"kld": None}, "no divergence"),
        ({"kld": kld(0.0, 0.001, missing_b=100)}, "missing"),
        ({"kld": kld(0.0, 0.001, problem="logits")}, "logits"),
        ({"kld": kld(0.0, 0.001, interval=None)}, "one sequence"),
        ({"consistent_a": False}, "baseline's decoding"),
        ({"speculative": True, "consistent_b": None}, "speculative"),
    ],
)
def test_a_void_divergence_resolves_nothing(more: dict[str, object], reason: str) -> None:
    got = judge(evidence(0.0, 0.001, **more), T)
    assert got.word is Word.UNRESOLVED
    assert reason in " ".join(got.reasons)
    assert judge(evidence(0.0, 0.001, health=(SICK,), **more), T).word is Word.DAMAGING


def test_speculative_decoding_passes_when_consistent() -> None:
    assert judge(evidence(0.0, 0.001, speculative=True), T).word is Word.INDISTINGUISHABLE


def test_decoding_that_differs_from_scoring_blocks_praise() -> None:
    assert judge(evidence(0.0, 0.001, consistent_b=False), T).word is Word.UNRESOLVED
    assert judge(evidence(0.06, 0.08, consistent_b=False), T).word is Word.NOTICEABLE
    parted = Hazard(20, 100, 24, 0.2, (0.12, 0.31))
    calm = Hazard(2, 400, 24, 0.005, (0.0006, 0.018))
    assert judge(evidence(0.0, 0.001, hazard=parted), T).word is Word.UNRESOLVED
    assert judge(evidence(0.0, 0.001, hazard=calm), T).word is Word.INDISTINGUISHABLE
    assert judge(evidence(0.0, 0.001, hazard=parted, floor_hazard=parted), T).word is Word.INDISTINGUISHABLE


def test_text_of_others_gives_only_a_lower_bound() -> None:
    off = kld(0.02, 0.03, on_policy=False)
    assert judge(evidence(0, 0, kld=off), T).word is Word.UNRESOLVED
    assert judge(evidence(0, 0, kld=replace(off, interval=(0.11, 0.2))), T).word is Word.DAMAGING
    worse = replace(off, ppl_ratio=1.2, ppl_interval=(1.1, 1.3))
    assert judge(evidence(0, 0, kld=worse), T).word is Word.DAMAGING


def test_perplexity_on_own_text_is_the_divergence_once_more() -> None:
    on = kld(0.06, 0.08, ppl_ratio=1.07, ppl_interval=(1.06, 1.08))
    assert judge(evidence(0, 0, kld=on), T).word is Word.NOTICEABLE


def test_the_sentence() -> None:
    full = evidence(0.018, 0.025, tasks=(EVEN,))
    text = sentence(full, judge(full, T), "BF16", "INT4")
    assert text.startswith("SMALL: INT4 against BF16 KLD 0.021 (0.018 to 0.025), floor 0.0002; math +0.0 pt")
    assert "cannot be excluded" in text
    other = replace(full, baseline_bits=8)
    assert "INT4 differs from FP8 by KLD" in sentence(other, judge(other, T), "FP8", "INT4")
    none = evidence(0, 0, kld=None)
    assert "no KL divergence" in sentence(none, judge(none, T), "A", "B")
