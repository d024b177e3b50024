"""A long tool watched: its own process group, its whole output in a log file, its lines as they come, a clean end.

Owns starting and ending of tools such as pip and quantizers. Never a shell, never a signal to a group that this
module did not start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from vq_console.core.text import strip_control

_POLL_S = 0.1
_GRACE_S = 5.0


def run_tool(
    argv: Sequence[str],
    log: Path,
    *,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    own_group: bool = True,
    keep_open: Sequence[int] = (),
    cancelled: Callable[[], bool] | None = None,
) -> int:
    """Run `argv` to its end and return its exit code; 124 when it took longer than `timeout_s`.

    Output is appended to `log`; `on_line` gets each whole line (carriage returns end lines too, control sequences
    removed), `on_tick` the seconds so far, ten times a second. An exception here, KeyboardInterrupt included, ends
    the whole group first: TERM, five seconds, KILL. `keep_open` are file descriptors that the tool holds as well, so
    that a lock outlives a console that was killed. Raises OSError when it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        begin = out.tell()
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=own_group,
            pass_fds=tuple(keep_open),
        )
    started = time.monotonic()
    lines = _Lines(log, begin)
    try:
        while True:
            ended = process.poll() is not None
            for line in lines.read():
                if on_line is not None:
                    on_line(line)
            passed = time.monotonic() - started
            if ended:
                return process.returncode
            if on_tick is not None:
                on_tick(passed)
            if cancelled is not None and cancelled():
                raise KeyboardInterrupt
            if timeout_s is not None and passed > timeout_s:
                end_tool(process, own_group=own_group)
                return 124
            time.sleep(_POLL_S)
    except BaseException:
        end_tool(process, own_group=own_group)
        raise


def end_tool(process: subprocess.Popen[bytes], *, own_group: bool = True, grace_s: float = _GRACE_S) -> None:
    """End a tool that this process started, with its group where it has one of its own: TERM, a wait, KILL."""

    def send(number: int) -> None:
        # The leader is not reaped before this, so its group's number cannot belong to anyone else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if own_group:
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid, number)

    if process.returncode is None:
        send(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not _has_ended(process.pid):
            time.sleep(0.05)
        send(signal.SIGKILL)
        process.wait()


def _has_ended(pid: int) -> bool:
    """Whether a child ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def tail(log: Path, count: int = 12) -> list[str]:
    """The last lines of a log that say something, control sequences removed."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [strip_control(line).rstrip() for line in text.replace("\r", "\n").split("\n")]
    return [line for line in lines if line][-count:]


class _Lines:
    """Whole lines of a growing file; progress bars end theirs with a carriage return."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path, self._offset, self._rest = path, offset, b""

    def read(self) -> Iterator[str]:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            text = strip_control(line.decode(errors="replace")).rstrip()
            if text:
                yield text
