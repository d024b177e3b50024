"""`?`: what the current screen is for, and its keys."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

EVERYWHERE = (
    ("1 … 5", "the five screens"),
    ("^p", "command palette: every action by name"),
    ("tab", "next field or pane"),
    ("?", "this help"),
    ("q", "leave; servers go on running"),
)
TWO_COLUMNS = 72
"""From this width on the keys stand in two columns."""


class HelpScreen(ModalScreen[None]):
    """Help for the screen beneath, made from its own text and bindings so that it cannot go stale."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 84; max-width: 98%; height: auto; max-height: 96%; padding: 0 2;
        border: round $primary; border-title-color: $text; border-subtitle-color: $text; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q", "dismiss", "Close")]

    def __init__(self, about: Screen[object]) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = f"help: {getattr(self._about, 'TITLE_TEXT', '') or 'this screen'}"
            box.border_subtitle = "Esc closes"
            yield Static(Text(getattr(self._about, "HELP_TEXT", "") or ""))
            yield Static("")
            yield Static(keys_table([*own_keys(self._about), *EVERYWHERE], columns=2 if self._wide else 1))

    @property
    def _wide(self) -> bool:
        return self.app.size.width >= TWO_COLUMNS

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def own_keys(screen: Screen[object]) -> list[tuple[str, str]]:
    """Keys of the screen and of its focused pane, one row an action, in the order in which they are written."""
    rows: dict[str, tuple[list[str], str]] = {}
    for node in (screen, screen.focused):
        if node is None or not type(node).__module__.startswith("vq_console."):
            continue
        for binding in type(node).__dict__.get("BINDINGS", ()):
            if not isinstance(binding, Binding) or not binding.description:
                continue
            keys = rows.setdefault(binding.action, ([], binding.tooltip or binding.description))[0]
            keys += [binding.key_display or screen.app.get_key_display(b) for b in Binding.make_bindings([binding])][:2]
    return [(" ".join(dict.fromkeys(keys)), words) for keys, words in rows.values()]


def keys_table(rows: list[tuple[str, str]], *, columns: int) -> Table:
    """Keys and what they do, read down and then across."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(columns):
        table.add_column(style="bold", no_wrap=True)
        table.add_column(ratio=1)
    height = -(-len(rows) // columns)
    for index in range(height):
        cells: list[Text] = []
        for column in range(columns):
            at = column * height + index
            key, words = rows[at] if at < len(rows) else ("", "")
            cells += [Text(key), Text(words)]
        table.add_row(*cells)
    return table
