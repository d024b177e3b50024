"""One measurement of the screen in a process of its own: `python tests/ui/bench.py SCENARIO`; prints JSON.

CPU is this process's own, so that a busy machine changes it little. Lag is how late a 5 ms sleep ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tui")]
LINE = "(EngineCore pid=2) INFO 11-03 09:00:00 [loggers.py:257] Engine 000: Avg prompt throughput: 12.5 tokens/s {}\n"


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def memory_mib(name: str) -> float:
    """VmRSS or VmHWM, the peak, of this process: ru_maxrss begins at what the parent had when it forked."""
    found = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def lag_ms(seconds: float) -> list[float]:
    """How late the event loop comes, in ms, sampled every 5 ms."""
    late: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        late.append(max((time.perf_counter() - began - 0.005) * 1000, 0.0))
    return late


async def switch_ms(app: Any, mode: str) -> float:
    """From asking for a screen until all of it was drawn, in ms; the first time it is built, too.

    Not by the test driver's pause, which waits up to a second for an idle process.
    """
    began = time.perf_counter()
    drawn = asyncio.Event()
    await app.switch_mode(mode)
    app.screen.call_after_refresh(drawn.set)
    await drawn.wait()
    spent = (time.perf_counter() - began) * 1000
    await asyncio.sleep(0.5)
    return spent


async def paint() -> dict[str, Any]:
    """CPU from the process's start to the first picture of the home screen."""
    from vq_console.ui.app import VqConsole

    app = VqConsole()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        return {"cpu_s": time.process_time(), "modules": len(sys.modules)}


async def bare() -> dict[str, Any]:
    """The same for an application with the same widgets and nothing behind them."""
    from textual.app import App, ComposeResult
    from textual.containers import Horizontal, VerticalScroll
    from textual.widgets import Button, DataTable, Input, RichLog, Select, Static, TabbedContent, TextArea

    class Bare(App[None]):
        others = (Button, Input, RichLog, Select, TabbedContent, TextArea)

        def compose(self) -> ComposeResult:
            yield Static("bar")
            yield Static("gpus")
            yield DataTable[str]()
            with Horizontal():
                for _ in range(3):
                    with VerticalScroll():
                        yield Static("text")
            yield Static("keys")

    async with Bare().run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        return {"cpu_s": time.process_time(), "modules": len(sys.modules)}


def flood(path: Path, per_s: int = 2_000) -> None:
    """Append `per_s` lines a second in twenty portions."""
    number = 0
    with path.open("a") as file:
        due = time.monotonic()
        while True:
            for _ in range(per_s // 20):
                number += 1
                file.write(LINE.format(number))
            file.flush()
            due += 0.05
            time.sleep(max(due - time.monotonic(), 0))


def start_writer(log: Path, per_s: int = 2_000) -> subprocess.Popen[bytes]:
    """A process that floods one log."""
    return subprocess.Popen([sys.executable, __file__, "write", str(log), str(per_s)])


async def under_flood() -> dict[str, Any]:
    """Loop lag with two servers that log 2,000 lines/s each, on the log screen and on the home screen."""
    from ui.moments import server
    from vq_console.serving.model import ServerState
    from vq_console.serving.view import server_json
    from vq_console.ui.app import VqConsole
    from vq_console.ui.hub import Hub, ServerSnapshot

    folder = Path(tempfile.mkdtemp())
    logs = [folder / "a.log", folder / "b.log"]
    for log in logs:
        log.write_text(LINE.format(0) * 2000)
    records = [server(log.stem, ServerState.READY, log=str(log)).record for log in logs]

    class TwoServers(Hub):
        def _poll_servers(self) -> None:
            self._publish(servers=tuple(ServerSnapshot(record, server_json(record)) for record in records))

        def _poll_metrics(self) -> None:
            """No endpoint answers here."""

    writers: list[subprocess.Popen[bytes]] = []
    app = VqConsole()
    app.hub = TwoServers()
    result: dict[str, Any] = {}
    try:
        async with app.run_test(size=(160, 48)) as pilot:
            writers += [start_writer(log) for log in logs]
            await pilot.press("3")
            await pilot.pause(3)
            for name, key in (("logs", "3"), ("home", "1")):
                await pilot.press(key)
                await pilot.pause(1)
                late = await lag_ms(8)
                result[name] = {"p50_ms": percentile(late, 0.5), "p99_ms": percentile(late, 0.99), "max_ms": max(late)}
            modes = ("logs", "servers", "ab", "profiles", "history")
            result["built_max_ms"] = max([await switch_ms(app, mode) for mode in modes])
            result["switch_max_ms"] = max([await switch_ms(app, mode) for mode in modes])
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    return result


async def idle() -> dict[str, Any]:
    """CPU and memory at rest with two stand-in servers, over 20 seconds on the home screen."""
    from contextlib import ExitStack

    from vq_console.demo import simulated
    from vq_console.ui.app import VqConsole

    with ExitStack() as stack:
        simulated._save_profiles()
        await asyncio.to_thread(simulated._start, stack, lambda words: None)
        app = VqConsole(simulated=True)
        async with app.run_test(size=(160, 48)) as pilot:
            await pilot.pause(6)
            cpu, began = time.process_time(), time.perf_counter()
            await asyncio.sleep(20)
            share = (time.process_time() - cpu) / (time.perf_counter() - began)
            late = await lag_ms(5)
        heavy = [name for name in ("numpy", "scipy", "aiohttp", "torch") if name in sys.modules]
    return {
        "cpu_pct": share * 100,
        "peak_mib": memory_mib("VmHWM"),
        "heavy_modules": heavy,
        "lag_p99_ms": percentile(late, 0.99),
    }


async def switch() -> dict[str, Any]:
    """From the key to the first picture of another screen, and until nothing moves any more; ms.

    `first` is the first switch to a screen, once the console has stood for three seconds; its body may come with a
    later picture than its bars.
    """
    from ui.moments import FrozenHub, busy
    from vq_console.ui import app as module

    pictures: list[float] = []

    class Timed(module.VqConsole):
        CSS_PATH = str(Path(module.__file__).with_name("console.tcss"))

        def _display(self, screen: Any, renderable: Any) -> None:
            super()._display(screen, renderable)
            if renderable is not None:
                pictures.append(time.perf_counter())

    app = Timed()
    app.hub = FrozenHub(busy())
    app.animation_level = "none"
    result: dict[str, Any] = {}
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause(3)
        for name in ("first", "second"):
            for key in "23451":
                pictures.clear()
                began = time.perf_counter()
                await pilot.press(key)
                await pilot.pause()
                still = time.perf_counter()
                result[f"{name}_{key}"] = {
                    "picture_ms": (pictures[0] - began) * 1000,
                    "still_ms": (still - began) * 1000,
                }
                await pilot.pause(0.5)
    return result


GROWTH_S = float(os.environ.get("VQ_GROWTH_S", "1200"))
GROWTH_RATE = 20
"""Times the normal rate: looks of the hub, lines of each log (25 a second), screens that a person opens (two a
minute)."""


async def growth() -> dict[str, Any]:
    """Memory and open files over twenty minutes at twenty times the normal rate; the first third is warm-up.

    Two stand-in servers, watched by the real hub, whose logs grow; all five screens are opened in turn.
    """
    from contextlib import ExitStack

    from vq_console.demo import simulated
    from vq_console.serving.registry import list_servers
    from vq_console.ui import hub
    from vq_console.ui.app import VqConsole

    for name in ("GPU_PERIOD_S", "SERVER_PERIOD_S", "METRICS_PERIOD_S", "MACHINE_PERIOD_S"):
        setattr(hub, name, getattr(hub, name) / GROWTH_RATE)
    samples: list[tuple[float, float, int]] = []
    with ExitStack() as stack:
        simulated._save_profiles()
        await asyncio.to_thread(simulated._start, stack, lambda words: None)
        for record in list_servers():
            if record.name in simulated.RUNNING:
                writer = start_writer(Path(str(record.log)), 25 * GROWTH_RATE)
                stack.callback(writer.wait)
                stack.callback(writer.kill)
        app = VqConsole(simulated=True)
        async with app.run_test(size=(160, 48)) as pilot:
            began = time.monotonic()
            for number in range(1_000_000):
                spent = time.monotonic() - began
                if spent >= GROWTH_S:
                    break
                await pilot.press("31425"[number % 5])
                await pilot.pause(30 / GROWTH_RATE)
                samples.append((spent, memory_mib("VmRSS"), len(os.listdir("/proc/self/fd"))))
    kept = [sample for sample in samples if sample[0] > GROWTH_S / 3]
    return {
        "minutes": GROWTH_S / 60, "samples": len(kept), "resident_mib": [kept[0][1], kept[-1][1]],
        "resident_mib_per_h": slope([(t / 3600, mib) for t, mib, _ in kept]),
        "open_files_per_h": slope([(t / 3600, float(count)) for t, _, count in kept]),
    }  # fmt: skip


def slope(points: list[tuple[float, float]]) -> dict[str, float]:
    """Change per unit by least squares over twelve block means, with its 95 % interval (t, 10 degrees of freedom).

    Samples of a process follow each other closely; the blocks are what may be taken as independent.
    """
    size = len(points) // 12
    blocks = [points[i * size : (i + 1) * size] for i in range(12)]
    at = [(sum(x for x, _ in b) / size, sum(y for _, y in b) / size) for b in blocks]
    mean_x, mean_y = sum(x for x, _ in at) / 12, sum(y for _, y in at) / 12
    spread = sum((x - mean_x) ** 2 for x, _ in at)
    value = sum((x - mean_x) * (y - mean_y) for x, y in at) / spread
    rest = sum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in at)
    half = 2.228 * (rest / 10 / spread) ** 0.5
    return {"value": value, "low": value - half, "high": value + half}


async def fifty() -> dict[str, Any]:
    """50 servers on the home screen, all with new figures at every look."""
    from dataclasses import replace

    from ui.moments import FrozenHub, busy, server
    from vq_console.serving.model import ServerState
    from vq_console.ui.app import VqConsole

    servers = tuple(server(f"server-{i:02d}", ServerState.READY, alarm=i % 7 == 0) for i in range(50))
    app = VqConsole()
    app.hub = FrozenHub(replace(busy(), servers=servers))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause(1)
        costs = []
        for number in range(20):
            fresh = tuple(replace(s, metrics={**s.metrics, "running": number}) for s in servers)
            app.hub.snapshot = replace(app.hub.snapshot, servers=fresh, version=number + 10)
            cpu = time.thread_time()
            app.screen.pump()  # type: ignore[attr-defined]
            costs.append((time.thread_time() - cpu) * 1000)
            await pilot.pause()
        return {"redraw_p50_ms": percentile(costs, 0.5), "redraw_max_ms": max(costs)}


SCENARIOS = {
    "paint": paint,
    "bare": bare,
    "flood": under_flood,
    "idle": idle,
    "switch": switch,
    "growth": growth,
    "fifty": fifty,
}

if __name__ == "__main__":
    if sys.argv[1] == "write":
        flood(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    with tempfile.TemporaryDirectory() as home:
        os.environ["VQ_CONSOLE_HOME"] = home
        print(json.dumps(asyncio.run(SCENARIOS[sys.argv[1]]())))
