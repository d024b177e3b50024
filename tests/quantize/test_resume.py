"""Going on with a job that was killed, cancelled or failed: what was whole is used, nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantize.conftest import FakeTool
from quantize.test_make import _left, _processes, _wait, nothing, request_for
from vq_console.core.errors import UsageError, VqError
from vq_console.quantize import jobs
from vq_console.quantize.model import Request
from vq_console.quantize.run import check_out, follow, make, prepare, resume
from vq_console.quantize.worker import part_folder


def called(tool: FakeTool) -> list[str]:
    return [Path(call[1]).name for call in tool.calls() if call[0] == "-u"]


def killed(request: Request, when: Callable[[], bool], *, group: bool) -> jobs.Job:
    """A job whose process was killed (with `group` its tool too) once `when` holds."""
    request.out.parent.mkdir(exist_ok=True)
    job = jobs.start_job(request)
    _wait(when)
    pid = int(jobs.read_job(job.name).value["pid"])
    (os.killpg if group else os.kill)(pid, signal.SIGKILL)
    with pytest.raises(VqError, match="killed") as raised:
        follow(job.name, nothing)
    assert f"--resume {job.name}" in raised.value.hint
    return jobs.read_job(job.name)


def test_a_checkpoint_that_was_whole_is_not_made_twice(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep_in="measure.py")
    request = request_for(tiny, tool, measure=True)
    job = killed(request, lambda: "measure.py" in called(tool), group=True)
    assert not request.out.exists()
    tool.plan()
    result = resume(job, nothing)
    assert result["kld"]["value"] == pytest.approx(0.06)
    assert called(tool).count("recipe.py") == 1
    assert (request.out / "recipe.py").is_file()
    assert jobs.read_job(job.name).state == jobs.DONE
    with pytest.raises(UsageError, match="is done"):
        resume(jobs.read_job(job.name), nothing)


def test_half_a_checkpoint_is_made_anew(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep=60)
    request = request_for(tiny, tool, profile=False)
    job = killed(request, lambda: (part_folder(request.out) / "half.safetensors").exists(), group=True)
    tool.plan()
    resume(job, nothing)
    assert called(tool).count("recipe.py") == 2
    assert not (request.out / "half.safetensors").exists()
    assert not part_folder(request.out).exists()


def test_a_whole_checkpoint_that_was_damaged_since_is_not_offered(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep_in="measure.py")
    request = request_for(tiny, tool, measure=True, profile=False)
    job = killed(request, lambda: "measure.py" in called(tool), group=True)
    weights = part_folder(request.out) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(VqError, match="not whole"):
        resume(job, nothing)
    assert _left(request) == []
    tool.plan()
    resume(jobs.read_job(job.name), nothing)
    assert called(tool).count("recipe.py") == 2
    assert request.out.is_dir()


def test_a_tool_that_outlived_its_killed_job_is_ended_before_the_next(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep=60)
    request = request_for(tiny, tool, profile=False)
    job = killed(request, lambda: (part_folder(request.out) / "half.safetensors").exists(), group=False)
    assert len(_processes(str(job.folder))) == 1
    tool.plan()
    make(prepare(request, plan=False), nothing)
    assert _processes(f"{job.folder}\0") == []
    assert not (request.out / "half.safetensors").exists()


def test_orphans_are_only_those_of_the_job(tiny: Path, tool: FakeTool) -> None:
    mine = {"pid": os.getsid(0), "start_ticks": 1, "boot": jobs.boot_id()}
    assert jobs.end_orphans(jobs.Job("x", tiny, jobs.INTERRUPTED, mine)) == 0
    assert jobs.end_orphans(jobs.Job("x", tiny, jobs.RUNNING, mine | {"pid": 2**22 + 1})) == 0
    assert jobs.end_orphans(jobs.Job("x", tiny, jobs.INTERRUPTED, {})) == 0


@pytest.mark.parametrize("script", ["generate.py", "recipe.py"])
def test_a_failure_can_be_gone_on_from(tiny: Path, tool: FakeTool, script: str) -> None:
    tool.plan(fail_in=script)
    request = request_for(tiny, tool, "W4A16", method="gptq", group_size=64, samples=2, profile=False)
    with pytest.raises(VqError, match="it broke"):
        make(prepare(request, plan=False), nothing)
    assert _left(request) == []
    job = jobs.list_jobs()[0]
    tool.plan()
    resume(job, nothing)
    # texts that were written are there the second time
    assert called(tool).count("generate.py") == (2 if script == "generate.py" else 1)
    assert jobs.read_job(job.name).state == jobs.DONE


def test_a_measurement_that_fails_costs_no_checkpoint(tiny: Path, tool: FakeTool) -> None:
    tool.plan(fail_in="measure.py")
    result = make(prepare(request_for(tiny, tool, measure=True, profile=False), plan=False), nothing)
    assert result["kld"] is None
    assert "it broke" in result["kld_error"]


@pytest.mark.parametrize("value", [{}, {"request": {"scheme": "W8A8"}}], ids=["nothing", "half"])
def test_a_job_that_does_not_say_what_it_was_is_not_gone_on_with(
    tiny: Path, vq_home: Path, value: dict[str, Any]
) -> None:
    from vq_console.core import places

    folder = places.jobs_dir() / "quantize-20260101-000000-x"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(value))
    with pytest.raises(UsageError, match="does not say"):
        resume(jobs.read_job(folder.name), nothing)


def test_a_running_job_is_not_started_twice(tiny: Path, tool: FakeTool) -> None:
    tool.plan(sleep=60)
    request = request_for(tiny, tool)
    request.out.parent.mkdir()
    job = jobs.start_job(request)
    try:
        with pytest.raises(UsageError, match="is running"):
            jobs.resume_job(jobs.read_job(job.name))
        with pytest.raises(UsageError, match="is being made"):
            check_out(request)
    finally:
        jobs.cancel_job(jobs.read_job(job.name))
    assert jobs.read_job(job.name).state == jobs.CANCELLED
