"""A server as JSON: its record, the facts of its log, and the judgement over both (the contract of `ps --json`).

Owns the readers of logs, which go on where they stopped. Must never call a server fine by its exit code alone.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vq_console.core.text import redact, strip_control
from vq_console.logs.asked import asked_vs_runs
from vq_console.logs.follow import LogFollower
from vq_console.logs.model import AskedVsRuns, Diagnosis, Phase
from vq_console.logs.reader import FactReader
from vq_console.preflight.model import LayerExpectation
from vq_console.serving.ended import settle
from vq_console.serving.keeping import procfs
from vq_console.serving.model import LIVE, ServerRecord, ServerState

_MOST_READERS = 32
_END_BYTES = 256 * 1024
_ENGINE_WENT = (b"engine core exited unexpectedly", b"died unexpectedly")


@dataclass(frozen=True, slots=True)
class LogView:
    """What a log says now. `phase` is where the start-up is; `engine_lost` that the engine ended by itself."""

    diagnosis: Diagnosis
    facts: Mapping[str, Any]
    phases: tuple[Phase, ...]
    phase: str
    engine_lost: bool


@dataclass(slots=True)
class _Reading:
    """One log, read as far as it goes."""

    follower: LogFollower
    reader: FactReader = field(default_factory=FactReader)
    seen: tuple[int, int, bool] = (-1, -1, False)
    inode: int = 0
    view: LogView | None = None


_readings: dict[str, _Reading] = {}
_lock = threading.Lock()


def read_log(record: ServerRecord) -> LogView | None:
    """Facts, phases and diagnosis of the server's log, reading only what is new; None where there is no log."""
    if not record.log:
        return None
    if record.attached:
        from vq_console.serving.containers import refresh_log

        refresh_log(record)
    try:
        status = os.stat(record.log)
    except OSError:
        return None
    live = record.state in LIVE
    seen = (status.st_size, status.st_mtime_ns, live)
    with _lock:
        reading = _readings.get(record.log)
        if reading is not None and reading.inode != status.st_ino:
            # Another life of the server, or a log that was deleted and brought back: read it from its beginning.
            _readings.pop(record.log).follower.close()
            reading = None
        if reading is None:
            if len(_readings) >= _MOST_READERS:
                _readings.pop(next(iter(_readings))).follower.close()
            reading = _readings[record.log] = _Reading(LogFollower(record.log), inode=status.st_ino)
        if reading.view is None or reading.seen != seen:
            _catch_up(reading)
            reading.seen = seen
            reader = reading.reader
            reading.view = LogView(
                # Silence at the end of a log means something only once nothing more can come.
                diagnosis=reader.diagnosis if live else reader.explanation().diagnosis,
                facts=reader.facts,
                phases=reader.phases,
                phase=reader.phase,
                engine_lost=not live and _engine_lost(record.log),
            )
        return reading.view


def _engine_lost(path: str) -> bool:
    """True when the end of the log says that the engine went first (vLLM 0.24 to 0.33, `v1/engine/core_client.py`)."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END_BYTES))
            end = file.read()
    except OSError:
        return False
    return any(words in end.rpartition(b"\n[vq-console] ")[2] for words in _ENGINE_WENT)


def _catch_up(reading: _Reading) -> None:
    restarts = reading.follower.restarts
    while lines := reading.follower.read():
        if reading.follower.restarts != restarts:
            restarts = reading.follower.restarts
            reading.reader = FactReader()
        reading.reader.feed(lines)


def tail_of(record: ServerRecord, lines: int = 40) -> str:
    """The last lines of the log, safe to show."""
    if not record.log:
        return ""
    from vq_console.logs.tail import TailIndex

    try:
        return "\n".join(redact(strip_control(line)) for line in TailIndex(record.log).last(lines).lines)
    except OSError:
        return ""


def judge(record: ServerRecord, seen: LogView | None) -> ServerRecord:
    """Settle how a server ended, from exit, log and what was asked. Pure.

    An engine that dies can leave exit code 0, so 0 (or a TERM from outside) is only believed when the log knows no
    failure either: then somebody else stopped it in order.
    """
    if record.state is not ServerState.FAILED or record.ready_at is None or seen is None or seen.engine_lost:
        return record
    if record.exit_code in (0, -15) and seen.diagnosis.severity in ("ok", "warning"):
        return replace(record, state=ServerState.STOPPED, reason="stopped from outside the console")
    return record


def diagnose_server(record: ServerRecord) -> Diagnosis | None:
    """What is wrong with a server: by its log, and where that is silent by how it ended; None before both exist."""
    seen = read_log(record)
    return _settled(judge(record, seen), seen)


def _settled(record: ServerRecord, seen: LogView | None) -> Diagnosis | None:
    found = seen.diagnosis if seen is not None else None
    return settle(record, found, _incident(record) if record.state is ServerState.FAILED else None)


def _incident(record: ServerRecord) -> Mapping[str, Any] | None:
    """What the keeper wrote down when the server died unasked; None when it did not, or it cannot be read."""
    if record.incident is None:
        return None
    try:
        with open(record.incident, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def model_name(record: ServerRecord, facts: Mapping[str, Any]) -> str | None:
    """The model itself, not the name that it is served under; without its owner. None where nothing says it."""
    argv = record.plan.get("argv") or ()
    planned = next((argv[at + 1] for at, word in enumerate(argv[:-1]) if word in ("serve", "--model")), None)
    found = facts.get("model") or planned or record.model
    return strip_control(str(found)).rstrip("/").rpartition("/")[2] if found else None


def server_json(record: ServerRecord) -> dict[str, Any]:
    """One entry of `servers[]`. Absent is None; what it says of facts and kernels comes from the log.

    `diagnosis` is the slug, `problem` the whole diagnosis.
    """
    seen = read_log(record)
    record = judge(record, seen)
    diagnosis = _settled(record, seen)
    return {
        "name": record.name,
        "state": record.state.value,
        "phase": record.phase or None,
        "reason": record.reason or None,
        "pid": record.identity.pid if record.identity else None,
        "url": record.url,
        "port": record.port,
        "gpus": list(record.gpus),
        "profile": record.profile,
        "model": record.model,
        "engine": record.engine,
        "attached": record.attached,
        "simulated": record.simulated,
        "exit_code": record.exit_code,
        "incident": record.incident,
        "cpu_pct": record.cpu_pct,
        "uptime_s": uptime_s(record),
        "log": record.log,
        "host": record.host_id or None,
        "facts": dict(seen.facts) if seen else {},
        "phases": [{"name": phase.name, "seconds": phase.seconds} for phase in seen.phases] if seen else [],
        "asked_vs_runs": [asdict(row) for row in _asked_vs_runs(record, seen.facts)] if seen else [],
        "diagnosis": diagnosis.slug if diagnosis else None,
        "problem": diagnosis_json(diagnosis) if diagnosis else None,
    }


def _asked_vs_runs(record: ServerRecord, facts: Mapping[str, Any]) -> tuple[AskedVsRuns, ...]:
    """What the plan of its launch expected beside what the log says."""
    return asked_vs_runs([LayerExpectation.from_json(row) for row in record.plan.get("layers") or ()], facts)


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON, with the patch of each fix."""
    return {
        "slug": diagnosis.slug,
        "title": diagnosis.title,
        "severity": diagnosis.severity,
        "root_line": diagnosis.root_line,
        "process": diagnosis.process,
        "evidence": diagnosis.evidence,
        "explanation": diagnosis.explanation,
        "fixes": [
            {"text": fix.text, "patch": fix.patch.to_json() if fix.patch is not None else None}
            for fix in diagnosis.fixes
        ],
    }


def uptime_s(record: ServerRecord) -> float | None:
    """Seconds since the server's process began, independent of the wall clock; None when it does not live."""
    if record.identity is None or record.state not in LIVE:
        return None
    age = procfs.age_s(record.identity.start_ticks)
    return None if age is None else round(age, 1)
