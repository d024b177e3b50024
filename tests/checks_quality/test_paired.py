"""Paired outcomes, early stop, and the import of lm_eval's samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from vq_console.checks.tasks.lm_eval import import_pairs, sample_files
from vq_console.checks.tasks.model import Outcome
from vq_console.checks.tasks.paired import compare_outcomes, e_limit, harm_reached, pooled
from vq_console.core.errors import UsageError

R, W, T, E = Outcome.RIGHT, Outcome.WRONG, Outcome.TRUNCATED, Outcome.ERROR


def test_only_full_answers_are_compared() -> None:
    pairs = [(R, R)] * 50 + [(R, W)] * 6 + [(W, R)] * 2 + [(W, W)] * 42 + [(R, T)] * 5 + [(E, R)] * 3
    result = compare_outcomes("t", pairs)
    assert result.n == 100
    assert (result.a, result.b, result.difference) == (0.56, 0.52, pytest.approx(-0.04))
    assert (result.truncated_a, result.truncated_b, result.errors) == (0, 5, 3)
    assert result.flips == 0.08
    assert result.worse
    assert result.interval is not None
    assert result.interval[0] < -0.04 < result.interval[1]
    assert result.p == pytest.approx(0.1797, abs=0.01)
    assert result.to_json()["ci"] == list(result.interval)


def test_nothing_in_full_gives_nothing() -> None:
    result = compare_outcomes("t", [(T, T), (E, W)])
    assert result.n == 0
    assert result.a is None
    assert result.p is None
    assert result.flips is None


def test_pooled_needs_two_tasks() -> None:
    one = compare_outcomes("one", [(R, W)] * 4 + [(R, R)] * 16)
    two = compare_outcomes("two", [(R, W)] * 3 + [(W, W)] * 27)
    assert pooled([one]) is None
    both = pooled([one, two])
    assert both is not None
    assert both.n == 50
    assert both.a_right_b_wrong == 7
    assert both.a == pytest.approx(23 / 50)
    assert both.b == pytest.approx(16 / 50)


def test_harm_stops_early_and_only_downwards() -> None:
    limit = e_limit(1, 50)
    assert limit == pytest.approx(math.log(50))
    assert not harm_reached([(R, R)] * 100, limit)
    assert harm_reached([(R, W)] * 12, limit)
    assert not harm_reached([(W, R)] * 40, limit)
    assert not harm_reached([(R, W)] * 12, e_limit(8, 50) + 10)


def write(
    folder: Path, rows: list[dict[str, Any]], task: str = "gsm8k", when: str = "2026-05-01T10-00-00.000001"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"samples_{task}_{when}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def row(number: int, right: float, **more: Any) -> dict[str, Any]:
    return {
        "doc_id": number, "doc_hash": f"h{number}", "prompt_hash": "p", "target_hash": "t",
        "filter": "strict-match", "metrics": ["exact_match"], "exact_match": right, **more,
    }  # fmt: skip


def test_lm_eval_pairs_by_document(tmp_path: Path) -> None:
    write(tmp_path / "a" / "model", [row(i, 1.0) for i in range(10)])
    rows = [row(i, 0.0 if i < 3 else 1.0) for i in reversed(range(9))]
    rows[0]["prompt_hash"] = "other"
    write(tmp_path / "b" / "model", rows)
    (result,), notes = import_pairs(tmp_path / "a", tmp_path / "b")
    assert result.name == "gsm8k"
    assert result.n == 8
    assert result.a_right_b_wrong == 3
    assert any("1 item without a partner" in note for note in notes)
    assert any("another prompt" in note for note in notes)


def test_lm_eval_filters_are_separate(tmp_path: Path) -> None:
    both = [row(i, 1.0) for i in range(4)] + [row(i, 0.0, filter="flexible-extract") for i in range(4)]
    write(tmp_path / "a", both)
    write(tmp_path / "b", both)
    results, _ = import_pairs(tmp_path / "a", tmp_path / "b")
    assert {result.name: result.a for result in results} == {
        "gsm8k (strict-match)": 1.0, "gsm8k (flexible-extract)": 0.0,
    }  # fmt: skip


def test_lm_eval_takes_the_newest_file_and_task_names_with_underscores(tmp_path: Path) -> None:
    write(tmp_path, [row(1, 0.0)], task="mmlu_high_school", when="2026-05-01T10-00-00.000001")
    write(tmp_path, [row(1, 1.0)], task="mmlu_high_school", when="2026-05-02T10-00-00.000001")
    files = sample_files(tmp_path)
    assert list(files) == ["mmlu_high_school"]
    assert "05-02" in files["mmlu_high_school"].name


def test_lm_eval_without_anything_in_common(tmp_path: Path) -> None:
    write(tmp_path / "a", [row(1, 1.0)])
    write(tmp_path / "b", [row(2, 1.0)])
    with pytest.raises(UsageError, match="no item in common"):
        import_pairs(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError, match="no samples_"):
        sample_files(tmp_path / "empty")
    write(tmp_path / "c", [row(1, 0.5)])
    with pytest.raises(UsageError, match="right-or-wrong"):
        import_pairs(tmp_path / "a", tmp_path / "c")
