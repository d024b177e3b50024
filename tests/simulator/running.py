"""Simulated servers as real processes, for the tests of this folder and of others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.checks.endpoint import Endpoint
from vq_console.core.http import get

QUIET: Mapping[str, Any] = {"startup_s": 0.0, "ttft_ms": 5.0, "prefill_ms_per_1k": 0.0, "tpot_ms": 2.0}


@dataclass
class Running:
    """One simulated server under test."""

    process: subprocess.Popen[bytes]
    url: str
    model: str
    log: Path

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("A", self.url, self.model, simulated=True, device="cpu", pid=self.process.pid)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_exit(self, timeout: float = 8.0) -> int:
        return self.process.wait(timeout)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(condition: Any, timeout: float = 10.0) -> bool:
    """Wait for a condition; False when it never came."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def launch(
    folder: Path, spec: Mapping[str, Any], *flags: str, model: str = "sim-fp8", wait: bool = True, name: str = "sim"
) -> Running:
    port = free_port()
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "vq_console.simulator", "serve", model]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), *flags],
            env={**os.environ, "VQ_SIM_SPEC": json.dumps({**QUIET, **spec})},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    running = Running(process, f"http://127.0.0.1:{port}", model, log)
    if wait:
        ready = until(lambda: get(running.url + "/health").ok or process.poll() is not None)
        assert ready, running.text()
        assert process.poll() is None, running.text()
    return running


def end(running: Running) -> None:
    if running.process.poll() is None:
        running.process.terminate()
        try:
            running.process.wait(5)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()


@contextlib.contextmanager
def served(folder: Path, spec: Mapping[str, Any], *flags: str, **more: Any) -> Iterator[Running]:
    running = launch(folder, spec, *flags, **more)
    try:
        yield running
    finally:
        end(running)


def descendants(pid: int) -> list[int]:
    """Living descendants of a process, by /proc."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the pids that are neither gone nor zombies."""
    import psutil

    out = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                out.append(pid)
    return out
