"""Windows into large log files: the last lines without reading the first, and lines around an offset.

Owns sparse line numbers (a checkpoint per block that was counted). Never loads a whole file, never interprets lines.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 1 << 18
_COUNT_BLOCK = 1 << 22
_MAX_LINE = 1 << 16
_MOST = 1 << 26


@dataclass(frozen=True, slots=True)
class Window:
    """Whole lines of a file: `starts[i]` is the byte offset of `lines[i]`; `begin` and `end` are the offsets of the
    first byte and of the byte after the last line. Lines beyond 64 KiB are cut."""

    lines: tuple[str, ...]
    starts: tuple[int, ...]
    begin: int
    end: int


class TailIndex:
    """Lines of `path` by offset, from its end backwards or from any offset on, and their numbers on request."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._checkpoints: list[tuple[int, int]] = [(0, 0)]

    def size(self) -> int:
        """Bytes of the file now. Raises OSError."""
        return os.stat(self.path).st_size

    def last(self, count: int) -> Window:
        """The last `count` lines; an unfinished last line counts as one."""
        return self.before(self.size(), count)

    def before(self, offset: int, count: int) -> Window:
        """Up to `count` lines that end at or before `offset` (the beginning of a line, or the end of the file)."""
        with open(self.path, "rb", buffering=0) as file:
            end = min(offset, os.fstat(file.fileno()).st_size)
            position = end
            blocks: list[bytes] = []
            newlines = 0
            while position > 0 and newlines <= count and end - position < _MOST:
                size = min(_BLOCK, position)
                position -= size
                block = os.pread(file.fileno(), size, position)
                newlines += block.count(b"\n")
                blocks.append(block)
        data = b"".join(reversed(blocks))
        lines = _split(data, position, partial_first=position > 0)
        return _window(lines[-count:] if count else [], end)

    def after(self, offset: int, count: int) -> Window:
        """Up to `count` lines from `offset` (the beginning of a line) on."""
        with open(self.path, "rb", buffering=0) as file:
            position = offset
            blocks = []
            newlines = 0
            while newlines < count:
                block = os.pread(file.fileno(), _BLOCK, position)
                if not block:
                    break
                position += len(block)
                newlines += block.count(b"\n")
                blocks.append(block)
        lines = _split(b"".join(blocks), offset, partial_first=False)[:count]
        end = lines[-1][0] + len(lines[-1][1]) + 1 if lines else offset
        return _window(lines, min(end, position))

    def line_number(self, offset: int) -> int:
        """The 1-based number of the line that begins at `offset`; counts newlines from the nearest known place."""
        index = bisect_right(self._checkpoints, (offset, 1 << 62)) - 1
        position, number = self._checkpoints[index]
        with open(self.path, "rb", buffering=0) as file:
            while position < offset:
                block = os.pread(file.fileno(), min(_COUNT_BLOCK, offset - position), position)
                if not block:
                    break
                position += len(block)
                number += block.count(b"\n")
                if len(block) == _COUNT_BLOCK and position > self._checkpoints[-1][0]:
                    self._checkpoints.append((position, number))
        return number + 1

    def offset_of(self, number: int) -> int | None:
        """The byte offset where line `number` (1-based) begins; None when the file has fewer lines."""
        wanted = number - 1
        if wanted <= 0:
            return 0
        # A checkpoint may stand in the middle of a line, so the newline is looked for from one that lies before it.
        position, count = [point for point in self._checkpoints if point[1] < wanted][-1]
        with open(self.path, "rb", buffering=0) as file:
            while block := os.pread(file.fileno(), _COUNT_BLOCK, position):
                here = block.count(b"\n")
                if count + here >= wanted:
                    found = -1
                    for _ in range(wanted - count):
                        found = block.find(b"\n", found + 1)
                    start = position + found + 1
                    return start if start < os.fstat(file.fileno()).st_size else None
                position += len(block)
                count += here
                if len(block) == _COUNT_BLOCK and position > self._checkpoints[-1][0]:
                    self._checkpoints.append((position, count))
        return None


def _split(data: bytes, begin: int, *, partial_first: bool) -> list[tuple[int, bytes]]:
    """Cut `data`, which lies at byte `begin`, into (offset, line); drops a first piece whose start was not read."""
    parts = data.split(b"\n")
    if parts and not parts[-1]:
        parts.pop()
    lines: list[tuple[int, bytes]] = []
    for part in parts:
        lines.append((begin, part))
        begin += len(part) + 1
    return lines[1:] if partial_first and len(lines) > 1 else lines


def _window(lines: list[tuple[int, bytes]], end: int) -> Window:
    return Window(
        lines=tuple(line[:_MAX_LINE].decode("utf-8", "replace") for _, line in lines),
        starts=tuple(start for start, _ in lines),
        begin=lines[0][0] if lines else end,
        end=end,
    )
