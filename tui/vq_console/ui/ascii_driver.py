"""ASCII for the console's own symbols and lines, for terminals and fonts that have none of them.

Every symbol is one cell wide and is replaced by one character, so that no layout moves.
"""

from __future__ import annotations

from textual.driver import Driver

_LINES = {
    "─━┄┅┈┉╌╍╴╶═▔▁▂": "-",
    # The ends of the line under the chosen tab: as gaps they show it where colour does not.
    "╸╺": " ",
    "│┃┆┇┊┋╎╏║▏▎▍▌▐▕▊": "|",
    "┌┐└┘├┤┬┴┼╭╮╯╰┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╒╕╘╛": "+",
    "█▉▇▆▅▄▃▀▓▒": "#",
    "░": ".",
    "●◉": "*",
    "○◯": "o",
    "◐◑◌": "~",
    "■▪": "-",
    "✖×": "x",
    "▲△": "!",
    "→▸▶": ">",
    "◂◀←": "<",
    "↑": "^",
    "↓▼▾": "v",
    "·•": ".",
    "…": "~",
    "–—": "-",
    "✔✓": "+",
}
TABLE = str.maketrans({symbol: plain for symbols, plain in _LINES.items() for symbol in symbols})


def plain(text: str) -> str:
    """The text with each known symbol replaced by an ASCII one of the same width."""
    return text.translate(TABLE)


def ascii_driver(base: type[Driver]) -> type[Driver]:
    """A driver as `base` that writes ASCII only for what this module knows."""

    class AsciiDriver(base):  # type: ignore[valid-type, misc]
        def write(self, data: str) -> None:
            super().write(plain(data))

    return AsciiDriver
