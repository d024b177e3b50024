"""Taking one log line apart: container prefix, colours, progress bars, process, level, time, source, message.

Owns every line style of vLLM 0.6 to 0.33 and of what prints beside it (uvicorn, torch, NCCL, FlashInfer, Python's
logging, JSON formatters, docker compose, journald, Kubernetes). Decides nothing about what a line means.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from vq_console.logs.model import LogLine

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_SPELT_ANSI = re.compile(r"(?:#033|\^\[|\\x1b|\\u001b|\ufffd)?\[\d{0,3}(?:;\d{1,3})*m")
"""Colours after a collector took the escape character away or spelt it out."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_LEVELS = "DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE"

_NAME = r"[A-Za-z][\w.\-]*(?: (?:rank=\d+|[A-Z]{2,4}\d+))*"
_PROCESS = re.compile(rf"\((?P<name>{_NAME}) pid=(?P<pid>\d+)(?:, ip=[^)]*)?\) ?")
"""`(EngineCore pid=210) `; 0.8: `(VllmWorker rank=1 pid=2978) `, 0.10: `(VllmWorker TP0 pid=12) `, Ray:
`(RayWorkerWrapper pid=12, ip=10.0.0.2) `. A parent that passes its children's output on puts its own before."""

_RANK = re.compile(r"\[(?P<rank>rank\d+)\]:(?:\[(?=[A-Z]\d{3,4})| ?)")

_VLLM = re.compile(
    rf"(?P<level>{_LEVELS}) (?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.\d+)?"
    r" (?:\[(?P<new>[^\]\s]+?:\d+)\]|(?P<old>[\w./<>-]+:\d+)\]) ?"
)
"""`ERROR 11-03 09:00:00 [core.py:1510] …` since 0.8, `ERROR 02-12 10:11:12 engine.py:366] …` before."""

_UVICORN = re.compile(rf"(?P<level>{_LEVELS}): {{2,}}")
_PYTHON = re.compile(rf"(?P<level>{_LEVELS}):(?P<source>[\w.]+):")
_GLOG = re.compile(
    r"\[?(?P<level>[IWEF])(?P<month>\d?\d)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\.\d+"
    r"(?: +\d+)? (?P<source>[^\]\s]+:\d+)\] ?"
)
"""torch: `[W1130 05:12:17.712230410 socket.cpp:207] …`, `W1130 04:37:55.801000 4112 torch/…/triton.py:53] …`."""
_DATED = re.compile(
    r"(?:\d{4}-)(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,]\d+)?"
    rf"(?:Z|[+-]\d\d:?\d\d)? - (?:(?P<name>[\w.]+) - )?(?P<level>{_LEVELS}) - (?:(?P<source>[\w./-]+:\d+) - )?"
)
"""FlashInfer: `2026-11-30 05:13:29,284 - INFO - autotuner.py:651 - flashinfer.jit: …`."""

_RAY = re.compile(
    r"\d{4}-(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,]\d+)?\s+"
    rf"(?P<level>{_LEVELS})\s+(?P<source>[\w./-]+\.py:\d+) (?:--|-) "
)
"""Ray: `2025-11-20 02:07:50,728<tab>ERROR worker.py:406 -- Unhandled error …`."""

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_CONTAINER = re.compile(
    "|".join(
        (
            rf"(?P<cri>{_STAMP} (?:stdout|stderr) [FP] )",
            r"(?P<compose>[A-Za-z0-9][\w.\-/]* *\| )",
            (
                rf"(?P<journal>(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|{_STAMP}) [\w.\-]+ "
                rf"[\w.@/\-]+(?:\[\d+\])?: )"
            ),
            r"(?P<pod>\[pod/[\w.\-]+/[\w.\-]+\] )",
            r"(?P<stern>[a-z0-9][a-z0-9.\-]*-(?:[a-z0-9]{5}|\d{1,4}) [a-z0-9][a-z0-9\-]* )",
            r"(?P<task>\d{1,4}: )",
            rf"(?P<stamp>\[?{_STAMP}\]? (?:\| )?(?!- ))",
            rf"(?P<cloud>(?:{_LEVELS}|DEFAULT|NOTICE) {_STAMP} )",
            r"(?P<quote>> )",
        )
    )
)
_BARE = ("(", "INFO ", "WARNING ", "ERROR ", "DEBUG ", "CRITICAL ", " ", "\t")
"""How lines begin that carry no container prefix."""
_CLOUD = re.compile(rf"(?:{_LEVELS}|DEFAULT|NOTICE) 20\d\d-")
_SIGNATURE = re.compile(
    rf"\({_NAME} pid=\d+\) |(?:{_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? "
    rf"(?:\[[^\]\s]+:\d+\]|[\w./<>-]+:\d+\])"
)
_BAR = re.compile(r"\d+%\||\d+% Completed|\d(?:it|s|B|iB)/(?:s|it)\b|\?it/s|\[\d\d:\d\d<")

_GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_LEVEL_NAMES = {"WARN": "WARNING", "FATAL": "CRITICAL", "TRACE": "DEBUG"}
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)

MAX_MESSAGE = 1 << 18
"""Longer messages are cut: vLLM's longest useful line (the engine configuration) has some tens of kilobytes."""


@dataclass(frozen=True, slots=True)
class Dated:
    """A line with the clock it carries: `clock` is seconds into a year (vLLM writes none), None without a time."""

    line: LogLine
    clock: float | None


def parse_line(number: int, raw: str) -> Dated:
    """Take one line (without its newline) apart; never fails, the worst case is a bare message."""
    text = raw
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    elif "m(" in text[:200] or "[0m" in text[:200] or "[0;0m" in text[:200]:
        text = _SPELT_ANSI.sub("", text)
    if text.startswith('{"'):
        found = _json_line(number, text)
        if found is not None:
            return found
    if not text.startswith(_BARE) or _CLOUD.match(text):
        text = strip_container(text)
    text, process, pid = _processes(text, None, None)
    if "\r" in text:
        text, process, pid = _processes(pick_segment(text), process, pid)
    if not text.startswith(("INFO ", "WARNING ", "ERROR ", "DEBUG ", " ")):
        behind = _behind_bar(text)
        if behind:
            text, process, pid = _processes(text[behind:], process, pid)
    return _level(number, text, process, pid)


def strip_container(text: str) -> str:
    """Remove what docker compose, journald, CRI, kubectl or a timestamping tool put or Slurm put before a line."""
    for _ in range(3):
        match = _CONTAINER.match(text)
        if match is None:
            break
        if match.lastgroup == "stamp" and (_DATED.match(text) or _RAY.match(text)):
            break
        text = text[match.end() :]
    return text


def pick_segment(text: str) -> str:
    """Of a line with carriage returns, the part that says most: the last one that is not a progress bar."""
    segments = [part for part in text.split("\r") if part.strip()]
    if not segments:
        return ""
    for segment in reversed(segments):
        if not _BAR.search(segment[:400]) or _SIGNATURE.search(segment):
            return segment
    return segments[-1]


def is_progress(text: str) -> bool:
    """Whether the text is a progress bar (tqdm or its like)."""
    return _BAR.search(text[:400]) is not None


def clean(text: str) -> str:
    """A message without control characters, for showing as evidence."""
    return _CONTROL.sub("", _ANSI.sub("", text)).strip("\r")


def clock_of(match: re.Match[str]) -> float:
    """Seconds into the year of a match with month, day, hour, minute and second."""
    day = _DAYS[(int(match["month"]) - 1) % 12] + int(match["day"])
    return day * 86400.0 + int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])


def _processes(text: str, process: str | None, pid: int | None) -> tuple[str, str | None, int | None]:
    """The text behind its process prefixes, and the process named last: the one that wrote it."""
    while text[:1] == "(":
        match = _PROCESS.match(text)
        if match is None:
            break
        process, pid = match["name"], int(match["pid"])
        text = text[match.end() :]
    return text, process, pid


def _behind_bar(text: str) -> int:
    """Where a logger's record begins that was written right behind an unfinished progress bar; 0 when nowhere."""
    if "pid=" not in text and "-" not in text:
        return 0
    match = _SIGNATURE.search(text)
    if match and match.start() > 0 and _BAR.search(text[: match.start()]):
        return match.start()
    return 0


def _level(number: int, text: str, process: str | None, pid: int | None) -> Dated:
    match = _VLLM.match(text)
    if match:
        source = match["new"] or match["old"]
        line = LogLine(number, _message(text[match.end() :]), _named(match["level"]), process, pid, None, source)
        return Dated(line, clock_of(match))
    if text.startswith("[rank"):
        found = _RANK.match(text)
        if found:
            process = process or found["rank"]
            text = text[found.end() :]
    if text[:1] in "[IWEF":
        match = _GLOG.match(text)
        if match:
            level = _GLOG_LEVEL[match["level"]]
            line = LogLine(number, _message(text[match.end() :]), level, process, pid, None, match["source"])
            return Dated(line, clock_of(match))
    if ":" in text[:10]:
        match = _UVICORN.match(text) or _PYTHON.match(text)
        if match:
            source = match.groupdict().get("source") or "uvicorn"
            line = LogLine(number, _message(text[match.end() :]), _named(match["level"]), process, pid, None, source)
            return Dated(line, None)
    if text[:2] == "20":
        match = _DATED.match(text) or _RAY.match(text)
        if match:
            source = match["source"] or match.groupdict().get("name")
            line = LogLine(number, _message(text[match.end() :]), _named(match["level"]), process, pid, None, source)
            return Dated(line, clock_of(match))
    return Dated(LogLine(number, _message(text), None, process, pid), None)


def _named(level: str) -> str:
    return _LEVEL_NAMES.get(level, level)


def _message(text: str) -> str:
    if len(text) > MAX_MESSAGE:
        text = text[: MAX_MESSAGE - 4096] + text[-4096:]
    return text.rstrip("\r\n ")


def _json_line(number: int, text: str) -> Dated | None:
    """A record of vLLM's JSON formatter, of docker's json-file driver (whose `log` is a line), or of a collector."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    inner = record.get("log") if isinstance(record.get("log"), str) else record.get("MESSAGE")
    if isinstance(inner, str) and "levelname" not in record:
        return parse_line(number, inner.rstrip("\n"))
    message = record.get("message", record.get("msg"))
    level = record.get("levelname", record.get("level"))
    if not isinstance(message, str) or not isinstance(level, str):
        return None
    name = record.get("processName")
    pid = record.get("process")
    process = name if isinstance(name, str) and name not in ("", "MainProcess") else None
    where = record.get("filename")
    line_number = record.get("lineno")
    source = f"{where}:{line_number}" if where and line_number else record.get("name")
    exception = record.get("exc_info") or record.get("exception")
    if isinstance(exception, str):
        message = f"{message}\n{exception}"
    clock = None
    stamp = record.get("asctime") or record.get("timestamp") or record.get("time")
    if isinstance(stamp, str):
        match = re.search(r"(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)", stamp)
        clock = clock_of(match) if match else None
    return Dated(
        LogLine(
            number,
            _message(message),
            _named(level.upper()),
            process,
            pid if isinstance(pid, int) else None,
            None,
            str(source) if source else None,
        ),
        clock,
    )
