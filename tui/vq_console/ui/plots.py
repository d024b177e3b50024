"""Small plots as lines of text: pair forest, KLD bands, bars, sparklines. Pure; widths are in cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = "_.-=+*#@"
EQUIVALENT = math.log(1.03)


def bar(share: float | None, width: int, *, ascii_only: bool = False, track: bool = True) -> str:
    """A thin bar filled to `share` (0 to 1) in half cells, on a dotted track or on nothing; blank where unknown."""
    if share is None or width <= 0:
        return " " * max(width, 0)
    halves = round(min(max(share, 0.0), 1.0) * width * 2)
    if not halves and share > 0:
        halves = 1
    full, rest = divmod(halves, 2)
    line, half, rail = ("=", "-", ".") if ascii_only else ("━", "╸", "┄")
    return (line * full + (half if rest else "")).ljust(width, rail if track else " ")


def shares_bar(parts: Sequence[tuple[float, str]], width: int, *, ascii_only: bool = False) -> list[tuple[str, str]]:
    """Pieces (text, style) of one bar: each part is a share (0 to 1) of `width` cells with its style, the rest track.

    A part that is there gets a cell at least; neighbours differ in their line, not only in colour.
    """
    lines, rail = (("=", "#"), ".") if ascii_only else (("━", "═"), "┄")
    pieces: list[tuple[str, str]] = []
    left = width
    for number, (share, style) in enumerate(parts):
        cells = min(max(round(share * width), 1 if share > 0 else 0), left)
        if cells:
            pieces.append((lines[number % 2] * cells, style))
            left -= cells
    return [*pieces, (rail * left, "dim")] if left else pieces


def sparkline(values: Sequence[float], width: int, *, top: float = 100.0, ascii_only: bool = False) -> str:
    """The newest `width` values as a line of blocks, scaled from 0 to `top`."""
    marks = ASCII_SPARKS if ascii_only else SPARKS
    shown = values[-width:] if width > 0 else ()
    line = "".join(marks[min(int(max(v, 0.0) / top * (len(marks) - 1) + 0.5), len(marks) - 1)] for v in shown)
    return line.rjust(width)


def log_position(value: float, low: float, high: float, width: int) -> int:
    """The cell of `value` on a logarithmic axis, clipped to the ends."""
    clipped = min(max(value, low), high)
    return round((width - 1) * math.log(clipped / low) / math.log(high / low))


def interval_line(
    value: float, ci: Sequence[float], low: float, high: float, width: int, *, ascii_only: bool = False
) -> str:
    """`├──●──┤` on a logarithmic axis; arrows where an end lies outside."""
    left, right = log_position(ci[0], low, high, width), log_position(ci[1], low, high, width)
    here = log_position(value, low, high, width)
    line, dot, ends = ("-", "o", "[]<>") if ascii_only else ("─", "●", "├┤◂▸")
    cells = [" "] * width
    for i in range(left, right + 1):
        cells[i] = line
    cells[left] = ends[2] if ci[0] < low else ends[0]
    cells[right] = ends[3] if ci[1] > high else ends[1]
    cells[here] = dot
    return "".join(cells)


def forest(endpoints: Sequence[Mapping[str, Any]], width: int, *, ascii_only: bool = False) -> list[str]:
    """B/A of each endpoint with its interval around 1. Two header lines, then one line an endpoint."""
    shown = [e for e in endpoints if e.get("ratio") and e.get("ci") and e["ci"][0] > 0 and math.isfinite(e["ci"][1])]
    if not shown:
        return ["no interval yet"]
    label = max(len(_name(e)) for e in shown) + 2
    room = max(width - label, 12)
    span = max(*(abs(math.log(x)) for e in shown for x in e["ci"]), 2 * EQUIVALENT) * 1.1
    low, high = math.exp(-span), math.exp(span)
    axis = [" "] * room
    one = log_position(1.0, low, high, room)
    axis[log_position(1 / 1.03, low, high, room)] = "("
    axis[log_position(1.03, low, high, room)] = ")"
    axis[one] = "|" if ascii_only else "┃"
    ticks = [" "] * (room + 6)
    for value in (low**0.9, 1.0, high**0.9):
        text = f"{value:.2f}"
        start = max(0, min(log_position(value, low, high, room) - 2, room - len(text)))
        ticks[start : start + len(text)] = text
    lines = [" " * label + "".join(ticks).rstrip(), " " * label + "".join(axis)]
    for e in shown:
        lines.append(_name(e).ljust(label) + interval_line(e["ratio"], e["ci"], low, high, room, ascii_only=ascii_only))
    return lines


def _name(endpoint: Mapping[str, Any]) -> str:
    return f"{endpoint.get('metric')} @{endpoint.get('concurrency')}"


KLD_BANDS = (
    (1e-4, 0.002, "indistinguishable"),
    (0.002, 0.05, "small"),
    (0.05, 0.1, "noticeable"),
    (0.1, 1.0, "damaging"),
)


def kld_bands(kld: Mapping[str, Any], width: int, *, ascii_only: bool = False) -> list[str]:
    """The KLD interval on the bands of the verdict, from 0.0001 to 1 nat per token, logarithmic."""
    if kld.get("value") is None:
        return ["no KL divergence yet"]
    low, high = KLD_BANDS[0][0], KLD_BANDS[-1][1]
    rule, names = [" "] * width, [" "] * (width + 20)
    for start, end, name in KLD_BANDS:
        left, right = log_position(start, low, high, width), log_position(end, low, high, width)
        rule[left] = "|" if ascii_only else "╎"
        short = name if right - left > len(name) else name[:4]
        names[left + 1 : left + 1 + len(short)] = short
    ci = kld.get("ci") or (kld["value"], kld["value"])
    ends = f"{low:g}".ljust(width - 4) + f"{high:g}".rjust(4)
    line = interval_line(max(kld["value"], low), [max(x, low) for x in ci], low, high, width, ascii_only=ascii_only)
    merged = "".join(mark if mark != " " else back for mark, back in zip(line, rule, strict=True))
    return ["".join(names)[:width].rstrip(), merged, ends]


def ecdf(values: Sequence[float], width: int, low: float, high: float) -> str:
    """Share of values at or below each point of a linear axis, as a line of blocks."""
    if not values or width <= 0 or high <= low:
        return " " * max(width, 0)
    ordered = sorted(values)
    marks = []
    for i in range(width):
        edge = low + (high - low) * (i + 1) / width
        share = sum(value <= edge for value in ordered) / len(ordered)
        marks.append(" " if share == 0 else SPARKS[min(int(share * 8), 7)])
    return "".join(marks)
