"""Which block comes when, how long it takes, and whether that fits the budget. Pure.

Pairs are randomised: a coin decides whether A or B goes first, another the order of the levels; both follow from the
recorded seed and the pair's number, so a resumed run continues the same schedule.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vq_console.checks.latency_settings import LatencySettings

ARMS = ("A", "B")
PHASE_STEP = 1000
"""Block n of phase p has the number p × 1000 + n."""
_BLOCK_OVERHEAD_S = 0.4
"""Idle check, counters before and after, warming of connections."""
_MOST_SINGLE = 8
_SPARE_PAIRS = 2
"""Pairs beyond the least number that a plan leaves room for: void blocks, and differences that are not large."""


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """What two tiny requests at concurrency 1 said of one arm: seconds to the first token of `prompt_tokens`, and per
    token after it."""

    ttft_s: float
    tpot_s: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency and the shape of its blocks. `lifetime_s` is the longer of the arms' request lifetimes there."""

    concurrency: int
    lifetime_s: float
    requests_per_stream: int | None = None
    stagger_s: float = 0.0
    ramp_s: float = 0.0
    window_s: float | None = None

    @property
    def block_s(self) -> float:
        """Expected length of one block."""
        if self.requests_per_stream is not None:
            return self.requests_per_stream * self.lifetime_s + _BLOCK_OVERHEAD_S
        return self.ramp_s + (self.window_s or 0.0) + 0.2 * self.lifetime_s + _BLOCK_OVERHEAD_S

    def to_json(self) -> dict[str, Any]:
        return {
            "concurrency": self.concurrency,
            "lifetime_s": self.lifetime_s,
            "requests_per_stream": self.requests_per_stream,
            "stagger_s": self.stagger_s,
            "ramp_s": self.ramp_s,
            "window_s": self.window_s,
        }


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """The design that was announced before the first measured block."""

    prompt_tokens: int
    output_tokens: int
    levels: tuple[Level, ...]
    budget_s: float
    seed: int

    @property
    def pair_s(self) -> float:
        """Expected seconds of one pair over all levels."""
        return sum(2 * level.block_s for level in self.levels)

    def pairs_in(self, seconds: float) -> int:
        """Whole pairs that fit into so many seconds."""
        return max(0, math.floor(seconds / self.pair_s)) if self.pair_s > 0 else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "levels": [level.to_json() for level in self.levels],
            "budget_s": self.budget_s,
            "pair_s": round(self.pair_s, 2),
            "seed": self.seed,
        }


def plan_from_json(value: Mapping[str, Any]) -> LatencyPlan:
    """The plan of a recorded run."""
    return LatencyPlan(
        prompt_tokens=int(value["prompt_tokens"]),
        output_tokens=int(value["output_tokens"]),
        levels=tuple(Level(**level) for level in value["levels"]),
        budget_s=float(value["budget_s"]),
        seed=int(value["seed"]),
    )


def expected_lifetime(probe: ProbeTimes, prompt: int, output: int, concurrency: int, *, cpu: bool) -> float:
    """A first guess of a request's lifetime under load, before any block has shown it.

    Prefill grows with the prompt; a decode step grows with the batch by about 1 % a request on a GPU, 8 % on a CPU.
    """
    growth = 1 + (0.08 if cpu else 0.01) * (concurrency - 1)
    prefill = probe.ttft_s * max(0.3, prompt / probe.prompt_tokens) if probe.prompt_tokens else probe.ttft_s
    return prefill * (1 if concurrency == 1 else 1.5) + output * probe.tpot_s * growth


def shape_level(
    settings: LatencySettings, concurrency: int, lifetime_s: float, *, lifetimes: float | None = None
) -> Level:
    """The blocks of one level: a few requests at concurrency 1, else ramp and steady window.

    Streams start spread over half a lifetime, so that they do not move in step; the window opens when half of the
    first wave has ended (after 1.25 lifetimes) and covers at least two lifetimes.
    """
    if concurrency == 1:
        count = settings.single_requests
        if count > 1:
            # A block of a fast engine would be over before its clocks have settled.
            count = max(count, min(_MOST_SINGLE, math.ceil(settings.single_min_s / max(lifetime_s, 1e-3))))
        return Level(1, lifetime_s, requests_per_stream=count)
    wanted = max(2.0, lifetimes if lifetimes is not None else settings.window_lifetimes)
    window = max(settings.window_min_s, wanted * lifetime_s)
    return Level(concurrency, lifetime_s, stagger_s=0.5 * lifetime_s, ramp_s=1.25 * lifetime_s, window_s=window)


def candidate_levels(settings: LatencySettings, *, cpu: bool) -> tuple[tuple[int, ...], ...]:
    """Level sets to try, most demanding first."""
    if settings.levels is not None:
        return (settings.levels,)
    if settings.mode == "standard":
        return ((1, 4, 8), (1, 4)) if cpu else ((1, 8, 32), (1, 16), (1, 8))
    return ((1, 8), (1, 4)) if cpu else ((1, 16), (1, 8), (1, 4))


def warmup_s(settings: LatencySettings, lifetimes: Sequence[float]) -> float:
    """Seconds of all warm-up blocks of both arms: one lifetime for each block and level."""
    return 2 * settings.warmup_blocks * sum(lifetime + _BLOCK_OVERHEAD_S for lifetime in lifetimes)


def choose_plan(settings: LatencySettings, probes: Sequence[ProbeTimes], *, cpu: bool, left_s: float) -> LatencyPlan:
    """The longest prompts and highest levels of which the least number of pairs fits into `left_s`, with two to spare.

    Shorter requests come before fewer pairs to spare, those before single requests at concurrency 1, and two streams
    (the fewest that share a batch) last. Where nothing fits the shortest is taken; the caller then says that the
    budget ends the run early.
    """
    shortest: LatencyPlan | None = None
    for spare, single, prompt, output, levels in _candidates(settings, cpu=cpu):
        shape = replace(settings, single_requests=single)
        lifetimes = {
            level: max(expected_lifetime(probe, prompt, output, level, cpu=cpu) for probe in probes) for level in levels
        }
        warm = warmup_s(settings, list(lifetimes.values()))
        for window in dict.fromkeys((settings.window_lifetimes, 2.0)):
            shaped = tuple(shape_level(shape, level, lifetimes[level], lifetimes=window) for level in levels)
            plan = LatencyPlan(prompt, output, shaped, settings.budget_s, settings.seed)
            if (settings.pairs_min + spare) * plan.pair_s + warm <= left_s:
                return plan
            if shortest is None or plan.pair_s < shortest.pair_s:
                shortest = plan
    assert shortest is not None
    return shortest


def _candidates(settings: LatencySettings, *, cpu: bool) -> Iterator[tuple[int, int, int, int, tuple[int, ...]]]:
    """Pairs to spare, requests at concurrency 1, prompt, output, levels: the most that is asked of an engine first."""
    sets = candidate_levels(settings, cpu=cpu)
    fewest = ((1, 2),) if cpu and settings.levels is None else ()
    several = settings.single_requests
    for spare, single, levels in (
        *((_SPARE_PAIRS, several, sets), (0, several, sets), (0, 1, sets)),
        *((0, several, fewest), (0, 1, fewest)),
    ):
        for prompt, output in settings.lengths:
            for level_set in levels:
                yield spare, single, prompt, output, level_set


def refine_plan(
    settings: LatencySettings,
    plan: LatencyPlan,
    seen_lifetimes: Mapping[int, float],
    left_s: float,
    *,
    cpu: bool = False,
) -> LatencyPlan:
    """The plan with windows for the lifetimes that the warm-up showed, shortened to two where time is short.

    `cpu` lets two streams take the place of more where these would not end in time: how a CPU's kernels take to a
    batch is only known once it was tried. Their lifetime then lies between those that were seen.
    """
    single = next((level.requests_per_stream for level in plan.levels if level.requests_per_stream is not None), None)
    shape = replace(settings, single_requests=1) if single == 1 else settings
    for window in dict.fromkeys((settings.window_lifetimes, 2.0)):
        levels = tuple(
            shape_level(
                shape,
                level.concurrency,
                seen_lifetimes.get(level.concurrency, level.lifetime_s),
                lifetimes=window,
            )
            for level in plan.levels
        )
        refined = replace(plan, levels=levels)
        if (settings.pairs_min + _SPARE_PAIRS) * refined.pair_s <= left_s:
            break
    low, top = refined.levels[0], refined.levels[-1]
    too_long = settings.pairs_min * refined.pair_s > left_s
    if too_long and cpu and settings.levels is None and low.concurrency == 1 and top.concurrency > 2:
        between = low.lifetime_s + (top.lifetime_s - low.lifetime_s) / (top.concurrency - 1)
        refined = replace(refined, levels=(low, shape_level(shape, 2, between, lifetimes=2.0)))
    return refined


@dataclass(frozen=True, slots=True)
class Turn:
    """One block of the schedule. `place` is 0 for the first of its pair."""

    pair: int
    concurrency: int
    arm: str
    place: int
    attempt: int = 0

    @property
    def block(self) -> str:
        """The block's name in the records."""
        again = f"r{self.attempt}" if self.attempt else ""
        return f"p{self.pair:03d}-c{self.concurrency}-{self.arm}{again}"

    @property
    def prompt_key(self) -> str:
        """Both halves of a pair share their prompts; a repeated pair gets new ones.

        The phases A, B, A of servers that take turns share theirs too: a restart empties every cache.
        """
        return f"pair{self.pair % PHASE_STEP if self.pair >= 0 else self.pair}.{self.attempt}/c{self.concurrency}"


def turns_of_pair(seed: int, pair: int, concurrencies: Sequence[int], *, attempt: int = 0) -> tuple[Turn, ...]:
    """The blocks of one pair in order, by coins that follow from seed and number."""
    coin = random.Random(f"{seed}/{pair}/{attempt}")
    order = list(concurrencies)
    coin.shuffle(order)
    out = []
    for concurrency in order:
        arms = ARMS if coin.random() < 0.5 else ARMS[::-1]
        out += [Turn(pair, concurrency, arm, place, attempt) for place, arm in enumerate(arms)]
    return tuple(out)
