"""Small whole files for the keeper: JSON that is replaced at once, JSON lines that are appended.

The twin of `core.files` without its imports. A full disk must never end the keeper: writers say whether they could.
"""

from __future__ import annotations

import errno
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def write_json(path: str, value: dict[str, Any]) -> bool:
    """Replace `path` by this object with `schema = 1`; False (and the old file) when that is not possible.

    On a full disk there is no room for a second file, but there is for the old one: then it is overwritten in place.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    raw = (json.dumps({"schema": 1, **value}, ensure_ascii=False, indent=1) + "\n").encode()
    try:
        with open(temporary, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        return error.errno in (errno.ENOSPC, errno.EDQUOT) and _overwrite(path, raw)
    return True


def _overwrite(path: str, raw: bytes) -> bool:
    """Put `raw` into the existing file in one write; False when it does not fit there either."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        old = os.pread(handle, 1 << 20, 0)
        try:
            if os.pwrite(handle, raw, 0) == len(raw):
                os.ftruncate(handle, len(raw))
                return True
        except OSError:
            pass
        os.pwrite(handle, old, 0)
        return False
    except OSError:
        return False
    finally:
        os.close(handle)


def read_json(path: str) -> dict[str, Any] | None:
    """The object in `path`, or None when it is absent or no JSON object."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def append_line(path: str, value: dict[str, Any], *, cap_bytes: int = 4 * 1024 * 1024) -> bool:
    """Append one JSON line; past the cap the file becomes `path.1` and a new one begins."""
    try:
        if os.path.exists(path) and os.path.getsize(path) > cap_bytes:
            os.replace(path, path + ".1")
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, (json.dumps(value, ensure_ascii=False) + "\n").encode())
        finally:
            os.close(handle)
    except OSError:
        return False
    return True
