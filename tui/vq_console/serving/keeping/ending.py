"""Ending one server: asked, told, killed; then cleaned up after, until nothing of it is left.

Owns the stages and their deadlines. Must never end before the group is gone (or said to be unkillable).
"""

from __future__ import annotations

import signal

from vq_console.serving.keeping import gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vq_console.serving.keeping.child import Helper
    from vq_console.serving.keeping.group import Group

MEMORY_WAIT_S = 10.0


class Ending:
    """The end of a server's life. `state` and `reason` are what it ends as; `again` says why it starts anew: `port`,
    `restart`, or empty. Call `step` until it returns True; `phase` says where it is. Times are monotonic seconds."""

    def __init__(
        self,
        group: Group,
        *,
        now: float,
        timeout_s: float,
        survivors_s: float,
        kill_wait_s: float,
        state: str,
        reason: str,
        again: str = "",
        tool: str | None = None,
        gpu_uuids: list[str] | None = None,
    ) -> None:
        self.group = group
        self.state = state
        self.reason = reason
        self.again = again
        self.phase = ""
        self.deadline = now + timeout_s
        self.removed: list[str] = []
        self.helper: Helper | None = None
        self._survivors_s = survivors_s
        self._kill_wait_s = kill_wait_s
        self._tool = tool
        self._uuids = gpu_uuids or []
        self._told_all = False
        self._killed_at: float | None = None
        self._gone_at: float | None = None
        self._ask_at = 0.0
        self.main_was_alive = not group.look_at_main()
        # Before anything is signalled: what is mapped now is all that will ever be known of the segments.
        group.scan(look_at_segments=True)
        if self.main_was_alive:
            # Only the main process first: vLLM then stops its engine in order. A group-wide TERM looks like a crash.
            self.phase = "asked to stop"
            group.signal_main(signal.SIGTERM)

    def hurry(self, now: float, timeout_s: float) -> None:
        """A person asks to stop what is ending anyway: it does not start again, and ends no later than that."""
        self.again = ""
        self.deadline = min(self.deadline, now + timeout_s)

    def step(self, now: float) -> bool:
        """One step; True when nothing is left (or what is left cannot be killed)."""
        group = self.group
        main_gone = group.look_at_main()
        living = group.scan()
        if living:
            self._gone_at = None
            return self._press(now, main_gone, living)
        if self._gone_at is None:
            self._gone_at = now
        if self._tool and now - self._gone_at < MEMORY_WAIT_S and not self._memory_is_back(now):
            self.phase = "waiting for the GPU's memory"
            return False
        if self.helper is not None and not self.helper.poll(now):
            return False
        self.removed = group.remove_segments()
        group.collect_main()
        return True

    def _press(self, now: float, main_gone: bool, living: dict[int, Any]) -> bool:
        if main_gone and not self._told_all:
            self._told_all = True
            self.deadline = min(self.deadline, now + self._survivors_s)
            self.phase = f"stopping {len(living)} process{'' if len(living) == 1 else 'es'} that stayed behind"
            self.group.signal_all(living, signal.SIGTERM)
        if now < self.deadline:
            return False
        if self._killed_at is None:
            self._killed_at = now
            self.phase = f"killing {len(living)} process{'' if len(living) == 1 else 'es'} that did not stop"
        self.group.signal_all(living, signal.SIGKILL)
        if now - self._killed_at > self._kill_wait_s:
            names = ", ".join(f"{proc.pid} ({proc.comm}, {proc.state})" for proc in living.values())
            self.state, self.again = "failed", ""
            self.reason = f"these processes cannot be killed: {names}"
            return True
        return False

    def _memory_is_back(self, now: float) -> bool:
        if self.helper is None:
            if now >= self._ask_at and self._tool:
                self._ask_at = now + 0.5
                self.helper = gpu.ask_holders(self._tool, self._uuids, now)
            return False
        if not self.helper.poll(now):
            return False
        answer, self.helper = self.helper.output, None
        return answer is None or not (gpu.read_holders(answer) & self.group.ever)
