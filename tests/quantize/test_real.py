"""The real tools on tiny models with routers, experts and linear attention, and killed in the middle of their work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from quantize.test_make import _wait, nothing
from vq_console.core.errors import VqError
from vq_console.quantize import jobs
from vq_console.quantize.model import Request
from vq_console.quantize.run import follow, make, prepare, resume
from vq_console.quantize.source import read_tensors
from vq_console.quantize.worker import part_folder

pytestmark = [pytest.mark.engine, pytest.mark.soak]


@pytest.fixture
def compressor(engine_python: str, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """LLM Compressor's interpreter beside the real engine."""
    engines = Path(engine_python).parents[2]
    tools = sorted(engines.glob("compressor-*/engine.json"))
    if not tools:
        pytest.skip(f"{engines} has no compressor")
    monkeypatch.setenv("VQ_ENGINES_DIR", str(engines))
    return str(tools[0].parent / "bin/python")


@pytest.fixture
def tiny_model(compressor: str, starter_model: str, tmp_path: Path) -> Any:
    """Makes a tiny model of a kind."""

    def made(kind: str) -> str:
        out = tmp_path / f"tiny-{kind}"
        script = str(Path(__file__).with_name("make_tiny.py"))
        subprocess.run([compressor, script, kind, str(out), starter_model], check=True, capture_output=True)
        return str(out)

    return made


@pytest.mark.parametrize("scheme", ["FP8_DYNAMIC", "W4A16"])
@pytest.mark.parametrize("kind", ["moe", "hybrid"])
def test_routers_and_linear_attention_stay_as_they_are(tiny_model: Any, tmp_path: Path, kind: str, scheme: str) -> None:
    prepared = prepare(Request(tiny_model(kind), scheme, tmp_path / "out", profile=False), plan=False)
    make(prepared, nothing)
    source, tensors = read_tensors(prepared.source.path), read_tensors(tmp_path / "out")
    kept = [name for name in source if ".mlp.gate." in name or ".linear_attn." in name or "shared_expert_gate" in name]
    assert kept
    for name in [*kept, "lm_head.weight"]:
        assert (tensors[name].dtype, tensors[name].shape) == (source[name].dtype, source[name].shape), name
    assert sum(".experts." in name and name.endswith("_scale") for name in tensors) == 4 * 4 * 3


def test_killed_in_the_middle_nothing_is_offered_and_it_can_be_gone_on_with(
    compressor: str, starter_model: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"What is {n} and {n}?"}) + "\n" for n in range(4)))
    request = Request(starter_model, "W4A16", tmp_path / "out", method="gptq", data=prompts, samples=4, profile=False)
    job = jobs.start_job(prepare(request, plan=False).judged.request)
    _wait(lambda: "layer 2 of" in str(jobs.read_job(job.name).value.get("detail")), limit_s=300)
    os.kill(int(jobs.read_job(job.name).value["pid"]), signal.SIGKILL)
    with pytest.raises(VqError, match="killed"):
        follow(job.name, nothing)
    assert not request.out.exists()
    result = resume(jobs.read_job(job.name), nothing)
    assert result["out"] == str(request.out)
    assert not part_folder(request.out).exists()
