"""Processes, sockets and shared memory as /proc tells them: identity, descent, groups.

Owns the rule that a process is known by pid, start time and boot, and the only function that sends a signal.
Must never signal a process whose start time was not just compared, and must never guess where /proc says nothing.
"""

from __future__ import annotations

import os
import signal
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
SHM = "/dev/shm"


class Proc:
    """One process at one moment; `cpu_ticks` is user plus system time, `start_ticks` is since boot."""

    __slots__ = ("comm", "cpu_ticks", "pgrp", "pid", "ppid", "session", "start_ticks", "state")

    def __init__(
        self, pid: int, comm: str, state: str, ppid: int, pgrp: int, session: int, cpu_ticks: int, start_ticks: int
    ) -> None:
        self.pid = pid
        self.comm = comm
        self.state = state
        self.ppid = ppid
        self.pgrp = pgrp
        self.session = session
        self.cpu_ticks = cpu_ticks
        self.start_ticks = start_ticks

    @property
    def gone(self) -> bool:
        """True for a zombie: it holds nothing any more and only waits to be collected."""
        return self.state in "ZXx"


def read_proc(pid: int) -> Proc | None:
    """The process `pid`, or None when there is none (or it may not be read)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    # The name stands in parentheses and may itself hold parentheses and spaces.
    name_end = raw.rfind(")")
    fields = raw[name_end + 2 :].split()
    if name_end < 0 or len(fields) < 20:
        return None
    comm = raw[raw.find("(") + 1 : name_end]
    return Proc(
        pid,
        comm,
        fields[0],
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[11]) + int(fields[12]),
        int(fields[19]),
    )


def all_procs() -> dict[int, Proc]:
    """Every process that /proc shows, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            proc = read_proc(int(name))
            if proc is not None:
                found[proc.pid] = proc
    return found


def boot_id() -> str:
    """The kernel's id of this boot; empty where it is hidden."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def matches(pid: int, start_ticks: int, boot: str) -> Proc | None:
    """The living process that this identity names; None when it is gone, a zombie, another one, or of another boot."""
    if pid <= 0 or boot != boot_id():
        return None
    proc = read_proc(pid)
    if proc is None or proc.gone or proc.start_ticks != start_ticks:
        return None
    return proc


def send_signal(pid: int, start_ticks: int, number: int) -> bool:
    """Signal exactly the process that started at `start_ticks`; False when it is no longer there.

    The pidfd is opened before the start time is compared, so a reused pid cannot slip in between. Raises
    PermissionError for a process of somebody else.
    """
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        handle = -1  # a kernel or sandbox without pidfds: the comparison right before the signal is all there is
    try:
        proc = read_proc(pid)
        if proc is None or proc.gone or proc.start_ticks != start_ticks or pid in (0, 1, os.getpid()):
            return False
        try:
            if handle >= 0:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True
    finally:
        if handle >= 0:
            os.close(handle)


def descendants(procs: Mapping[int, Proc], roots: Iterable[int]) -> set[int]:
    """The pids below `roots` by parenthood, without the roots."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def members(
    procs: Mapping[int, Proc],
    *,
    main: int,
    main_ticks: int,
    known: Mapping[int, int],
    above: int | None = None,
    helpers: Iterable[int] = (),
) -> dict[int, Proc]:
    """The living processes of one server, by pid.

    `main` led the session and group; `known` are processes seen earlier as members (pid to start time), `above` a
    subreaper to which orphans of the server come, `helpers` its other children. The group is only believed while its
    leader or a known member is in it: the kernel does not give a number to a new process while a group has it.
    """
    leader = procs.get(main)
    leader_ours = leader is not None and leader.start_ticks == main_ticks
    seeds = {pid for pid, ticks in known.items() if pid in procs and procs[pid].start_ticks == ticks}
    if leader_ours:
        seeds.add(main)
    # A zombie still holds its group's number, so it vouches for the group too.
    if any(procs[pid].pgrp == main or procs[pid].session == main for pid in seeds):
        seeds |= {p.pid for p in procs.values() if main in (p.pgrp, p.session) and p.start_ticks >= main_ticks}
    if above is not None:
        seeds |= {p.pid for p in procs.values() if p.ppid == above and p.pid not in set(helpers)}
    found = seeds | descendants(procs, seeds)
    found.discard(os.getpid())
    return {pid: procs[pid] for pid in found if not procs[pid].gone}


def listeners(port: int) -> set[int]:
    """The socket inodes that listen on TCP `port`, on any address of this network namespace."""
    return {inode for inode, state in _sockets(port) if state == "0A"}


def listening_ports() -> list[tuple[int, int]]:
    """Every listening TCP port of this network namespace with its socket's inode."""
    return [(port, inode) for port, inode, state in _all_sockets() if state == "0A"]


def port_is_busy_closing(port: int) -> bool:
    """True when connections of an earlier listener still hold `port` (TIME_WAIT and the like)."""
    return any(state != "0A" for _, state in _sockets(port))


def _sockets(port: int) -> list[tuple[int, str]]:
    return [(inode, state) for number, inode, state in _all_sockets() if number == port]


def _all_sockets() -> list[tuple[int, int, str]]:
    """Port, inode and state of every TCP socket of this network namespace."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                next(file, None)
                for line in file:
                    fields = line.split()
                    if len(fields) > 9:
                        found.append((int(fields[1].rpartition(":")[2], 16), int(fields[9]), fields[3]))
        except OSError:
            continue
    return found


def socket_inodes(pid: int) -> set[int]:
    """The inodes of the sockets that `pid` holds; empty where they may not be read."""
    found = set()
    for target in _links(pid):
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _links(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    found: list[str] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
    return found


def can_tell_sockets() -> bool:
    """Whether /proc here tells which process has a socket, tried on one of our own; some sandboxes do not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
            probe.listen(1)
        except OSError:
            return False
        return bool(listeners(int(probe.getsockname()[1])) & socket_inodes(os.getpid()))


def owner_of_port(port: int) -> Proc | None:
    """The process that listens on `port`, where this user may see it."""
    wanted = listeners(port)
    if wanted:
        for proc in all_procs().values():
            if wanted & socket_inodes(proc.pid):
                return proc
    return None


def shm_changed_at() -> int:
    """When an entry of /dev/shm was last made or removed (ns); 0 where there is no /dev/shm."""
    try:
        return os.stat(SHM).st_mtime_ns
    except OSError:
        return 0


def shm_inodes(pid: int) -> set[int]:
    """The inodes in /dev/shm that `pid` maps or has open.

    Inodes and not names: a semaphore is mapped under its temporary name, which is gone when it has its final one.
    """
    found: set[int] = set()
    try:
        device = os.stat(SHM).st_dev
    except OSError:
        return found
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}"
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:
            for line in file:
                fields = line.split(None, 5)
                if len(fields) == 6 and fields[3] == wanted:
                    found.add(int(fields[4]))
                elif len(fields) == 6 and fields[5].startswith(SHM + "/"):
                    # A sandbox that shows names and no devices.
                    try:
                        found.add(os.stat(fields[5].rstrip("\n")).st_ino)
                    except OSError:
                        continue
    except OSError:
        pass
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}").startswith(SHM + "/"):
                status = os.stat(f"{folder}/{name}")
                if status.st_dev == device:
                    found.add(status.st_ino)
        except OSError:
            continue
    return found


def shm_entries() -> dict[int, str]:
    """Plain files in /dev/shm of this user (of everybody for root), inode to path."""
    found = {}
    me = os.getuid()
    try:
        with os.scandir(SHM) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if entry.is_file(follow_symlinks=False) and (me in (0, status.st_uid)):
                    found[status.st_ino] = entry.path
    except OSError:
        pass
    return found


def unused_segments(inodes: Iterable[int]) -> dict[int, str]:
    """Of `inodes`, those that still lie in /dev/shm and that no living process maps or has open, with their paths."""
    there = shm_entries()
    wanted = {inode for inode in inodes if inode in there}
    if wanted:
        for proc in all_procs().values():
            if not proc.gone:
                wanted -= shm_inodes(proc.pid)
    return {inode: there[inode] for inode in wanted}


def cpu_seconds(procs: Iterable[Proc]) -> float:
    """CPU time that these processes have used so far, in seconds."""
    return sum(proc.cpu_ticks for proc in procs) / CLOCK_TICKS


def age_s(start_ticks: int) -> float | None:
    """Seconds since a process with `start_ticks` of this boot began; independent of the wall clock."""
    try:
        with open("/proc/uptime") as file:
            return float(file.read().split()[0]) - start_ticks / CLOCK_TICKS
    except (OSError, ValueError, IndexError):
        return None
