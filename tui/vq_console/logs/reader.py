"""Reading a log line by line while it grows: facts, phase, and the lines that a diagnosis may need, in bounded memory.

Owns which run of a file is the last one, and the fast path over lines that say nothing new. Judges nothing itself:
the diagnosis is made by `diagnose.py` from what is kept here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from vq_console.logs.facts import FactSheet, take_message
from vq_console.logs.lines import Dated, parse_line
from vq_console.logs.model import Diagnosis, Explanation, LogLine, Phase
from vq_console.logs.phases import MARKS, current_phase, timeline

_HEAD = 3000
_EARLY = 4000
_LATE = 4000
_TAIL = 200
_KEEP_CHARS = 24_000
_YEAR_S = 365 * 86400.0


class Run:
    """One start of a server inside a log: its facts, its marks in time, and the lines kept for the diagnosis."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.last = start
        self.sheet = FactSheet()
        self.marks: dict[str, float] = {}
        self.mark_lines: dict[str, int] = {}
        self.head: list[LogLine] = []
        self.early: list[LogLine] = []
        self.late: deque[tuple[int, str]] = deque(maxlen=_LATE)
        self.tail: deque[tuple[int, str]] = deque(maxlen=_TAIL)
        self.pids: dict[str, int] = {}
        self.suspects = 0
        self.served = 0
        """Requests answered with a success, as far as the access log shows them."""
        self.first_clock: float | None = None
        self.last_clock: float | None = None

    def lines(self) -> list[LogLine]:
        """Everything kept of the run, in order, taken apart."""
        kept = {line.number: line for line in self.head}
        kept.update((line.number, line) for line in self.early)
        for number, raw in [*self.late, *self.tail]:
            if number not in kept:
                kept[number] = parse_line(number, raw).line
        return [kept[number] for number in sorted(kept)]

    def seconds_at(self, clock: float) -> float:
        """Seconds since the first dated line of the run; a new year may have begun in between."""
        if self.first_clock is None:
            return 0.0
        delta = clock - self.first_clock
        return delta + _YEAR_S if delta < -_YEAR_S / 2 else delta


class FactReader:
    """Feeds on lines of one log in order; `facts`, `phase`, `failed` are those of the newest run so far."""

    def __init__(self) -> None:
        self.number = 0
        self.run = Run(1)
        self.runs = 1
        self._seen: dict[str, int] = {}
        self._boring: set[str] = set()
        self._judged: tuple[int, int, int, bool] | None = None
        self._diagnosis: Diagnosis | None = None

    def feed(self, lines: Iterable[str]) -> None:
        """Take further lines, without their newline."""
        number = self.number
        boring = self._boring
        run = self.run
        tail = run.tail
        for raw in lines:
            number += 1
            place = raw.find("] ", 0, 240)
            if place > 0:
                if raw[place - 14 : place + 16] in boring:
                    continue
            elif not raw or raw.isspace():
                continue
            elif raw.endswith((" OK", " 200")) and ' - "' in raw and "INFO" in raw[:120]:
                run.served += "/completions" in raw or "/responses" in raw or "/messages" in raw
                continue
            elif raw.startswith('{"') and self._boring_json(raw):
                continue
            self.number = number
            self._take(raw, place)
            if self.run is not run:
                run = self.run
                tail = run.tail
            tail.append((number, raw if len(raw) < _KEEP_CHARS else _shorten(raw)))
        self.number = number
        run.last = number

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the newest run with the keys of `Explanation.facts`; `ready` is always there."""
        facts = self.run.sheet.as_mapping()
        facts["ready"] = bool(facts.get("ready", False))
        warnings = self.warnings
        if warnings:
            facts["warnings"] = list(warnings)
        return {key: value for key, value in facts.items() if key not in _INTERNAL}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Slugs of what the log warns about without having failed."""
        from vq_console.logs.diagnose import warning_slugs

        return warning_slugs(self.run)

    @property
    def phase(self) -> str:
        """Where the newest run is: starting, loading weights, compiling, …, ready, stopping, stopped or failed."""
        if self.failed:
            return "failed"
        return current_phase(self.run.sheet.values, self.run.marks)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The start-up timeline so far."""
        return timeline(self.run)

    @property
    def failed(self) -> bool:
        """Whether the newest run has failed, as the log tells it."""
        return self.diagnosis.severity in ("error", "unknown")

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the newest run; made again only when lines came that may change it."""
        from vq_console.logs.diagnose import diagnose

        key = (self.runs, self.run.suspects, len(self.run.marks), bool(self.run.sheet.values.get("stopping")))
        if self._diagnosis is None or key != self._judged:
            self._diagnosis = diagnose(self.run)
            self._judged = key
        return self._diagnosis

    def explanation(self) -> Explanation:
        """Everything there is to say about the newest run, taken that nothing more comes: a stalled start is one."""
        from vq_console.logs.diagnose import diagnose

        return Explanation(diagnose(self.run, final=True), self.facts, self.phases, self.number)

    def line(self, number: int) -> LogLine | None:
        """A line of the newest run that was kept, by its number."""
        for line in self.run.lines():
            if line.number == number:
                return line
        return None

    def _boring_json(self, raw: str) -> bool:
        place = raw.find('"message": "')
        return place > 0 and raw[place + 12 : place + 40] in self._boring and '"INFO"' in raw

    def _take(self, raw: str, place: int) -> None:
        run = self.run
        if len(run.early) >= _EARLY and len(run.head) >= _HEAD and not _may_inform(raw):
            run.late.append((self.number, raw if len(raw) < _KEEP_CHARS else _shorten(raw)))
            run.suspects += 1
            return
        dated = parse_line(self.number, raw)
        line = dated.line
        if line.level in ("INFO", "DEBUG", "WARNING"):
            if self._starts_run(line):
                run = self.run = Run(self.number)
                self.runs += 1
            self._date(run, dated)
            told = take_message(run.sheet, line.message, self.number)
            if told:
                self._mark(run, line, dated.clock)
            elif line.level != "WARNING":
                self._count_boring(raw, place, 3)
            elif self._count_boring(raw, place, 200):
                return
        else:
            self._date(run, dated)
            if line.level is None and ("█" in line.message or line.message.startswith(("Initializing", "INFO"))):
                take_message(run.sheet, line.message, self.number)
        if line.process and line.pid is not None:
            run.pids[line.process] = line.pid
        if len(run.head) < _HEAD:
            run.head.append(line)
        elif line.level in ("INFO", "DEBUG"):
            return
        elif len(run.early) < _EARLY:
            run.early.append(line)
        else:
            run.late.append((self.number, raw if len(raw) < _KEEP_CHARS else _shorten(raw)))
        if line.level not in ("INFO", "DEBUG") or len(run.head) < _HEAD:
            run.suspects += 1

    def _count_boring(self, raw: str, place: int, enough: int) -> bool:
        """Remember how lines that told nothing begin; after `enough` of them such lines are passed over."""
        if place <= 0:
            place = raw.find('"message": "')
            if place <= 0:
                return False
            key = raw[place + 12 : place + 40]
        else:
            key = raw[place - 14 : place + 16]
        count = self._seen.get(key, 0) + 1
        if len(self._seen) > 20_000:
            self._seen.clear()
        self._seen[key] = count
        if count >= enough:
            self._boring.add(key)
            return True
        return False

    def _starts_run(self, line: LogLine) -> bool:
        """Whether this line begins another start of a server than the one that is being read."""
        message = line.message
        sheet = self.run.sheet
        if "█" in message[:40] or message.startswith(("vLLM API server version", "vLLM server version")):
            return _is_banner(message) and "banner" in self.run.mark_lines and self._other_start(line)
        if message.startswith(("non-default args:", "args: Namespace(")):
            return "requested" in sheet.lines and self._other_start(line)
        if message.startswith("Initializing a") and " engine (v" in message:
            known = self.run.pids.get(line.process or "")
            return "engine_line" in sheet.lines and (line.process is None or known not in (None, line.pid))
        return False

    def _other_start(self, line: LogLine) -> bool:
        """A second banner in one run comes from another API server of it; after progress it is another run."""
        run = self.run
        known = run.pids.get(line.process or "")
        if known is not None and line.pid != known:
            return True
        return "engine_line" in run.sheet.lines or bool(run.sheet.values.get("ready")) or _seen_trouble(run)

    def _mark(self, run: Run, line: LogLine, clock: float | None) -> None:
        message = line.message
        if _is_banner(message):
            run.mark_lines.setdefault("banner", line.number)
        for mark in MARKS:
            if mark.pattern.match(message):
                if mark.name not in run.mark_lines or mark.latest:
                    run.mark_lines[mark.name] = line.number
                    when = clock if clock is not None else run.last_clock
                    if when is not None:
                        run.marks[mark.name] = run.seconds_at(when)
                break

    @staticmethod
    def _date(run: Run, dated: Dated) -> None:
        if dated.clock is not None:
            if run.first_clock is None:
                run.first_clock = dated.clock
            run.last_clock = dated.clock


_INTERNAL = frozenset({"stopping", "engine_lost"})


def _may_inform(raw: str) -> bool:
    start = raw[:240]
    return "INFO" in start or "WARNING" in start or "█" in start or start.startswith("{")


def _is_banner(message: str) -> bool:
    return ("█" in message[:40] and "version " in message) or message.startswith(
        ("vLLM API server version", "vLLM server version")
    )


def _seen_trouble(run: Run) -> bool:
    return any(line.level in ("ERROR", "CRITICAL") or line.message.startswith("Traceback (") for line in run.head)


def _shorten(raw: str) -> str:
    """Keep the beginning and the end of a very long line; both ends may carry its meaning."""
    return raw[: _KEEP_CHARS // 2] + raw[-_KEEP_CHARS // 2 :]


def facts_of(lines: Iterable[str]) -> Mapping[str, Any]:
    """The facts of the last run in `lines`."""
    reader = FactReader()
    reader.feed(lines)
    return reader.facts
