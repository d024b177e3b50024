"""The foot of every screen: the keys that work now, whole ones only, and the way to all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

ALWAYS = (("?", "Help", "question_mark"), ("^p", "palette", "ctrl+p"))
"""What stands at the right whatever the width."""
Key = tuple[str, str, str]
"""How the key is shown, what it does in a word, the key itself."""


class KeyBar(Widget):
    """One line of keys; a click on one presses it. Keys that do not fit whole are left out: `?` names them all."""

    DEFAULT_CSS = """
    KeyBar { height: 1; dock: bottom; background: $footer-background; color: $footer-foreground; }
    KeyBar > .keybar--key { color: $footer-key-foreground; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"keybar--key"}
    ALLOW_SELECT: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[Key, ...] = ()
        self._spans: tuple[tuple[int, int, str], ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        """Another widget has the focus, or an action came or went."""
        found: dict[str, Key] = {}
        typing = isinstance(screen.focused, Input)
        for _, binding, enabled, _ in screen.active_bindings.values():
            shown = binding.show or (typing and binding.key == "escape")
            if shown and enabled and binding.action not in found and binding.key != "question_mark":
                found[binding.action] = (self.app.get_key_display(binding), binding.description, binding.key)
        keys = tuple(key for key in found.values() if key[2] != "ctrl+p")
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def render(self) -> Text:
        style = self.get_component_rich_style("keybar--key", partial=True)
        text, self._spans = key_line(self._keys, self.size.width, style)
        return text

    def on_click(self, event: events.Click) -> None:
        for start, end, key in self._spans:
            if start <= event.x < end:
                self.app.simulate_key(key)


def key_line(keys: Sequence[Key], width: int, style: Style | str) -> tuple[Text, tuple[tuple[int, int, str], ...]]:
    """The line for `width` cells, and which cells belong to which key. Pure."""
    text, spans = Text(no_wrap=True), list[tuple[int, int, str]]()

    def add(shown: str, word: str, key: str, gap: int) -> None:
        text.append(" " * gap)
        start = text.cell_len
        text.append(shown, style=style)
        text.append(f" {word}")
        spans.append((start, text.cell_len, key))

    room = width - 1 - sum(len(shown) + len(word) + 3 for shown, word, _ in ALWAYS)
    gap = 2 if sum(len(shown) + len(word) + 3 for shown, word, _ in keys) <= room else 1
    for number, (shown, word, key) in enumerate(keys):
        rest = 2 if number + 1 < len(keys) else 0
        if text.cell_len + (gap if number else 1) + len(shown) + 1 + len(word) + rest > room:
            text.append(" …")
            break
        add(shown, word, key, gap if number else 1)
    text.append(" " * max(room - text.cell_len, 0))
    for shown, word, key in ALWAYS:
        add(shown, word, key, 2)
    return text, tuple(spans)
