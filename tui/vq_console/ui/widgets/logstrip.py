"""One line above a log: where along it the problems, kernel lines and the ready line are; a click goes there."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from vq_console.ui.logbuffer import LogBuffer

MARKS = {
    "trouble": ("E", "bold red", 3),
    "ready": ("R", "bold green", 2),
    "kernel": ("K", "bold cyan", 1),
    "warning": ("w", "yellow", 0),
}
"""Letter, style, weight: the strongest of a cell is drawn."""


class LogStrip(Widget):
    """The loaded part of a log in one line: the strongest mark of each cell, `┃` is the cursor."""

    class Wanted(Message):
        """A place was clicked: a position in the buffer."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position

    def __init__(self) -> None:
        super().__init__()
        self._cells: list[int | None] = []
        self._drawn = Text()
        self._seen: tuple[object, ...] = ()
        self._last: tuple[LogBuffer | None, int | None] = (None, None)

    def on_resize(self) -> None:
        """What was to be shown before there was any width, or with another one, is drawn now."""
        self.show(*self._last)

    def show(self, buffer: LogBuffer | None, position: int | None) -> None:
        """Take over marks and cursor; draws only when one of them moved."""
        self._last = (buffer, position)
        width = max(self.content_size.width - len(legend(self.content_size.width)), 0)
        if buffer is None or not buffer.entries or not width:
            return
        at = min((position or 0) * width // len(buffer.entries), width - 1)
        seen = (id(buffer), len(buffer.marks), len(buffer.entries) * width // 20_000, at, width)
        if seen == self._seen:
            return
        self._seen = seen
        self._cells, self._drawn = draw(buffer, width, at)
        self._drawn.append(legend(self.content_size.width), style="dim")
        self.refresh()

    def render(self) -> Text:
        return self._drawn

    def on_click(self, event: events.Click) -> None:
        x = event.get_content_offset_capture(self).x
        near = [(abs(i - x), p) for i, p in enumerate(self._cells) if p is not None]
        if near:
            self.post_message(self.Wanted(min(near)[1]))


def legend(width: int) -> str:
    """What the letters mean, as far as `width` leaves room for it beside the strip itself."""
    if width >= 100:
        return "  E error  w warning  K kernel  R ready"
    return "  E error K kernel R ready" if width >= 70 else ""


def draw(buffer: LogBuffer, width: int, cursor: int) -> tuple[list[int | None], Text]:
    """The first marked position of each cell, and the line. Pure."""
    total = max(len(buffer.entries), 1)
    best: dict[int, tuple[int, int, str, str]] = {}
    for position, kind in buffer.marks:
        letter, style, weight = MARKS[kind]
        cell = min(position * width // total, width - 1)
        if cell not in best or best[cell][0] < weight:
            best[cell] = (weight, position, letter, style)
    text = Text(no_wrap=True)
    for cell in range(width):
        if cell == cursor and cell not in best:
            text.append("┃", style="bold")
        elif cell in best:
            text.append(best[cell][2], style=best[cell][3] + (" reverse" if cell == cursor else ""))
        else:
            text.append("┄", style="dim")
    return [best[cell][1] if cell in best else None for cell in range(width)], text
