"""What dead servers left behind: engines without an API server, GPU memory of dead processes, shared memory.

Looks, and removes when told to. Touches only what this user may, compared by identity right before, and shared memory
only where the console's own records say which server made it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.core.files import read_json
from vq_console.core.places import servers_dir
from vq_console.core.text import redact, strip_control
from vq_console.serving.attach import command_line, is_api_server, user_of
from vq_console.serving.keeping import procfs
from vq_console.serving.model import LIVE
from vq_console.serving.registry import identity_from, is_alive, list_servers

TITLE = "VLLM::"
"""How vLLM names the processes of a server (setproctitle; `comm` is cut to 15 characters)."""
KILL_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Orphan:
    """One thing left behind. `kind` is process, gpu-memory, segment or stranger; `why` says how that is known."""

    kind: str
    name: str
    why: str
    pid: int | None = None
    start_ticks: int | None = None
    user: str | None = None
    age_s: float | None = None
    gpus: tuple[int, ...] = ()
    memory_mib: int | None = None
    """GPU memory of a process, size of a segment."""
    path: str | None = None
    touchable: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "why": self.why,
            "pid": self.pid,
            "user": self.user,
            "age_s": None if self.age_s is None else round(self.age_s, 1),
            "gpus": list(self.gpus),
            "memory_mib": self.memory_mib,
            "path": self.path,
            "touchable": self.touchable,
        }


@dataclass(frozen=True, slots=True)
class _Survey:
    """One look at the machine: processes, GPU memory by pid and index, members of kept servers, lost processes."""

    procs: Mapping[int, procfs.Proc]
    held: Mapping[int, Mapping[int, int | None]]
    kept: frozenset[int]
    lost: Mapping[int, str]


def _survey() -> _Survey:
    procs = procfs.all_procs()
    records = list_servers()
    ours = {r.identity.pid for r in records if r.identity and r.state in LIVE and is_alive(r.identity)}
    keepers = {r.keeper.pid for r in records if r.keeper and is_alive(r.keeper)}
    kept = frozenset(keepers | ours | procfs.descendants(procs, keepers | ours))
    commands = {pid: command_line(pid) for pid, proc in procs.items() if not is_title(proc.comm)}
    return _Survey(procs, _gpu_memory(), kept, orphaned(procs, kept, commands))


def find_orphans() -> tuple[Orphan, ...]:
    """Everything left behind that this user can see, processes first."""
    seen = _survey()
    found = [_process(seen, pid, "process", seen.lost[pid], may_signal(pid)) for pid in sorted(seen.lost)]
    for pid, gpus in sorted(seen.held.items()):
        if pid not in seen.procs or seen.procs[pid].gone:
            found.append(
                Orphan(
                    kind="gpu-memory",
                    name=f"process {pid}",
                    why="the driver counts memory for a process that is not there (dead, or in another container)",
                    pid=pid,
                    gpus=tuple(sorted(gpus)),
                    memory_mib=_total(gpus.values()),
                )
            )
    return (*found, *_segments())


def gpu_strangers() -> tuple[Orphan, ...]:
    """Living processes that hold GPU memory and belong to no server of the console; shown, never touched."""
    seen = _survey()
    pids = sorted(pid for pid in seen.held if pid in seen.procs and pid not in seen.kept and pid not in seen.lost)
    return tuple(_process(seen, pid, "stranger", "no server of this console", False) for pid in pids)


def _process(seen: _Survey, pid: int, kind: str, why: str, touchable: bool) -> Orphan:
    proc, gpus = seen.procs[pid], seen.held.get(pid, {})
    return Orphan(
        kind=kind,
        name=strip_control(proc.comm),
        why=why,
        pid=pid,
        start_ticks=proc.start_ticks,
        user=user_of(pid),
        age_s=procfs.age_s(proc.start_ticks),
        gpus=tuple(sorted(gpus)),
        memory_mib=_total(gpus.values()),
        touchable=touchable,
    )


def is_title(comm: str) -> bool:
    """True for the short name of one of vLLM's own processes."""
    return comm.startswith(TITLE)


def orphaned(
    procs: Mapping[int, procfs.Proc], kept: Collection[int], commands: Mapping[int, Sequence[str]]
) -> dict[int, str]:
    """Processes of vLLM whose API server (or program) is gone, with the reason. Pure.

    An engine belongs to the process that started it, which shares its session. Where that one is gone, the engine
    hangs on init or a subreaper outside the session. `kept` are the members of servers that have a keeper.
    """
    lost: dict[int, str] = {}
    for proc in procs.values():
        if proc.gone or not is_title(proc.comm) or proc.pid in kept:
            continue
        if proc.comm.startswith("VLLM::APIServer"):
            continue
        parent = procs.get(proc.ppid)
        if parent is not None and not parent.gone:
            # In a container the server itself may be process 1; an init or a shell there only collects orphans.
            program = parent.pid != 1 or parent.comm.startswith(("python", "vllm", "VLLM"))
            if (program and parent.session == proc.session) or is_api_server(list(commands.get(parent.pid, ()))):
                continue  # its parent lives; if that one is an orphan, this is found as its descendant
        lost[proc.pid] = "its API server is gone"
    for pid in procfs.descendants(procs, lost):
        if not procs[pid].gone and pid not in lost and pid not in kept:
            lost[pid] = "belongs to an engine whose API server is gone"
    groups = {procs[pid].pgrp for pid in lost}
    for proc in procs.values():
        # The resource tracker of a dead server: in its group, hanging on init, and nothing else to do.
        if proc.pgrp in groups and proc.pid not in lost and proc.pid not in kept and not proc.gone:
            leader = procs.get(proc.pgrp)
            if leader is None and proc.ppid == 1:
                lost[proc.pid] = "left behind in the group of a dead server"
    return lost


def may_signal(pid: int) -> bool:
    """True when this user may signal the process."""
    try:
        return os.getuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return False


def _gpu_memory() -> dict[int, dict[int, int | None]]:
    """GPU memory by pid and GPU index, in MiB."""
    from vq_console.hardware.probe import read_machine

    found: dict[int, dict[int, int | None]] = {}
    for gpu in read_machine().gpus:
        for process in gpu.processes:
            found.setdefault(process.pid, {})[gpu.index] = process.used_mib
    return found


def _total(values: Collection[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _segments() -> list[Orphan]:
    """Shared memory of servers that are over, as their keepers wrote it down."""
    found = []
    try:
        folders = list(servers_dir().iterdir())
    except OSError:
        return []
    for folder in folders:
        for path in stale_segments(folder):
            try:
                status = os.stat(path)
            except OSError:
                continue
            found.append(
                Orphan(
                    kind="segment",
                    name=os.path.basename(path),
                    why=f"server {folder.name} made it and is gone",
                    memory_mib=round(status.st_size / 2**20),
                    age_s=max(0.0, time.time() - status.st_mtime),
                    path=path,
                    touchable=True,
                )
            )
    return found


def stale_segments(folder: Path) -> list[str]:
    """Segments of the server in `folder` that nobody uses any more; empty while it or its keeper lives."""
    try:
        members, state = read_json(folder / "members.json"), read_json(folder / "state.json")
    except (OSError, ValueError):
        return []
    if members.get("boot_id") != procfs.boot_id():
        return []
    if is_alive(identity_from(state.get("server"))) or is_alive(identity_from(state.get("keeper"))):
        return []
    return sorted(procfs.unused_segments(int(inode) for inode in members.get("segments") or []).values())


def reap(orphan: Orphan) -> str:
    """Remove one orphan: TERM, a wait, KILL; or unlink. Returns what was done, or why not."""
    if not orphan.touchable:
        return "left alone: not this user's, or nothing that can be signalled"
    if orphan.kind == "segment":
        return _unlink(orphan.path or "")
    if orphan.pid is None or orphan.start_ticks is None:
        return "left alone: no identity"
    try:
        if not procfs.send_signal(orphan.pid, orphan.start_ticks, signal.SIGTERM):
            return "already gone"
        deadline = time.monotonic() + KILL_AFTER_S
        while procfs.matches(orphan.pid, orphan.start_ticks, procfs.boot_id()):
            if time.monotonic() > deadline:
                procfs.send_signal(orphan.pid, orphan.start_ticks, signal.SIGKILL)
                time.sleep(0.2)
                gone = procfs.matches(orphan.pid, orphan.start_ticks, procfs.boot_id()) is None
                return "killed" if gone else "does not die"
            time.sleep(0.05)
    except PermissionError:
        return "left alone: not this user's"
    return "stopped"


def _unlink(path: str) -> str:
    for folder in servers_dir().iterdir():
        if path in stale_segments(folder):
            try:
                os.unlink(path)
            except OSError as error:
                return f"left alone: {error.strerror}"
            return "removed"
    return "already gone, or in use again"


def describe(orphan: Orphan) -> str:
    """One line for a person, with the command where there is one."""
    words = command_line(orphan.pid) if orphan.pid else []
    shown = redact(strip_control(" ".join(words)))[:80] if words else orphan.path or orphan.name
    return f"{orphan.name}: {orphan.why} · {shown}"
