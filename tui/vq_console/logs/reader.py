"""Reading a log line by line while it grows: facts, phase, and the lines that a diagnosis may need, in bounded memory.

Owns which run of a file is the last one, and the fast path over lines that say nothing new. Judges nothing itself:
the diagnosis is made by `diagnose.py` from what is kept here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from vq_console.logs.blocks import MAIN_FRAME
from vq_console.logs.facts import BY_WORD, FactSheet, take_message
from vq_console.logs.lines import parse_line
from vq_console.logs.model import Diagnosis, Explanation, LogLine, Phase
from vq_console.logs.phases import MARKS, current_phase, timeline

_HEAD = 3000
_EARLY = 4000
_LATE = 4000
_TAIL = 200
_KEEP_CHARS = 8_000
_KEEP_JSON_CHARS = 64_000
_REFUSED = re.compile(r"(?:^|[ |\]])(?:vllm(?: serve)?|api_server\.py|__main__\.py): error: ")
"""argparse's last line; it comes before any banner."""
_LEVELS = (" INFO ", " WARNING ", " ERROR ")
_OF_ONE_START = ("(APIServer pid=", "(EngineCore pid=")
"""Processes of which each start has one."""
_BEFORE_LOADING = ("Starting to load model", "Automatically detected platform ")
"""What no server says that is ready."""
_YEAR_S = 365 * 86400.0
_DULL = 3
_REPEATED = 200
"""So often an INFO, a WARNING call site is looked at without its telling anything before it is passed over."""


class Run:
    """One start of a server inside a log: its facts, its marks in time, and the lines kept for the diagnosis.

    Kept are the first lines of any kind, the first and the last that are not INFO, and the very last.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.last = start
        self.sheet = FactSheet()
        self.marks: dict[str, float] = {}
        self.mark_lines: dict[str, int] = {}
        self.head: list[tuple[int, str]] = []
        self.early: list[tuple[int, str]] = []
        self.late: deque[tuple[int, str]] = deque(maxlen=_LATE)
        self.tail: deque[tuple[int, str]] = deque(maxlen=_TAIL)
        self.pids: dict[str, int] = {}
        self.suspects = 0
        """How many lines came that are not INFO."""
        self.trouble = False
        self.lost = False
        """An exception has left the main process, or its command line was refused."""
        self.full = False
        self.first_clock: float | None = None
        self.last_clock: float | None = None
        self._parsed: dict[int, LogLine] = {}

    def keep(self, number: int, raw: str) -> None:
        """Keep a line that may matter for the diagnosis."""
        self.suspects += 1
        if len(raw) >= _KEEP_CHARS:
            raw = _shorten(raw)
        if self.full:
            self.late.append((number, raw))
        elif len(self.head) < _HEAD:
            self.head.append((number, raw))
        else:
            self.early.append((number, raw))
            self.full = len(self.early) >= _EARLY

    def note(self, number: int, raw: str) -> None:
        """Keep an INFO line as long as the run is young."""
        if len(self.head) < _HEAD:
            self.head.append((number, raw if len(raw) < _KEEP_CHARS else _shorten(raw)))

    def lines(self) -> list[LogLine]:
        """Everything kept of the run, in order, taken apart."""
        parsed = self._parsed
        lines: dict[int, LogLine] = {}
        for number, raw in chain(self.head, self.early, self.late, self.tail):
            if number not in lines:
                line = parsed.get(number)
                lines[number] = line if line is not None else parse_line(number, raw).line
        self._parsed = lines
        return [lines[number] for number in sorted(lines)]

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
        self._trace = (0, False)
        """Where the last traceback began, and whether there had been trouble before it."""
        self._known: tuple[str, ...] = ("\0",)
        """How lines of the newest API server and engine begin."""
        self._judged: tuple[int, int, int, bool] | None = None
        self._diagnosis: Diagnosis | None = None
        self._told: tuple[tuple[int, ...], dict[str, Any]] | None = None

    def feed(self, lines: Iterable[str]) -> None:
        """Take further lines, without their newline."""
        number = self.number
        boring = self._boring
        run = self.run
        for raw in lines:
            number += 1
            if number == self._trace[0] + 1 or ": error: " in raw[:160]:
                if number == 1:
                    raw = raw.removeprefix("\ufeff")
                if self._dies_before_a_banner(number, raw):
                    run = self.run
            if raw.startswith(_OF_ONE_START) and not raw.startswith(self._known):
                self._meet(number, raw)
                run = self.run
            if run.full and " ERROR " in raw[:72] and len(raw) < _KEEP_CHARS and raw[0] != "{":
                run.late.append((number, raw))
                run.suspects += 1
                continue
            at = raw.find(".py:", 0, 300)
            if at > 0 and raw[0] == "{":
                at = -1
            if at > 0 and (place := raw.find("] ", at, at + 14)) > 0:
                end = raw.find(" ", place + 2)
                key = raw[max(0, at - 12) : end if end > 0 else None]
                if key in boring:
                    continue
                header = raw[max(0, at - 60) : at]
                if "INFO" in header:
                    self.number = number
                    self._information(raw, place, key)
                elif "DEBUG" in header:
                    continue
                elif "WARN" in header:
                    if self._count(key, _REPEATED):
                        continue
                    self.number = number
                    if raw.startswith("Enforce", place + 2):
                        self._take(raw)
                    run.keep(number, raw)
                elif run.full and len(raw) < _KEEP_CHARS:
                    run.late.append((number, raw))
                    run.suspects += 1
                    continue
                else:
                    run.trouble = True
                    run.keep(number, raw)
                    continue
            elif not raw or (" HTTP/1." in raw[-60:] and ' - "' in raw and "INFO" in raw[:120]) or raw.isspace():
                continue
            elif raw.startswith('{"'):
                if self._boring_json(raw):
                    continue
                self.number = number
                self._take(raw)
            elif "INFO" in (start := raw[:160]) or "█" in start:
                key = raw[:32]
                if key in boring:
                    continue
                self.number = number
                if not self._take(raw) and raw[0] in "I(":
                    self._count(key, _REPEATED)
            else:
                if raw.endswith("(most recent call last):"):
                    self._trace = (number, run.trouble)
                    run.trouble = True
                run.keep(number, raw)
                continue
            if self.run is not run:
                run = self.run
            run.tail.append((number, raw if len(raw) < _KEEP_CHARS else _shorten(raw)))
        self.number = number
        run.last = number

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the newest run with the keys of `Explanation.facts`; `ready` is always there."""
        key = (self.runs, self.run.suspects, len(self.run.sheet.lines), len(self.run.sheet.kernels))
        if self._told is None or self._told[0] != key:
            facts = self.run.sheet.as_mapping()
            facts["ready"] = bool(facts.get("ready", False))
            warnings = self.warnings
            if warnings:
                facts["warnings"] = list(warnings)
            self._told = (key, {name: value for name, value in facts.items() if name not in _INTERNAL})
        return dict(self._told[1])

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

    def _information(self, raw: str, place: int, key: str) -> None:
        """An INFO record of a logger: taken apart only when its first words can tell something."""
        start = raw[place + 2 : place + 42]
        word = start.partition(" ")[0]
        if word in BY_WORD or word.startswith("[") or " KV cache size" in start or "█" in start:
            if self._take(raw):
                return
        else:
            self.run.note(self.number, raw)
        if word:
            self._count(key, _DULL)

    def _boring_json(self, raw: str) -> bool:
        place = raw.find('"message": "')
        if place < 0 or '"INFO"' not in raw:
            return False
        key = raw[place + 12 : place + 40]
        return key in self._boring or self._count(key, _REPEATED)

    def _take(self, raw: str) -> bool:
        """Take one line apart; True when it told a fact."""
        run = self.run
        dated = parse_line(self.number, raw)
        line = dated.line
        if self._starts_run(line):
            run = self._begin(self.number, raw)
        if dated.clock is not None:
            if run.first_clock is None:
                run.first_clock = dated.clock
            run.last_clock = dated.clock
        told = False
        if line.level in ("INFO", "WARNING", None):
            told = take_message(run.sheet, line.message, self.number)
            if told:
                self._mark(run, line, dated.clock)
        if line.process and line.pid is not None:
            run.pids[line.process] = line.pid
        if line.level in ("INFO", "DEBUG"):
            run.note(self.number, raw)
        elif not raw.startswith("Enforce") and line.level != "WARNING":
            run.keep(self.number, raw)
            run.trouble = run.trouble or line.level in ("ERROR", "CRITICAL")
        elif raw.startswith("{"):
            run.keep(self.number, raw)
        return told

    def _count(self, key: str, enough: int) -> bool:
        """Remember how lines begin that told nothing; after `enough` of them such lines are passed over."""
        count = self._seen.get(key, 0) + 1
        if len(self._seen) > 20_000:
            self._seen.clear()
        self._seen[key] = count
        if count < enough:
            return False
        self._boring.add(key)
        return True

    def _dies_before_a_banner(self, number: int, raw: str) -> bool:
        """Take note of a main process that ends; True when it is another one than the run's, which begins a run.

        Such a start says nothing else: a refused command line, or an exception before the first line of a logger.
        """
        run, (begin, troubled) = self.run, self._trace
        refused = _REFUSED.search(raw) is not None
        if not refused and not (number == begin + 1 and MAIN_FRAME.search(raw)):
            return False
        known = bool(run.sheet.lines or run.marks)
        ended = known if refused else bool(run.sheet.values.get("ready")) and not troubled
        if not (run.lost or ended):
            run.lost = True
            return False
        run = self._begin(number if refused else begin, raw)
        run.lost = run.trouble = True
        if not refused:
            run.keep(begin, "Traceback (most recent call last):")
        return True

    def _meet(self, number: int, raw: str) -> None:
        """Take note of whose line it is; a process of another start begins a run when this one was stopped."""
        own = raw[: raw.find(")") + 1]
        if not raw.startswith(_LEVELS, len(own)) or "[shutdown]" in raw[:120]:
            return
        name = own.partition(" ")[0]
        known = [prefix for prefix in self._known if prefix.partition(" ")[0] == name]
        self._known = (*(prefix for prefix in self._known if prefix not in known), own)
        if known and self.run.sheet.values.get("stopping"):
            self._begin(number, raw)

    def _begin(self, number: int, raw: str) -> Run:
        """From line `number` on it is another run; `raw` is its first line that is known."""
        self.run = Run(number)
        self.runs += 1
        self._known = tuple(prefix for prefix in self._known if raw.startswith(prefix)) or ("\0",)
        return self.run

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
        return bool(sheet.values.get("ready")) and message.startswith(_BEFORE_LOADING)

    def _other_start(self, line: LogLine) -> bool:
        """A second banner of one process is another start; of another process only after some progress, as several
        API servers of one start have a name each."""
        run = self.run
        if line.process is None or line.process in run.pids:
            return True
        return "engine_line" in run.sheet.lines or bool(run.sheet.values.get("ready")) or run.trouble

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


_INTERNAL = frozenset({"stopping", "engine_lost"})


def _is_banner(message: str) -> bool:
    return ("█" in message[:40] and "version " in message) or message.startswith(
        ("vLLM API server version", "vLLM server version")
    )


def _shorten(raw: str) -> str:
    """Keep both ends of a very long line, either may carry its meaning; a JSON record stays whole."""
    if raw.startswith("{") and len(raw) < _KEEP_JSON_CHARS:
        return raw
    return raw[: _KEEP_CHARS // 2] + raw[-_KEEP_CHARS // 2 :]


def facts_of(lines: Iterable[str]) -> Mapping[str, Any]:
    """The facts of the last run in `lines`."""
    reader = FactReader()
    reader.feed(lines)
    return reader.facts
