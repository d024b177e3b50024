"""Files that are whole or absent: atomic writes, versioned JSON, JSON lines, advisory locks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Write `data` beside `path` and rename it into place, so that a reader sees the old file or the new one.

    Creates missing parent folders. Raises OSError; on failure the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path, value: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Write an object atomically with `schema = 1` where it has none of its own."""
    write_atomic(path, json.dumps({"schema": 1, **value}, ensure_ascii=False, indent=1) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any]:
    """Read an object. Raises OSError when absent, ValueError (naming the file) when it is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object was expected")
    return value


def append_jsonl(path: Path, value: Mapping[str, Any]) -> None:
    """Append one record as one `write`, so that records of several writers do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(value, ensure_ascii=False) + "\n").encode())


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole records of a JSON-lines file; a torn last line and broken lines are skipped."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if isinstance(value, dict):
                    yield value
    except FileNotFoundError:
        return


@contextlib.contextmanager
def file_lock(path: Path, *, blocking: bool = True) -> Iterator[bool]:
    """Hold an exclusive advisory lock on `path` while inside; yields False when not blocking and it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
