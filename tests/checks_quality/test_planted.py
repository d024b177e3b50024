"""Planted divergences and the words they get, many runs without HTTP: the simulated model, the real analysis."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest

from checks_quality.scored import arm, scored_from, text
from vq_console.checks.quality_analysis import analyse
from vq_console.checks.quality_data import PromptIds, Recording, Replay
from vq_console.checks.quality_result import QualityResult
from vq_console.checks.quality_settings import QualitySettings
from vq_console.simulator.language import LanguageModel, exact_kl

START = (1, 300, 301, 302)


@functools.lru_cache(maxsize=12)
def sampled(seed: int, sequences: int, tokens: int) -> tuple[tuple[int, ...], ...]:
    """Texts that the base model samples at temperature 1, each after a prompt of its own."""
    model, random = LanguageModel(0), np.random.default_rng(seed)
    texts = []
    for _ in range(sequences):
        row = [*START, *(int(token) for token in random.integers(259, 1024, 8))]
        for _ in range(tokens):
            p = np.exp(model.next(row))
            row.append(int(np.searchsorted(np.cumsum(p) / p.sum(), random.random())))
        texts.append(tuple(row))
    return tuple(texts)


def compared(seed: int, kl: float, *, sequences: int, tokens: int, jitter: float = 1e-4) -> tuple[QualityResult, float]:
    """The verdict of a run at this planted divergence, and the exact value at its positions."""
    a = LanguageModel(0, jitter_kl=jitter)
    b = LanguageModel(0, kl=kl, kl_seed=seed + 1, jitter_kl=jitter)
    exact_a, exact_b = LanguageModel(0), LanguageModel(0, kl=kl, kl_seed=seed + 1)
    first = len(START) + 8
    left, right, floor, samples, truth = [], [], {}, [], []
    for index, row in enumerate(sampled(seed, sequences, tokens)):
        x = row[first:]
        left.append(scored_from(a.log_probabilities(row, first, jitter=3 * index + seed)[:-1], x))
        right.append(scored_from(b.log_probabilities(row, first, jitter=3 * index + 1 + seed)[:-1], x))
        if index < sequences // 2:
            floor[index] = scored_from(a.log_probabilities(row, first, jitter=3 * index + 2 + seed)[:-1], x)
        samples.append(text(0, x))
        truth.append(float(exact_kl(exact_a, exact_b, row, first).mean()))
    recording = Recording(
        arm("BF16", bits=16, parameters=8e9), (PromptIds("p", START),), True,
        tuple(sample.__class__(0, sample.ids, scores.x_lp) for sample, scores in zip(samples, left, strict=True)),
        tuple(left), floor,
    )  # fmt: skip
    result = analyse(recording, Replay(arm("B"), tuple(right)), QualitySettings.of("standard"))
    return result, float(np.mean(truth))


@pytest.mark.parametrize("kl", [0.001, 0.02, 0.07, 0.2])
def test_estimate_follows_the_planted_value(kl: float) -> None:
    result, truth = compared(1, kl, sequences=10, tokens=24)
    assert result.kld is not None
    assert result.kld.value == pytest.approx(truth + 2e-4, rel=0.35)
    assert result.kld.interval is not None


def test_the_order_is_right() -> None:
    values = [compared(2, kl, sequences=8, tokens=16)[0].kld for kl in (0.0, 0.001, 0.02, 0.07, 0.2)]
    found = [kld.value for kld in values if kld is not None and kld.value is not None]
    assert found == sorted(found)
    assert len(found) == 5


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kl", "word"),
    [
        (0.0, "INDISTINGUISHABLE"),
        (0.001, "INDISTINGUISHABLE"),
        (0.02, "SMALL"),
        (0.07, "NOTICEABLE"),
        (0.2, "DAMAGING"),
    ],
)
def test_standard_runs_get_the_right_word(kl: float, word: str) -> None:
    """At least 80 % the right word, at most 20 % UNRESOLVED, nothing worse for identical models."""
    runs = 10
    words = Counter(compared(seed, kl, sequences=128, tokens=256)[0].word for seed in range(runs))
    print(f"soak: planted {kl}: {', '.join(f'{count} {said}' for said, count in words.most_common())}")
    assert words[word] >= 0.8 * runs, words
    assert words["UNRESOLVED"] <= 0.2 * runs, words


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_quick_runs_of_the_same_model() -> None:
    """A/A: never worse than INDISTINGUISHABLE beyond the error rate of 5 %."""
    words = Counter(compared(seed, 0.0, sequences=16, tokens=48)[0].word for seed in range(100))
    print(f"soak: the same model: {', '.join(f'{count} {said}' for said, count in words.most_common())}")
    assert words["INDISTINGUISHABLE"] >= 95, words
    assert not {"DAMAGING", "NOTICEABLE"} & set(words)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_interval_covers_the_long_run_value() -> None:
    """24 sequences × 48 tokens: the interval covers the value of the whole language in 92 to 97 % of runs."""
    results = [compared(seed, 0.05, sequences=24, tokens=48, jitter=0.0) for seed in range(100)]
    # Each run has noise of its own direction; the value over all positions of all runs is the common truth.
    truth = float(np.mean([exact for _, exact in results]))
    inside = sum(r.kld.interval[0] <= truth <= r.kld.interval[1] for r, _ in results if r.kld and r.kld.interval)
    print(f"soak: {inside} of {len(results)} intervals cover {truth:.4f}")
    assert inside >= 88, "92 to 97 % are asserted over 1,000 runs in test_kld.py; 100 runs show no more than this"
