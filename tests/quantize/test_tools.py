"""The parts of the tools' scripts and of their numbers that need no model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from vq_console.quantize.data import HELD_OUT
from vq_console.quantize.outcome import summarise
from vq_console.quantize.tools import generate, measure


def test_prompts_that_are_measured_on_are_never_calibrated_with() -> None:
    many = generate.prompts(1000, 1, HELD_OUT)
    assert len(many) == 1000
    assert len(set(many[:HELD_OUT])) == HELD_OUT
    assert not set(many[:HELD_OUT]) & set(many[HELD_OUT:])
    assert generate.prompts(HELD_OUT + 5, 1, HELD_OUT) == many[: HELD_OUT + 5]
    assert generate.prompts(5, 1, HELD_OUT) == many[:5]
    assert generate.prompts(1000, 2, HELD_OUT) != many
    assert HELD_OUT % generate._BATCH == 0, "a batch is drawn as a whole, however many texts are asked for"


def test_an_interrupted_writer_goes_on_after_its_last_whole_batch(tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert generate.written(part) == []
    lines = [json.dumps({"ids": [n]}) for n in range(generate._BATCH + 3)]
    part.write_text("\n".join(lines) + "\n" + lines[0][:4])
    assert [record["ids"][0] for record in generate.written(part)] == list(range(generate._BATCH))


@pytest.mark.parametrize(
    ("prompt", "length", "positions"),
    [(3, 6, [2, 3, 4]), (1, 2, [0]), (0, 3, [0, 1])],
    ids=["answer", "one token", "no prompt"],
)
def test_what_is_compared_is_what_the_source_chose(prompt: int, length: int, positions: list[int]) -> None:
    record = {"prompt_tokens": prompt, "ids": list(range(length))}
    assert list(range(length))[measure.answer(record)] == positions


def test_texts_share_a_pass_as_far_as_their_logits_fit() -> None:
    texts = [{"ids": [0] * 200}, {"ids": [0] * 100}]
    assert measure.together(texts, 50_000) == 8
    assert measure.together(texts, 250_000) == 2
    assert measure.together(texts, 10**9) == 1


def row(tokens: int, kl: float, **more: Any) -> dict[str, Any]:
    return {"tokens": tokens, "kl": kl, "top1": tokens, "logp_a": -1.0 * tokens, "logp_b": -1.0 * tokens, **more}


def test_the_divergence_is_per_token_and_its_interval_over_texts() -> None:
    same = summarise([row(10, 1.0), row(30, 3.0)])
    assert same is not None
    assert same["value"] == pytest.approx(0.1)
    assert same["ci"] == pytest.approx([0.1, 0.1])
    spread = summarise([row(10, 1.0), row(10, 3.0)])
    assert spread is not None
    # two texts: mean 0.2, standard deviation of the sums sqrt(2), t with one degree of freedom 12.7
    half = 12.706 * math.sqrt(2) * math.sqrt(2) / 20
    assert spread["ci"] == pytest.approx([max(0.0, 0.2 - half), 0.2 + half], rel=1e-3)
    shifted = summarise([row(10, 1.0, logp_b=-12.0, top1=5)])
    assert shifted is not None
    assert shifted["ci"] is None, "one text has no interval"
    assert shifted["ppl_ratio"] == pytest.approx(math.exp(0.2))
    assert shifted["top1_agreement"] == pytest.approx(0.5)
    assert summarise([]) is None
    assert summarise([row(0, 0.0)]) is None
