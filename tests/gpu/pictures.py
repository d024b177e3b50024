"""Pictures of the console on the machine that it looks at, as SVG: `python tests/gpu/pictures.py FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from textual.widgets import Input

from vq_console.ui.app import VqConsole
from vq_console.ui.screens.ab import AbScreen
from vq_console.ui.settings import UiSettings

PROMPT = "Why is the sky blue?"


async def take(folder: Path) -> None:
    """Servers, the log of the first, and one prompt on two servers, side by side."""
    app = VqConsole(settings=UiSettings(theme="textual-dark"))
    app.animation_level = "none"
    async with app.run_test(size=(160, 48), notifications=False) as pilot:

        async def keep(name: str) -> None:
            svg = app.export_screenshot(title="vq-console")
            # Runs of blanks are part of the layout; some viewers drop them without this.
            text = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
            (folder / f"h200-{name}.svg").write_text(text, encoding="utf-8")

        await pilot.pause(12.0)
        await keep("servers")
        await pilot.press("j")
        await pilot.pause(2.0)
        await keep("servers-next")
        await pilot.press("enter")
        await pilot.pause(4.0)
        await keep("logs")
        await pilot.press("4")
        await pilot.pause(2.0)
        screen = app.screen
        assert isinstance(screen, AbScreen)
        screen.choose(a="server:small-bf16", b="server:small-w4a16")
        screen.query_one("#prompt", Input).value = PROMPT
        screen.ask(PROMPT)
        await pilot.pause(10.0)
        await keep("live")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1])))
