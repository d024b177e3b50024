"""Runs on disk: one folder each, with raw samples, a summary and a report. A broken run is listed, never fatal.

RUN/run.json        state, arms, settings, seed, versions, tags, notes
RUN/progress.jsonl  what the screen and the command line show while it runs
RUN/summary.json    the answer of `ab --json`
RUN/report.md       the same for people
RUN/latency/, RUN/quality/   raw samples
RUN/arms/A/, RUN/arms/B/     plan, facts and log of each arm
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import secrets
import shutil
import tarfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError, VqError
from vq_console.core.files import read_json, write_json
from vq_console.core.places import runs_dir
from vq_console.core.text import nearest, strip_control

RUNNING, FINISHED, PARTIAL, FAILED = "running", "finished", "partial", "failed"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True)
class Run:
    """One run as listed. `error` is set when its files cannot be read."""

    name: str
    folder: Path
    state: str = FAILED
    created: float = 0.0
    arms: Mapping[str, str] = field(default_factory=dict)
    kind: str = "ab"
    tags: tuple[str, ...] = ()
    note: str = ""
    simulated: bool = False
    verdict: Mapping[str, str] = field(default_factory=dict)
    quality_word: str | None = None
    machine: str = ""
    error: str | None = None
    said: tuple[str, ...] = ()
    """What a check of one server printed as its answer."""

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "state": self.state,
            "created": self.created,
            "kind": self.kind,
            "arms": dict(self.arms),
            "tags": list(self.tags),
            "note": self.note,
            "simulated": self.simulated,
            "verdict": dict(self.verdict),
            "quality_word": self.quality_word,
            "machine": self.machine,
            "folder": str(self.folder),
            "error": self.error,
        }


def new_run_name(labels: Sequence[str], *, now: float | None = None) -> str:
    """A name that sorts by time, says the arms and does not repeat."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    words = "-vs-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", label)[:40].strip("-") or "arm" for label in labels)
    return f"{stamp}-{words}-{secrets.token_hex(2)}"


def list_runs(folder: Path | None = None) -> tuple[Run, ...]:
    """All runs, newest first."""
    root = folder or runs_dir()
    if not root.is_dir():
        return ()
    runs = [read_run(path) for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return tuple(sorted(runs, key=lambda run: (run.created, run.name), reverse=True))


def read_run(folder: Path) -> Run:
    """One run from its folder; what cannot be read becomes `error`."""
    try:
        head = _plain(read_json(folder / "run.json"))
    except (OSError, ValueError) as error:
        return Run(folder.name, folder, error=str(error), created=_mtime(folder))
    summary: dict[str, Any] = {}
    problem: str | None = None
    if (folder / "summary.json").exists():
        try:
            summary = _plain(read_json(folder / "summary.json"))
        except (OSError, ValueError) as error:
            problem = str(error)
    state = str(head.get("state", FAILED))
    if state == RUNNING and not _alive(head.get("process")):
        state = PARTIAL
    quality = summary.get("quality") or {}
    return Run(
        name=folder.name,
        folder=folder,
        state=state,
        created=float(head.get("created") or _mtime(folder)),
        arms={str(k): str(v) for k, v in (head.get("arms") or {}).items()},
        kind=str(head.get("kind", "ab")),
        tags=tuple(str(tag) for tag in head.get("tags") or ()),
        note=str(head.get("note") or ""),
        simulated=bool(head.get("simulated") or summary.get("simulated")),
        verdict={str(k): str(v) for k, v in (summary.get("verdict") or {}).items()},
        quality_word=quality.get("word") if isinstance(quality, dict) else None,
        machine=str(head.get("machine") or ""),
        error=problem,
        said=tuple(str(line) for line in head.get("said") or ()),
    )


def _plain(value: Any) -> Any:
    """The same JSON without control characters in any text: a run may come from another machine."""
    if isinstance(value, str):
        return strip_control(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {strip_control(str(key)): _plain(item) for key, item in value.items()}
    return value


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _alive(process: object) -> bool:
    """Does the process that writes this run still live? Identity is pid and start time on this boot."""
    if not isinstance(process, dict):
        return False
    try:
        return process_ticks(int(process["pid"])) == int(process["start_ticks"])
    except (KeyError, TypeError, ValueError):
        return False


def process_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc_pid_stat(5), field 22); None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def own_process() -> dict[str, int]:
    """This process as `run.json` records it."""
    return {"pid": os.getpid(), "start_ticks": process_ticks(os.getpid()) or 0}


def find_run(text: str) -> Run:
    """A run by folder path, name, unique beginning of its name, tag, or `last`. Raises UsageError."""
    if "/" in text and (Path(text) / "run.json").exists():
        return read_run(Path(text).resolve())
    runs = list_runs()
    if text == "last" and runs:
        return next((run for run in runs if run.kind == "ab"), runs[0])
    exact = [run for run in runs if run.name == text] or [run for run in runs if text in run.tags]
    found = exact[:1] or [run for run in runs if run.name.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{text!r} begins the names of {len(found)} runs", "write more of the name, or `last`")
    close = nearest(text, [run.name for run in runs])
    raise UsageError(
        f"no run is called {text!r}",
        f"did you mean {close}?" if close else "`vq-console history` lists the runs",
    )


def summary_of(run: Run) -> dict[str, Any]:
    """The answer of `ab --json` as it was. Raises VqError when the run has none."""
    try:
        return dict(_plain(read_json(run.folder / "summary.json")))
    except FileNotFoundError as error:
        what = "a check of one server has no verdict" if run.kind != "ab" else f"no summary, the run is {run.state}"
        raise VqError(f"{run.name}: {what}", f"its raw samples are in {run.folder}") from error
    except (OSError, ValueError) as error:
        raise VqError(f"{run.name}: {error}", "the run's other files are untouched") from error


def update_run(run: Run, **changes: Any) -> None:
    """Change fields of `run.json`, keeping the rest."""
    head = read_json(run.folder / "run.json")
    write_json(run.folder / "run.json", {**head, **changes})


def tag_run(
    run: Run, *, add: Sequence[str] = (), remove: Sequence[str] = (), note: str | None = None
) -> tuple[str, ...]:
    """Add and remove tags, set the note; returns the tags. Raises UsageError for a bad tag."""
    for tag in add:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{tag!r} is no tag", "letters, digits, dot, dash and underscore, at most 40")
    tags = tuple(dict.fromkeys([*(t for t in run.tags if t not in remove), *add]))
    changes: dict[str, Any] = {"tags": list(tags)}
    if note is not None:
        changes["note"] = note
    update_run(run, **changes)
    return tags


def export_bundle(run: Run, target: Path) -> Path:
    """Write the run as a .tar.gz with a hash of each file, for another console to import and re-analyse.

    Secrets never enter a run's files; logs are redacted when they are copied into it.
    """
    files = sorted(path for path in run.folder.rglob("*") if path.is_file() and path.name != "MANIFEST.sha256")
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(run.folder)}" for p in files]
    manifest = run.folder / "MANIFEST.sha256"
    manifest.write_text("\n".join(lines) + "\n")
    with tarfile.open(target, "w:gz") as archive:
        for path in [manifest, *files]:
            archive.add(path, arcname=f"{run.name}/{path.relative_to(run.folder)}")
    return target


def import_bundle(source: Path) -> Run:
    """Unpack a bundle as a run of this console. Raises UsageError when there is no such file, VqError when it is
    damaged, foreign or exists already."""
    if not source.is_file():
        raise UsageError(f"{source}: no such file", "`vq-console report RUN --format bundle` makes a bundle")
    root = runs_dir()
    root.mkdir(parents=True, exist_ok=True)
    staging = root / f".import-{secrets.token_hex(4)}"
    try:
        with tarfile.open(source) as archive:
            archive.extractall(staging, filter="data")
        (folder,) = [path for path in staging.iterdir() if path.is_dir()]
        for line in (folder / "MANIFEST.sha256").read_text().splitlines():
            digest, _, name = line.partition("  ")
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise VqError(f"{source}: {name} does not match its hash", "ask for the bundle again")
        read_json(folder / "run.json")
        if strip_control(folder.name) != folder.name:
            raise VqError(f"{source}: its run's name has control characters in it", "ask for the bundle again")
        place = root / folder.name
        if place.exists():
            raise VqError(
                f"{source}: a run {folder.name} exists already",
                f"`vq-console history delete {folder.name}` removes that one",
            )
        os.replace(folder, place)
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise VqError(
            f"{source}: is not a run bundle, or is damaged", "`vq-console report RUN --format bundle` makes one"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    run = read_run(place)
    update_run(run, tags=[*run.tags, "imported"])
    return read_run(place)


def delete_run(run: Run) -> None:
    """Remove a run's folder. Raises VqError while it is being written."""
    if run.state == RUNNING:
        raise VqError(f"{run.name} is running", "cancel it first")
    shutil.rmtree(run.folder)
