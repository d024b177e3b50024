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
        self._alert = ""
        self._spans: list[tuple[int, int, str]] = []

    def show(self, snapshot: Snapshot) -> None:
        """Take over how many servers failed or run something else than asked."""
        failed = sum(server.record.state is ServerState.FAILED for server in snapshot.servers)
        alarms = sum(
            any(row.get("alarm") for row in server.seen.get("asked_vs_runs") or ()) for server in snapshot.servers
        )
        parts = ([f"✖ {failed} failed"] if failed else []) + ([f"▲ {alarms} fallback"] if alarms else [])
        alert = " ".join(parts)
        if alert != self._alert:
            self._alert = alert
            self.refresh()

    def render(self) -> Text:
        text = Text(no_wrap=True)
        narrow = self.size.width < 70
        text.append(" vq " if narrow else " vq-console ", style="bold")
        if getattr(self.app, "simulated", False):
            text.append("SIMULATED", style="bold black on yellow")
            text.append(" ")
        self._spans = []
        for number, (mode, name) in enumerate(NAMES, start=1):
            start = text.cell_len
            text.append(f" {number} {name} ", style="reverse bold" if mode == self._mode else "")
            self._spans.append((start, text.cell_len, mode))
        right = f"{self._alert}  ? help " if not narrow else f"{self._alert} ? "
        room = self.size.width - text.cell_len - len(right)
        if room > 0:
            text.append(" " * room)
            text.append(right, style="bold" if self._alert else "dim")
        return text

    def on_click(self, event: events.Click) -> None:
        for start, end, mode in self._spans:
            if start <= event.x < end:
                self.post_message(self.Chosen(mode))
