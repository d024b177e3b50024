"""Following a growing log file: whole lines only, across truncation, rotation and rewriting.

Owns the read position in one file. Never splits a line, never interprets it, never writes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
_WITNESS = 64


class LogFollower:
    """Reads what was appended to `path` since the last `read()`, as whole lines without their newline.

    Lines end at `\\n` only (a carriage return stays in the line); invalid UTF-8 becomes U+FFFD. `offset` is where the
    first line not yet returned begins, so that another follower can go on from there. A start offset in the middle of
    a line begins with the next line. When the file shrinks or its bytes before `offset` change (truncated, or rewritten
    in place) reading starts again at its beginning; when the path names another file (rotated) the old one is read
    to its end first. A path that does not exist yet gives no lines. Raises OSError on any other failure.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = Path(path)
        self.offset = max(0, offset)
        self.restarts = 0
        """How often reading began again at 0 (truncation, rotation); a reader of numbered lines starts anew then."""
        self._file: BinaryIO | None = None
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._witness = b""
        self._aligned = offset <= 0

    def read(self, limit: int = 8 * _BLOCK) -> list[str]:
        """The whole lines appended since the last call, at most about `limit` bytes; `[]` when none is whole."""
        if not self._open():
            return []
        self._restart_if_rewritten()
        lines = self._take(limit)
        if not lines and not self.behind and self._rotated():
            lines = self._finish_old_file()
            if self._open():
                lines += self._take(limit)
        return lines

    @property
    def behind(self) -> int:
        """Bytes in the file that `read()` has not seen yet; 0 when it cannot be told."""
        if self._file is None:
            return 0
        try:
            return max(0, os.fstat(self._file.fileno()).st_size - self.offset - self._partial_size)
        except OSError:
            return 0

    def close(self) -> None:
        """Let go of the file; `read()` opens it again at `offset`."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._drop_partial()

    def __enter__(self) -> LogFollower:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _open(self) -> bool:
        if self._file is not None:
            return True
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 (held until close)
        except FileNotFoundError:
            return False
        if os.fstat(self._file.fileno()).st_size < self.offset:
            self._restart()
        elif not self._aligned:
            self._align()
        self._aligned = True
        self._remember()
        return True

    def _align(self) -> None:
        """Move `offset` behind the next newline unless it already stands at the beginning of a line."""
        file = self._file
        assert file is not None
        if self.offset <= 0 or os.pread(file.fileno(), 1, self.offset - 1) == b"\n":
            return
        position = self.offset
        while block := os.pread(file.fileno(), _BLOCK, position):
            found = block.find(b"\n")
            if found >= 0:
                self.offset = position + found + 1
                return
            position += len(block)
        # The line is still being written: begin behind what exists and drop its rest when the newline comes.
        self._partial = [b"\0"]
        self._partial_size = position - self.offset

    def _take(self, limit: int) -> list[str]:
        file = self._file
        assert file is not None
        whole: list[bytes] = []
        position = self.offset + self._partial_size
        taken = 0
        while taken < limit:
            block = os.pread(file.fileno(), min(_BLOCK, limit - taken), position)
            if not block:
                break
            position += len(block)
            taken += len(block)
            end = block.rfind(b"\n")
            if end < 0:
                self._partial.append(block)
                self._partial_size += len(block)
                continue
            self._partial.append(block[: end + 1])
            chunk = b"".join(self._partial)
            if chunk.startswith(b"\0") and self._partial[0] == b"\0":
                chunk = chunk.partition(b"\n")[2]
            whole.append(chunk)
            self._partial = [block[end + 1 :]] if end + 1 < len(block) else []
            self._partial_size = len(block) - end - 1
            self.offset = position - self._partial_size
        if whole:
            self._remember()
        text = b"".join(whole).decode("utf-8", "replace")
        return text[:-1].split("\n") if text else []

    def _remember(self) -> None:
        file = self._file
        assert file is not None
        size = min(_WITNESS, self.offset)
        self._witness = os.pread(file.fileno(), size, self.offset - size) if size else b""

    def _restart_if_rewritten(self) -> None:
        file = self._file
        assert file is not None
        seen = self.offset + self._partial_size
        if os.fstat(file.fileno()).st_size < seen:
            self._restart()
            return
        size = len(self._witness)
        if size and os.pread(file.fileno(), size, self.offset - size) != self._witness:
            self._restart()

    def _restart(self) -> None:
        self.offset = 0
        self.restarts += 1
        self._witness = b""
        self._drop_partial()

    def _drop_partial(self) -> None:
        self._partial = []
        self._partial_size = 0

    def _rotated(self) -> bool:
        file = self._file
        assert file is not None
        with contextlib.suppress(OSError):
            named, held = os.stat(self.path), os.fstat(file.fileno())
            return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)
        return False

    def _finish_old_file(self) -> list[str]:
        """Give out the unfinished last line of a file that nobody appends to any more, and go to the new file."""
        rest = b"".join(self._partial)
        if rest.startswith(b"\0"):
            rest = b""
        self.close()
        self._restart()
        return [rest.decode("utf-8", "replace")] if rest else []
