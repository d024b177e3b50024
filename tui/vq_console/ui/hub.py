"""The newest snapshot of every source, kept by one background thread; screens look at versions and redraw what changed.

Owns polling. Never touches a widget, posts no message per sample, and reads nothing that no screen asked for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vq_console.core.text import strip_control
from vq_console.hardware.model import Gpu, Host
from vq_console.serving.model import LIVE, ServerRecord, ServerState

if TYPE_CHECKING:
    from vq_console.hardware.probe import MachineWatch
    from vq_console.serving.orphans import Orphan

GPU_PERIOD_S = 1.0
SERVER_PERIOD_S = 1.0
STARTING_PERIOD_S = 0.4
"""Between looks at servers while one of them starts or ends."""
METRICS_PERIOD_S = 5.0
MACHINE_PERIOD_S = 20.0
"""Processes of servers and what dead ones left behind: a walk over /proc, so it comes seldom."""
HISTORY = 120
"""Samples of utilisation kept for a GPU's sparkline."""


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One server as the screen shows it: its record, what its log says, its metrics window (None until known)."""

    record: ServerRecord
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The answer of `ps --json` for this server: facts, diagnosis, asked_vs_runs, phases."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """`metrics.window.Window.values()`: generation_tokens_per_s, ttft_p50_ms, running, kv_usage_pct, …"""
    advice: tuple[str, ...] = ()
    processes: tuple[tuple[int, str], ...] = ()
    """(pid, name) of everything in its session, main process first."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment. `version` grows whenever anything in it changed."""

    version: int = 0
    gpus: tuple[Gpu, ...] = ()
    host: Host | None = None
    gpu_reason: str | None = None
    driver: str | None = None
    utilization: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    servers: tuple[ServerSnapshot, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    problem: str | None = None


class Hub:
    """Polls in a thread of its own. `snapshot` is replaced as a whole, so readers need no lock."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._history: dict[int, deque[float]] = {}
        self._metrics: dict[str, Mapping[str, Any]] = {}
        self._windows: dict[str, Any] = {}
        self._advice: dict[str, tuple[str, ...]] = {}
        self._processes: dict[str, tuple[tuple[int, str], ...]] = {}
        self._changes: dict[str, Any] = {}
        self._watch: MachineWatch | None = None
        self._ended: dict[str, tuple[ServerRecord, Mapping[str, Any]]] = {}

    def start(self) -> None:
        """Begin polling; does nothing when it runs already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End polling and wait briefly for the thread."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def refresh(self) -> None:
        """Poll servers at once, after an action of the user."""
        self._wake.set()

    def _run(self) -> None:
        due: list[tuple[float, float, Callable[[], None]]] = [
            (0.0, GPU_PERIOD_S, self._poll_gpus),
            (0.0, SERVER_PERIOD_S, self._poll_servers),
            (0.0, METRICS_PERIOD_S, self._poll_metrics),
            (0.0, MACHINE_PERIOD_S, self._poll_machine),
        ]
        while not self._stop.is_set():
            now = time.monotonic()
            for index, (when, period, poll) in enumerate(due):
                if now >= when or (self._wake.is_set() and poll == self._poll_servers):
                    try:
                        poll()
                        if poll != self._poll_gpus:
                            self._flush()
                    except Exception as error:
                        # A source that fails must not take the others with it; the screen shows the reason.
                        self._publish(problem=f"{type(error).__name__}: {error}")
                        self._flush()
                    pause = STARTING_PERIOD_S if poll == self._poll_servers and self._moving() else period
                    # At whole multiples, whenever it ran: all wake together, so the screen draws once.
                    due[index] = (max((now // pause + 1) * pause, time.monotonic() + pause / 4), period, poll)
            self._flush()
            self._wake.clear()
            self._wake.wait(max(0.05, min(when for when, _, _ in due) - time.monotonic()))
        if self._watch is not None:
            self._watch.close()

    def _moving(self) -> bool:
        calm = {ServerState.READY, ServerState.STOPPED, ServerState.FAILED}
        return any(server.record.state not in calm for server in self.snapshot.servers)

    def _publish(self, **changes: Any) -> None:
        """Keep changes for the next snapshot; the GPUs' wait for the servers' of the same round."""
        self._changes.update(changes)

    def _flush(self) -> None:
        changes, self._changes = self._changes, {}
        old = self.snapshot
        if all(getattr(old, key) == value for key, value in changes.items()):
            return
        values = {name: getattr(old, name) for name in Snapshot.__dataclass_fields__}
        self.snapshot = Snapshot(**{**values, **changes, "version": old.version + 1})

    def _poll_gpus(self) -> None:
        if self._watch is None:
            from vq_console.hardware.probe import MachineWatch

            self._watch = MachineWatch()
        machine = self._watch.read()
        for gpu in machine.gpus:
            if gpu.utilization_pct is not None:
                self._history.setdefault(gpu.index, deque(maxlen=HISTORY)).append(float(gpu.utilization_pct))
        if not machine.gpus and machine.host.cpu_pct is not None:
            self._history.setdefault(-1, deque(maxlen=HISTORY)).append(machine.host.cpu_pct)
        self._publish(
            gpus=machine.gpus,
            host=machine.host,
            gpu_reason=machine.gpu_reason,
            driver=machine.driver,
            utilization={index: tuple(values) for index, values in self._history.items()},
        )

    def _poll_servers(self) -> None:
        from vq_console.serving.registry import list_servers

        self._publish(servers=tuple(self._look_at(record) for record in list_servers()), problem=None)

    def _look_at(self, record: ServerRecord) -> ServerSnapshot:
        """One server now. What has ended is read once per state of its record: its log grows no more."""
        from vq_console.serving.view import server_json

        name = record.name
        known = self._ended.get(name)
        if known is not None and known[0] == record:
            seen = known[1]
        else:
            seen = server_json(record)
            if record.state in LIVE:
                self._ended.pop(name, None)
            else:
                self._ended[name] = (record, seen)
        state = ServerState(seen["state"])
        if state is not record.state:
            record = replace(record, state=state, reason=str(seen.get("reason") or ""))
        return ServerSnapshot(
            record, seen, self._metrics.get(name, {}), self._advice.get(name, ()), self._processes.get(name, ())
        )

    def _poll_machine(self) -> None:
        from vq_console.serving.keeping.procfs import all_procs
        from vq_console.serving.orphans import find_orphans

        procs = all_procs()
        for server in self.snapshot.servers:
            main = server.record.identity
            if main is None or server.record.state not in LIVE:
                self._processes.pop(server.record.name, None)
                continue
            group = [p for p in procs.values() if p.session == main.pid and not p.gone]
            self._processes[server.record.name] = tuple(
                (p.pid, strip_control(p.comm)) for p in sorted(group, key=lambda p: (p.pid != main.pid, p.pid))
            )
        self._publish(orphans=find_orphans())

    def _poll_metrics(self) -> None:
        from vq_console.core.http import key_from_environment
        from vq_console.metrics.adviser import advise
        from vq_console.metrics.scrape import scrape
        from vq_console.metrics.window import Window

        live = [s.record for s in self.snapshot.servers if s.record.state in LIVE]
        for record in live:
            if record.url is None or record.state not in {ServerState.READY, ServerState.UNRESPONSIVE}:
                continue
            sample = scrape(record.url, api_key=key_from_environment(record.api_key_env))
            window = self._windows.setdefault(record.name, Window())
            if sample is not None:
                window.add(sample)
                self._metrics[record.name] = window.values()
                gpus = [gpu for gpu in self.snapshot.gpus if gpu.index in record.gpus]
                self._advice[record.name] = tuple(str(item) for item in advise(window.values(), gpus))
        gone = set(self._metrics) - {record.name for record in live}
        for name in gone:
            self._metrics.pop(name, None)
            self._windows.pop(name, None)
            self._advice.pop(name, None)
