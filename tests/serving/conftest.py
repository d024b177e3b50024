"""Real servers for the tests of `serving`: a misbehaving child, quick time-outs, and nothing left behind."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vq_console.preflight.model import Plan
from vq_console.serving.control import stop_server
from vq_console.serving.keeping import procfs
from vq_console.serving.launch import Settings, free_port, start
from vq_console.serving.model import LIVE, ServerRecord
from vq_console.serving.registry import get_server, list_servers

CHILD = Path(__file__).with_name("child.py")
QUICK: dict[str, Any] = {
    "probe_s": 0.05,
    "tick_s": 0.05,
    "scan_start_s": 0.1,
    "scan_rest_s": 0.2,
    "health_s": 0.1,
    "retry_s": 0.1,
    "health_timeout_s": 1.0,
    "silent_s": 0.4,
    "record_s": 0.2,
    "token_s": 0.3,
    "token_timeout_s": 0.4,
    "stuck_s": 0.5,
    "survivors_s": 0.4,
    "kill_wait_s": 5.0,
    "restart_backoff_s": 0.1,
}


twenty_times = pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 20))])
"""Once in `make test`, twenty times in `make soak`."""


class Bench:
    """Starts children as servers and waits for what tests wait for."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.segments: set[int] = set()

    def plan(self, *flags: str, name: str = "tiny", port: int | None = None) -> Plan:
        port = port or free_port()
        argv = (sys.executable, str(CHILD), "tiny", f"--port={port}", *flags)
        return Plan(name, argv, {}, port=port, served_model="tiny")

    def start(
        self,
        *flags: str,
        name: str = "tiny",
        port: int | None = None,
        port_fixed: bool = False,
        settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> ServerRecord:
        return start(
            self.plan(*flags, name=name, port=port),
            port_fixed=port_fixed,
            settings=Settings(keeper={**QUICK, **(settings or {})}, **more),
        )

    def until(
        self, name: str, *states: str, timeout_s: float = 15.0, where: Callable[[ServerRecord], bool] = lambda _: True
    ) -> ServerRecord:
        """The record once it is in one of `states`; fails with what it is instead."""
        deadline = time.monotonic() + timeout_s
        while True:
            record = get_server(name)
            if record.state.value in states and where(record):
                return record
            assert time.monotonic() < deadline, f"wanted {states}, is {record}"
            assert record.state in LIVE or not set(states) <= {s.value for s in LIVE} or "queued" in states, record
            time.sleep(0.02)

    def ready(self, *flags: str, **more: Any) -> ServerRecord:
        record = self.start(*flags, **more)
        return self.until(record.name, "ready")

    def members(self, record: ServerRecord) -> dict[int, procfs.Proc]:
        """Everything below the keeper (or below the server, when it was adopted)."""
        procs = procfs.all_procs()
        roots = [i.pid for i in (record.keeper, record.identity) if i is not None]
        found = procfs.descendants(procs, roots) | ({record.identity.pid} if record.identity else set())
        living = {pid: procs[pid] for pid in found if pid in procs and not procs[pid].gone}
        self.seen |= {pid: proc.start_ticks for pid, proc in living.items()}
        for pid in living:
            self.segments |= procfs.shm_inodes(pid)
        return living

    def gone(self, *pids: int, timeout_s: float = 5.0) -> bool:
        """True once none of the pids lives (a zombie does not)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            procs = [procfs.read_proc(pid) for pid in pids]
            if all(proc is None or proc.gone for proc in procs):
                return True
            time.sleep(0.02)
        return False

    def wait(self, condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        """What `condition` gives once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)
        return value

    def stop_all(self) -> None:
        records = list_servers()
        for record in records:
            self.members(record)
            if record.state in LIVE and not record.attached:
                stop_server(record.name, timeout_s=1.0)
        for pid, ticks in self.seen.items():
            procfs.send_signal(pid, ticks, signal.SIGKILL)
        keepers = [r.keeper for r in list_servers(adopt=False) if r.keeper is not None]
        deadline = time.monotonic() + 5
        while any(procfs.matches(k.pid, k.start_ticks, k.boot_id) for k in keepers):
            assert time.monotonic() < deadline, "a keeper stayed"
            time.sleep(0.02)


@pytest.fixture
def bench(vq_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench with locks of its own; afterwards every server is stopped and every segment of it gone."""
    monkeypatch.setenv("VQ_CONSOLE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr("vq_console.serving.registry.ADOPTION_PAUSE_S", 0.5)
    made = Bench()
    yield made
    made.stop_all()
    left = procfs.unused_segments(made.segments)
    assert not left, f"segments stayed: {left}"
