"""`state.json`: what the keeper says of its server. Written when it changed, again and again while the disk refuses."""

from __future__ import annotations

import os
import time

from vq_console.serving.keeping import files, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HISTORY = 50


class StateFile:
    """The state of one server, with the history of its states by both clocks (wall, and monotonic as `up`)."""

    def __init__(self, folder: str, boot_id: str) -> None:
        self.path = f"{folder}/state.json"
        self.values: dict[str, Any] = files.read_json(self.path) or {}
        me = procfs.read_proc(os.getpid())
        self.values["keeper"] = {
            "pid": os.getpid(),
            "start_ticks": me.start_ticks if me else 0,
            "boot_id": boot_id,
        }
        self._dirty = True

    @property
    def state(self) -> str:
        """The present state, by the names of `serving.model.ServerState`."""
        return str(self.values.get("state"))

    def get(self, key: str, default: Any = None) -> Any:
        """One value."""
        return self.values.get(key, default)

    def set(self, state: str | None = None, **changes: Any) -> None:
        """Change values; a change of state is also noted in the history."""
        if state is not None and state != self.values.get("state"):
            entry = {"state": state, "at": time.time(), "up": time.monotonic()}
            self.values.update(state=state, history=[*self.values.get("history", []), entry][-HISTORY:])
            self._dirty = True
        for key, value in changes.items():
            if self.values.get(key) != value:
                self.values[key] = value
                self._dirty = True

    def save(self) -> None:
        """Write what changed since the last time."""
        if self._dirty:
            self._dirty = not files.write_json(self.path, self.values)
