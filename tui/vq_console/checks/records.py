"""The raw record of one request, and the folder of JSON lines it is kept in.

A record holds what was seen and nothing derived: every figure of the latency check can be computed again from it.
Times are monotonic nanoseconds of the generator's clock; chunk times are offsets from `send_ns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vq_console.checks import stream
from vq_console.checks.stream import Event
from vq_console.core.files import read_jsonl

COMPLETE, CUT, FAILED = "complete", "cut", "failed"
REQUESTS_FILE = "requests.jsonl"
BLOCKS_FILE = "blocks.jsonl"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream: offset from the send time, kind (letters of `stream`), tokens where the server says."""

    offset_ns: int
    kind: str
    tokens: int | None = None
    answer: bool = False


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as it went over the wire. `end` is complete, cut (the block was over) or failed."""

    block: str
    stream: int
    number: int
    request_id: str
    scheduled_ns: int
    """When the request was due: equal to `send_ns` in a closed loop, the planned arrival in an open one."""
    send_ns: int
    headers_ns: int | None
    first_byte_ns: int | None
    end_ns: int
    chunks: tuple[Chunk, ...]
    requested: int
    prompt_asked: int | None
    """Prompt tokens that were sent, where they were sent as IDs."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """From `usage`; None where the server sent none."""
    status: int | None = None
    error: str | None = None
    finish: str | None = None
    end: str = COMPLETE
    reconnected: bool = False
    """The connection was made anew; its handshake is not in any figure."""

    @property
    def token_chunks(self) -> tuple[Chunk, ...]:
        """The chunks that carry tokens, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.kind == stream.TOKEN)

    def to_json(self) -> dict[str, Any]:
        """Compact JSON; chunks are [offset, kind, tokens, answer]."""
        value = asdict(self)
        value["chunks"] = [[c.offset_ns, c.kind, c.tokens, int(c.answer)] for c in self.chunks]
        return value


def record_from_json(value: Mapping[str, Any]) -> RequestRecord:
    """A record from its JSON; a KeyError or TypeError means that the line is not a record."""
    fields = dict(value)
    fields["chunks"] = tuple(Chunk(int(c[0]), str(c[1]), c[2], bool(c[3])) for c in value["chunks"])
    return RequestRecord(**fields)


def chunks_of(events: Sequence[Event], send_ns: int) -> tuple[Chunk, ...]:
    """Events as chunks relative to the send time."""
    return tuple(Chunk(event.at_ns - send_ns, event.kind, event.tokens, event.answer) for event in events)


def read_records(folder: Path) -> Iterator[RequestRecord]:
    """All whole records under a run's latency folder; a torn last line is skipped."""
    for value in read_jsonl(folder / REQUESTS_FILE):
        try:
            yield record_from_json(value)
        except (KeyError, TypeError, IndexError, ValueError):
            continue


def measured_records(folder: Path) -> list[RequestRecord]:
    """The records of measured blocks: probes and warm-up (pairs below zero, `p-…`) are left out."""
    return [record for record in read_records(folder) if not record.block.startswith("p-")]


def records_by_block(folder: Path) -> dict[str, list[RequestRecord]]:
    """Records grouped by their block, in file order."""
    out: dict[str, list[RequestRecord]] = {}
    for record in read_records(folder):
        out.setdefault(record.block, []).append(record)
    return out
