"""What a long check says while it runs, and how it learns that it should stop.

Owns the protocol and two small implementations; never prints and never touches the screen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """The one way in which a check speaks to whoever started it."""

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
        """Say what is happening. `eta_s` is the time left in seconds, `interim` an anytime-valid result so far."""

    def cancelled(self) -> bool:
        """True once the person wants to stop; what was measured is kept and labelled partial."""


class Silent:
    """Progress for nobody; never cancelled."""

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
        """Drop the event."""

    def cancelled(self) -> bool:
        """Never."""
        return False


class Callback:
    """Progress that hands every event on as one mapping, and can be cancelled from another thread."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._tell = tell
        self._stop = threading.Event()

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
        """Call the function with the fields that are set."""
        fields = {
            "stage": stage,
            "message": message,
            "arm": arm,
            "done": done,
            "total": total,
            "eta_s": eta_s,
            "interim": interim,
        }
        self._tell({key: value for key, value in fields.items() if value is not None})

    def cancel(self) -> None:
        """Ask the check to stop at the next possible moment."""
        self._stop.set()

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._stop.is_set()
