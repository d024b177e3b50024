"""From a log file or a stream to everything that can be said about its last run.

Owns reading in blocks with bounded memory. Decides nothing itself.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from typing import Any, BinaryIO

from vq_console.core.errors import MissingError, UsageError
from vq_console.core.text import redact, strip_control
from vq_console.logs.model import AskedVsRuns, Explanation
from vq_console.logs.reader import FactReader

_BLOCK = 1 << 20
_LONGEST = 1 << 20
_LARGE = 4 << 20
_NEAR = 1 << 18
_OVERLAP = 64
_BANNERS = ("▀▄▀".encode(), b"\\u2580\\u2584\\u2580", b"vLLM API server version ", b"vLLM server version ")
"""What each start prints once per API server; the second is the logo inside JSON."""


def explain_path(path: str | os.PathLike[str]) -> Explanation:
    """Explain the last run in a log file. Raises UsageError when there is none, MissingError when it cannot be read."""
    return read_path(path).explanation()


def explain_lines(lines: Iterable[str]) -> Explanation:
    """Explain the last run in lines that have no newline at their end."""
    reader = FactReader()
    reader.feed(lines)
    return reader.explanation()


def explain_stream(stream: BinaryIO) -> Explanation:
    """Explain the last run in a binary stream, read to its end (a pipe)."""
    reader = FactReader()
    for lines in whole_lines(stream):
        reader.feed(lines)
    return reader.explanation()


def read_path(path: str | os.PathLike[str]) -> FactReader:
    """A reader that has seen the whole file. Raises as `explain_path`."""
    reader = FactReader()
    try:
        with open(path, "rb", buffering=0) as file:
            reader.number = _skip_finished_runs(file)
            for lines in whole_lines(file):
                reader.feed(lines)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise UsageError(f"{os.fspath(path)}: {error.strerror}", "Name a log file, or - for a pipe.") from error
    except OSError as error:
        raise MissingError(
            f"{os.fspath(path)}: {error.strerror or error}", "Name a readable log file, or - for a pipe."
        ) from error
    return reader


def _skip_finished_runs(file: FileIO) -> int:
    """Of a large file with many starts leave out those long before the last banner; returns how many lines that were.

    Moves the file to where reading begins. Banners close to each other may belong to one start with several API
    servers, so reading begins at the first of those.
    """
    size = os.fstat(file.fileno()).st_size
    if size < _LARGE:
        return 0
    last = -1
    position = size
    while position > 0 and last < 0:
        begin = max(0, position - _BLOCK)
        block = os.pread(file.fileno(), position - begin + _OVERLAP, begin)
        found = max(block.rfind(mark) for mark in _BANNERS)
        if found >= 0:
            last = begin + found
        position = begin
    if last < _NEAR:
        return 0
    near = os.pread(file.fileno(), _NEAR, last - _NEAR)
    first = min((found for mark in _BANNERS if (found := near.find(mark)) >= 0), default=len(near))
    start = last - _NEAR + near.rfind(b"\n", 0, first) + 1
    number = 0
    position = 0
    while position < start and (block := os.pread(file.fileno(), min(_BLOCK, start - position), position)):
        number += block.count(b"\n")
        position += len(block)
    file.seek(start)
    return number


def whole_lines(stream: BinaryIO) -> Iterator[list[str]]:
    """Blocks of whole lines, split at `\\n` only; invalid UTF-8 becomes U+FFFD, the middle of a line beyond 1 MiB is
    dropped. A last line without newline counts. UTF-16 with its mark, as PowerShell writes it, is read at once."""
    parts: list[bytes] = []
    size = 0
    while block := stream.read(_BLOCK):
        if not parts and block[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            yield (
                (block + stream.read()).decode("utf-16", "replace").replace("\r\n", "\n").removesuffix("\n").split("\n")
            )
            return
        end = block.rfind(b"\n")
        if end < 0:
            if size < _LONGEST:
                parts.append(block)
            else:
                parts[-1] = block[-65536:]
            size += len(block)
            continue
        parts.append(block[:end])
        yield b"".join(parts).decode("utf-8", "replace").split("\n")
        rest = block[end + 1 :]
        parts = [rest] if rest else []
        size = len(rest)
    if parts:
        yield b"".join(parts).decode("utf-8", "replace").split("\n")


def explanation_json(explanation: Explanation, rows: Sequence[AskedVsRuns] = ()) -> dict[str, Any]:
    """The contract of `explain --json`, without `schema`; texts carry no control characters and no secrets."""
    diagnosis = explanation.diagnosis
    return {
        "diagnosis": diagnosis.slug,
        "title": diagnosis.title,
        "severity": diagnosis.severity,
        "root_line": diagnosis.root_line,
        "process": diagnosis.process,
        "evidence": redact(strip_control(diagnosis.evidence)),
        "explanation": diagnosis.explanation,
        "fixes": [
            {"text": fix.text, "patch": fix.patch.to_json() if fix.patch is not None else None}
            for fix in diagnosis.fixes
        ],
        "facts": dict(explanation.facts),
        "phases": [{"name": phase.name, "seconds": phase.seconds} for phase in explanation.phases],
        "asked_vs_runs": [
            {
                "kind": row.kind,
                "expected": row.expected,
                "selected": row.selected,
                "grade": row.grade,
                "alarm": row.alarm,
                "detail": row.detail,
            }
            for row in rows
        ],
        "lines": explanation.lines,
    }
