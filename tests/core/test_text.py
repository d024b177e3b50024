"""What is shown and exported holds no secret, and the quick look before the patterns misses none; counts and nouns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq_console.core import text as core


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("--api-key=abcdef123", "--api-key=***"),
        ("{'api_key': ['abcdef123']}", "{'api_key': ['***']}"),
        ("HF_TOKEN: abcdef123", "HF_TOKEN: ***"),
        ("Authorization: Bearer abcdef123", "Authorization: ***"),
        ("PASSWORD = 'abcdef123'", "PASSWORD = '***'"),
        ("left hf_abcdefghijkl12 right", "left *** right"),
        ("sk-abcdefghijklmnop12", "***"),
        ("Avg prompt throughput: 12.5 tokens/s, KV cache usage: 77.1%", None),
        ("monkey: banana and keyed rows", None),
    ],
)
def test_redact(said: str, shown: str | None) -> None:
    assert core.redact(said) == (said if shown is None else shown)


PIECES = st.sampled_from(
    ["api", "-", "_", "KEY", "key", "Token", "secret", "'", '"', ":", "=", " ", "Bearer ", "hf_", "sk-", "ghp_", "AKIA",
     "eyJ", ".", "abcdefghijkl", "0123456789ABCDEF", "[", "]", ",", "password", "AUTHORIZATION", "s/", "\u212a", "\t"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14).map("".join))
def test_the_quick_look_misses_nothing(text: str) -> None:
    patterns = core._TOKEN.sub("***", core._SECRET.sub(lambda found: found["name"] + "***", text))
    assert core.redact(text) == patterns


@pytest.mark.parametrize(
    ("count", "form", "said"),
    [
        (0, "", "0 streams"),
        (1, "", "1 stream"),
        (2, "", "2 streams"),
        (12345, ",", "12,345 streams"),
        (0.9, ".0f", "1 stream"),
        (1.4, ".1f", "1.4 streams"),
    ],
)
def test_a_count_agrees_with_its_noun(count: float, form: str, said: str) -> None:
    assert core.counted(count, "stream", form) == said
