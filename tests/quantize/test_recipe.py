"""The recipe is a script that runs without the console; the tool's output is read for progress; data are checked."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from quantize.test_judge import SMOL, WIDE, request
from vq_console.core.errors import UsageError
from vq_console.quantize.data import read_user_data
from vq_console.quantize.judge import judge
from vq_console.quantize.progress import Progress
from vq_console.quantize.recipe import recipe_text
from vq_console.quantize.schemes import SCHEMES, label

ALL = [label(scheme, method, None, kv) for scheme in SCHEMES for method in scheme.methods for kv in (None, "fp8")]


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_is_a_script_without_the_console(name: str) -> None:
    kv = "fp8" if name.endswith("-fp8kv") else None
    judged = judge(request(name.removesuffix("-fp8kv"), kv_cache=kv), SMOL, WIDE)
    text = recipe_text(judged, tool="llmcompressor 1", source_words="m")
    tree = ast.parse(text)
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert not any("vq_console" in str(module) for module in modules)
    if judged.scheme.maker == "modelopt":
        assert f"mtq.{judged.scheme.preset})" in text
        assert not any("llmcompressor" in str(module) for module in modules)
        return
    assert f'preset_name_to_scheme("{judged.scheme.preset or judged.scheme.name}"' in text
    assert ("GPTQModifier(" in text) == ("gptq" in name)
    assert ("AWQModifier(" in text) == ("awq" in name)
    assert ("SmoothQuantModifier(" in text) == ("smoothquant" in name)
    assert ("kv_cache_scheme=kv_cache" in text) == (kv is not None)
    steps = [line for line in text.split("\n") if line.strip().startswith("step(")]
    assert len(steps) == (4 if "def calibration" in text else 3)


def test_names_in_a_recipe_cannot_become_code() -> None:
    wild = request("W8A8", model='a"b\\\n"""; import os', ignore=("x'); evil(",))
    text = recipe_text(judge(wild, SMOL, WIDE), tool="t", source_words="plain")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("MODEL", "IGNORE")
    }
    assert values == {"MODEL": 'a"b\\\n"""; import os', "IGNORE": ["lm_head", "x'); evil("]}


def test_progress_is_read_from_the_tools_own_words() -> None:
    progress = Progress()
    shares = []
    for line in (
        "STEP 1/4: loading the model",
        "Loading weights:  50%|#####     | 136/272 [00:00<00:00, 4956.28it/s]",
        "STEP 2/4: reading calibration data",
        "STEP 3/4: quantizing",
        "(1/31): Calibrating:   0%|          | 0/8 [00:00<?, ?it/s]",
        "(16/31): Calibrating: 100%|##########| 8/8 [00:00<00:00, 434.50it/s]",
        "2026-11-30T11:13:00.1668 | GPTQ | METRIC - time 0.35s",
        "(31/31): Propagating: 100%|##########| 8/8 [00:00<00:00, 209.57it/s]",
        "STEP 4/4: writing the checkpoint",
        "Compressing model: 100%|##########| 210/210",
    ):
        progress.read(line)
        shares.append(progress.share)
    assert shares == sorted(shares)
    assert shares[5] == pytest.approx(0.07 + 0.85 * 15.6 / 31, abs=0.01)
    assert (progress.number, progress.total, progress.words) == (4, 4, "writing the checkpoint")
    assert progress.detail == "compressing model 100 %"
    assert progress.share < 1


def test_time_left_needs_something_to_go_by() -> None:
    progress = Progress(share=0.05)
    assert progress.eta_s(10) is None
    progress.share = 0.5
    assert progress.eta_s(1) is None
    assert progress.eta_s(60) == pytest.approx(60)


def test_users_data_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    message = {"role": "user", "content": "hello"}
    rows = [{"prompt": "p"}, {"text": "t", "id": 3}, {"messages": [message]}]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert read_user_data(path) == [{"prompt": "p"}, {"text": "t"}, {"messages": [message]}]
    plain = tmp_path / "data.txt"
    plain.write_text("one\n\ntwo\n")
    assert read_user_data(plain) == [{"text": "one"}, {"text": "two"}]


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"prompt": "a"}\nnope\n', "line 2"), ('{"prompt": ""}\n', "line 1: has none"), ("", "holds no prompts"),
     ('{"messages": [{"content": [1]}]}', "line 1"), ('{"a": \n', "line 1"), ("[1]\n", "line 1")],
)  # fmt: skip
def test_data_that_cannot_be_used_name_the_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_user_data(path)
    with pytest.raises(UsageError, match="no such file"):
        read_user_data(tmp_path / "absent.jsonl")
