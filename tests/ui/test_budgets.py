"""The screen's budgets as measurements, each in a process of its own; too long and too sensitive for `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).with_name("bench.py")
pytestmark = pytest.mark.soak


def measure(scenario: str, *, tries: int = 3, seconds: float = 200) -> list[dict[str, Any]]:
    """Run a scenario several times; each run's figures."""
    found = []
    for _ in range(tries):
        done = subprocess.run([sys.executable, str(BENCH), scenario], capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"soak: {scenario} {json.dumps(found)}")
    return found


def test_first_paint() -> None:
    console = min(run["cpu_s"] for run in measure("paint"))
    bare = min(run["cpu_s"] for run in measure("bare"))
    assert console <= 1.0
    assert console <= 1.6 * bare


def test_lag_and_switches_under_a_flood_of_log_lines() -> None:
    best = min(measure("flood", tries=2), key=lambda run: run["logs"]["p99_ms"])
    assert best["logs"]["p99_ms"] < 16
    assert best["home"]["p99_ms"] < 16
    assert best["switch_max_ms"] < 250


def test_at_rest_with_two_servers() -> None:
    run = measure("idle", tries=1)[0]
    assert run["cpu_pct"] <= 3
    assert run["peak_mib"] <= 120
    assert run["heavy_modules"] == []


def test_switching_screens() -> None:
    runs = measure("switch", tries=2)
    for name in runs[0]:
        assert min(run[name]["picture_ms"] for run in runs) < 250, name


def test_fifty_servers() -> None:
    assert measure("fifty", tries=1)[0]["redraw_p50_ms"] < 16
