"""TTFT, TPOT, E2E, chunk gaps, goodput and block values, computed from raw records. Pure.

Definitions (measurement.md §1): s is the send time (the scheduled arrival in an open loop), t1 and tL the first and
last token-bearing chunk, n the completion tokens by `usage`. TTFT = t1 − s; TPOT = (tL − t1)/(n − 1) for n ≥ 2;
E2E = tL − s. A chunk gap is the time between successive token-bearing chunks and is never called inter-token latency,
since a chunk may hold several tokens. What is missing is None, never 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vq_console.checks.records import COMPLETE, RequestRecord

NS = 1e9


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Figures of one request in seconds. `estimated` where the token count is not the server's own."""

    ttft: float | None
    ttfa: float | None
    """Time to the first visible answer text; differs from TTFT for models that think first."""
    tpot: float | None
    e2e: float | None
    tokens: int | None
    estimated: bool
    gaps: tuple[float, ...]
    tokens_per_chunk: float | None


def token_count(record: RequestRecord) -> tuple[int | None, bool]:
    """Completion tokens and whether they are estimated: `usage`, else the IDs in the chunks, else unknown.

    Without both the requested number is taken when the stream ended by length, marked as estimated; the number of
    chunks is never taken for the number of tokens.
    """
    if record.completion_tokens is not None:
        return record.completion_tokens, False
    chunks = record.token_chunks
    if chunks and all(chunk.tokens is not None for chunk in chunks):
        return sum(chunk.tokens or 0 for chunk in chunks), False
    if record.end == COMPLETE and record.finish == "length":
        return record.requested, True
    return None, True


def times_of(record: RequestRecord) -> RequestTimes:
    """The figures of one request; those that its record does not support are None."""
    chunks = record.token_chunks
    count, estimated = token_count(record)
    late = record.send_ns - record.scheduled_ns
    if not chunks:
        return RequestTimes(None, None, None, None, count, estimated, (), None)
    first = chunks[0].offset_ns
    answer = next((chunk.offset_ns for chunk in chunks if chunk.answer), None)
    last = chunks[-1].offset_ns
    whole = record.end == COMPLETE
    tpot = (
        (last - first) / NS / (count - 1) if whole and count is not None and count >= 2 and len(chunks) >= 2 else None
    )
    return RequestTimes(
        ttft=(first + late) / NS,
        ttfa=(answer + late) / NS if answer is not None else None,
        tpot=tpot,
        e2e=(last + late) / NS if whole else None,
        tokens=count,
        estimated=estimated,
        gaps=tuple((b.offset_ns - a.offset_ns) / NS for a, b in itertools.pairwise(chunks)),
        tokens_per_chunk=count / len(chunks) if whole and count is not None else None,
    )


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """exp of the mean logarithm of the values that are there and positive; None without any."""
    logs = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level: seconds to the first token and per token. MLPerf Llama-3.1-8B Server: 2 s, 100 ms."""

    ttft: float = 2.0
    tpot: float = 0.1

    def met(self, times: RequestTimes) -> bool:
        """Whether one request meets it; one without figures does not."""
        return times.ttft is not None and times.ttft <= self.ttft and (times.tpot or 0.0) <= self.tpot


def goodput(records: Sequence[RequestRecord], slo: Slo) -> float | None:
    """Complete requests per second that meet every objective, over the span from first send to last end."""
    done = [record for record in records if record.end == COMPLETE]
    if not done:
        return None
    span = (max(record.end_ns for record in done) - min(record.send_ns for record in done)) / NS
    return sum(slo.met(times_of(record)) for record in done) / span if span > 0 else None


@dataclass(frozen=True, slots=True)
class Percentile:
    """A quantile with its order-statistic interval; a bound that the sample cannot give is None and shown as —."""

    q: float
    value: float | None
    low: float | None
    high: float | None


QUANTILES = (0.5, 0.9, 0.95, 0.99)


def percentiles(values: Sequence[float], quantiles: Sequence[float] = QUANTILES) -> tuple[Percentile, ...]:
    """Quantiles with 95 % intervals. The value itself is None where not even one sample lies above the quantile."""
    from vq_console.checks.statistics import quantile_interval

    data = sorted(values)
    n = len(data)
    out = []
    for q in quantiles:
        if n == 0 or n * (1 - q) < 1:
            out.append(Percentile(q, None, None, None))
            continue
        low, high = quantile_interval(data, q)
        position = (n - 1) * q
        below = int(position)
        above = min(below + 1, n - 1)
        value = data[below] + (data[above] - data[below]) * (position - below)
        out.append(Percentile(q, value, low, high))
    return tuple(out)
