"""Figures of requests and blocks (traps 1, 3, 4, 5, 7, 11)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from checks_latency.synthetic import record
from vq_console.checks.measures import Slo, goodput, percentiles, times_of, token_count
from vq_console.checks.records import Chunk, record_from_json
from vq_console.checks.steady import Window, concurrency_in, loaded_requests, steady_window, throughput


def test_definitions() -> None:
    found = times_of(record(ttft=0.1, tpot=0.02, tokens=11, all_chunks=True))
    assert found.ttft == pytest.approx(0.1)
    assert found.tpot == pytest.approx(0.02)
    assert found.e2e == pytest.approx(0.3)
    assert len(found.gaps) == 10
    assert found.gaps == pytest.approx([0.02] * 10)
    assert found.tokens_per_chunk == 1.0


def test_chunks_without_tokens_neither_start_nor_end_the_clock() -> None:
    """Trap 1."""
    chunks = [
        Chunk(1, "r"),
        Chunk(2, "c"),
        Chunk(100, "t"),
        Chunk(300, "t"),
        Chunk(900, "f"),
        Chunk(950, "u"),
        Chunk(990, "d"),
    ]
    found = times_of(replace(record(tokens=3), chunks=tuple(chunks)))
    assert found.ttft == pytest.approx(100e-9)
    assert found.tpot == pytest.approx(100e-9)
    assert found.e2e == pytest.approx(300e-9)


def test_thinking_is_not_the_answer() -> None:
    """Trap 2: reasoning counts as tokens, the answer is timed apart."""
    chunks = (Chunk(100, "t"), Chunk(200, "t"), Chunk(500, "t", None, True))
    found = times_of(replace(record(tokens=3), chunks=chunks))
    assert (found.ttft, found.ttfa) == (pytest.approx(100e-9), pytest.approx(500e-9))


@pytest.mark.parametrize("per_chunk", [1, 4])
def test_tokens_per_chunk_leave_tpot_alone(per_chunk: int) -> None:
    """Trap 3: vLLM sends the first token alone, then `per_chunk` at a time."""
    ends = [0, *range(per_chunk, 81, per_chunk)]
    chunks = tuple(Chunk(round((0.05 + 0.02 * k) * 1e9), "t") for k in ends)
    found = times_of(replace(record(tokens=81), chunks=chunks))
    assert found.tpot == pytest.approx(0.02)
    assert found.gaps[3] == pytest.approx(0.02 * per_chunk)


def test_without_usage_the_count_is_estimated_never_the_chunks() -> None:
    """Trap 4."""
    silent = replace(record(tokens=16, asked=32), completion_tokens=None)
    assert token_count(silent) == (32, True)
    assert token_count(replace(silent, finish="stop")) == (None, True)
    assert times_of(replace(silent, finish="stop")).tpot is None
    said = replace(silent, chunks=(Chunk(1, "t", 3), Chunk(9, "t", 5)))
    assert token_count(said) == (8, False)


def test_missing_is_missing() -> None:
    """Trap 5."""
    nothing = replace(record(), chunks=(), end="failed", error="refused")
    found = times_of(nothing)
    assert (found.ttft, found.tpot, found.e2e) == (None, None, None)
    one = times_of(record(tokens=1))
    assert one.tpot is None
    assert one.ttft is not None
    assert times_of(record(end="cut")).e2e is None


def test_open_loop_counts_from_the_scheduled_arrival() -> None:
    """Trap 7."""
    late = replace(record(ttft=0.1), scheduled_ns=0, send_ns=500_000_000)
    assert times_of(late).ttft == pytest.approx(0.6)


def test_records_survive_the_disk() -> None:
    import json

    one = record(tokens=5, all_chunks=True)
    assert record_from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("count", "q", "value", "upper"),
    [(0, 0.5, False, False), (8, 0.95, False, False), (71, 0.95, True, False), (72, 0.95, True, True),
     (99, 0.99, False, False), (367, 0.99, True, False), (368, 0.99, True, True)],
)  # fmt: skip
def test_quantiles_say_what_the_sample_cannot_give(count: int, q: float, value: bool, upper: bool) -> None:
    source = random.Random(1)
    [found] = percentiles([source.random() for _ in range(count)], (q,))
    assert (found.value is not None, found.high is not None) == (value, upper)


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    records = [record(send_s=k, ttft=0.1 if k % 2 else 0.4, tpot=0.02, tokens=11, number=k) for k in range(10)]
    span = 9 + 0.1 + 0.2  # first send to last end, whose TTFT is 0.1
    assert goodput(records, Slo(0.2, 0.05)) == pytest.approx(5 / span)
    assert goodput(records, Slo(1.0, 0.01)) == 0.0
    assert goodput([], Slo()) is None


def _closed_loop(streams: int, lengths: random.Random | None, *, seconds: float = 60.0, stagger: float = 1.0) -> list:
    """A loop in which every stream emits 20 tokens/s whatever the length of its requests."""
    out = []
    for stream in range(streams):
        at = stagger * stream / streams
        number = 0
        while at < seconds:
            tokens = lengths.randint(4, 60) if lengths else 32
            one = record(stream=stream, number=number, send_s=at, ttft=0.05, tpot=0.05, tokens=tokens, all_chunks=True)
            out.append(one)
            at += 0.05 * tokens
            number += 1
    return out


def test_unequal_lengths_give_the_same_throughput() -> None:
    """Trap 11: tokens over the whole run would be several percent low; the steady window is not."""
    equal = throughput(_closed_loop(8, None))
    unequal = throughput(_closed_loop(8, random.Random(4)))
    assert equal == pytest.approx(160, rel=0.01)
    assert unequal == pytest.approx(160, rel=0.01)


def test_ramp_and_drain_are_outside() -> None:
    records = _closed_loop(4, None, seconds=10, stagger=1.6)
    window = steady_window(records)
    assert window is not None
    assert window.start_ns >= 1.6e9
    assert window.end_ns == max(one.send_ns for one in records)
    assert concurrency_in(records, window) == pytest.approx(4, abs=0.02)
    assert min(one.send_ns for one in loaded_requests(records)) >= 1.2e9


def test_no_window_without_a_second_wave() -> None:
    assert steady_window([record(stream=k) for k in range(4)]) is None
    assert steady_window([]) is None
    assert throughput([record()]) is None


def test_cut_requests_count_until_the_window_ends() -> None:
    records = _closed_loop(4, None, seconds=10, stagger=1.6)
    last = max(one.send_ns for one in records)
    cut = [
        replace(one, end="cut", completion_tokens=None, finish=None) if one.end_ns > last else one for one in records
    ]
    assert throughput(cut) == pytest.approx(throughput(records) or 0, rel=1e-9)
    assert throughput(cut, Window(0, last)) is not None
