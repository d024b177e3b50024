"""What a person should hear of: changes between two snapshots, and what happened while nobody looked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vq_console.core.text import counted, strip_control
from vq_console.serving.model import ServerRecord, ServerState
from vq_console.ui.details import problem_of
from vq_console.ui.hub import ServerSnapshot, Snapshot


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to say. `severity` is information, warning or error, as Textual's toasts have it."""

    title: str
    message: str
    severity: str = "information"


def has_alarm(server: ServerSnapshot) -> bool:
    """True when it runs another kernel than was expected."""
    return any(row.get("alarm") for row in server.seen.get("asked_vs_runs") or ())


def notices(old: Snapshot, new: Snapshot) -> list[Notice]:
    """Ready, failed, unresponsive and fallback that are new in `new`; a server seen for the first time is no news."""
    before: Mapping[str, ServerSnapshot] = {server.record.name: server for server in old.servers}
    said: list[Notice] = []
    for server in new.servers:
        name, state = server.record.name, server.record.state
        was = before.get(name)
        if was is None:
            continue
        if state is not was.record.state:
            if state is ServerState.READY:
                said.append(Notice(f"{name} is ready", f"it answers on port {server.record.port or '–'}"))
            elif state is ServerState.FAILED:
                problem = problem_of(server)
                reason = str(problem.get("title") if problem else server.record.reason or "its log says why")
                said.append(Notice(f"{name} failed", strip_control(reason), "error"))
            elif state is ServerState.UNRESPONSIVE:
                said.append(Notice(f"{name} does not answer", strip_control(server.record.reason), "warning"))
        if has_alarm(server) and not has_alarm(was):
            row = next(row for row in server.seen["asked_vs_runs"] if row.get("alarm"))
            said.append(Notice(f"{name} fell back", f"expected {row['expected']}, runs {row['selected']}", "warning"))
    return said


def since(records: Iterable[ServerRecord], runs: Iterable[tuple[str, float]], last: float | None) -> str:
    """What changed after the Unix time `last`, in one line; empty when nothing did or nobody ever looked.

    `runs` are names and end times of finished comparisons.
    """
    if last is None:
        return ""
    parts: list[str] = []
    for record in records:
        if record.ended_at is not None and record.ended_at > last:
            parts.append(f"{record.name} {record.state.value}")
        elif record.ready_at is not None and record.ready_at > last and record.state is ServerState.READY:
            parts.append(f"{record.name} ready")
    done = [name for name, ended in runs if ended > last]
    if done:
        parts.append(f"{counted(len(done), 'comparison')} finished (5)")
    return ", ".join(parts[:5]) + (f" and {len(parts) - 5} more" if len(parts) > 5 else "")
