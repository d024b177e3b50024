"""The parent's side of the load generator: starts the process, gives orders, hears events, ends it.

The child is a process of its own so that whatever else this process draws or computes does not delay a timestamp.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from vq_console.checks.endpoint import Endpoint
from vq_console.checks.order import BlockOrder
from vq_console.core.errors import CheckError


class LoadGenerator:
    """One generator process; use as a context manager. Not thread-safe: one block at a time."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = open(log, "ab")  # noqa: SIM115
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vq_console.checks.loadgen"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Ctrl-C in a terminal goes to the whole foreground group; the generator ends with its input instead.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="loadgen-events", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The generator's process."""
        return self._process.pid

    def __enter__(self) -> LoadGenerator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._events.put(json.loads(line))
        self._events.put({"event": "gone"})

    def _tell(self, value: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise CheckError("the load generator has ended", f"See its log {self._log.name}.") from error

    def server(self, name: str, endpoint: Endpoint) -> None:
        """Make a server known under `name`; its key travels through the pipe only."""
        key = endpoint.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tell({"command": "server", "name": name, "url": endpoint.url, "headers": headers})

    def block(
        self,
        order: BlockOrder,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        tick: Callable[[Mapping[str, Any]], None] | None = None,
        most_s: float = 3600.0,
    ) -> dict[str, Any]:
        """Run one block and return the generator's account of it (times, lag, CPU, number of requests).

        A cancelled block is cut and its records are kept. Raises CheckError when the generator fails or does not end
        within `most_s`.
        """
        self._tell(order.to_json())
        deadline = time.monotonic() + most_s
        told_stop = False
        while True:
            if cancelled() and not told_stop:
                self._tell({"command": "stop", "block": order.block})
                told_stop = True
            try:
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise CheckError(f"block {order.block} did not end within {most_s:.0f} s") from None
                continue
            if event["event"] == "done":
                return event
            if event["event"] in {"error", "gone"}:
                said = event.get("message", "it ended")
                raise CheckError(f"the load generator failed: {said}", f"See its log {self._log.name}.")
            if tick is not None:
                tick(event)

    def close(self) -> None:
        """End the process: its input is closed, and after a moment it is killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
