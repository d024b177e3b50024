"""The command: its JSON, its exit codes, what it says before it runs; and once with the real tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantize.conftest import FakeTool


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vq_console", "quantize", *words], capture_output=True, text=True, env=os.environ.copy()
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    assert value["schema"] == "vq-console/quantize/1"
    return value


def test_json_says_what_was_made(tiny: Path, tool: FakeTool, tmp_path: Path) -> None:
    out = tmp_path / "out" / "w8"
    done = run(str(tiny), "--scheme", "W8A8", "--out", str(out), "--tool", tool.python, "--json")
    value = answer(done)
    assert {"scheme", "out", "profile", "seconds", "log", "size_gib", "method", "findings", "recipe", "job"} <= set(
        value
    )
    assert value["out"] == str(out)
    assert Path(value["log"]).is_file()
    assert "QuantizationModifier(" in done.stderr, "the recipe is shown before it runs"
    listed = answer(run("--jobs", "--json"))["jobs"]
    assert [job["state"] for job in listed] == ["done"]


def test_several_schemes_end_in_a_table(tiny: Path, tool: FakeTool, tmp_path: Path) -> None:
    words = (str(tiny), "--scheme", "W8A8,FP8_DYNAMIC-fp8kv", "--group-size", "0", "--out", str(tmp_path / "o"))
    assert run(*words, "--tool", tool.python).returncode == 2
    words = (str(tiny), "--scheme", "W8A8,FP8_DYNAMIC-fp8kv", "--out", str(tmp_path / "o"), "--measure", "--no-profile")
    results = answer(run(*words, "--tool", tool.python, "--json"))["results"]
    assert [result["label"] for result in results] == ["W8A8", "FP8_DYNAMIC-fp8kv"]
    assert all(result["kld"]["tokens"] == 20 for result in results)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--scheme", "W4A16", "--group-size", "128"], 2, "192 inputs"),
        (["--scheme", "W9A99"], 2, "no such scheme"),
        ([], 2, "--scheme"),
        (["--scheme", "W8A8", "--samples", "0"], 2, "--samples"),
        (["--scheme", "W8A8", "--profile", "a b"], 2, "name of a profile"),
        (["--scheme", "W4A16-gptq", "--data", "/nowhere.jsonl"], 2, "/nowhere.jsonl"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(
    tiny: Path, vq_home: Path, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    done = run(str(tiny), *words, "--out", str(tmp_path / "x"))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (vq_home / "state/jobs").exists()


def test_a_dry_run_judges_and_makes_nothing(tiny: Path, vq_home: Path, tmp_path: Path) -> None:
    value = answer(run(str(tiny), "--scheme", "W4A16", "--dry-run", "--json", "--out", str(tmp_path / "x")))
    assert value["group_size"] == 64
    assert value["layers"] == 10
    assert value["expected"]["size_gib"] is not None
    assert "group-size-chosen" in {finding["rule"] for finding in value["findings"]}
    assert not (tmp_path / "x").exists()
    shown = run(str(tiny), "--scheme", "W4A16", "--dry-run", "--out", str(tmp_path / "x"))
    compile(shown.stdout, "recipe.py", "exec")
    assert shown.stdout == value["recipe_text"]
    assert "group size 64" in shown.stderr
    assert "QuantizationModifier(" not in shown.stderr
    wrong = run(
        str(tiny), "--scheme", "W4A16", "--group-size", "128", "--dry-run", "--json", "--out", str(tmp_path / "x")
    )
    assert wrong.returncode == 1
    plain = run(str(tiny), "--scheme", "W4A16", "--group-size", "128", "--dry-run", "--out", str(tmp_path / "x"))
    assert (plain.returncode, plain.stdout) == (1, ""), "what cannot be run is no answer"
    assert [f["severity"] for f in json.loads(wrong.stdout)["findings"]].count("error") == 1


def test_the_machine_lacks_something(vq_home: Path, tmp_path: Path) -> None:
    done = run("nobody/nothing-of-this-name", "--scheme", "W8A8", "--out", str(tmp_path / "x"))
    assert done.returncode == 3
    assert "vq-console pull" in done.stderr


def test_a_detached_job_can_be_followed_and_cancelled(tiny: Path, tool: FakeTool, tmp_path: Path) -> None:
    tool.plan(sleep=60)
    out = tmp_path / "out" / "w8"
    value = answer(run(str(tiny), "--scheme", "W8A8", "--out", str(out), "--tool", tool.python, "--detach", "--json"))
    assert value["state"] == "running"
    cancelled = answer(run("--cancel", value["job"], "--json"))
    assert cancelled["state"] == "cancelled"
    assert not out.exists()
    assert run("--follow", value["job"]).returncode in (1, 130)
    assert run("--cancel", "no-such-job").returncode == 2


def test_schemes_are_listed(vq_home: Path) -> None:
    names = {scheme["name"] for scheme in answer(run("--schemes", "--json"))["schemes"]}
    assert {"FP8_DYNAMIC", "W8A8", "W4A16", "NVFP4"} <= names


@pytest.mark.engine
def test_the_real_tool_makes_a_checkpoint_and_its_recipe_runs_alone(
    engine_python: str, starter_model: str, vq_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Path(engine_python).parents[2]
    tools = sorted(engines.glob("compressor-*/engine.json"))
    if not tools:
        pytest.skip(f"{engines} has no compressor")
    monkeypatch.setenv("VQ_ENGINES_DIR", str(engines))
    out = tmp_path / "w4"
    value = answer(run(starter_model, "--scheme", "W4A16", "--out", str(out), "--json"))
    assert value["group_size"] == 64
    assert value["size_gib"] == pytest.approx(value["expected"]["size_gib"], rel=0.1)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 64
    again = tmp_path / "again"
    alone = subprocess.run(
        [str(tools[0].parent / "bin/python"), str(out / "recipe.py"), str(again)],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr[-2000:]
    assert (again / "model.safetensors").stat().st_size == (out / "model.safetensors").stat().st_size
