"""`?`: what the current screen is for, and its keys."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

EVERYWHERE = (
    ("1 … 5", "the five screens"),
    ("^p", "command palette: everything by name"),
    ("?", "this help"),
    ("q", "leave the console; servers go on running"),
)


class HelpScreen(ModalScreen[None]):
    """Help for the screen beneath, made from its own text and bindings so that it cannot go stale."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 76; max-width: 96%; height: auto; max-height: 90%; padding: 1 2;
        border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q", "dismiss", "Close")]

    def __init__(self, about: Screen[object]) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        keys = Table.grid(padding=(0, 2))
        keys.add_column(style="bold", no_wrap=True)
        keys.add_column()
        for active in self._about.active_bindings.values():
            binding = active.binding
            if active.node is self.app or not binding.description or binding.system:
                continue
            keys.add_row(Text(self.app.get_key_display(binding)), Text(binding.description))
        for key, words in EVERYWHERE:
            keys.add_row(Text(key), Text(words))
        with VerticalScroll():
            yield Static(Text(getattr(self._about, "HELP_TEXT", "") or ""))
            yield Static("")
            yield Static(keys)
            yield Static(Text("\nEsc closes", style="dim"))
