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


class StartLocks:
    """The right to start on some GPUs, taken in a fixed order so that two keepers cannot block each other."""

    def __init__(self, names: list[str], holder: dict[str, Any]) -> None:
        self.names = sorted(set(names))
        self.holder = holder
        self._held: dict[str, int] = {}

    def acquire(self) -> str | None:
        """Take what is free; None when all are held, else the name of the first that somebody else has."""
        for name in self.names:
            if name not in self._held:
                handle = try_lock(name, self.holder)
                if handle is None:
                    return name
                self._held[name] = handle
        return None

    def release(self) -> None:
        """Let the next one start."""
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
