"""Which stream is the terminal: the console draws there, wherever standard output and standard error go."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, TextIO

from textual.driver import Driver

LOOK_EVERY_S = 2.0


def terminal_stream() -> TextIO | None:
    """Standard error or, where that is redirected, standard output; None where neither is a terminal."""
    for stream in (sys.__stderr__, sys.__stdout__):
        try:
            if stream is not None and stream.isatty():
                return stream
        except ValueError:  # closed
            continue
    return None


def can_open() -> bool:
    """True where a person can see the screen and press keys, or where another driver (a browser's) was chosen."""
    if os.environ.get("TEXTUAL_DRIVER"):
        return True
    return terminal_stream() is not None and sys.__stdin__ is not None and sys.__stdin__.isatty()


def end_with_terminal() -> None:
    """End this process soon after its terminal went without a signal, as under `nohup`.

    Textual's event loop waits for its writing thread then, which an error has ended, so a thread of its own looks and
    ends the process at once. Nothing is lost: servers and checks are processes of their own.
    """

    def look() -> None:
        while can_open():
            time.sleep(LOOK_EVERY_S)
        os._exit(128 + signal.SIGHUP)

    if can_open() and not os.environ.get("TEXTUAL_DRIVER"):
        threading.Thread(target=look, name="terminal", daemon=True).start()


def terminal_driver(base: type[Driver]) -> type[Driver]:
    """A driver as `base`, Textual's for Linux and macOS, that draws on the terminal even if stderr is redirected."""

    class TerminalDriver(base):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._file: TextIO = terminal_stream() or sys.__stderr__  # type: ignore[assignment]

        def _get_terminal_size(self) -> tuple[int, int]:
            try:
                return os.get_terminal_size(self._file.fileno())
            except OSError:
                size: tuple[int, int] = super()._get_terminal_size()
                return size

    return TerminalDriver
