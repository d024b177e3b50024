"""A view of a log buffer that draws only the lines on screen. Log text is data: never markup, never control codes."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from vq_console.ui.logbuffer import LogBuffer

MARKS = {"ERROR": "E", "CRITICAL": "E", "WARNING": "W", "INFO": " ", "DEBUG": "d"}
WIDEST = 2_000
SETTLED_S = 0.2


class LogView(ScrollView, can_focus=True):
    """Lines of a buffer with a cursor; follows the end while `following`."""

    DEFAULT_CSS = """
    LogView { background: $surface; scrollbar-gutter: stable; scrollbar-size-horizontal: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown,space", "page(1)", "Page down", show=False),
        Binding("home,<", "edge(False)", "Begin", show=False),
        Binding("end,>", "edge(True)", "End", show=False),
    ]

    class Moved(Message):
        """The cursor is on another line."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: LogBuffer | None = None
        self.row = 0
        """Cursor, as an index into the buffer's shown lines."""
        self.following = True
        self._sent: tuple[int, int] | None = None
        """Row and number of lines when the cursor was sent somewhere; that row belongs into the middle until one of
        them changes or the reader scrolls."""
        self._base: Style | None = None
        self._bar: tuple[int, int, int] | None = None
        """What the scroll bar's thumb looked like when it was drawn."""

    def open(self, buffer: LogBuffer | None) -> None:
        """Show another buffer from its end."""
        self.buffer = buffer
        self.following = True
        self.changed()

    def on_resize(self) -> None:
        """The first layout, and each later one, decides where the end and the middle of the log are."""
        self.changed()
        self._to_middle()

    def on_mouse_scroll_down(self) -> None:
        """The reader has gone on from where a jump led."""
        self._sent = None

    def on_mouse_scroll_up(self) -> None:
        """Who scrolls back wants to read, not to be carried to the end by the next line."""
        self._sent = None
        if self.following:
            self.following = False
            self.post_message(self.Moved())

    def changed(self) -> None:
        """The buffer grew, shrank or is filtered differently."""
        count = len(self.buffer.shown) if self.buffer else 0
        laid_out = self._grow(count)
        if self.following:
            self.row = max(count - 1, 0)
            self._to_end()
            if laid_out:
                # The scrollable range follows the new size only with the next layout.
                self.call_after_refresh(self._to_end)
        else:
            self.row = min(self.row, max(count - 1, 0))
        self.refresh()

    def _grow(self, count: int) -> bool:
        """Take over the number of lines; True where the screen is laid out anew for it.

        It is not while the scroll bar only gets another range: a log that grows many times a second must not lay
        out and draw everything around it each time.
        """
        size = Size(WIDEST, count)
        if (count > self.size.height) is not self.show_vertical_scrollbar:
            self.virtual_size = size
            return True
        self.set_reactive(LogView.virtual_size, size)
        self._move_bar(self.scroll_y)
        return False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        self._move_bar(new_value)
        if round(old_value) != round(new_value):
            self.refresh()

    def _move_bar(self, top: float) -> None:
        """Give the scroll bar its place; draws it only when its thumb looks different, in eighths of a cell."""
        if not self.show_vertical_scrollbar:
            return
        bar, count, height = self.vertical_scrollbar, max(self.virtual_size.height, 1), self.size.height
        bar.set_reactive(ScrollBar.window_virtual_size, count)
        bar.set_reactive(ScrollBar.position, int(top * 8) / 8)
        look = (int(top * height * 8 / count), height * height * 8 // count, height)
        if look != self._bar:
            self._bar = look
            bar.refresh()

    def _to_end(self) -> None:
        if self.following and self.size.height:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)

    @property
    def position(self) -> int | None:
        """The cursor's position in `buffer.entries`."""
        if self.buffer is None or not self.buffer.shown:
            return None
        return self.buffer.shown[min(self.row, len(self.buffer.shown) - 1)]

    def go(self, position: int | None) -> bool:
        """Put the cursor on an entry and show it in the middle; False when the filters hide it."""
        if position is None or self.buffer is None:
            return False
        try:
            row = self.buffer.shown.index(position)
        except ValueError:
            return False
        self.following = False
        self.row = row
        self._sent = (row, len(self.buffer.shown))
        self._to_middle()
        # A buffer that was just opened has no scrollable range before the next layout, which may come late.
        self.call_after_refresh(self._to_middle)
        self.set_timer(SETTLED_S, self._to_middle)
        self.refresh()
        self.post_message(self.Moved())
        return True

    def _to_middle(self) -> None:
        if self.buffer and self._sent == (self.row, len(self.buffer.shown)) and not self.following:
            self.scroll_to(y=max(self.row - self.size.height // 2, 0), x=0, animate=False, immediate=True)

    def action_move(self, step: int) -> None:
        self._set_row(self.row + step)

    def action_page(self, step: int) -> None:
        self._set_row(self.row + step * max(self.size.height - 1, 1))

    def action_edge(self, end: bool) -> None:
        self.following = end
        self._set_row(10**9 if end else 0, keep=end)

    def _set_row(self, row: int, *, keep: bool = False) -> None:
        count = len(self.buffer.shown) if self.buffer else 0
        if not count:
            return
        if row < 0 and self.buffer is not None and self.buffer.load_earlier():
            row += len(self.buffer.shown) - count
            count = len(self.buffer.shown)
            self.virtual_size = Size(WIDEST, count)
        self._sent = None
        self.row = min(max(row, 0), count - 1)
        self.following = keep or self.row == count - 1
        top = self.scroll_offset.y
        if self.row < top:
            self.scroll_to(y=self.row, animate=False)
        elif self.row >= top + self.size.height:
            self.scroll_to(y=self.row - self.size.height + 1, animate=False)
        self.refresh()
        self.post_message(self.Moved())

    def notify_style_update(self) -> None:
        """The theme or focus changed what a line looks like."""
        self._base = None
        super().notify_style_update()

    def _base_style(self) -> Style:
        """The widget's own style, worked out once per change instead of once per line."""
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        row, width = scroll_y + y, self.size.width
        base = self._base_style()
        if self.buffer is None or row >= len(self.buffer.shown):
            return Strip.blank(width, base)
        position = self.buffer.shown[row]
        entry = self.buffer.entries[position]
        number = self.buffer.number(position)
        style = base
        if entry.level in {"ERROR", "CRITICAL"}:
            style = base + Style(color="red")
        elif entry.level == "WARNING":
            style = base + Style(color="yellow")
        elif entry.level == "DEBUG":
            style = base + Style(dim=True)
        if row == self.row:
            style = style + Style(reverse=True)
        dim = base + Style(dim=True)
        name = (entry.process or "")[:12]
        gutter = [
            Segment(f"{number if number is not None else '…':>7} ", dim),
            Segment(f"{name:12} " if width >= 90 else "", dim),
            Segment(f"{MARKS.get(entry.level or '', ' ')} ", style),
        ]
        used = sum(segment.cell_length for segment in gutter)
        body = Strip(self._body(entry.text, style)).crop(scroll_x, scroll_x + max(width - used, 0))
        return Strip([*gutter, *body]).adjust_cell_length(width, base)

    def _body(self, text: str, style: Style) -> list[Segment]:
        text = text.expandtabs(4)[:WIDEST]
        pattern = self.buffer.pattern if self.buffer else None
        if pattern is None:
            return [Segment(text, style)]
        segments: list[Segment] = []
        last = 0
        for match in pattern.finditer(text):
            if match.start() > last:
                segments.append(Segment(text[last : match.start()], style))
            if match.end() > match.start():
                segments.append(Segment(match.group(), style + Style(bold=True, reverse=True)))
            last = max(last, match.end())
        segments.append(Segment(text[last:], style))
        return segments
