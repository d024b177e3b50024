"""The latency check of one server: no comparison, so figures with intervals over blocks and quantiles over requests."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.checks.bench import Bench, Load, hold_devices
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.latency_blocks import METRICS, BlockResult
from vq_console.checks.latency_result import pooled_percentiles
from vq_console.checks.latency_settings import LatencySettings, own_requests
from vq_console.checks.measures import Slo, geometric_mean
from vq_console.checks.progress import Progress, Silent
from vq_console.checks.records import measured_records
from vq_console.checks.schedule import LatencyPlan, Turn, choose_plan, refine_plan, warmup_s
from vq_console.checks.validity import Flag, run_notes
from vq_console.checks.worth import knee, worth
from vq_console.core.files import write_json
from vq_console.core.text import counted

_BLOCKS_QUICK, _BLOCKS_STANDARD = 3, 6


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """What one server gave; `summary` and `samples` are the contract's keys of `check latency`."""

    endpoint: Endpoint
    blocks: tuple[BlockResult, ...]
    plan: LatencyPlan
    settings: LatencySettings
    flags: tuple[Flag, ...]
    partial: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """`samples` (one entry a block) and `summary` (one entry a level and metric, quantiles beside it)."""
        return {
            "arm": self.endpoint.label,
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            "simulated": self.endpoint.simulated,
            "samples": [
                {**block.to_json(), "requests_s": {key: list(values) for key, values in block.samples.items()}}
                for block in self.blocks
            ],
            "summary": {
                "levels": summarise(self.blocks),
                "percentiles": pooled_percentiles(self.blocks),
                "plan": self.plan.to_json(),
                "worth": worth(self.blocks, self.settings),
                "knee": knee(curve(self.blocks)),
                "blocks": len(self.blocks),
                "void": sum(not block.valid for block in self.blocks),
                "seconds": round(self.seconds, 1),
            },
            "validity": [flag.to_json() for flag in self.flags],
            "partial": self.partial,
        }


def curve(blocks: Sequence[BlockResult]) -> dict[int, tuple[float, float]]:
    """(tokens/s, E2E seconds) of each level, geometric means over valid blocks."""
    out = {}
    for concurrency in sorted({block.turn.concurrency for block in blocks}):
        mine = [block for block in blocks if block.valid and block.turn.concurrency == concurrency]
        e2e = geometric_mean(block.values.get("e2e") for block in mine)
        rate = geometric_mean(block.values.get("throughput") for block in mine)
        if rate is None and concurrency == 1:
            tpot = geometric_mean(block.values.get("tpot") for block in mine)
            rate = 1 / tpot if tpot else None
        if e2e and rate:
            out[concurrency] = (rate, e2e)
    return out


def summarise(blocks: Sequence[BlockResult]) -> list[dict[str, Any]]:
    """Geometric mean over valid blocks with a t interval on the logarithms; blocks are the units."""
    from vq_console.checks.statistics import t_interval

    out: list[dict[str, Any]] = []
    for concurrency in sorted({block.turn.concurrency for block in blocks}):
        for metric in METRICS:
            values = [
                value
                for block in blocks
                if block.valid and block.turn.concurrency == concurrency and (value := block.values.get(metric))
            ]
            if not values:
                continue
            logs = [math.log(value) for value in values]
            interval = t_interval(logs)
            out.append(
                {
                    "metric": metric,
                    "concurrency": concurrency,
                    "value": math.exp(sum(logs) / len(logs)),
                    "ci": [math.exp(interval[0]), math.exp(interval[1])] if interval else None,
                    "blocks": len(values),
                }
            )
    return out


def check_latency(
    endpoint: Endpoint, settings: LatencySettings, folder: Path, progress: Progress | None = None
) -> LatencyFigures:
    """Measure one server: warm-up, then a few blocks at each level in turn. Raises CheckError as `run_latency`."""
    told = progress or Silent()
    began = time.monotonic()
    requests = own_requests(settings)
    with hold_devices((endpoint,)), Bench(folder, told) as bench:
        bench.add("A", endpoint)
        probe = bench.probe_times("A", settings.seed)
        count = _BLOCKS_STANDARD if settings.mode == "standard" else _BLOCKS_QUICK
        cpu = endpoint.device == "cpu"
        # The planner thinks in pairs of blocks: half the blocks, twice the time for each.
        plan = choose_plan(settings, (probe,), cpu=cpu, left_s=settings.budget_s * 2)
        slo = Slo(settings.slo_ttft_s, settings.slo_tpot_s)
        load = Load(plan.prompt_tokens, plan.output_tokens, settings.seed, settings.chat, requests, slo)
        concurrencies = [level.concurrency for level in plan.levels]
        few = warmup_s(settings, [level.lifetime_s for level in plan.levels]) > settings.budget_s / 3
        seen = bench.warm_up(load, concurrencies, 1 if few else settings.warmup_blocks)
        plan = refine_plan(settings, plan, seen, settings.budget_s)
        total = count * len(plan.levels)
        told.event(
            "plan", f"{load.prompt_tokens} tokens in, {load.output_tokens} out, {counted(total, 'block')}", total=total
        )
        blocks: list[BlockResult] = []
        for number in range(count):
            for level in plan.levels:
                left = settings.budget_s - (time.monotonic() - began)
                if told.cancelled() or left < level.block_s:
                    break
                turn = Turn(number, level.concurrency, "A", 0)
                message = f"block {len(blocks) + 1} at {counted(level.concurrency, 'stream')}"
                told.event("latency", message, arm="A", done=len(blocks), total=total, eta_s=min(left, plan.pair_s))
                block = bench.measure(turn, load, level)
                if not told.cancelled():
                    blocks.append(block)
        flags = list(run_notes(measured_records(folder)))
        flags += [Flag(flag.flag, f"{block.turn.block}: {flag.detail}") for block in blocks for flag in block.void]
        if len(blocks) < total and not told.cancelled():
            flags.append(Flag("budget-ended", f"{len(blocks)} of {total} blocks fitted into the budget"))
        result = LatencyFigures(
            endpoint=endpoint,
            blocks=tuple(blocks),
            plan=plan,
            settings=settings,
            flags=tuple(flags),
            partial=len(blocks) < total,
            seconds=time.monotonic() - began,
        )
        write_json(folder / "check.json", result.to_json())
        return result
