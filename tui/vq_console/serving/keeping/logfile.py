"""The server's log on disk: opened for it, kept past its cap to beginning and end, brought back when deleted.

The server writes straight into the file with O_APPEND; this module never stands between. Must never lose the
beginning, which holds the facts.
"""

from __future__ import annotations

import os

CHUNK = 256 * 1024


class LogFile:
    """The log at `path`. Past `cap_bytes` the middle goes: `head_bytes` stay in front, half the cap at the end."""

    def __init__(self, path: str, *, cap_bytes: int, head_bytes: int) -> None:
        self.path = path
        self.cap_bytes = cap_bytes
        self.head_bytes = min(head_bytes, cap_bytes // 4)
        self._file = -1
        self._mirrored = 0

    def open_for_child(self) -> int:
        """A handle for the server's output; the caller closes it after the start."""
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.watch()
        return handle

    def watch(self) -> None:
        """Hold the present file, so that what is written after a deletion can still be read."""
        self.close()
        self._mirrored = 0
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def note(self, text: str) -> None:
        """Append a line of the keeper's own."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.write(handle, f"[vq-console] {text}\n".encode())
        except OSError:
            pass
        finally:
            os.close(handle)

    def look(self) -> None:
        """Once per tick: bring a deleted log back, cut one that grew past its cap."""
        if self._file < 0:
            return
        try:
            status = os.fstat(self._file)
            if status.st_nlink == 0:
                self._mirror(status.st_size)
            elif status.st_size > self.cap_bytes:
                self._cut(status.st_size)
        except OSError:
            return

    def _mirror(self, size: int) -> None:
        # The server goes on writing into the deleted file; nobody but the keeper can still reach it.
        if size < self._mirrored:
            self._mirrored = 0
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(handle).st_size > self.cap_bytes:
                os.ftruncate(handle, self.head_bytes)
            while self._mirrored < size:
                piece = os.pread(self._file, min(CHUNK, size - self._mirrored), self._mirrored)
                if not piece:
                    break
                self._mirrored += os.write(handle, piece)
        finally:
            os.close(handle)

    def _cut(self, size: int) -> None:
        file = self._file
        head = os.pread(file, self.head_bytes, 0)
        put = head.rfind(b"\n") + 1 or len(head)
        take = size - self.cap_bytes // 2
        piece = os.pread(file, CHUNK, take)
        take += piece.find(b"\n") + 1
        mark = f"[vq-console] {take - put} bytes of the middle of this log are left out here\n".encode()
        # A torn head line must not swallow the mark.
        if put and os.pread(file, 1, put - 1) != b"\n":
            mark = b"\n" + mark
        os.pwrite(file, mark, put)
        put += len(mark)
        # Moving forward in place: the end is copied until nothing new is left, then the file is cut. Only what the
        # server writes between the last read and the cut is lost, which is microseconds.
        while piece := os.pread(file, CHUNK, take):
            os.pwrite(file, piece, put)
            put += len(piece)
            take += len(piece)
        os.ftruncate(file, put)

    def tail(self, limit_bytes: int = 64 * 1024) -> list[str]:
        """The last whole lines within `limit_bytes`."""
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - limit_bytes))
                raw = file.read(limit_bytes)
        except OSError:
            return []
        lines = raw.decode("utf-8", "replace").split("\n")
        return lines[1:] if size > limit_bytes else lines

    def close(self) -> None:
        """Let the file go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
