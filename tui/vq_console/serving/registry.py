"""The servers of this host as records: read from their folders, held against what really runs.

Owns what a stored state means once its keeper or server is gone, and hands orphans of killed keepers to a new keeper.
A broken record is shown as failed and never deleted; another host's servers are shown and never touched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.core.files import read_json
from vq_console.core.places import host_id, servers_dir
from vq_console.core.text import nearest
from vq_console.serving.keeping import procfs
from vq_console.serving.model import LIVE, Identity, ServerRecord, ServerState

ADOPTION_PAUSE_S = 20.0
_MOST_FILES = 1000
_adopted_at: dict[str, float] = {}
_files: dict[str, tuple[tuple[int, int, int], Mapping[str, Any]]] = {}


@dataclass(frozen=True, slots=True)
class Reality:
    """What /proc says about one stored server: whether its keeper and its main process live, and in this boot."""

    keeper_alive: bool
    server_alive: bool
    same_boot: bool
    launching: bool = False
    """Somebody holds the keeper's lock: a launch that has not named its keeper yet."""


def list_servers(*, adopt: bool = True) -> tuple[ServerRecord, ...]:
    """All servers of this host, oldest first, then those that other hosts left in a shared home (never touched).

    With `adopt`, a server whose keeper was killed gets a new one. Never raises for a broken record.
    """
    own = sorted(_records(servers_dir(), adopt=adopt), key=lambda record: (record.created, record.name))
    foreign: list[ServerRecord] = []
    home = servers_dir().parent
    if home.is_dir():
        for folder in sorted(home.iterdir()):
            if folder.is_dir() and folder.name != host_id():
                foreign += [_of_other_host(record) for record in _records(folder, adopt=False, elsewhere=folder.name)]
    return (*own, *foreign)


def get_server(name: str) -> ServerRecord:
    """The server `name` of this host. Raises UsageError with the nearest name when there is none."""
    folder = servers_dir() / name
    if "/" not in name and name not in ("", ".", "..") and (folder / "server.json").exists():
        return read_record(folder)
    known = [record.name for record in list_servers(adopt=False) if record.host_id == host_id()]
    close = nearest(name, known)
    hint = f"did you mean {close!r}?" if close else "`vq-console ps` shows what there is"
    raise UsageError(f"there is no server {name!r}", hint)


def read_record(folder: Path, *, adopt: bool = True) -> ServerRecord:
    """The record in `folder`, held against reality. A broken file gives a failed record that says so."""
    try:
        given = _read(folder / "server.json")
    except (OSError, ValueError) as error:
        return ServerRecord(
            name=folder.name,
            state=ServerState.FAILED,
            reason=f"broken record: {error}",
            folder=str(folder),
            host_id=host_id(),
        )
    if given.get("attached"):
        from vq_console.serving.attach import attached_record

        return attached_record(folder, given)
    try:
        state: Mapping[str, Any] = _read(folder / "state.json")
    except (OSError, ValueError) as error:
        state = {"state": "failed", "reason": f"broken record: {error}"}
    try:
        record = record_from(given, state, folder)
    except (TypeError, ValueError, AttributeError) as error:
        return ServerRecord(
            name=folder.name,
            state=ServerState.FAILED,
            reason=f"broken record: {folder / 'state.json'}: {error}",
            folder=str(folder),
            host_id=host_id(),
        )
    if record.state not in LIVE:
        return record
    reality = look(record, folder)
    if adopt and needs_keeper(record, reality) and _may_adopt(folder):
        from vq_console.serving.launch import adopt_server

        adopt_server(folder)
    return reconcile(record, reality)


def _read(path: Path) -> Mapping[str, Any]:
    """`read_json`, reading again only what changed: the screen asks every second, and a plan is long."""
    status = path.stat()
    stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
    known = _files.get(str(path))
    if known is None or known[0] != stamp:
        if len(_files) > _MOST_FILES:
            _files.clear()
        known = _files[str(path)] = (stamp, read_json(path))
    return known[1]


def _records(home: Path, *, adopt: bool, elsewhere: str | None = None) -> list[ServerRecord]:
    found = []
    try:
        # A folder without a record is a name that a launch has just claimed, or gave up.
        folders = [folder for folder in home.iterdir() if (folder / "server.json").exists()]
    except OSError:
        return []
    for folder in folders:
        if elsewhere is None:
            found.append(read_record(folder, adopt=adopt))
            continue
        try:
            record = record_from(_read(folder / "server.json"), _read(folder / "state.json"), folder)
        except (OSError, ValueError, TypeError, AttributeError):
            record = ServerRecord(folder.name, ServerState.FAILED, reason="broken record", folder=str(folder))
        found.append(replace(record, host_id=elsewhere))
    return found


def _of_other_host(record: ServerRecord) -> ServerRecord:
    return replace(record, reason=f"on {record.host_id}; {record.reason}".rstrip("; "))


def record_from(given: Mapping[str, Any], state: Mapping[str, Any], folder: Path) -> ServerRecord:
    """A record from the two files of a server's folder. Raises ValueError or TypeError for what makes no sense."""
    return ServerRecord(
        name=str(given.get("name") or folder.name),
        state=ServerState(str(state.get("state"))),
        url=state.get("url") or given.get("url"),
        port=state.get("port") or given.get("port"),
        model=given.get("model"),
        profile=given.get("profile"),
        engine=given.get("engine"),
        gpus=tuple(int(index) for index in given.get("gpus") or ()),
        identity=identity_from(state.get("server")),
        keeper=identity_from(state.get("keeper")),
        log=given.get("log"),
        folder=str(folder),
        phase=str(state.get("phase") or ""),
        reason=str(state.get("reason") or ""),
        cause=str(state.get("cause") or ""),
        created=float(given.get("created") or 0.0),
        ready_at=state.get("ready_at"),
        ended_at=state.get("ended_at"),
        exit_code=state.get("exit_code"),
        simulated=bool(given.get("simulated")),
        api_key_env=given.get("api_key_env"),
        host_id=host_id(),
        plan=given.get("plan") or {},
        incident=state.get("incident"),
        cpu_pct=state.get("cpu_pct"),
    )


def identity_from(value: Any) -> Identity | None:
    """An identity from its JSON form, or None."""
    if not isinstance(value, Mapping) or not value.get("pid"):
        return None
    return Identity(int(value["pid"]), int(value.get("start_ticks") or 0), str(value.get("boot_id") or ""))


def is_alive(identity: Identity | None) -> bool:
    """True when exactly this process lives; a zombie counts as gone."""
    return identity is not None and procfs.matches(identity.pid, identity.start_ticks, identity.boot_id) is not None


def look(record: ServerRecord, folder: Path) -> Reality:
    """Compare a record with /proc."""
    keeper_alive = is_alive(record.keeper)
    return Reality(
        keeper_alive=keeper_alive,
        server_alive=is_alive(record.identity),
        same_boot=record.identity is None or record.identity.boot_id == procfs.boot_id(),
        launching=not keeper_alive and _is_locked(folder / "keeper.lock"),
    )


def _is_locked(path: Path) -> bool:
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def needs_keeper(record: ServerRecord, reality: Reality) -> bool:
    """True when a new keeper should take over: to watch what lives, or to clean up after what died unwatched."""
    return not reality.keeper_alive and not reality.launching


def _may_adopt(folder: Path) -> bool:
    """At most one attempt per server in a while: a keeper that cannot live must not be started in a loop."""
    now = time.monotonic()
    if now - _adopted_at.get(str(folder), -ADOPTION_PAUSE_S) < ADOPTION_PAUSE_S:
        return False
    _adopted_at[str(folder)] = now
    return True


def reconcile(record: ServerRecord, reality: Reality) -> ServerRecord:
    """What a stored live state means in reality. Pure.

    A living keeper is believed. Without one, a living server keeps its state; a dead one has failed, or was stopped
    if it was being stopped; nobody saw how it ended.
    """
    if record.state not in LIVE or reality.keeper_alive or reality.launching:
        return record
    if not reality.same_boot:
        return replace(record, state=ServerState.FAILED, phase="", reason="the machine was restarted")
    if reality.server_alive:
        return replace(record, reason=record.reason or "its keeper was killed; a new one takes over")
    if record.identity is None:
        return replace(
            record, state=ServerState.FAILED, phase="", reason="its keeper was killed before the server began"
        )
    if record.state is ServerState.STOPPING:
        return replace(record, state=ServerState.STOPPED, phase="", reason="stopped; how it ended is unknown")
    return replace(
        record, state=ServerState.FAILED, phase="", reason="it ended while no keeper watched; how is unknown"
    )


def forget_server(name: str) -> ServerRecord:
    """Remove the folder of a server that is over, or of an attached one. Raises UsageError while it lives."""
    import shutil

    record = get_server(name)
    if record.state in LIVE and not record.attached:
        raise UsageError(f"server {name!r} is {record.state.value}", f"stop it first: vq-console stop {name}")
    if record.folder:
        shutil.rmtree(record.folder)
    return record
