"""Small whole files for the keeper: JSON that is replaced at once, JSON lines that are appended.

The twin of `core.files` without its imports. A full disk must never end the keeper: writers say whether they could.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def write_json(path: str, value: dict[str, Any]) -> bool:
    """Replace `path` by this object with `schema = 1`; False (and the old file) when that is not possible."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, **value}, file, ensure_ascii=False, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        return False
    return True


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
