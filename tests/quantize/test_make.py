"""Jobs with a fake tool: a result is whole and described or not there at all, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quantize.conftest import FakeTool, write_modelopt, write_result
from vq_console.core import places
from vq_console.core.errors import UsageError, VqError
from vq_console.quantize import jobs
from vq_console.quantize.data import HELD_OUT
from vq_console.quantize.model import Request
from vq_console.quantize.run import check_out, follow, make, prepare
from vq_console.quantize.source import read_source
from vq_console.quantize.verify import verify
from vq_console.quantize.worker import part_folder


def request_for(tiny: Path, tool: FakeTool, scheme: str = "W8A8", **more: Any) -> Request:
    return Request(model=str(tiny), scheme=scheme, out=tiny.parent / "made" / "result", tool=tool.python, **more)


def nothing(_: str) -> None:
    pass


def test_a_result_is_made_verified_and_described(tiny: Path, tool: FakeTool) -> None:
    said: list[str] = []
    request = request_for(tiny, tool, measure=True)
    result = make(prepare(request, plan=False), said.append)
    out = request.out
    assert result["out"] == str(out)
    assert result["kld"]["value"] == pytest.approx(0.06)
    assert result["kld"]["top1_agreement"] == pytest.approx(0.9)
    assert result["kld"]["ci"][0] < 0.06 < result["kld"]["ci"][1]
    assert result["size_gib"] is not None
    assert {path.name for path in out.iterdir()} == {
        "config.json", "model.safetensors", "recipe.py", "tokenizer.json", "vq-console.json",
    }  # fmt: skip
    assert json.loads((out / "vq-console.json").read_text())["source"]["model"] == str(tiny)
    profile = tomllib.loads((places.profiles_dir() / f"{result['profile']}.toml").read_text())
    assert profile["model"] == str(out)
    assert profile["made_on"]["scheme"] == "W8A8"
    assert profile["made_on"]["recipe"] == str(out / "recipe.py")
    assert not part_folder(out).exists()
    job = jobs.list_jobs()[0]
    assert (job.state, job.ended) == (jobs.DONE, True)
    assert "STEP 1/3" in job.log.read_text()
    assert said
    # the next one of its kind knows how long it takes
    again = prepare(Request(model=str(tiny), scheme="W8A8", out=out.with_name("other")), plan=False)
    assert again.judged.seconds is not None


def test_calibration_data_are_the_users_or_the_models_own(tiny: Path, tool: FakeTool, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    own = request_for(tiny, tool, "W4A16", method="gptq", group_size=64, data=prompts, samples=2, profile=False)
    result = make(prepare(own, plan=False), nothing)
    rows = (own.out / "calibration.jsonl").read_text().split("\n")
    assert [json.loads(row) for row in rows if row] == [{"prompt": "a"}, {"prompt": "b"}]
    assert result["profile"] is None
    for number in range(2):
        generated = request_for(tiny, tool, "W4A16", method="gptq", group_size=64, samples=3, profile=False)
        generated = Request.from_json(generated.to_json() | {"out": str(own.out.with_name(f"generated{number}"))})
        make(prepare(generated, plan=False), nothing)
        rows = (generated.out / "calibration.jsonl").read_text().split("\n")
        # the first ones are held out for measuring
        assert [json.loads(row)["text"] for row in rows if row] == [f"text {HELD_OUT + n}" for n in range(3)]
    assert len([call for call in tool.calls() if "generate.py" in call[1]]) == 1, "texts are written once"


BROKEN = {
    "lacks-scale": "lacks model.layers.1.mlp.gate_proj.weight",
    "lacks-norm": "lacks model.norm.weight",
    "grown": "were expected",
    "nan": "holds NaN or infinity",
    "cut": "cut off",
    "config": "config.json",
    "plain": "does not say that the checkpoint is quantized",
    "tokenizer": "has no tokenizer",
}


@pytest.mark.parametrize(("broken", "words"), BROKEN.items())
def test_a_result_that_is_not_whole_is_not_offered(tiny: Path, tool: FakeTool, broken: str, words: str) -> None:
    source = read_source(str(tiny))
    judged = prepare(request_for(tiny, tool), plan=False).judged
    folder = tiny.parent / "result"
    folder.mkdir()
    write_result(folder, "W8A8", None, kv=False)
    assert verify(folder, judged, source) == ()
    for file in folder.iterdir():
        file.unlink()
    write_result(folder, "W8A8", None, kv=False, broken=broken)
    assert words in "; ".join(verify(folder, judged, source))


def test_missing_kv_scales_are_seen(tiny: Path, tool: FakeTool) -> None:
    source = read_source(str(tiny))
    judged = prepare(request_for(tiny, tool, "FP8_DYNAMIC", kv_cache="fp8"), plan=False).judged
    folder = tiny.parent / "result"
    folder.mkdir()
    write_result(folder, "FP8_DYNAMIC", None, kv=True)
    assert verify(folder, judged, source) == ()
    write_result(folder, "FP8_DYNAMIC", None, kv=False)
    assert "no scales for its KV cache" in "; ".join(verify(folder, judged, source))
    write_result(folder, "FP8_DYNAMIC", None, kv=True, broken="kv-of-one-layer")
    assert "the KV cache of model.layers.1.self_attn" in "; ".join(verify(folder, judged, source))


def test_a_scale_for_each_head_is_one_for_each_head(tiny: Path, tool: FakeTool) -> None:
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 2, "head_dim": 32}))
    source = read_source(str(tiny))
    judged = prepare(request_for(tiny, tool, "FP8_DYNAMIC", kv_cache="fp8_per_head"), plan=False).judged
    folder = tiny.parent / "result"
    folder.mkdir()
    write_result(folder, "FP8_DYNAMIC", None, kv=True)
    assert "its 2 heads have no scale each" in "; ".join(verify(folder, judged, source))


def test_modelopt_makes_its_own_format(tiny: Path, tool: FakeTool) -> None:
    request = request_for(tiny, tool, "MODELOPT_FP8", samples=2)
    prepared = prepare(request, plan=False)
    assert "llmcompressor" not in prepared.recipe
    result = make(prepared, nothing)
    assert result["tool"].startswith("nvidia-modelopt ")
    profile = tomllib.loads((places.profiles_dir() / f"{result['profile']}.toml").read_text())
    assert profile["made_on"]["scheme"] == "MODELOPT_FP8"
    write_modelopt(request.out, algorithm="NVFP4")
    assert "its format is NVFP4, not FP8" in "; ".join(verify(request.out, prepared.judged, prepared.source))


def test_modelopt_makes_no_kv_scales_here(tiny: Path, tool: FakeTool) -> None:
    with pytest.raises(UsageError, match="LLM Compressor only"):
        make(prepare(request_for(tiny, tool, "MODELOPT_FP8", kv_cache="fp8"), plan=False), nothing)


FAILURES = [
    pytest.param({"broken": "nan"}, "is not whole", id="nan"),
    pytest.param({"say": "RuntimeError: shapes do not fit", "exit": 1}, "shapes do not fit", id="error"),
    pytest.param({"say": "OSError: [Errno 28] No space left on device", "exit": 1}, "disk is full", id="disk"),
    pytest.param({"kill": int(signal.SIGKILL)}, "main memory ran out", id="killed"),
    pytest.param({"kill": int(signal.SIGTERM)}, "ended by SIGTERM", id="ended"),
    pytest.param({"say": "DefaultCPUAllocator: can't allocate memory", "exit": 1}, "memory ran out", id="memory"),
]


@pytest.mark.parametrize(("plan", "words"), FAILURES)
def test_failures_are_said_in_the_tools_words_and_leave_nothing(
    tiny: Path, tool: FakeTool, plan: dict[str, Any], words: str
) -> None:
    tool.plan(**plan)
    request = request_for(tiny, tool)
    with pytest.raises(VqError, match=words) as raised:
        make(prepare(request, plan=False), nothing)
    assert str(jobs.list_jobs()[0].log) in raised.value.hint
    assert _left(request) == []
    assert not list(places.profiles_dir().glob("*.toml"))
    assert jobs.list_jobs()[0].state == jobs.FAILED


def test_interrupting_ends_the_whole_job(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep=60)
    request = request_for(tiny, tool)
    prepared = prepare(request, plan=False)

    def interrupt() -> None:
        _wait(lambda: (part_folder(request.out) / "half.safetensors").exists())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        make(prepared, nothing)
    thread.join()
    job = jobs.list_jobs()[0]
    assert job.state == jobs.CANCELLED
    assert _left(request) == []
    assert _processes(str(job.folder)) == []


def test_a_killed_job_is_seen_and_its_leftovers_never_offered(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep=60)
    request = request_for(tiny, tool)
    request.out.parent.mkdir()
    job = jobs.start_job(request)
    _wait(lambda: (part_folder(request.out) / "half.safetensors").exists())
    os.killpg(int(jobs.read_job(job.name).value["pid"]), signal.SIGKILL)
    with pytest.raises(VqError, match="killed"):
        follow(job.name, nothing)
    assert jobs.read_job(job.name).state == jobs.INTERRUPTED
    assert not request.out.exists()
    assert part_folder(request.out).exists()
    tool.plan()
    make(prepare(request, plan=False), nothing)
    assert request.out.is_dir()
    assert not (request.out / "half.safetensors").exists()


def test_a_job_outlives_its_console_and_can_be_cancelled_from_another(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep=60)
    request = request_for(tiny, tool)
    request.out.parent.mkdir()
    job = jobs.start_job(request)
    _wait(lambda: (part_folder(request.out) / "half.safetensors").exists())
    with pytest.raises(UsageError, match="is being made by"):
        check_out(request)
    child = jobs._CHILDREN.pop(job.name)
    seen = jobs.read_job(job.name)
    assert seen.state == jobs.RUNNING
    assert jobs.cancel_job(seen)
    child.wait(timeout=10)
    assert jobs.read_job(job.name).state == jobs.CANCELLED
    assert not jobs.cancel_job(jobs.read_job(job.name))
    assert _left(request) == []


def test_another_process_with_that_number_is_never_signalled(tiny: Path, tool: FakeTool) -> None:
    own = {"pid": os.getpid(), "start_ticks": 1, "boot": jobs.boot_id()}
    assert not jobs.is_alive(own)
    assert not jobs.cancel_job(jobs.Job("x", tiny, jobs.RUNNING, own))
    assert jobs.is_alive(own | {"start_ticks": jobs.start_ticks(os.getpid())})
    assert not jobs.is_alive(own | {"start_ticks": jobs.start_ticks(os.getpid()), "boot": "another"})


def test_a_taken_place_is_refused(tiny: Path, tool: FakeTool) -> None:
    request = request_for(tiny, tool)
    request.out.mkdir(parents=True)
    check_out(request)
    (request.out / "something").touch()
    with pytest.raises(UsageError, match="exists already"):
        make(prepare(request, plan=False), nothing)
    assert (request.out / "something").exists()


def test_a_profile_of_that_name_is_kept(tiny: Path, tool: FakeTool) -> None:
    places.profiles_dir().mkdir(parents=True)
    (places.profiles_dir() / "result.toml").write_text('model = "another/model"\n')
    result = make(prepare(request_for(tiny, tool), plan=False), nothing)
    assert result["profile"] == "result-2"
    assert "another/model" in (places.profiles_dir() / "result.toml").read_text()


def _left(request: Request) -> list[str]:
    return [path.name for path in request.out.parent.iterdir()] if request.out.parent.exists() else []


def _wait(condition: Any, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _processes(words: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if words in command:
                found.append(command)
    return found
