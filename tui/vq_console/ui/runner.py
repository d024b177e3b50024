"""Starts comparisons as processes of their own and reads their run folder; the console may end meanwhile.

The analysis and the load never run in this process. Never signals a process whose start time does not match.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vq_console.compare import history
from vq_console.core.files import read_json
from vq_console.core.places import runs_dir


def start_ab(a: str, b: str, options: Sequence[str] = (), *, labels: tuple[str, str] | None = None) -> str:
    """Start `vq-console ab` detached; returns the run's name. Its words go to `console.log` in the run folder."""
    name = history.new_run_name(labels or (a, b))
    folder = runs_dir() / name
    folder.mkdir(parents=True)
    with open(folder / "console.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "vq_console", "ab", a, b, *options, "--run", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return name


def running_check() -> history.Run | None:
    """The newest comparison whose process is still at work, whoever began it."""
    runs = (run for run in history.list_runs() if run.state == history.RUNNING and run.kind == "ab")
    return next((run for run in runs if {"A", "B"} <= run.arms.keys()), None)


def cancel_run(folder: Path) -> bool:
    """Ask a running comparison to end and keep what it has. False when its process is gone."""
    try:
        process = read_json(folder / "run.json").get("process") or {}
    except (OSError, ValueError):
        return False
    pid, ticks = int(process.get("pid") or 0), process.get("start_ticks")
    if pid <= 0 or history.process_ticks(pid) != ticks:
        return False
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return False
    return True


@dataclass(slots=True)
class RunTail:
    """Follows one run folder: new progress events, the state, the summary once it is there."""

    folder: Path
    offset: int = 0
    events: list[Mapping[str, Any]] = field(default_factory=list)
    interim: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    state: str = history.RUNNING
    error: str | None = None
    arms: Mapping[str, str] = field(default_factory=dict)
    """What the run calls its arms, by A and B."""
    busy: bool = False
    """A poll is under way in a thread."""
    _polls_without_head: int = 0

    @property
    def ended(self) -> bool:
        return self.state != history.RUNNING

    def poll(self) -> bool:
        """Read what is new; True when anything changed. Cheap: a stat when nothing did."""
        import json

        changed = False
        path = self.folder / "progress.jsonl"
        try:
            size = path.stat().st_size
        except OSError:
            size = 0
        if size > self.offset:
            with open(path, "rb") as file:
                file.seek(self.offset)
                block = file.read(size - self.offset)
            whole, newline, _ = block.rpartition(b"\n")
            self.offset += len(whole) + len(newline)
            for line in whole.split(b"\n"):
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                self.events.append(event)
                if event.get("interim"):
                    self.interim[str(event.get("stage"))] = event["interim"]
                changed = True
        return self._poll_state() or changed

    def _poll_state(self) -> bool:
        before = (self.state, self.error, self.summary is None)
        if (self.folder / "run.json").exists():
            run = history.read_run(self.folder)
            self.state, self.arms = run.state, run.arms
            if self.ended and self.summary is None and (self.folder / "summary.json").exists():
                self.summary = read_json(self.folder / "summary.json")
            if self.state in {history.FAILED, history.PARTIAL} and self.summary is None:
                head = read_json(self.folder / "run.json")
                problem = head.get("error") or {}
                said = [str(problem[key]) for key in ("message", "hint") if problem.get(key)]
                self.error = "\n".join(said) or self._last_words()
        else:
            self._polls_without_head += 1
            words = self._last_words()
            if self._polls_without_head > 4 and words.startswith("vq-console:"):
                self.state, self.error = history.FAILED, words
        return before != (self.state, self.error, self.summary is None)

    def _last_words(self) -> str:
        try:
            text = (self.folder / "console.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.strip().split("\n") if line.strip()]
        start = next((i for i, line in enumerate(lines) if line.startswith("vq-console:")), max(0, len(lines) - 1))
        return "\n".join(lines[start:][:4])
