"""Two servers that cannot be up together: A, then B, then A again, with a term for the drift between the A phases.

The caller starts and stops the servers and calls `measure` once in each phase. Without the second A phase the result
is descriptive: what changed in between cannot be told from the arms (measurement.md §1, design 3).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vq_console.checks.bench import Bench, Load, hold_devices
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.latency_blocks import METRICS, BlockResult
from vq_console.checks.latency_decide import BUDGET, CANCELLED, DECIDED, Outcome, primary_of, word_of
from vq_console.checks.latency_result import LatencyResult, run_flags
from vq_console.checks.latency_settings import LatencySettings, own_requests
from vq_console.checks.measures import Slo
from vq_console.checks.progress import Progress, Silent
from vq_console.checks.records import measured_records
from vq_console.checks.schedule import PHASE_STEP, LatencyPlan, Turn, choose_plan, refine_plan
from vq_console.checks.statistics import Interval, Ratio, aba_ratio
from vq_console.checks.validity import Flag, run_notes
from vq_console.core.errors import CheckError
from vq_console.core.files import write_json
from vq_console.core.text import counted

PHASES = ("A", "B", "A")
_BLOCKS_MIN, _BLOCKS_QUICK, _BLOCKS_STANDARD = 3, 6, 10


class AlternatingLatency:
    """Collects the phases of a one-at-a-time comparison; `budget_s` is for the load alone, without the restarts."""

    def __init__(self, settings: LatencySettings, folder: Path, progress: Progress | None = None) -> None:
        self._settings = settings
        self._folder = folder
        self._progress = progress or Silent()
        self._blocks: list[BlockResult] = []
        self._plan: LatencyPlan | None = None
        self._count = _BLOCKS_STANDARD if settings.mode == "standard" else _BLOCKS_QUICK
        self._done: list[str] = []
        self._labels: dict[str, str] = {}
        self._end = DECIDED
        self._seconds = 0.0

    def measure(self, name: str, endpoint: Endpoint) -> None:
        """Warm a server up and run its blocks; the phases must come as A, B, A.

        Raises CheckError when the order is another or the server gives no tokens.
        """
        phase = len(self._done)
        if phase >= len(PHASES) or PHASES[phase] != name:
            raise CheckError(f"phase {phase + 1} of {'-'.join(PHASES)} cannot be {name}")
        settings = self._settings
        began = time.monotonic()
        share = settings.budget_s / len(PHASES)
        with hold_devices((endpoint,)), Bench(self._folder, self._progress) as bench:
            bench.add(name, endpoint)
            self._labels.setdefault(name, endpoint.label)
            if self._plan is None:
                probe = bench.probe_times(name, settings.seed)
                # A pair is two blocks of each level; a phase holds `count` single ones.
                fits = (share - 2 * (time.monotonic() - began)) * 2 * (settings.pairs_min + 2) / self._count
                self._plan = choose_plan(settings, (probe,), cpu=endpoint.device == "cpu", left_s=fits)
            plan = self._plan
            slo = Slo(settings.slo_ttft_s, settings.slo_tpot_s)
            load = Load(plan.prompt_tokens, plan.output_tokens, plan.seed, settings.chat, own_requests(settings), slo)
            seen = bench.warm_up(load, [level.concurrency for level in plan.levels], 1 + (phase == 0))
            if phase == 0:
                self._plan = plan = refine_plan(settings, plan, seen, fits)
                self._announce(plan)
            self._blocks_of(bench, plan, load, phase, name, began + share)
        self._done.append(name)
        self._seconds += time.monotonic() - began
        self._keep()

    def _announce(self, plan: LatencyPlan) -> None:
        levels = " and ".join(str(level.concurrency) for level in plan.levels)
        self._progress.event(
            "plan",
            f"one server at a time, A-B-A: {plan.prompt_tokens} tokens in, {plan.output_tokens} out, at {levels} "
            f"stream{'' if levels == '1' else 's'}, up to {counted(self._count, 'block')} a phase",
        )

    def _blocks_of(self, bench: Bench, plan: LatencyPlan, load: Load, phase: int, name: str, deadline: float) -> None:
        for number in range(self._count):
            if number >= _BLOCKS_MIN and time.monotonic() + plan.pair_s / 2 > deadline:
                self._end = BUDGET
                return
            for level in plan.levels:
                self._progress.event(
                    "latency",
                    f"phase {phase + 1} of 3, {self._labels[name]} at {counted(level.concurrency, 'stream')}",
                    arm=name,
                    done=phase * self._count + number,
                    total=len(PHASES) * self._count,
                    eta_s=max(0.0, deadline - time.monotonic()) + (2 - phase) * self._settings.budget_s / 3,
                )
                turn = Turn(phase * PHASE_STEP + number, level.concurrency, name, 0)
                block = bench.measure(turn, load, level, phase=phase)
                if self._progress.cancelled():
                    self._end = CANCELLED
                    return
                self._blocks.append(block)

    def _keep(self) -> None:
        assert self._plan is not None
        write_json(
            self._folder / "latency.json",
            {
                "design": "one-at-a-time",
                "settings": self._settings.to_json(),
                "plan": self._plan.to_json(),
                "phases": self._done,
                "seconds": round(self._seconds, 2),
            },
        )

    def result(self) -> LatencyResult:
        """What may be said after the phases so far. Raises CheckError before the first one."""
        if self._plan is None:
            raise CheckError("no phase has been measured")
        plan, settings = self._plan, self._settings
        complete = len(self._done) == len(PHASES)
        end = self._end if complete else CANCELLED
        ends = {level.concurrency: end for level in plan.levels}
        flags = list(run_flags(self._blocks, ends, settings))
        if not complete:
            flags.append(Flag("no-return-to-a", "without the second A phase a drift cannot be told from a difference"))
        flags += run_notes(measured_records(self._folder))
        concurrencies = [level.concurrency for level in plan.levels]
        return LatencyResult(
            outcomes=alternating_outcomes(self._blocks, concurrencies, settings, complete=complete),
            blocks=tuple(self._blocks),
            plan=plan,
            settings=settings,
            ends=ends,
            flags=tuple(flags),
            design="one-at-a-time",
            seconds=self._seconds,
            extra=_extra(self._labels),
        )


def _extra(labels: Mapping[str, str]) -> dict[str, Any]:
    return {"arms": dict(labels), "shared_device": True}


def alternating_outcomes(
    blocks: Sequence[BlockResult], concurrencies: Sequence[int], settings: LatencySettings, *, complete: bool
) -> tuple[Outcome, ...]:
    """Endpoints of an A-B-A run. `pairs` counts the blocks of B; without the return to A there is no interval."""
    primaries = primary_of(concurrencies)
    out = []
    for concurrency in sorted(concurrencies):
        for metric in METRICS:
            if metric == "throughput" and concurrency == 1:
                continue
            phases = [
                [
                    math.log(value)
                    for block in blocks
                    if block.phase == phase
                    and block.valid
                    and block.turn.concurrency == concurrency
                    and (value := block.values.get(metric))
                ]
                for phase in range(len(PHASES))
            ]
            out.append(_outcome(phases, metric, concurrency, settings, complete, primaries.get(concurrency) == metric))
    return tuple(sorted(out, key=lambda one: (not one.primary, one.concurrency, METRICS.index(one.metric))))


def widened(found: Ratio, phases: Sequence[Sequence[float]]) -> Interval | None:
    """The interval of `aba_ratio` with its block term grown for neighbours that are alike.

    Blocks of one phase follow each other within seconds, so a machine that wanders makes them less than independent:
    the pooled lag-1 correlation, corrected for its bias in short series (Kendall), grows the block term by
    √((1 + r)/(1 − r)). Without it coverage falls to 91 % where the machine's level wanders with r = 0.8 a block.
    """
    if found.interval is None:
        return None
    first, _, second = phases
    centre = math.log(found.value)
    half = math.log(found.interval[1]) - centre
    drift = sum(second) / len(second) - sum(first) / len(first)
    block = math.sqrt(max(0.0, half**2 - drift**2))
    products = squares = 0.0
    for phase in phases:
        middle = sum(phase) / len(phase)
        rest = [value - middle for value in phase]
        products += sum(b * a for a, b in itertools.pairwise(rest))
        squares += sum(value**2 for value in rest)
    if squares > 0:
        count = min(len(phase) for phase in phases)
        r = products / squares
        r = min(0.8, max(0.0, r + (1 + 3 * r) / count))
        block *= math.sqrt((1 + r) / (1 - r))
    half = math.hypot(block, drift)
    return math.exp(centre - half), math.exp(centre + half)


def _outcome(
    phases: Sequence[Sequence[float]],
    metric: str,
    concurrency: int,
    settings: LatencySettings,
    complete: bool,
    primary: bool,
) -> Outcome:
    first, middle, second = phases
    mine = [*first, *second]
    a = math.exp(sum(mine) / len(mine)) if mine else None
    b = math.exp(sum(middle) / len(middle)) if middle else None
    if not (first and middle):
        return Outcome(metric, concurrency, a, b, None, None, len(middle), "inconclusive", primary)
    if not (complete and second):
        ratio = math.exp(sum(middle) / len(middle) - sum(first) / len(first))
        return Outcome(metric, concurrency, a, b, ratio, None, len(middle), "inconclusive", primary, "descriptive")
    found = aba_ratio(first, middle, second)
    interval = widened(found, phases)
    word = word_of(interval, metric, settings.equivalence)
    return Outcome(metric, concurrency, a, b, found.value, interval, len(middle), word, primary, "drift")
