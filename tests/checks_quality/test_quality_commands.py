"""The commands `tasks` and `reference`, through the command line's own parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.running import served
from vq_console.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    value = json.loads(run(capsys, *words, "--json", code=code))
    assert isinstance(value, dict)
    return value


def test_generators_are_listed(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = answer(capsys, "tasks", "list")
    assert value["schema"] == "vq-console/tasks/1"
    assert {"words", "json", "rules", "table", "lang", "tools", "recall"} <= {g["name"] for g in value["generators"]}
    assert "word" in run(capsys, "tasks", "list")


def test_items_and_their_key(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(capsys, "tasks", "show", "words", "--count", "3", "--seed", "7").splitlines()
    key = run(capsys, "tasks", "show", "words", "--count", "3", "--seed", "7", "--answers").splitlines()
    assert [json.loads(row)["messages"][-1]["content"] for row in rows] == [json.loads(row)["match"] for row in key]
    assert len(answer(capsys, "tasks", "show", "lang", "--count", "4")["items"]) == 4


def test_every_name_that_is_listed_can_be_shown(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [line.split()[0] for line in run(capsys, "tasks", "list").splitlines()[1:]]
    assert "needle" in names
    for name in names:
        items = answer(capsys, "tasks", "show", name, "--count", "3")["items"]
        assert len(items) == 3
        assert all(item["messages"] for item in items)
    rows = run(capsys, "tasks", "show", "needle", "--answers").splitlines()
    assert len(rows) == 10
    assert all(json.loads(row)["answer"] for row in rows)


@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "show", "needle", "--level", "2"),
        ("tasks", "show", "wrods"),
        ("tasks", "show", "words", "--level", "9"),
        ("tasks", "show", "words", "--count", "0"),
    ],
)
def test_wrong_use(vq_home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_needle_that_is_asked_for_as_a_task_says_how_to_ask(
    vq_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("tasks", "run", "http://127.0.0.1:9/v1", "--task", "needle")) == 2
    assert "--needle 8192" in capsys.readouterr().err


def test_groups_without_action_show_help(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "record" in run(capsys, "reference", code=2)
    assert "import" in run(capsys, "tasks", code=2)


def test_lm_eval_import(vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, right in (("a", 1.0), ("b", 0.0)):
        folder = tmp_path / side
        folder.mkdir()
        rows = [{"doc_hash": str(i), "acc": right if i < 3 else 1.0} for i in range(20)]
        (folder / "samples_arc_2026-01-01T00-00-00.000000.jsonl").write_text("\n".join(map(json.dumps, rows)))
    value = answer(capsys, "tasks", "import", str(tmp_path / "a"), str(tmp_path / "b"))
    assert value["tasks"][0]["n"] == 20
    assert value["tasks"][0]["a_right_b_wrong"] == 3
    assert "arc" in run(capsys, "tasks", "import", str(tmp_path / "a"), str(tmp_path / "b"))


def test_record_list_show_replay_and_refuse(vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"script": "h200-bf16", "engine_process": False, "tpot_ms": 0.1, "ttft_ms": 1.0, "max_model_len": 200}
    model = "meta-llama/Llama-3.1-8B-Instruct"
    with (
        served(tmp_path, spec, model=model, name="a") as a,
        served(tmp_path, {**spec, "kl": 0.07}, model=model, name="b") as b,
        served(tmp_path, {**spec, "vocabulary_seed": 3}, model=model, name="c") as c,
    ):
        made = answer(capsys, "reference", "record", a.url, "--name", "base", "--minutes", "0.02")
        assert Path(made["path"]).is_file()
        assert made["arm"]["simulated"]
        assert main(["reference", "record", a.url, "--name", "base"]) == 2
        capsys.readouterr()
        assert [row["name"] for row in answer(capsys, "reference", "list")["references"]] == ["base"]
        assert answer(capsys, "reference", "show", "base")["arm"]["model"] == model
        assert "tokenizer" in run(capsys, "reference", "show", "base")
        value = answer(capsys, "reference", "replay", "base", b.url, "--out", str(tmp_path / "replay"))
        assert value["quality"]["kld"]["value"] > 0.03
        assert (tmp_path / "replay" / "answers.jsonl").is_file()
        refused = answer(capsys, "reference", "replay", "base", c.url, code=1)
        assert "different tokenizers" in refused["error"]["message"]
        tasks = answer(
            capsys,
            "tasks",
            "run",
            a.url,
            "--task",
            "words",
            "--count",
            "6",
            "--level",
            "1",
            "--out",
            str(tmp_path / "t"),
        )
        assert tasks["summary"]["tasks"][0]["name"] == "word problems"
