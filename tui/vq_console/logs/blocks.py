"""Which lines belong to which traceback, per process, even when several processes write at the same time.

Owns the grouping only: what is a frame, what is an exception, what is said outside of a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from vq_console.logs.model import LogLine

_START = re.compile(r"(?:.*: )?Traceback \(most recent call last\):")
_CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_FRAME = re.compile(r"\s*File \"[^\"]+\", line \d|\s+\^|[\^~]+$|\s*\[Previous line repeated|\s{4}|\s*~+\^|  \.\.\.")
_FILE = re.compile(r'\s*File "[^"]+", line \d+')
_BARE_FRAME = re.compile(r'File "[^"]+", line \d+, in ')
"""A frame whose indentation was lost: the line of code behind it stands at the margin too."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?::|$)")
_PROCESS_LINE = re.compile(r"Process ([\w\-]+):$")
_GROUP = re.compile(r"^\s*(?:\| |\+-+)")


MAIN_FRAME = re.compile(r'/vllm", line \d+, in <module>|File "<frozen runpy>", line \d+, in _run_module_as_main')
"""The outermost frame of an API server's own process: what passes it ends the server."""


@dataclass(slots=True)
class Trace:
    """One traceback: where it began, in which process, its frames as one text, its exception lines."""

    start: int
    process: str | None
    pid: int | None
    level: str | None
    source: str | None
    frames: list[str] = field(default_factory=list)
    exceptions: list[LogLine] = field(default_factory=list)
    chained: bool = False

    def text(self) -> str:
        return "\n".join(self.frames)


@dataclass(frozen=True, slots=True)
class Spot:
    """A line outside of frames: the trace that it ends or continues, if any; `raised` marks the exception itself."""

    line: LogLine
    trace: Trace | None
    raised: bool = False


@dataclass(slots=True)
class Layout:
    """The run's lines without the frames of its tracebacks, and the tracebacks."""

    spots: list[Spot]
    traces: list[Trace]


@dataclass(slots=True)
class _Stream:
    """What is open in one process: a traceback, and whether its exception was seen."""

    trace: Trace | None = None
    ended: bool = False
    chain: bool = False
    code: bool = False
    """The line of code of a frame at the margin comes next."""


def lay_out(lines: Iterable[LogLine]) -> Layout:
    """Group lines into tracebacks per process stream; bare lines share one stream."""
    spots: list[Spot] = []
    traces: list[Trace] = []
    streams: dict[tuple[str | None, int | None], _Stream] = {}
    announced: str | None = None
    for whole in lines:
        for line in _parts(whole):
            message = line.message
            process = line.process
            stream = streams.setdefault((process, line.pid), _Stream())
            named = _PROCESS_LINE.match(message)
            if named and process is None:
                announced = named[1]
            if _START.match(message):
                trace = Trace(line.number, process or announced, line.pid, line.level, line.source)
                trace.chained = stream.chain
                traces.append(trace)
                stream.trace, stream.ended, stream.chain = trace, False, False
                if process is None and line.level is None:
                    announced = None
                if not message.startswith("Traceback"):
                    spots.append(Spot(line, None))
                continue
            trace_now = stream.trace
            if trace_now is None and _FILE.match(message):
                # The beginning of the traceback was cut off.
                trace_now = stream.trace = Trace(line.number, process, line.pid, line.level, line.source)
                stream.ended = stream.chain = False
                traces.append(trace_now)
            if trace_now is None:
                spots.append(Spot(line, None))
                continue
            if not stream.ended:
                code = stream.code and not _EXCEPTION.match(message)
                stream.code = _BARE_FRAME.match(message) is not None
                if code or _FRAME.match(message) or not message.strip():
                    trace_now.frames.append(message)
                    continue
                stream.ended = True
                trace_now.exceptions.append(line)
                spots.append(Spot(line, trace_now, raised=True))
                continue
            if message.startswith(_CHAINED):
                stream.chain = True
                continue
            if line.level in ("INFO", "DEBUG", "WARNING") or (
                line.level is not None and line.source != trace_now.source
            ):
                stream.trace = None
                spots.append(Spot(line, None))
                continue
            if stream.chain and message.strip() and not message.startswith(" "):
                stream.chain = False
                trace_now.exceptions.append(line)
                spots.append(Spot(line, trace_now, raised=True))
                continue
            if message.strip():
                spots.append(Spot(line, trace_now))
    return Layout(spots, traces)


def _parts(line: LogLine) -> Iterable[LogLine]:
    """A JSON record may hold many lines in one; exception groups draw a margin in front of theirs."""
    if "\n" in line.message:
        for part in line.message.split("\n"):
            yield LogLine(line.number, part.rstrip(), line.level, line.process, line.pid, line.time, line.source)
    elif _GROUP.match(line.message) and "|" in line.message[:12]:
        inner = line.message.lstrip().removeprefix("| ")
        yield LogLine(line.number, inner, line.level, line.process, line.pid, line.time, line.source)
    else:
        yield line
