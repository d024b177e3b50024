"""Progress of a check as lines on standard error, and Ctrl-C as a wish to stop that keeps what was measured."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vq_console.commands.common import say


class Words:
    """Says a stage when it begins and, within it, at most every five seconds."""

    def __init__(self) -> None:
        self._stop = False
        self._last: tuple[str, str, str | None] | None = None
        self._said = 0.0

    def cancel(self, *_: object) -> None:
        """Ask to stop; a second time stops at once."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        say("stopping; what was measured is kept")

    def event(
        self,
        stage: str,
        message: str,
        *,
        arm: str | None = None,
        done: int | None = None,
        total: int | None = None,
        eta_s: float | None = None,
        interim: Mapping[str, Any] | None = None,
    ) -> None:
        """One line, unless the same stage spoke just now."""
        from vq_console.core.text import seconds_text

        now = time.monotonic()
        key = (stage, message, arm)
        if key == self._last and now - self._said < 5:
            return
        self._last, self._said = key, now
        who = f" {arm}" if arm else ""
        count = f" {done}/{total}" if done and total else ""
        left = f", {seconds_text(eta_s)} left" if eta_s and done else ""
        say(f"{stage}{who}: {message}{count}{left}")

    def cancelled(self) -> bool:
        """Whether Ctrl-C or a termination was asked for."""
        return self._stop


@contextmanager
def watched(words: Words) -> Iterator[None]:
    """Let SIGINT and SIGTERM cancel `words` while inside."""
    before = {number: signal.signal(number, words.cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
