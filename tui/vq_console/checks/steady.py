"""The steady part of a block at a fixed concurrency, and the throughput in it. Pure.

Ramp and drain are not part of it: the window opens when half of the first wave has ended and closes at the last
dispatch, so that the number of requests in flight is constant throughout (measurement.md §1, trap 11).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from vq_console.checks.measures import NS, token_count
from vq_console.checks.records import COMPLETE, RequestRecord


@dataclass(frozen=True, slots=True)
class Window:
    """Monotonic nanoseconds from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS


def steady_window(records: Sequence[RequestRecord]) -> Window | None:
    """The window of a closed-loop block; None where too few requests followed one another.

    The first wave is the first request of each stream. A stream whose first request did not complete counts with the
    time at which it ended.
    """
    first = {record.stream: record for record in sorted(records, key=lambda r: r.send_ns, reverse=True)}
    ends = sorted(record.end_ns for record in first.values())
    if not ends:
        return None
    start = ends[(len(ends) - 1) // 2]
    end = max(record.send_ns for record in records)
    return Window(start, end) if end > start else None


def started_ns(records: Sequence[RequestRecord]) -> int | None:
    """When the last stream sent its first request; from then on all are loaded."""
    first: dict[int, int] = {}
    for record in records:
        first[record.stream] = min(record.send_ns, first.get(record.stream, record.send_ns))
    return max(first.values()) if first else None


def loaded_requests(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Requests that were sent while every stream was loaded. With one stream that is all of them."""
    since = started_ns(records)
    several = len({record.stream for record in records}) > 1
    return [record for record in records if since is not None and (not several or record.send_ns >= since)]


def emissions(record: RequestRecord) -> list[tuple[int, float]]:
    """(time, tokens) of each token-bearing chunk. Where chunks do not say how many, the count is spread evenly."""
    chunks = record.token_chunks
    if not chunks:
        return []
    if all(chunk.tokens is not None for chunk in chunks):
        return [(record.send_ns + chunk.offset_ns, float(chunk.tokens or 0)) for chunk in chunks]
    count, _ = token_count(record) if record.end == COMPLETE else (None, True)
    each = count / len(chunks) if count is not None else 1.0
    return [(record.send_ns + chunk.offset_ns, each) for chunk in chunks]


def window_tokens(records: Sequence[RequestRecord], window: Window) -> float:
    """Tokens that came out inside the window. A cut stream of unknown chunk size uses the mean of the whole ones."""
    whole = [record for record in records if record.end == COMPLETE and record.token_chunks]
    counted = [(token_count(record)[0], len(record.token_chunks)) for record in whole]
    known = [(count, chunks) for count, chunks in counted if count is not None]
    mean = sum(count for count, _ in known) / sum(chunks for _, chunks in known) if known else 1.0
    total = 0.0
    for record in records:
        points = emissions(record)
        partial = record.end != COMPLETE and not all(chunk.tokens is not None for chunk in record.token_chunks)
        times = [at for at, _ in points]
        low = bisect.bisect_right(times, window.start_ns)
        high = bisect.bisect_right(times, window.end_ns)
        total += sum(tokens * (mean if partial else 1.0) for _, tokens in points[low:high])
    return total


def throughput(records: Sequence[RequestRecord], window: Window | None = None) -> float | None:
    """Output tokens per second in the steady window; None where there is no window."""
    inside = window or steady_window(records)
    if inside is None or inside.seconds <= 0:
        return None
    return window_tokens(records, inside) / inside.seconds


def concurrency_in(records: Sequence[RequestRecord], window: Window) -> float:
    """Mean number of requests in flight inside the window, by integration."""
    busy = sum(max(0, min(record.end_ns, window.end_ns) - max(record.send_ns, window.start_ns)) for record in records)
    span = window.end_ns - window.start_ns
    return busy / span if span > 0 else 0.0
