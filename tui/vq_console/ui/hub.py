"""The newest snapshot of every source, kept by one background thread; screens look at versions and redraw what changed.

Owns polling. Never touches a widget, posts no message per sample, and reads nothing that no screen asked for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vq_console.hardware.model import Gpu, Host, Machine
from vq_console.serving.model import LIVE, ServerRecord, ServerState

GPU_PERIOD_S = 1.0
SERVER_PERIOD_S = 0.5
METRICS_PERIOD_S = 5.0
HISTORY = 120
"""Samples of utilisation kept for a GPU's sparkline."""


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One server as the screen shows it: its record, what its log says, its metrics window (None until known)."""

    record: ServerRecord
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The answer of `ps --json` for this server: facts, diagnosis, asked_vs_runs, phases."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Windowed values: tokens_per_s, ttft_p50_s, ttft_p95_s, running, waiting, kv_use, prefix_hit_rate, …"""
    advice: tuple[str, ...] = ()


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
        ]
        while not self._stop.is_set():
            now = time.monotonic()
            for index, (when, period, poll) in enumerate(due):
                if now >= when or (self._wake.is_set() and poll == self._poll_servers):
                    try:
                        poll()
                    except Exception as error:
                        # A source that fails must not take the others with it; the screen shows the reason.
                        self._publish(problem=f"{type(error).__name__}: {error}")
                    due[index] = (time.monotonic() + period, period, poll)
            self._wake.clear()
            self._wake.wait(max(0.05, min(when for when, _, _ in due) - time.monotonic()))

    def _publish(self, **changes: Any) -> None:
        old = self.snapshot
        if all(getattr(old, key) == value for key, value in changes.items()):
            return
        values = {name: getattr(old, name) for name in Snapshot.__dataclass_fields__}
        self.snapshot = Snapshot(**{**values, **changes, "version": old.version + 1})

    def _poll_gpus(self) -> None:
        from vq_console.hardware.probe import read_machine

        machine: Machine = read_machine()
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
        from vq_console.serving.view import server_json

        servers = tuple(
            ServerSnapshot(
                record, server_json(record), self._metrics.get(record.name, {}), self._advice.get(record.name, ())
            )
            for record in list_servers()
        )
        self._publish(servers=servers)

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
                self._advice[record.name] = tuple(str(item) for item in advise(window.values()))
        gone = set(self._metrics) - {record.name for record in live}
        for name in gone:
            self._metrics.pop(name, None)
            self._windows.pop(name, None)
            self._advice.pop(name, None)
