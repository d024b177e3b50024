"""Starting programs from the keeper: the server itself, and short helpers such as nvidia-smi.

Always an argument list, never a shell. A helper can never hold the keeper up: it is polled, and ended when it is late.
"""

from __future__ import annotations

import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


HELPERS: set[int] = set()
"""Helpers that were started and not collected yet; they are children of the keeper and no members of its server."""
_GIVEN_UP: set[int] = set()


class StartError(Exception):
    """The program could not be executed; the text says why."""


def start(argv: Sequence[str], env: Mapping[str, str], *, cwd: str, output: int, new_session: bool = True) -> int:
    """Execute `argv` with its output on the handle `output`, in a session and group of its own; returns its pid.

    Raises StartError when it cannot be executed, with the system's reason.
    """
    said, says = os.pipe()  # closed by a successful exec; otherwise carries the reason
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        code = 127
        try:
            if new_session:
                os.setsid()
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            # Ignored signals are inherited through exec, and Python ignores these.
            for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), dict(env))
        except OSError as error:
            os.write(says, f"{error.errno} {error.filename or argv[0]}".encode())
        except BaseException as error:
            os.write(says, f"0 {error}".encode())
        finally:
            os._exit(code)
    os.close(says)
    os.close(null)
    reason = b""
    while piece := os.read(said, 4096):
        reason += piece
    os.close(said)
    if reason:
        os.waitpid(pid, 0)
        code_text, _, name = reason.decode("utf-8", "replace").partition(" ")
        text = os.strerror(int(code_text)) if code_text not in ("", "0") else "could not be started"
        raise StartError(f"{name}: {text}")
    return pid


def collect_helpers() -> None:
    """Let the kernel forget helpers that were given up and have died since."""
    for pid in list(_GIVEN_UP):
        try:
            over = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            over = True
        if over:
            _GIVEN_UP.discard(pid)
            HELPERS.discard(pid)


def start_aside(argv: Sequence[str], env: Mapping[str, str], *, output: int) -> None:
    """Start a program that nobody waits for; it is no member of the server and may outlive the keeper.

    Raises StartError.
    """
    pid = start(argv, env, cwd="/", output=output)
    HELPERS.add(pid)
    _GIVEN_UP.add(pid)


class Helper:
    """A short program whose output the keeper wants, watched without waiting. `output` is None until it ended well."""

    def __init__(self, argv: Sequence[str], *, now: float, timeout_s: float) -> None:
        self.output: str | None = None
        self.done = False
        self.pid = 0
        self._deadline = now + timeout_s
        self._pieces: list[bytes] = []
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        try:
            self.pid = start(argv, os.environ, cwd="/", output=write, new_session=False)
            HELPERS.add(self.pid)
        except (StartError, OSError):
            self._end()
        finally:
            os.close(write)

    def poll(self, now: float) -> bool:
        """Take what it printed; True when it is over."""
        if self.done:
            return True
        try:
            while piece := os.read(self._read, 65536):
                self._pieces.append(piece)
        except BlockingIOError:
            pass
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except OSError as error:
            if error.errno != errno.ECHILD:
                raise
            pid, status = self.pid, -1
        if pid:
            HELPERS.discard(pid)
            if status == 0:
                self.output = b"".join(self._pieces).decode("utf-8", "replace")
            self._end()
        elif now >= self._deadline:
            self.kill()
        return self.done

    def kill(self) -> None:
        """End it without its answer. One that hangs in the driver dies later; `collect_helpers` takes it then."""
        if not self.done:
            # It is a child that was not collected yet, so its pid cannot have become another's.
            os.kill(self.pid, signal.SIGKILL)
            _GIVEN_UP.add(self.pid)
            self._end()

    def _end(self) -> None:
        self.done = True
        os.close(self._read)
