"""Making a checkpoint from the console's side: judge, start the job, follow it, hand the result on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.core.errors import ExitCode, MissingError, UsageError, VqError
from vq_console.core.text import seconds_text
from vq_console.quantize import data, jobs
from vq_console.quantize.here import judged_here
from vq_console.quantize.model import Judged, Request, Source
from vq_console.quantize.recipe import recipe_text
from vq_console.quantize.schemes import TOOL_NAMES, label
from vq_console.quantize.source import read_source
from vq_console.quantize.worker import part_folder

Say = Callable[[str], None]
_POLL_S = 0.2
_SAY_S = 15.0
_MISSING = frozenset({"disk-full", "memory-too-small"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was judged, with its source."""

    judged: Judged
    source: Source

    @property
    def recipe(self) -> str:
        """The script as it will be run."""
        from vq_console.engines.pins import pins

        maker = self.judged.scheme.maker
        tool = f"{TOOL_NAMES[maker]} {pins(maker).version}"
        words = self.source.model + (f" (revision {self.source.revision[:12]})" if self.source.revision else "")
        return recipe_text(self.judged, tool=tool, source_words=words)


def prepare(request: Request, *, plan: bool = True) -> Prepared:
    """Read the source and judge the request. Raises what the user has to mend: UsageError, MissingError."""
    source = read_source(request.model)
    if request.data is not None:
        data.read_user_data(request.data)
    return Prepared(judged_here(request, source, plan=plan), source)


def refuse(prepared: Prepared) -> None:
    """Raise for what keeps it from running: a wrong choice is a UsageError, what the machine lacks a MissingError."""
    _refuse_errors(prepared)
    check_out(prepared.judged.request)


def _refuse_errors(prepared: Prepared) -> None:
    errors = prepared.judged.errors
    if errors:
        kind = MissingError if errors[0].rule in _MISSING else UsageError
        raise kind(errors[0].message, errors[0].fix)


def check_out(request: Request, *, keep_leftovers: bool = False) -> None:
    """Raise UsageError where the result's folder is taken; leftovers of a job that died are removed."""
    out = request.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists already", "choose another --out, or remove it")
    same = [job for job in jobs.list_jobs() if _out_of(job) == str(out)]
    for job in same:
        jobs.end_orphans(job)
    running = [job for job in same if not job.ended]
    if running:
        raise UsageError(
            f"{out}: is being made by {running[0].name}", f"vq-console quantize --follow {running[0].name}"
        )
    if not keep_leftovers:
        shutil.rmtree(part_folder(out), ignore_errors=True)


def make(prepared: Prepared, say: Say, *, on_job: Callable[[jobs.Job], None] | None = None) -> dict[str, Any]:
    """Start the job and follow it to its end; its result as `job.json` has it. An exception here cancels it.

    Raises VqError with the tool's own words when it fails.
    """
    refuse(prepared)
    request = prepared.judged.request
    request.out.parent.mkdir(parents=True, exist_ok=True)
    job = jobs.start_job(request)
    if on_job is not None:
        on_job(job)
    return _follow_or_end(job, request, say)


def resume(job: jobs.Job, say: Say) -> dict[str, Any]:
    """Start an ended job again and follow it: texts and a checkpoint that were whole are used, the rest is made.

    Raises as `make` does, and UsageError for a job that runs or is done.
    """
    try:
        request = Request.from_json(job.value["request"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{job.name}: its file does not say what was asked for", "start it anew") from error
    _refuse_errors(prepare(request, plan=False))
    if job.ended and job.state != jobs.DONE:
        check_out(request, keep_leftovers=True)
    return _follow_or_end(jobs.resume_job(job), request, say)


def _follow_or_end(job: jobs.Job, request: Request, say: Say) -> dict[str, Any]:
    try:
        return follow(job.name, say)
    except BaseException:
        current = jobs.read_job(job.name)
        if not current.ended:
            say("cancelling")
            jobs.cancel_job(current)
        if current.state != jobs.INTERRUPTED:
            shutil.rmtree(part_folder(request.out), ignore_errors=True)
        raise


def follow(name: str, say: Say) -> dict[str, Any]:
    """Say how far a job is until it ends, and return its result; raises VqError when there is none."""
    begun = last = time.monotonic()
    said = ""
    while True:
        job = jobs.read_job(name)
        words = _words(job.value)
        now = time.monotonic()
        stage = str(job.value.get("words") or "")
        if stage and (stage != said or now - last > _SAY_S):
            say(f"  {words}, {seconds_text(now - begun)}")
            said, last = stage, now
        if job.ended:
            break
        time.sleep(_POLL_S)
    if job.state == jobs.DONE:
        return dict(job.value["result"])
    if job.state == jobs.CANCELLED:
        raise KeyboardInterrupt
    if job.state == jobs.INTERRUPTED:
        raise VqError(
            f"{name}: its process was killed; nothing half-made is offered",
            f"go on where it was: vq-console quantize --resume {name}; log: {job.log}",
        )
    failure = job.value.get("failure")
    known = failure if isinstance(failure, Mapping) else {}
    code = known.get("exit_code")
    raise VqError(
        str(job.value.get("error") or "failed"),
        str(known.get("hint") or f"log: {job.log}"),
        exit_code=ExitCode(code) if code in (1, 2, 3) else ExitCode.NO,
    )


def default_out(request: Request, judged_label: str) -> Path:
    """Where the result goes when nobody says: among the console's models, named by source and scheme."""
    from vq_console.core.places import models_dir

    return models_dir() / f"{Path(request.model).name}-{judged_label}"


def result_label(judged: Judged) -> str:
    """What kind of checkpoint it will be: `W4A16-g64-gptq`."""
    request = judged.request
    return label(judged.scheme, request.method, request.group_size, request.kv_cache)


def _words(value: Mapping[str, Any]) -> str:
    parts = [str(value.get("words") or "starting")]
    step = value.get("step")
    if isinstance(step, list) and len(step) == 2 and step[1]:
        parts[0] = f"[{step[0]}/{step[1]}] {parts[0]}"
    if value.get("detail"):
        parts.append(str(value["detail"]))
    if isinstance(value.get("eta_s"), int | float):
        parts.append(f"about {seconds_text(float(value['eta_s']))} left")
    return ", ".join(parts)


def _out_of(job: jobs.Job) -> str | None:
    request = job.value.get("request")
    return request.get("out") if isinstance(request, Mapping) else None
