"""Sentences say what the numbers allow, in the unit that a reader decides by."""

from __future__ import annotations

import pytest

from compare.summaries import endpoint, summary
from vq_console.compare.gates import failed_gates
from vq_console.compare.verdict import memory_sentence, quality_sentence, speed_sentence


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            endpoint("tpot", 1, 1 / 2.1, 1 / 2.2, 1 / 2.0, "faster"),
            "int4 is 2.1× faster than fp8 per token (95 % CI 2.0 to 2.2×, 6 pairs)",
        ),
        (
            endpoint("tpot", 1, 1.10, 1.08, 1.12, "slower"),
            "int4 is 10 % slower than fp8 per token (95 % CI 8 to 12 %, 6 pairs)",
        ),
        (
            endpoint("throughput", 64, 1.30, 1.28, 1.32, "faster"),
            "30 % faster than fp8 in tokens/s (95 % CI 28 to 32 %",
        ),
        (endpoint("throughput", 64, 0.5, 0.4, 0.6, "slower"), "2.0× slower than fp8 in tokens/s (95 % CI 1.7 to 2.5×"),
        (endpoint("tpot", 8, 1.004, 0.99, 1.02, "equivalent"), "equivalent per token (B/A 1.004, 0.990 to 1.020"),
        (endpoint("ttft", 1, 0.97, 0.8, 1.2, "inconclusive"), "inconclusive (B/A 0.97, 0.80 to 1.20"),
        (endpoint("tpot", 1, None, 0, 0, "inconclusive"), "not enough valid pairs"),
    ],
)
def test_speed_words(row: dict[str, object], words: str) -> None:
    assert words in speed_sentence({"endpoints": [row]}, "fp8", "int4")


def test_speed_names_streams_and_confounders() -> None:
    text = speed_sentence(
        {"endpoints": [endpoint("tpot", 1, 0.9, 0.88, 0.92, "faster")]},
        "a",
        "b",
        confounders=["max_num_seqs"],
        partial=True,
    )
    assert text.startswith("With 1 stream ")
    assert "no verdict on formats" in text
    assert "max_num_seqs" in text
    assert "Partial" in text


def test_absent_is_said_and_not_zero() -> None:
    assert speed_sentence(None, "a", "b") == "Speed was not measured."
    assert quality_sentence(None, "a", "b") == "Quality was not measured."
    assert memory_sentence({"A": {"weights_gib": None}, "B": {"weights_gib": 1.0}}, "a", "b").startswith(
        "Memory cannot be compared: only b"
    )


def test_quality_sentence_has_interval_floor_and_detectable_drop() -> None:
    text = quality_sentence(summary()["quality"], "bf16", "int4")
    assert "SMALL: int4 differs from bf16 by KLD 0.021 nats/token (95 % CI 0.018 to 0.025, 64 sequences" in text
    assert "noise floor 0.0002" in text
    assert "part after 50 tokens" in text
    assert "-1.5 pt (-5.2 to +2.1), a drop under 5 points cannot be seen" in text


def test_memory_sentence() -> None:
    text = memory_sentence(summary()["memory"], "fp8", "int4", context=8192)
    assert "int4 4.20 GiB, fp8 7.30 GiB (42 % less)" in text
    assert "185,760 tokens" in text
    assert "requests of 8,192 tokens at once: int4 22.7, fp8 19.0" in text


def test_a_named_baseline_leads_the_quality_sentence() -> None:
    part = {"word": "SMALL", "kld": {"value": 0.006, "ci": [0.005, 0.007]}}
    worse = {"word": "NOTICEABLE", "kld": {"value": 0.07, "ci": [0.06, 0.08]}}
    quality = {**summary()["quality"], "against_baseline": {"A": part, "B": worse}}
    text = quality_sentence(quality, "fp8", "int4")
    assert text.startswith("Against the baseline: fp8 SMALL, KLD 0.0060 (0.0050 to 0.0070); int4 NOTICEABLE, KLD 0.070")
    assert "SMALL: int4 differs from fp8" in text
    value = summary(quality=quality)
    assert failed_gates(value, ("noticeable",)) == ["noticeable: B against the baseline is NOTICEABLE"]
