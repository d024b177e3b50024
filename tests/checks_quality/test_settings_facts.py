"""Budgets, announcements, and what is known of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vq_console.checks.quality_data import ModelFacts
from vq_console.checks.quality_facts import _CACHE_DTYPE, bits_of_method, shape_conflict, size_from_name
from vq_console.checks.quality_prompts import built_in_prompts
from vq_console.checks.quality_settings import (
    QualitySettings,
    Speed,
    announce,
    cost,
    fitted,
    relative_error,
)
from vq_console.core.errors import UsageError

FAST = Speed(2000, 20000, 200)
SLOW = Speed(50, 900, 8)


def test_quick_stays_within_its_tokens() -> None:
    price = cost(QualitySettings.of("quick"))
    assert price.a_generated <= 10_500
    assert price.b_generated <= 10_500
    assert price.a_prompt <= 25_000
    assert price.b_prompt <= 25_000
    assert price.task_generated == 0
    assert price.seconds is None


def test_a_fast_pair_is_not_reduced() -> None:
    settings, price = fitted(QualitySettings.of("quick"), FAST, FAST)
    assert (settings.sequences, settings.tokens) == (64, 96)
    assert price.seconds is not None
    assert price.seconds < 60


def test_a_slow_pair_gets_a_reduced_check_within_four_minutes() -> None:
    settings, price = fitted(QualitySettings.of("quick"), SLOW, SLOW)
    assert 24 <= settings.sequences < 64
    assert price.seconds is not None
    assert price.seconds <= 240
    assert settings.divergence_sequences >= 8


def test_a_budget_is_kept_where_it_can_be() -> None:
    for budget in (60, 120, 600):
        settings, price = fitted(QualitySettings.of("standard", budget_s=budget, tasks={}), SLOW, SLOW)
        assert price.seconds is not None
        assert price.seconds <= budget or settings.sequences == 16
    slowest, price = fitted(QualitySettings.of("quick", budget_s=1), SLOW, SLOW)
    assert (slowest.sequences, slowest.tokens) == (16, 32)
    assert (price.seconds or 0) > 1


def test_standard_is_never_reduced_without_a_budget() -> None:
    settings, _ = fitted(QualitySettings.of("standard"), SLOW, SLOW)
    assert (settings.sequences, settings.tokens) == (128, 256)


def test_smaller_never_becomes_larger() -> None:
    tiny = replace(QualitySettings.of("quick", budget_s=1), sequences=20, tokens=40)
    settings, _ = fitted(tiny, SLOW, SLOW)
    assert settings.sequences <= 20


def test_the_announcement_says_what_cannot_be_seen() -> None:
    quick, price = fitted(QualitySettings.of("quick"), FAST, FAST)
    assert "not tested" in announce(quick, price)
    standard, price = fitted(QualitySettings.of("standard"), FAST, FAST)
    text = announce(standard, price)
    assert "stays unseen" in text
    assert f"{price.a_generated:,}" in text
    assert relative_error(standard) < relative_error(quick) < 0.2


def test_unknown_mode() -> None:
    with pytest.raises(UsageError, match="slow"):
        QualitySettings.of("slow")


def test_prompts_differ_and_mix_languages() -> None:
    prompts = built_in_prompts(96, seed=4)
    texts = {str(item.messages[0]["content"]) for item in prompts}
    assert len(texts) == 96
    assert prompts == built_in_prompts(96, seed=4)
    assert any(not text.isascii() for text in texts)
    assert max(len(text) for text in texts) < 90
    with pytest.raises(ValueError, match="built-in"):
        built_in_prompts(10_000, seed=1)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8e9),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135e6),
        ("Qwen/Qwen2.5-0.5B", 0.5e9),
        ("mistralai/Mixtral-8x7B", None),
        ("my-model", None),
        ("gpt-4b2", None),
    ],
)
def test_size_from_name(name: str, size: float | None) -> None:
    assert size_from_name(name) == size


@pytest.mark.parametrize(
    ("method", "bits"),
    [(None, 16), ("None", 16), ("fp8_per_tensor", 8), ("awq_marlin", 4), ("modelopt_fp4", 4),
     ("compressed-tensors", None), ("int8_per_channel_weight_only", 8)],
)  # fmt: skip
def test_bits_of_method(method: str | None, bits: int | None) -> None:
    assert bits_of_method(method) == bits


def test_cache_type_is_not_taken_from_another_label() -> None:
    line = b'vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",mamba_cache_dtype="auto"} 1.0'
    found = _CACHE_DTYPE.search(line)
    assert found is not None
    assert found[1] == b"fp8_e4m3"
    first = _CACHE_DTYPE.search(b'vllm:cache_config_info{cache_dtype="auto",mamba_ssm_cache_dtype="float32"} 1.0')
    assert first is not None
    assert first[1] == b"auto"


def test_shapes_that_differ_are_not_one_model() -> None:
    a = ModelFacts(shape={"hidden_size": 4096, "vocab_size": 128256})
    assert shape_conflict(a, ModelFacts(shape={"hidden_size": 4096})) is None
    assert shape_conflict(a, ModelFacts()) is None
    assert shape_conflict(a, ModelFacts(shape={"hidden_size": 2048})) == "hidden_size is 4096 there and 2048 here"
