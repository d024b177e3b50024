"""Facts of large checkpoints kept between runs: a hundred thousand tensor headers take a second to read.

Files under the cache folder, valid as long as names, sizes and times of the checkpoint's files stay; anything odd
counts as nothing kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vq_console.core.files import read_json, write_json
from vq_console.core.places import cache_dir

WORTH_KEEPING = 3000
"""Tensors from which on keeping pays."""


def fingerprint(folder: Path) -> str | None:
    """A hash over the names, sizes and times of the files in `folder`; None when it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            states = sorted((entry.name, *_state(entry)) for entry in entries)
    except OSError:
        return None
    return hashlib.sha256(json.dumps([str(folder), states]).encode()).hexdigest()


def kept(key: str | None) -> Mapping[str, Any] | None:
    """What was kept under a fingerprint, or None."""
    if key is None:
        return None
    try:
        value = read_json(_path(key))
    except (OSError, ValueError):
        return None
    well_formed = isinstance(value.get("facts"), dict) and isinstance(value.get("bytes_by_dtype"), dict)
    return value if well_formed and isinstance(value.get("problems"), list) else None


def keep(key: str | None, value: Mapping[str, Any]) -> None:
    """Keep a value under a fingerprint; a disk that is full or read-only is no error here."""
    if key is not None:
        try:
            write_json(_path(key), value)
        except OSError:
            return


def _state(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        state = entry.stat()
    except OSError:
        return (-1, 0)
    return (state.st_size, state.st_mtime_ns)


def _path(key: str) -> Path:
    return cache_dir() / "checkpoints" / f"{key[:40]}.json"
