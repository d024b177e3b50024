"""The lines of a log that a view may show: a window at the end of the file that grows, filters, search, jumps.

Owns files only through `logs`; knows no widget. Numbers are the file's own once its beginning has been counted.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from vq_console.core.text import redact, strip_control
from vq_console.logs.follow import LogFollower
from vq_console.logs.lines import parse_line
from vq_console.logs.tail import TailIndex

WINDOW_LINES = 20_000
STEP_BYTES = 48 * 1024
"""What is read between two pictures: some hundred lines, which take a fraction of a frame."""
FAR_BEHIND_BYTES = 2 * 1024 * 1024
MOST_LINES = 120_000
DROP_LINES = 20_000
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_KERNEL = re.compile(
    r"Selected \S+ for |Using \S+ for (?:\S+ )?(?:mixed-precision linear|\w+ GEMM|CompressedTensors)|MoE backend"
)
_KERNEL_WORDS = ("Selected ", "Using ", "MoE backend")
_READY = "Application startup complete"
_TROUBLE_WORDS = ("Error", "Exception", "Traceback", "out of memory", "native support")
_TROUBLE = re.compile(r"\b(?:Error|Exception|Traceback|out of memory)\b|Your GPU does not have native support")


@dataclass(frozen=True, slots=True)
class Entry:
    """One shown line; `text` is safe to draw. `level` is one of LEVELS or None for a bare line."""

    text: str
    level: str | None
    process: str | None


class LogBuffer:
    """Lines of `path` from a window at its end on. `shown` are positions into `entries` that pass the filters."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.index = TailIndex(path)
        self.entries: list[Entry] = []
        self.shown: list[int] = []
        self.first_number: int | None = None
        """Line number of `entries[0]`, None until the lines before the window are counted."""
        self.level: str | None = None
        self.process: str | None = None
        self.pattern: re.Pattern[str] | None = None
        self.matches: list[int] = []
        """Positions in `entries` that match the search and pass the filters."""
        self.processes: list[str] = []
        self.marks: list[tuple[int, str]] = []
        """(position, kind) of what a person looks for: trouble, warning, kernel, ready; in order."""
        window = self.index.last(WINDOW_LINES)
        self.begin = window.begin
        if self.begin == 0:
            self.first_number = 1
        self._take(window.lines)
        self.follower = LogFollower(path, window.end)
        self._restarts = 0

    @property
    def far_behind(self) -> bool:
        """True when the file grew by more than can be read step by step, as a busy log does while nobody looks."""
        return self.follower.behind > FAR_BEHIND_BYTES

    def again(self) -> LogBuffer:
        """The same log from its present end on, with the same filters and search; call it off the event loop."""
        fresh = LogBuffer(self.path)
        fresh.pattern = self.pattern
        fresh.filter(level=self.level, process=self.process)
        return fresh

    def close(self) -> None:
        """Let go of the file."""
        self.follower.close()

    def count_before(self) -> int:
        """Count the lines before the window: slow for a gigabyte, so call it off the event loop."""
        return self.index.line_number(self.begin)

    def poll(self) -> int:
        """Take over some of what was appended; returns how many lines came. Starts anew after a truncation."""
        lines = self.follower.read(STEP_BYTES)
        if self.follower.restarts != self._restarts:
            self._restarts = self.follower.restarts
            self.entries.clear()
            self.shown.clear()
            self.matches.clear()
            self.marks.clear()
            self.first_number, self.begin = 1, 0
        if lines:
            self._take(lines)
        if len(self.entries) > MOST_LINES:
            self._drop(DROP_LINES)
        return len(lines)

    def _take(self, lines: Iterable[str]) -> None:
        for raw in lines:
            line = parse_line(0, raw[:8192]).line
            entry = Entry(redact(strip_control(line.message)), line.level, line.process)
            if line.process and line.process not in self.processes:
                self.processes.append(line.process)
            self.entries.append(entry)
            if kind := mark_of(entry):
                self.marks.append((len(self.entries) - 1, kind))
            if self._passes(entry):
                self.shown.append(len(self.entries) - 1)
                if self.pattern is not None and self.pattern.search(entry.text):
                    self.matches.append(len(self.entries) - 1)

    def _drop(self, count: int) -> None:
        del self.entries[:count]
        if self.first_number is not None:
            self.first_number += count
        self.shown = [position - count for position in self.shown if position >= count]
        self.matches = [position - count for position in self.matches if position >= count]
        self.marks = [(position - count, kind) for position, kind in self.marks if position >= count]

    def _passes(self, entry: Entry) -> bool:
        if self.process is not None and entry.process != self.process:
            return False
        if self.level is None:
            return True
        return entry.level is not None and LEVELS.index(_level(entry.level)) >= LEVELS.index(self.level)

    def filter(self, *, level: str | None, process: str | None) -> None:
        """Show only lines of at least this level and of this process; None shows all."""
        self.level, self.process = level, process
        self.shown = [i for i, entry in enumerate(self.entries) if self._passes(entry)]
        self._search_again()

    def search(self, text: str) -> str | None:
        """Find lines that match `text`, a regular expression if it is one, without case; returns what is wrong."""
        problem = None
        if not text:
            self.pattern = None
        else:
            try:
                self.pattern = re.compile(text, re.IGNORECASE)
            except re.error as error:
                problem = f"not a regular expression ({error}); searched as plain text"
                self.pattern = re.compile(re.escape(text), re.IGNORECASE)
        self._search_again()
        return problem

    def _search_again(self) -> None:
        pattern = self.pattern
        self.matches = [] if pattern is None else [i for i in self.shown if pattern.search(self.entries[i].text)]

    def next_match(self, position: int, step: int) -> int | None:
        """The match after (`step` 1) or before (-1) a position, around the ends."""
        if not self.matches:
            return None
        index = bisect_left(self.matches, position)
        if step > 0:
            index += index < len(self.matches) and self.matches[index] == position
            return self.matches[index % len(self.matches)]
        return self.matches[index - 1]

    def number(self, position: int) -> int | None:
        """Line number in the file, None until it is known."""
        return None if self.first_number is None else self.first_number + position

    def position_of(self, number: int) -> int | None:
        """Where a line number is in `entries`; None outside the window."""
        if self.first_number is None:
            return None
        position = number - self.first_number
        return position if 0 <= position < len(self.entries) else None

    def find(self, kind: str, after: int = -1) -> int | None:
        """The next `kernel`, `ready` or `trouble` line after a position, from the beginning again at the end."""
        found = [position for position, mark in self.marks if mark == kind]
        return next((position for position in found if position > after), found[0] if found else None)

    def load_earlier(self) -> int:
        """Put an earlier window before the first line; returns how many lines came. 0 at the file's beginning."""
        if self.begin == 0:
            return 0
        window = self.index.before(self.begin, WINDOW_LINES)
        if not window.lines:
            return 0
        later, marks = self.entries, self.marks
        self.entries = []
        self.shown = []
        self.marks = []
        self._take(window.lines)
        count = len(self.entries)
        self.entries.extend(later)
        self.marks += [(position + count, kind) for position, kind in marks]
        self.begin = window.begin
        self.first_number = 1 if self.begin == 0 else None if self.first_number is None else self.first_number - count
        self.filter(level=self.level, process=self.process)
        return count


def _level(level: str) -> str:
    return {"CRITICAL": "ERROR", "WARN": "WARNING", "FATAL": "ERROR"}.get(level, level if level in LEVELS else "INFO")


def mark_of(entry: Entry) -> str | None:
    """Why a line is looked for: `trouble`, `kernel`, `ready`, `warning`, or None. Pure."""
    text = entry.text
    if entry.level in {"ERROR", "CRITICAL"}:
        return "trouble"
    # Words are looked for one by one before a pattern: a busy log has thousands of lines that hold none of them.
    if any(word in text for word in _TROUBLE_WORDS) and _TROUBLE.search(text):
        return "trouble"
    if any(word in text for word in _KERNEL_WORDS) and _KERNEL.search(text):
        return "kernel"
    if _READY in text:
        return "ready"
    return "warning" if entry.level == "WARNING" else None
