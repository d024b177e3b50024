"""Headers of safetensors files: names, types, shapes and sizes of tensors, without reading one of them.

Touches files, reads at most their header, and never fails on what it finds: everything wrong becomes a sentence.
Source: the safetensors format (8 bytes length, JSON, data).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAX_HEADER = 100 * 1024 * 1024
"""The limit of the reference implementation."""

_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its type as safetensors names it (`BF16`, `F8_E4M3`, `I32`, …), shape, and bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says it holds. `problem` says what is wrong with it; `size` is that of the file in bytes."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    size: int = 0
    problem: str | None = None


def read_header(path: Path) -> Header:
    """The header of a safetensors file; a broken, cut-off or pointer file gives its problem instead of an error."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if first + file.read(len(_LFS) - 8) == _LFS:
                return Header(size=size, problem="is a Git LFS pointer, not the file: run `git lfs pull`")
            if len(first) < 8:
                return Header(size=size, problem=f"is cut off: {size} bytes")
            if length > _MAX_HEADER:
                return Header(size=size, problem="is no safetensors file, or its beginning is damaged")
            if length + 8 > size:
                return Header(size=size, problem=f"is cut off within its header: {size} of at least {length + 8} bytes")
            file.seek(8)
            raw = file.read(length)
    except FileNotFoundError:
        return Header(problem="is missing" if not path.is_symlink() else "is a link to a blob that is not there")
    except OSError as error:
        return Header(problem=f"cannot be read: {error.strerror or error}")
    return parse_header(raw, size)


def parse_header(raw: bytes, size: int) -> Header:
    """The header in `raw`, of a file of `size` bytes. Pure."""
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError):
        return Header(size=size, problem="has a damaged header")
    if not isinstance(table, dict):
        return Header(size=size, problem="has a damaged header")
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, entry in table.items():
        if name == "__metadata__":
            continue
        tensor = _tensor(entry)
        if tensor is None:
            return Header(size=size, problem=f"describes a tensor wrongly: {name[:80]!r}")
        tensors[name] = tensor
        end = max(end, entry["data_offsets"][1])
    expected = 8 + len(raw) + end
    if size < expected:
        return Header(tensors, size, f"is cut off: {size} of {expected} bytes; fetch it again")
    return Header(tensors, size)


def _tensor(entry: Any) -> Tensor | None:
    if not isinstance(entry, dict):
        return None
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    sizes, span = _whole_numbers(shape), _whole_numbers(offsets)
    if not isinstance(dtype, str) or sizes is None or span is None or len(span) != 2 or span[0] > span[1]:
        return None
    return Tensor(dtype, sizes, span[1] - span[0])


def _whole_numbers(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value):
        return tuple(value)
    return None
