"""Makes every picture in this folder from the real program: `make screenshots`.

The servers are stand-ins that replay recorded logs (each screen says SIMULATED), the run is a recorded one
(tests/data/ui/run), the GPUs of one picture are a recorded machine (tests/data/hardware). Everything lies in a
temporary console home; no process is left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "screenshots"
RUN = ROOT / "tests" / "data" / "ui" / "run"
MACHINE = ROOT / "tests" / "data" / "hardware" / "8xh100-nvlink.json"
WIDE, NARROW = (160, 48), (80, 24)
DARK, LIGHT = "textual-dark", "textual-light"
PNG_WIDTH = {(WIDE, DARK): 960, (WIDE, LIGHT): 720, (NARROW, DARK): 560, (NARROW, LIGHT): 560}
BEGIN, END = "<!-- screenshots: begin -->", "<!-- screenshots: end -->"


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture: keys from the home screen, pauses between them, and what to say of it in the README."""

    name: str
    words: str
    keys: Sequence[str] = ()
    wait_s: float = 1.0
    machine: bool = False
    empty: bool = False
    everywhere: bool = False
    """Made in both sizes and both themes; the others only wide and dark."""


SCENES = (
    Scene("1-servers", "Servers: asked for, running, broken, and the fix", ("w",), everywhere=True),
    Scene("2-profiles", "Profiles: the form and the live plan beside it", ("2",), wait_s=2.5, everywhere=True),
    Scene("3-logs", "Logs: root cause and fix beside the log", ("w", "enter", "g"), everywhere=True),
    Scene("4-ab", "A/B: the verdict with its intervals", ("5", "enter"), wait_s=2.0, everywhere=True),
    Scene("5-history", "History: runs as they were", ("5",), wait_s=1.5, everywhere=True),
    Scene("ab-latency", "Latency: interleaved pairs, distributions", ("5", "enter", "t", "t"), wait_s=2.0),
    Scene("ab-quality", "Quality: KL divergence on its bands", ("5", "enter", "t", "t", "t"), wait_s=2.0),
    Scene("ab-answers", "The answers behind the word", ("5", "enter", "d"), wait_s=2.0),
    Scene("ab-live", "Live: one prompt, both answers, where they part", ("LIVE",), wait_s=8.0),
    Scene("matrix", "Which kernel runs which method on which GPU", ("2", "m"), wait_s=2.0),
    Scene("eight-gpus", "Eight GPUs (a recorded machine)", (), machine=True),
    Scene("first-run", "A machine with nothing yet", (), empty=True, wait_s=2.0),
    Scene("help", "Help on every screen", ("question_mark",)),
)  # fmt: skip


async def take(scene: Scene, size: tuple[int, int], theme: str) -> Path:
    """One picture as SVG."""
    from textual.widgets import Input

    from vq_console.ui.app import VqConsole
    from vq_console.ui.screens.ab import AbScreen
    from vq_console.ui.settings import UiSettings

    app = VqConsole(simulated=not scene.empty, settings=UiSettings(theme=theme))
    if scene.machine or scene.empty:
        app.hub = recorded_hub(empty=scene.empty)
    app.animation_level = "none"
    async with app.run_test(size=size, notifications=False) as pilot:
        for _ in range(100):
            await pilot.pause(0.2)
            servers = app.hub.snapshot.servers
            calm = all(server.record.state.value in {"ready", "failed"} for server in servers)
            looked = len(servers) == 3 and calm and app.hub.snapshot.host is not None
            if looked or ((scene.empty or scene.machine) and app.hub.snapshot.host is not None):
                break
        await pilot.pause(1.0)
        for key in scene.keys:
            if key == "LIVE":
                await pilot.press("4")
                await pilot.pause(1.0)
                screen = app.screen
                assert isinstance(screen, AbScreen)
                screen.choose(a="server:tour-fp8", b="server:tour-int4")
                screen.query_one("#prompt", Input).value = "Why is the sky blue?"
                screen.ask("Why is the sky blue?")
                continue
            await pilot.press(key)
            await pilot.pause(1.2)
        await pilot.pause(scene.wait_s)
        svg = app.export_screenshot(title="vq-console")
    name = f"{scene.name}-{size[0]}x{size[1]}-{'dark' if theme == DARK else 'light'}.svg"
    target = HERE / name
    # Runs of blanks are part of the layout; some viewers drop them without this.
    target.write_text(svg.replace("<svg ", '<svg xml:space="preserve" ', 1), encoding="utf-8")
    return target


def recorded_hub(*, empty: bool) -> Any:
    """A hub that shows a recorded machine, or none at all, and no server."""
    import json

    from vq_console.hardware.host import read_host
    from vq_console.hardware.probe import machine_from
    from vq_console.hardware.raw import RecordedSource
    from vq_console.ui.hub import Hub

    class RecordedHub(Hub):
        def _poll_gpus(self) -> None:
            if empty:
                super()._poll_gpus()
                return
            machine = machine_from(RecordedSource(json.loads(MACHINE.read_text())), read_host(), {})
            self._publish(gpus=machine.gpus, host=machine.host, driver=machine.driver)

        def _poll_servers(self) -> None:
            if not empty:
                super()._poll_servers()

    return RecordedHub()


def png_tool() -> list[str] | None:
    """The command that turns SVG into PNG, without its file arguments; None where none is installed."""
    return ["rsvg-convert"] if shutil.which("rsvg-convert") else None


def draw_png(svg: Path, width: int) -> None:
    """The same picture as PNG beside its SVG."""
    subprocess.run(["rsvg-convert", "-w", str(width), str(svg), "-o", str(svg.with_suffix(".png"))], check=True)


def fill_readme() -> None:
    """Put the pictures between the README's markers."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    lines = [
        "",
        "Made by `make screenshots` from the real program; stand-in servers replay recorded logs, so each says",
    ]
    lines += ["SIMULATED. Light, 80×24 and SVG versions are in [`screenshots/`](screenshots).", ""]
    for scene in SCENES:
        lines += [f"**{scene.words}**", "", f"![{scene.words}](screenshots/{scene.name}-160x48-dark.png)", ""]
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(head + BEGIN + "\n".join(lines) + END + tail, encoding="utf-8")


def main() -> int:
    """Make all pictures, or those whose scene is named."""
    wanted = sys.argv[1:]
    scenes = [scene for scene in SCENES if not wanted or scene.name in wanted]
    if png_tool() is None:
        print("rsvg-convert is missing: SVG only. For PNG install it (Debian, Ubuntu: librsvg2-bin).", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="vq-screenshots-") as folder, ExitStack() as stack:
        os.environ["VQ_CONSOLE_HOME"] = folder
        from vq_console.core.places import runs_dir
        from vq_console.demo.simulated import simulated_tour

        stack.enter_context(simulated_tour(print))
        # Everything runs now; from here the interpreter's path is only shown, and nobody else's folders need be.
        sys.executable = "/home/you/vq-console/.venv/bin/python"
        name = (RUN / "name").read_text().strip()
        shutil.copytree(RUN, runs_dir() / name)
        made: list[Path] = []
        for scene in scenes:
            if scene.empty:
                continue
            everywhere = [(s, t) for t in (DARK, LIGHT) for s in (WIDE, NARROW)]
            for size, theme in everywhere if scene.everywhere else [(WIDE, DARK)]:
                began = time.monotonic()
                made.append(asyncio.run(take(scene, size, theme)))
                if png_tool() is not None:
                    draw_png(made[-1], PNG_WIDTH[size, theme])
                print(f"{made[-1].name}  {time.monotonic() - began:.1f} s")
    with tempfile.TemporaryDirectory(prefix="vq-screenshots-") as folder:
        os.environ["VQ_CONSOLE_HOME"] = folder
        for scene in scenes:
            if scene.empty:
                made.append(asyncio.run(take(scene, WIDE, DARK)))
                if png_tool() is not None:
                    draw_png(made[-1], PNG_WIDTH[WIDE, DARK])
    fill_readme()
    size = sum(path.stat().st_size for path in HERE.iterdir()) / 2**20
    print(f"{len(made)} pictures; the folder has {size:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
