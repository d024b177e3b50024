"""Raw records from a noise model, so that statistics are tested on the product's own path from records to verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vq_console.checks.counters import Counters
from vq_console.checks.latency_alternate import alternating_outcomes
from vq_console.checks.latency_blocks import BlockEntry, BlockResult, measure_block
from vq_console.checks.latency_decide import BUDGET, OPEN, Outcome, active_levels, outcomes, settle
from vq_console.checks.latency_result import make_result
from vq_console.checks.latency_settings import LatencySettings
from vq_console.checks.latency_swap import combined, half_of
from vq_console.checks.records import Chunk, RequestRecord
from vq_console.checks.schedule import PHASE_STEP, LatencyPlan, Level, Turn, turns_of_pair
from vq_console.checks.validity import BlockFacts

CLEAN = Counters(running=0, waiting=0, prompt_tokens=0, generation_tokens=0, preemptions=0)


@dataclass(frozen=True)
class Noise:
    """What a machine does to ln TPOT, as in measurement.md §1."""

    request: float = 0.02
    block: float = 0.01
    drift: float = 0.0
    walk: float = 0.0
    step: float = 0.0
    step_share: float = 0.0


CALM = Noise()
TYPICAL = Noise(drift=0.05, walk=0.015, step=0.04, step_share=0.2)
BAD = Noise(drift=0.15, walk=0.03, step=0.08, step_share=0.5)


def record(
    *,
    block: str = "b",
    stream: int = 0,
    number: int = 0,
    send_s: float = 0.0,
    ttft: float = 0.05,
    tpot: float = 0.02,
    tokens: int = 16,
    end: str = "complete",
    chunks: Sequence[Chunk] | None = None,
    usage: bool = True,
    asked: int | None = None,
    all_chunks: bool = False,
) -> RequestRecord:
    """One record; only first and last chunk unless all are asked for."""
    send = round(send_s * 1e9)
    if chunks is None:
        numbers = range(tokens) if all_chunks else (0, tokens - 1) if tokens > 1 else (0,)
        chunks = [Chunk(round((ttft + tpot * k) * 1e9), "t") for k in numbers]
    last = chunks[-1].offset_ns if chunks else 0
    return RequestRecord(
        block=block,
        stream=stream,
        number=number,
        request_id=f"{block}-{stream}-{number}",
        scheduled_ns=send,
        send_ns=send,
        headers_ns=send + 1000,
        first_byte_ns=send + (chunks[0].offset_ns if chunks else 0),
        end_ns=send + last,
        chunks=tuple(chunks),
        requested=asked if asked is not None else tokens,
        prompt_asked=64,
        prompt_tokens=64 if usage else None,
        completion_tokens=tokens if usage else None,
        status=200,
        finish="length" if end == "complete" else None,
        end=end,
    )


def facts(**changes: object) -> BlockFacts:
    """A clean block's facts, changed where a test wants it."""
    values: dict[str, object] = {
        "concurrency": 1,
        "lag_p99_ms": 0.2,
        "client_cpu": 0.05,
        "before": CLEAN,
        "after": CLEAN,
    }
    return BlockFacts(**{**values, **changes})  # type: ignore[arg-type]


class Machine:
    """Level of ln TPOT over the blocks of one run: drift, a random walk back to the mean, and perhaps a step."""

    def __init__(self, noise: Noise, random: np.random.Generator, blocks: int) -> None:
        self._noise = noise
        self._random = random
        self._slope = random.uniform(-noise.drift, noise.drift) / max(1, blocks - 1)
        self._walk = 0.0
        self._step_at = int(random.integers(1, blocks)) if random.random() < noise.step_share else None
        self._step = noise.step * random.choice((-1, 1))
        self._count = 0

    def block(self, turn: Turn, log_ratio: float, requests: int, phase: int = 0) -> BlockResult:
        noise, random = self._noise, self._random
        self._walk = 0.8 * self._walk + random.normal(0, noise.walk * 0.6)
        level = self._slope * self._count + self._walk + random.normal(0, noise.block)
        if self._step_at is not None and self._count >= self._step_at:
            level += self._step
        self._count += 1
        level += log_ratio if turn.arm == "B" else 0.0
        records = [
            record(block=turn.block, number=k, send_s=k, tpot=0.02 * math.exp(level + random.normal(0, noise.request)))
            for k in range(requests)
        ]
        return measure_block(BlockEntry(turn, facts(), 0.0, 1.0, phase), records)


def interleaved(
    noise: Noise, ratio: float, seed: int, settings: LatencySettings, *, requests: int = 8, most: int | None = None
) -> Outcome:
    """One comparison with stopping as `run_latency` stops; the TPOT endpoint."""
    random = np.random.default_rng(seed)
    most = most or settings.pairs_cap
    machine = Machine(noise, random, 2 * most)
    blocks: list[BlockResult] = []
    ends = {1: OPEN}
    for pair in range(most):
        if not active_levels([1], ends):
            break
        blocks += [machine.block(turn, math.log(ratio), requests) for turn in turns_of_pair(seed, pair, [1])]
        ends = settle(blocks, [1], settings, ends)
    ends = {level: BUDGET if end == OPEN else end for level, end in ends.items()}
    return next(one for one in outcomes(blocks, [1], settings, ends) if one.metric == "tpot")


def one_at_a_time(noise: Noise, ratio: float, seed: int, settings: LatencySettings, *, count: int = 8) -> Outcome:
    """One A-B-A comparison; the TPOT endpoint."""
    random = np.random.default_rng(seed)
    machine = Machine(noise, random, 3 * count)
    blocks = [
        machine.block(Turn(phase * PHASE_STEP + number, 1, arm, 0), math.log(ratio), 8, phase)
        for phase, arm in enumerate("ABA")
        for number in range(count)
    ]
    found = alternating_outcomes(blocks, [1], settings, complete=True)
    return next(one for one in found if one.metric == "tpot")


def on_two_gpus(noise: Noise, ratio: float, seed: int, settings: LatencySettings, *, apart: float = 0.03) -> Outcome:
    """One comparison whose second GPU is slower by `apart`, with the arms swapped half-way; the TPOT endpoint."""
    random = np.random.default_rng(seed)
    half = half_of(settings)
    parts = []
    for phase, device in enumerate((apart, -apart)):
        machine = Machine(noise, random, 2 * half.pairs_cap)
        blocks = [
            machine.block(turn, math.log(ratio) + device, 8)
            for pair in range(half.pairs_cap)
            for turn in turns_of_pair(seed + phase, pair, [1])
        ]
        plan = LatencyPlan(64, 16, (Level(1, 1.0),), 60.0, seed)
        parts.append(make_result(blocks, plan, half, settle(blocks, [1], half, {1: OPEN})))
    found = combined(parts[0], parts[1], settings)
    return next(one for one in found.outcomes if one.metric == "tpot")
