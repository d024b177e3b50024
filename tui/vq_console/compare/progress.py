"""Progress of a run as lines in its folder: the screen and the command line read the same ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vq_console.core.files import append_jsonl
from vq_console.core.text import seconds_text


class RunProgress:
    """Writes events to `progress.jsonl` and says them; `cancel()` may be called from a signal handler."""

    def __init__(self, folder: Path, say: Callable[[str], None] | None = None) -> None:
        self._path = folder / "progress.jsonl"
        self._say = say
        self._started = time.monotonic()
        self._cancelled = threading.Event()
        self._last = ("", "", 0.0)

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
        """Record one event; on the terminal at most one line a second for the same message of a stage."""
        elapsed = time.monotonic() - self._started
        record = {
            "t": round(elapsed, 3),
            "stage": stage,
            "message": message,
            "arm": arm,
            "done": done,
            "total": total,
            "eta_s": None if eta_s is None else round(eta_s, 1),
            "interim": interim,
        }
        append_jsonl(self._path, {key: value for key, value in record.items() if value is not None})
        if self._say is None:
            return
        last_stage, last_message, last_time = self._last
        ended = done is not None and done == total
        if (stage, message) == (last_stage, last_message) and elapsed - last_time < 5 and not ended:
            return
        self._last = (stage, message, elapsed)
        count = f" {done}/{total}" if done is not None and total is not None else ""
        left = f", {seconds_text(eta_s)} left" if eta_s is not None and not ended else ""
        who = f" {arm}" if arm else ""
        self._say(f"[{seconds_text(elapsed):>6}] {stage}{who}: {message}{count}{left}")

    def cancel(self) -> None:
        """Ask the check to end at the next block or request; what was measured is kept."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        return self._cancelled.is_set()
