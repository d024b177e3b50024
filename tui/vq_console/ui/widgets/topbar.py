"""One line on top of every screen: name, the five screens, what needs attention, SIMULATED where it applies."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from vq_console.serving.model import ServerState
from vq_console.ui.hub import Snapshot

NAMES = (("servers", "Servers"), ("profiles", "Profiles"), ("logs", "Logs"), ("ab", "A/B"), ("history", "History"))


class TopBar(Widget):
    """Tabs by number; a click on one shows it."""

    DEFAULT_CSS = """
    TopBar { height: 1; dock: top; background: $panel; color: $foreground; }
    """
    ALLOW_SELECT: ClassVar[bool] = False

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, mode: str) -> None:
            super().__init__()
            self.mode = mode

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode
        self._failed = self._alarms = 0
        self._simulated = False
        """A stand-in serves here, whatever the console was opened for."""
        self._spans: list[tuple[int, int, str]] = []

    def show(self, snapshot: Snapshot) -> None:
        """Take over how many servers failed or run something else than asked."""
        failed = sum(server.record.state is ServerState.FAILED for server in snapshot.servers)
        alarms = sum(
            any(row.get("alarm") for row in server.seen.get("asked_vs_runs") or ()) for server in snapshot.servers
        )
        simulated = any(server.record.simulated for server in snapshot.servers)
        if (failed, alarms, simulated) != (self._failed, self._alarms, self._simulated):
            self._failed, self._alarms, self._simulated = failed, alarms, simulated
            self.refresh()

    def render(self) -> Text:
        simulated = self._simulated or bool(getattr(self.app, "simulated", False))
        text = self._draw(simulated, short=False)
        return text if text.cell_len <= self.size.width else self._draw(simulated, short=True)

    def _draw(self, simulated: bool, *, short: bool) -> Text:
        """The bar; the short form keeps every tab's number, the shown one's name, SIMULATED and the counts."""
        text = Text(no_wrap=True)
        if not short:
            text.append(" vq-console ", style="bold")
        if simulated:
            text.append("SIMULATED", style="bold black on yellow")
            text.append(" ")
        self._spans = []
        for number, (mode, name) in enumerate(NAMES, start=1):
            start = text.cell_len
            chosen = mode == self._mode
            label = f" {number} {name} " if chosen or not short else f" {number} {name[:4]} "
            text.append(label, style="reverse bold" if chosen else "")
            self._spans.append((start, text.cell_len, mode))
        parts = [f"✖ {self._failed}" + ("" if short else " failed")] if self._failed else []
        parts += [f"▲ {self._alarms}" + ("" if short else " fallback")] if self._alarms else []
        right = " ".join([*parts, "?" if short else "? help"]) + " "
        room = self.size.width - text.cell_len - len(right)
        if short and room < 0:
            right = " ".join(parts) + " "
            room = self.size.width - text.cell_len - len(right)
        text.append(" " * max(room, 1))
        text.append(right, style="bold" if parts else "dim")
        return text

    def on_click(self, event: events.Click) -> None:
        for start, end, mode in self._spans:
            if start <= event.x < end:
                self.post_message(self.Chosen(mode))
