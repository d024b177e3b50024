"""Locks that hold across consoles, users and crashes: one start at a time per GPU, one server per port.

Kernel locks on open files, so whatever dies lets go. Must never wait, and must never follow a link in a shared folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time

from vq_console.serving.keeping import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER_VARIABLE = "VQ_CONSOLE_LOCKS"
"""Names another folder for the locks of this machine, for tests and for machines without a shared temporary folder."""


def locks_folder() -> str:
    """The folder that every user of this machine agrees on, made when absent (mode 1777)."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        os.makedirs(given, exist_ok=True)
        return given
    base = "/tmp"
    try:
        # Chosen by what it is and not by who may write: root and others must end up in the same place.
        if stat.S_IMODE(os.stat("/run/lock").st_mode) & 0o1777 == 0o1777:
            base = "/run/lock"
    except OSError:
        pass
    folder = f"{base}/vq-console"
    try:
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            # Somebody put something else there: locks that only this user sees are better than none.
            folder = f"{folder}-{os.getuid()}"
            os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _open(path: str) -> int:
    # Without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on another user's existing file.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    for _ in range(3):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)
            return handle
        except FileExistsError:
            continue
    raise OSError(errno.EAGAIN, "lock file comes and goes", path)


def try_lock(name: str, holder: dict[str, Any]) -> int | None:
    """Take the lock `name`; the file handle to keep open, or None when somebody has it.

    `holder` is written into the file for people who ask who has it; it decides nothing.
    """
    handle = _open(f"{locks_folder()}/{name}.lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)
    except OSError:
        pass
    return handle


def holder_of(name: str) -> dict[str, Any]:
    """What the present or last holder of a lock said about itself; empty when nothing is known."""
    try:
        handle = _open(f"{locks_folder()}/{name}.lock")
    except OSError:
        return {}
    try:
        value = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except (OSError, ValueError):
        return {}
    finally:
        os.close(handle)
    return value if isinstance(value, dict) else {}


class Ticket:
    """A place in the line for a lock: a locked file whose name says since when; a dead waiter loses its place."""

    def __init__(self, name: str, since: int, holder: dict[str, Any]) -> None:
        self.name = name
        self.path = f"{locks_folder()}/{name}.{since:020d}.{os.getpid()}.wait"
        # Locked before it has its name: nobody may see it unlocked and take it for a dead one.
        hidden = f"{self.path}.new"
        self._handle = os.open(hidden, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_TRUNC, 0o644)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        os.pwrite(self._handle, json.dumps(holder).encode(), 0)
        os.rename(hidden, self.path)

    def ahead(self) -> dict[str, Any] | None:
        """What the one before this one in the line says about itself; None when this is the first."""
        folder, mine = os.path.split(self.path)
        line = sorted(
            name for name in os.listdir(folder) if name.startswith(f"{self.name}.") and name.endswith(".wait")
        )
        for name in line[: line.index(mine)] if mine in line else ():
            path = f"{folder}/{name}"
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                try:
                    value = json.loads(os.pread(handle, 4096, 0) or b"{}")
                except (OSError, ValueError):
                    value = {}
                return value if isinstance(value, dict) else {}
            else:
                try:
                    os.unlink(path)
                except OSError:  # of another user: it counts for nothing and stays
                    pass
            finally:
                os.close(handle)
        return None

    def give_up(self) -> None:
        """Leave the line."""
        try:
            os.unlink(self.path)
        except OSError:
            pass
        os.close(self._handle)


class StartLocks:
    """The right to start on some GPUs: who asked first is first, and no two keepers can block each other.

    The locks are taken in the order of their names, and the age of a ticket is the same in every line.
    """

    def __init__(self, names: list[str], holder: dict[str, Any]) -> None:
        self.names = sorted(set(names))
        self.holder = holder
        self._held: dict[str, int] = {}
        self._tickets: dict[str, Ticket] = {}

    def acquire(self) -> tuple[str, str] | None:
        """Take what is free; None when all are held, else the first that is not, and whom it waits for."""
        since = time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # one clock for all processes, never set back
        for name in self.names:
            if name not in self._tickets and name not in self._held:
                try:
                    self._tickets[name] = Ticket(name, since, self.holder)
                except OSError:  # a full disk, say: without a place in the line, but not without a start
                    pass
        for name in self.names:
            if name in self._held:
                continue
            ticket = self._tickets.get(name)
            first = ticket.ahead() if ticket else None
            handle = try_lock(name, self.holder) if first is None else None
            if handle is None:
                said = holder_of(name) if first is None else first
                return name, str(said.get("name") or "another server")
            self._held[name] = handle
        self._leave_lines()
        return None

    def _leave_lines(self) -> None:
        for ticket in self._tickets.values():
            ticket.give_up()
        self._tickets.clear()

    def release(self) -> None:
        """Let the next one start; whoever still waited leaves the line."""
        self._leave_lines()
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()


def port_is_free(host: str, port: int) -> bool:
    """True when nothing has `port`, whether it listens on it already or only bound it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def bind(reuse: bool) -> bool:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if reuse:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                return error.errno != errno.EADDRINUSE
            return True

    if procfs.listeners(port):
        return False
    # vLLM binds long before it listens, and with SO_REUSEPORT, so two of them could share a port unseen. A bind
    # without any option finds that out; it also fails for connections that still close, which do no harm.
    return bind(False) or (bind(True) and procfs.port_is_busy_closing(port))


def claim_port(host: str, port: int | None, holder: dict[str, Any]) -> tuple[int, int] | None:
    """Claim `port`, or any free one for None, among all keepers: (port, handle to keep open); None when it is taken."""
    if port is not None:
        handle = try_lock(f"port-{port}", holder)
        if handle is None:
            return None
        if not port_is_free(host, port):
            os.close(handle)
            return None
        return port, handle
    for _ in range(50):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, 0))
            except OSError:  # no address of this machine: the server will say so itself
                probe.bind(("", 0))
            candidate = int(probe.getsockname()[1])
        claimed = claim_port(host, candidate, holder)
        if claimed is not None:
            return claimed
    return None
