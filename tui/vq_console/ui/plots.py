"""Small plots as lines of text: pair forest, KLD bands, bars, sparklines. Pure; widths are in cells."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.core.text import counted

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
    """B/A of each endpoint with its interval around 1, or its single pairs while there is no interval yet.

    Two header lines, then one line an endpoint.
    """
    shown = [(e, _bounds(e)) for e in endpoints if e.get("ratio")]
    if not shown:
        return ["no pair yet"]
    label = max(len(_name(e)) for e, _ in shown) + 2
    word = max(len(str(e.get("word") or "")) for e, _ in shown) + 2
    room = max(width - label - word, 12)
    span = max(*(abs(math.log(x)) for _, bounds in shown for x in bounds), 2 * EQUIVALENT) * 1.1
    low, high = math.exp(-span), math.exp(span)
    axis = [" "] * room
    one = log_position(1.0, low, high, room)
    axis[log_position(1 / 1.03, low, high, room)] = "("
    axis[log_position(1.03, low, high, room)] = ")"
    axis[one] = "|" if ascii_only else "│"
    ticks = [" "] * (room + 6)
    for value in (low**0.9, 1.0, high**0.9):
        text = f"{value:.2f}"
        start = max(0, min(log_position(value, low, high, room) - 2, room - len(text)))
        ticks[start : start + len(text)] = text
    lines = [" " * label + "".join(ticks).rstrip(), " " * label + "".join(axis)]
    for e, bounds in shown:
        if _interval(e) is not None:
            line = interval_line(e["ratio"], bounds, low, high, room, ascii_only=ascii_only)
        else:
            cells = [" "] * room
            for ratio in _pairs(e):
                cells[log_position(ratio, low, high, room)] = "." if ascii_only else "·"
            cells[log_position(e["ratio"], low, high, room)] = "o" if ascii_only else "○"
            line = "".join(cells)
        lines.append(f"{_name(e).ljust(label)}{line}  {e.get('word') or ''}".rstrip())
    return lines


def _interval(e: Mapping[str, Any]) -> tuple[float, float] | None:
    ci = e.get("ci")
    return (ci[0], ci[1]) if ci and ci[0] > 0 and math.isfinite(ci[1]) else None


def _pairs(e: Mapping[str, Any]) -> list[float]:
    return [b / a for a, b in e.get("values") or () if a and b]


def _bounds(e: Mapping[str, Any]) -> tuple[float, ...]:
    return _interval(e) or (float(e["ratio"]), *_pairs(e))


def _name(endpoint: Mapping[str, Any]) -> str:
    streams = endpoint["concurrency"]
    return f"{endpoint.get('metric')}, {counted(streams, 'stream')}"


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
        # A name never leaves its band: an interval beside it would be read as lying in it.
        short = name if right - left > len(name) else name[: max(right - left - 2, 1)] + "…"
        names[left + 1 : left + 1 + len(short)] = short
    ci = kld.get("ci") or (kld["value"], kld["value"])
    ends = f"{low:g}".ljust(width - 4) + f"{high:g}".rjust(4)
    line = interval_line(max(kld["value"], low), [max(x, low) for x in ci], low, high, width, ascii_only=ascii_only)
    merged = "".join(mark if mark != " " else back for mark, back in zip(line, rule, strict=True))
    return ["".join(names)[:width].rstrip(), merged, ends]


def curves(series: Mapping[str, Sequence[float]], width: int, height: int, unit: str) -> list[str]:
    """ECDFs on one plane: each column's share (0 to 100 %) of values at or below it, drawn with the series' letter.

    `=` stands where the curves meet. The axis runs from zero to the largest value, in `unit`.
    """
    known = {name: sorted(values) for name, values in series.items() if values}
    if not known or width < 10 or height < 2:
        return []
    top = max(values[-1] for values in known.values()) * 1.02 or 1.0
    rows = [[" "] * width for _ in range(height)]
    for name, values in known.items():
        for column in range(width):
            share = bisect_right(values, top * (column + 1) / width) / len(values)
            if share == 0:
                continue
            row = height - 1 - min(int(share * height), height - 1)
            rows[row][column] = name if rows[row][column] in {" ", name} else "="
    labels = {0: "100 %", height - 1: "0 %"}
    lines = [f"{labels.get(number, ''):>6} │{''.join(cells).rstrip()}" for number, cells in enumerate(rows)]
    end = f"{top:.3g} {unit}"
    return [*lines, " " * 7 + "└" + "─" * width, " " * 8 + "0" + end.rjust(width - 1)]


def plane(points: Sequence[tuple[float, float, str]], width: int, height: int, x_name: str, y_name: str) -> list[str]:
    """Points (x, y, mark) on a plane from zero, axes named; a later mark goes beside one that stands there already."""
    known = [(x, y, mark) for x, y, mark in points if x > 0 and y > 0]
    if not known or width < 24 or height < 3:
        return []
    top_x, top_y = max(x for x, _, _ in known) * 1.08, max(y for _, y, _ in known) * 1.08
    rows = [[" "] * width for _ in range(height)]
    for x, y, mark in known:
        row = height - 1 - min(int(y / top_y * height), height - 1)
        column = min(int(x / top_x * width), width - len(mark))
        while column > 0 and any(cell != " " for cell in rows[row][column : column + len(mark)]):
            column -= 1
        rows[row][column : column + len(mark)] = mark
    lines = [y_name]
    for number, cells in enumerate(rows):
        label = f"{top_y:8.3g}" if number == 0 else f"{0:8g}" if number == height - 1 else " " * 8
        lines.append(f"{label} │{''.join(cells).rstrip()}")
    lines.append(" " * 9 + "└" + "─" * width)
    lines.append(" " * 10 + f"0{x_name:^{width - 10}}{top_x:.3g}")
    return lines
