"""The processes and shared-memory segments of one server, from its start until nothing of it is left.

Owns `members.json`, through which a later keeper knows what this one saw. Must never count in a process that it
cannot tie to the server, and never remove a segment that a living process still uses.
"""

from __future__ import annotations

import os
import time

from vq_console.serving.keeping import files, procfs
from vq_console.serving.keeping.child import HELPERS, collect_helpers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Group:
    """The server led by `pid`. `child` is True for the keeper that started it; only that one learns the exit code."""

    def __init__(self, folder: str, pid: int, ticks: int, boot: str, *, child: bool) -> None:
        self.path = f"{folder}/members.json"
        self.pid = pid
        self.ticks = ticks
        self.boot = boot
        self.child = child
        self.ended = False
        self.exit_code: int | None = None
        self.known: dict[int, int] = {pid: ticks}
        self.ever: set[int] = {pid}
        self.segments: set[int] = set()
        self.pidfd = -1
        self._cpu: tuple[float, float] | None = None
        self._cpu_pct: float | None = None
        self._shm_seen = -1
        self._written: dict[str, Any] = {}
        if not child:
            self._remember()
            try:
                self.pidfd = os.pidfd_open(pid)
            except OSError:
                self.pidfd = -1

    def _remember(self) -> None:
        """Take over what an earlier keeper of the same server wrote down."""
        seen = files.read_json(self.path) or {}
        if seen.get("boot_id") != self.boot or seen.get("main") != [self.pid, self.ticks]:
            return
        for pid, ticks in seen.get("members") or []:
            self.known[int(pid)] = int(ticks)
            self.ever.add(int(pid))
        self.segments = {int(inode) for inode in seen.get("segments") or []}

    def look_at_main(self) -> bool:
        """True when the main process has ended; learns its exit code where that is possible.

        A child is only looked at and stays a zombie until the end: so long, the kernel gives its number to nobody.
        """
        if self.ended:
            return True
        if not self.child:
            self.ended = procfs.matches(self.pid, self.ticks, self.boot) is None
            return self.ended
        try:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self.ended = True
            return True
        if result is not None:
            self.ended = True
            self.exit_code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return self.ended

    def collect_main(self) -> None:
        """Learn the exit code if that is still open, and let the kernel forget the main process."""
        if self.child and self.look_at_main():
            try:
                os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pass

    def scan(self, *, look_at_segments: bool = False) -> dict[int, procfs.Proc]:
        """The living members by pid; also collects dead orphans and notes new members and segments."""
        collect_helpers()
        procs = procfs.all_procs()
        me = os.getpid()
        for proc in procs.values():
            if proc.ppid == me and proc.gone and proc.pid != self.pid and proc.pid not in HELPERS:
                try:
                    os.waitpid(proc.pid, os.WNOHANG)
                except ChildProcessError:
                    pass
        living = procfs.members(
            procs,
            main=self.pid,
            main_ticks=self.ticks,
            known=self.known,
            above=me if self.child else None,
            helpers=HELPERS,
        )
        fresh = {pid for pid in living if pid not in self.known}
        self.known = {pid: proc.start_ticks for pid, proc in living.items()}
        main = procs.get(self.pid)
        if main is not None and main.start_ticks == self.ticks:
            self.known[self.pid] = self.ticks
        self.ever |= set(living)
        if fresh or look_at_segments or self.segments_changed():
            self._look_at_segments(living)
        self._write()
        return living

    def cpu_pct(self, now: float) -> float | None:
        """CPU use over the last half second or more, in percent of one core; None at first."""
        if self._cpu is None or now - self._cpu[0] >= 0.5:
            used = procfs.cpu_seconds(self.scan().values())
            if self._cpu is not None:
                self._cpu_pct = round(max(0.0, used - self._cpu[1]) / (now - self._cpu[0]) * 100, 1)
            self._cpu = (now, used)
        return self._cpu_pct

    def segments_changed(self) -> bool:
        """True when something was made or removed in /dev/shm since the members' maps were last read."""
        return procfs.shm_changed_at() != self._shm_seen

    def _look_at_segments(self, living: dict[int, procfs.Proc]) -> None:
        # A mapping comes a little after its file, so a change this young is looked at once more.
        changed = procfs.shm_changed_at()
        self._shm_seen = changed if time.time_ns() - changed > 2_000_000_000 else -1
        for pid in living:
            self.segments |= procfs.shm_inodes(pid)
        self.segments &= set(procfs.shm_entries())

    def _write(self) -> None:
        value = {
            "boot_id": self.boot,
            "main": [self.pid, self.ticks],
            "members": sorted([pid, ticks] for pid, ticks in self.known.items()),
            "segments": sorted(self.segments),
        }
        if value != self._written and files.write_json(self.path, value):
            self._written = value

    def owns_port(self, port: int) -> bool | None:
        """None while nobody listens on `port`, True when only members do, False when anybody else does too."""
        open_now = procfs.listeners(port)
        if not open_now:
            return None
        for pid in [self.pid, *self.known]:
            open_now = open_now - procfs.socket_inodes(pid)
            if not open_now:
                return True
        return False

    def signal_main(self, number: int) -> None:
        """Signal the main process if it still is that process."""
        try:
            procfs.send_signal(self.pid, self.ticks, number)
        except PermissionError:
            pass

    def signal_all(self, living: dict[int, procfs.Proc], number: int) -> None:
        """Signal every member by itself, each compared right before."""
        for proc in living.values():
            try:
                procfs.send_signal(proc.pid, proc.start_ticks, number)
            except PermissionError:
                continue

    def remove_segments(self) -> list[str]:
        """Remove what the server left in /dev/shm and nobody uses; returns the paths removed."""
        removed = []
        for path in procfs.unused_segments(self.segments).values():
            try:
                os.unlink(path)
                removed.append(path)
            except OSError:
                continue
        self.segments = set()
        return sorted(removed)
