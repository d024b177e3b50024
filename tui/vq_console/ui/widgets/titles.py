"""Titles on the border of a pane: plain text wherever it comes from, drawn again only when it changed."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from vq_console.core.text import strip_control


def entitle(widget: Widget, title: str | None = None, *, foot: str | None = None) -> None:
    """Set the title (and `foot`, at the lower border); None leaves one as it is.

    Textual takes a string as markup and draws the whole widget again with every assignment.
    """
    if title is not None and widget.border_title != title:
        widget.border_title = Text(strip_control(title))
    if foot is not None and widget.border_subtitle != foot:
        widget.border_subtitle = Text(strip_control(foot))
