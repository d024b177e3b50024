"""Servers as frozen values: identity, states, records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ServerState(StrEnum):
    """The life of a server; `TRANSITIONS` says what may follow what."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


TRANSITIONS: Mapping[ServerState, frozenset[ServerState]] = {
    ServerState.QUEUED: frozenset({ServerState.STARTING, ServerState.STOPPED, ServerState.FAILED}),
    ServerState.STARTING: frozenset({ServerState.READY, ServerState.STOPPING, ServerState.STOPPED, ServerState.FAILED}),
    ServerState.READY: frozenset(
        {
            ServerState.UNRESPONSIVE,
            ServerState.STOPPING,
            ServerState.STOPPED,
            ServerState.FAILED,
        }
    ),
    ServerState.UNRESPONSIVE: frozenset(
        {
            ServerState.READY,
            ServerState.STOPPING,
            ServerState.STOPPED,
            ServerState.FAILED,
        }
    ),
    ServerState.STOPPING: frozenset({ServerState.STOPPED, ServerState.FAILED}),
    ServerState.STOPPED: frozenset({ServerState.QUEUED}),
    ServerState.FAILED: frozenset({ServerState.QUEUED}),
}
LIVE = frozenset(
    {
        ServerState.QUEUED,
        ServerState.STARTING,
        ServerState.READY,
        ServerState.UNRESPONSIVE,
        ServerState.STOPPING,
    }
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for another: pid, start time in clock ticks since boot, boot id."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """What is known of one server without asking it. Times are Unix seconds. `attached` was not started here."""

    name: str
    state: ServerState
    url: str | None = None
    port: int | None = None
    model: str | None = None
    """The served model name."""
    profile: str | None = None
    engine: str | None = None
    gpus: tuple[int, ...] = ()
    identity: Identity | None = None
    keeper: Identity | None = None
    log: str | None = None
    folder: str | None = None
    phase: str = ""
    reason: str = ""
    cause: str = ""
    """Slug of the diagnosis where the keeper itself knows why it failed."""
    created: float = 0.0
    ready_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    attached: bool = False
    simulated: bool = False
    api_key_env: str | None = None
    host_id: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The plan of the launch as JSON, with expected kernels and fit."""
    incident: str | None = None
    """What was written down when it died unasked."""
    cpu_pct: float | None = None
    """CPU use of an unresponsive server, in percent of one core: at work, or hung."""
