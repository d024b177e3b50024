"""The little language model: exact divergence, faithful text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vq_console.simulator.language import END, SIZE, LanguageModel, exact_kl, tilt, tokenizer_of


def _text(model: LanguageModel, count: int, seed: int = 3) -> list[int]:
    random = np.random.default_rng(seed)
    tokens = model.tokenizer.encode("<|im_start|>user\nTell a story<|im_end|>\n")
    for _ in range(count):
        p = np.exp(model.next(tokens))
        tokens.append(int(random.choice(SIZE, p=p / p.sum())))
    return tokens


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = tokenizer_of(0)
    clean = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert tokenizer.decode(tokenizer.encode(text), special=True) == clean


def test_streamed_text_equals_whole_text() -> None:
    tokenizer = tokenizer_of(0)
    tokens = tokenizer.encode("Grüße, 你好 and some people")
    decoder = tokenizer.stream()
    parts = [decoder.feed([token]) for token in tokens] + [decoder.feed([], final=True)]
    assert "".join(parts) == "Grüße, 你好 and some people"
    assert "" in parts  # an unfinished character is held back


@pytest.mark.parametrize("kl", [0.001, 0.02, 0.07, 0.2])
def test_mean_divergence_is_the_programmed_one(kl: float) -> None:
    base, noisy = LanguageModel(0), LanguageModel(0, kl=kl, kl_spread=0.5)
    values = exact_kl(base, noisy, _text(base, 700), 20)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - kl) < 3.3 * error
    assert error < 0.05 * kl  # so that a model off by a fifth would fail


def test_every_position_has_its_own_divergence_exactly() -> None:
    base, noisy = LanguageModel(0), LanguageModel(0, kl=0.05, kl_spread=0.0)
    assert exact_kl(base, noisy, _text(base, 40), 5) == pytest.approx(0.05, rel=1e-6)


def test_identical_servers_do_not_differ() -> None:
    tokens = _text(LanguageModel(0), 30)
    assert exact_kl(LanguageModel(0), LanguageModel(0), tokens, 1).max() == 0.0


def test_other_vocabulary_seeds_are_other_models() -> None:
    assert LanguageModel(0).tokenizer.pieces != LanguageModel(5).tokenizer.pieces


def test_tilt_reaches_its_target() -> None:
    random = np.random.default_rng(1)
    logits = random.standard_normal((50, 200)) * 3
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = random.uniform(1e-5, 0.5, 50)
    log_q = tilt(log_p, random.standard_normal((50, 200)), target)
    assert np.exp(log_q).sum(axis=1) == pytest.approx(1.0)
    assert (np.exp(log_p) * (log_p - log_q)).sum(axis=1) == pytest.approx(target, rel=1e-6)


def test_distributions_look_like_a_language_model() -> None:
    model = LanguageModel(0)
    rows = np.exp(model.log_probabilities(_text(model, 200), 20))
    top20 = np.sort(rows, axis=1)[:, -20:].sum(axis=1).mean()
    assert 0.8 < top20 < 0.99
    assert rows[:, END].mean() < 0.01
