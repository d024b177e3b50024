"""Job folders: starting the detached process that makes a checkpoint, reading how far it is, ending it.

A folder holds `job.json` (its state), `log` (the tool's whole output), the recipe and its data. Never signals a process
whose start time does not match the recorded one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vq_console.core import places
from vq_console.core.errors import UsageError
from vq_console.core.files import read_json, write_json
from vq_console.quantize.model import Request

STATE = "job.json"
PROCESS = "process.json"
LOG = "log"
MADE = "made"
"""What `job.json` says once the tool has ended well: seconds that it took."""
RUNNING, DONE, FAILED, CANCELLED, INTERRUPTED = "running", "done", "failed", "cancelled", "interrupted"


@dataclass(frozen=True, slots=True)
class Job:
    """One job as its folder tells it. `state` is `interrupted` when its process is gone without a word."""

    name: str
    folder: Path
    state: str
    value: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state != RUNNING

    @property
    def log(self) -> Path:
        return self.folder / LOG


def start_job(request: Request) -> Job:
    """Start making the checkpoint in a process of its own, which outlives the console."""
    name = new_name(request)
    folder = places.jobs_dir() / name
    folder.mkdir(parents=True)
    write_json(folder / STATE, {"kind": "quantize", "state": RUNNING, "request": request.to_json()})
    return _start(name, folder)


def resume_job(job: Job) -> Job:
    """Start an ended job again in its own folder: what it had finished is not done twice.

    Raises UsageError for one that runs or is done.
    """
    if job.state == RUNNING:
        raise UsageError(f"{job.name}: is running", f"vq-console quantize --follow {job.name}")
    if job.state == DONE:
        raise UsageError(f"{job.name}: is done", f"its result is {job.value.get('result', {}).get('out')}")
    kept = {key: job.value[key] for key in ("request", MADE) if key in job.value}
    if "request" not in kept:
        raise UsageError(f"{job.name}: its file does not say what was asked for", "start it anew")
    end_orphans(job)
    _CHILDREN.pop(job.name, None)
    write_json(job.folder / STATE, {"kind": "quantize", "state": RUNNING, **kept})
    return _start(job.name, job.folder)


def _start(name: str, folder: Path) -> Job:
    with open(folder / "worker.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vq_console.quantize.worker", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=dict(os.environ),
        )
    _CHILDREN[name] = process
    # A file of its own: the worker writes its state from now on, and may be cancelled before it has written any.
    identity = {"pid": process.pid, "start_ticks": start_ticks(process.pid), "boot": boot_id()}
    write_json(folder / PROCESS, identity)
    return Job(name, folder, RUNNING, identity)


_CHILDREN: dict[str, subprocess.Popen[bytes]] = {}
"""Jobs that this process started; they are reaped when they are read."""


def new_name(request: Request) -> str:
    """A folder name that sorts by time and says what it makes."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", request.out.name)[:60].strip("-.") or "checkpoint"
    base = f"quantize-{time.strftime('%Y%m%d-%H%M%S')}-{words}"
    name, number = base, 2
    while (places.jobs_dir() / name).exists():
        name, number = f"{base}-{number}", number + 1
    return name


def read_job(name: str) -> Job:
    """The job of that name as it is now. Raises UsageError when there is none."""
    folder = places.jobs_dir() / name
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not folder.is_dir():
        known = ", ".join(job.name for job in list_jobs()[-5:]) or "none"
        raise UsageError(f"{name}: no such job", f"there are: {known}")
    child = _CHILDREN.get(name)
    gone = child is not None and child.poll() is not None
    try:
        value = _read(folder)
    except (OSError, ValueError):
        return Job(name, folder, INTERRUPTED)
    state = str(value.get("state") or INTERRUPTED)
    if state == RUNNING and (gone or (child is None and not is_alive(value))):
        # It may have ended between the two looks.
        value = _read(folder)
        state = str(value.get("state") or INTERRUPTED)
        state = INTERRUPTED if state == RUNNING else state
    return Job(name, folder, state, value)


def _read(folder: Path) -> dict[str, Any]:
    try:
        identity = read_json(folder / PROCESS)
    except (OSError, ValueError):
        identity = {}
    return {**identity, **read_json(folder / STATE)}


def list_jobs() -> tuple[Job, ...]:
    """All quantization jobs of this host, oldest first."""
    try:
        names = sorted(path.name for path in places.jobs_dir().iterdir() if path.name.startswith("quantize-"))
    except OSError:
        return ()
    return tuple(read_job(name) for name in names)


def cancel_job(job: Job, *, grace_s: float = 8.0) -> bool:
    """End a job with everything it started: TERM, a wait, KILL. False when its process is not there any more."""
    child = _CHILDREN.get(job.name)
    pid = child.pid if child is not None else job.value.get("pid")
    if not isinstance(pid, int) or (child is None and not is_alive(job.value)):
        return False
    if child is not None and child.poll() is not None:
        return False
    for number, wait in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            if (child.poll() is not None) if child is not None else not is_alive(job.value):
                _say_cancelled(job.folder)
                return True
            time.sleep(0.05)
    return True


def _say_cancelled(folder: Path) -> None:
    """Write it for a process that ended before it could: one that had hardly begun, or did not heed TERM."""
    with contextlib.suppress(OSError, ValueError):
        value = read_json(folder / STATE)
        if value.get("state") == RUNNING:
            write_json(folder / STATE, {**value, "state": CANCELLED, "error": "cancelled"})


def end_orphans(job: Job) -> int:
    """End the tool that a killed job left running, so that it cannot write into the next attempt; how many ended.

    Only members of the job's own session whose working folder is the job's, and only once its process is gone.
    """
    pid, ticks = job.value.get("pid"), job.value.get("start_ticks")
    if job.state != INTERRUPTED or not isinstance(pid, int) or not isinstance(ticks, int):
        return 0
    if job.value.get("boot") != boot_id() or start_ticks(pid) is not None:
        return 0
    left = [member for member in _session(pid) if _works_in(member, job.folder)]
    for member in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline and any(start_ticks(member) is not None for member in left):
        time.sleep(0.02)
    return len(left)


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder.resolve())
    except OSError:
        return False


def is_alive(value: Mapping[str, Any]) -> bool:
    """Whether the process that a job recorded still is that process."""
    pid, ticks = value.get("pid"), value.get("start_ticks")
    return isinstance(pid, int) and ticks is not None and value.get("boot") == boot_id() and start_ticks(pid) == ticks


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def boot_id() -> str:
    """This boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
