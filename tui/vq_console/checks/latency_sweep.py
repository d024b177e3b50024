"""Throughput against latency of one server over doubling concurrencies, until more streams bring nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vq_console.checks.bench import Bench, Load, hold_devices
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.latency_blocks import BlockResult
from vq_console.checks.latency_one import LatencyFigures
from vq_console.checks.latency_settings import LatencySettings, own_requests
from vq_console.checks.measures import Slo, geometric_mean
from vq_console.checks.progress import Progress, Silent
from vq_console.checks.records import measured_records
from vq_console.checks.schedule import Level, Turn, choose_plan, shape_level
from vq_console.checks.validity import Flag, run_notes
from vq_console.core.files import write_json
from vq_console.core.text import counted

MOST_STREAMS = 256
_GAIN = 0.03
_BLOCKS = 2


def still_gains(rates: Sequence[float]) -> bool:
    """Whether a further doubling is worth measuring: not after two doublings that each gained less than 3 %."""
    if len(rates) < 3:
        return True
    return any(rates[-k] > rates[-k - 1] * (1 + _GAIN) for k in (1, 2))


def sweep_latency(
    endpoint: Endpoint, settings: LatencySettings, folder: Path, progress: Progress | None = None
) -> LatencyFigures:
    """Measure 1, 2, 4, … streams, two blocks each, and stop when throughput has ended to grow or the budget has.

    Ends too when the server preempts requests, since its KV cache is then full. Raises CheckError as `run_latency`.
    """
    told = progress or Silent()
    began = time.monotonic()
    requests = own_requests(settings)
    with hold_devices((endpoint,)), Bench(folder, told) as bench:
        bench.add("A", endpoint)
        probe = bench.probe_times("A", settings.seed)
        cpu = endpoint.device == "cpu"
        # Lengths are chosen as if for a comparison at 1 and 16 streams within the same budget.
        plan = choose_plan(replace(settings, levels=(1, 8 if cpu else 16)), (probe,), cpu=cpu, left_s=settings.budget_s)
        slo = Slo(settings.slo_ttft_s, settings.slo_tpot_s)
        load = Load(plan.prompt_tokens, plan.output_tokens, settings.seed, settings.chat, requests, slo)
        told.event("plan", f"{load.prompt_tokens} tokens in, {load.output_tokens} out, at 1, 2, 4, … streams")
        blocks: list[BlockResult] = []
        levels: list[Level] = []
        rates: list[float] = []
        ended = ""
        concurrency = 1
        while concurrency <= MOST_STREAMS and still_gains(rates):
            seen = bench.warm_up(load, [concurrency], 1)
            level = shape_level(settings, concurrency, seen.get(concurrency, plan.levels[0].lifetime_s), lifetimes=2.0)
            if time.monotonic() - began + _BLOCKS * level.block_s > settings.budget_s:
                ended = "budget-ended"
                break
            levels.append(level)
            here: list[BlockResult] = []
            for number in range(_BLOCKS):
                told.event("latency", f"{counted(concurrency, 'stream')}, block {number + 1} of {_BLOCKS}", arm="A")
                block = bench.measure(Turn(number, concurrency, "A", 0), load, level)
                if told.cancelled():
                    break
                here.append(block)
            blocks += here
            if told.cancelled():
                ended = "cancelled"
                break
            rate = geometric_mean(_rate(block) for block in here)
            if rate is not None:
                rates.append(rate)
            if any(flag.flag == "preemptions" for block in here for flag in block.void):
                ended = "kv-cache-full"
                break
            concurrency *= 2
        flags = list(run_notes(measured_records(folder)))
        if ended:
            flags.append(Flag(ended, f"the sweep ended at {counted(concurrency, 'stream')}"))
        result = LatencyFigures(
            endpoint=endpoint,
            blocks=tuple(blocks),
            plan=replace(plan, levels=tuple(levels)),
            settings=settings,
            flags=tuple(flags),
            partial=ended in {"cancelled", "budget-ended"},
            seconds=time.monotonic() - began,
        )
        write_json(folder / "check.json", result.to_json())
        return result


def _rate(block: BlockResult) -> float | None:
    """Tokens per second of a block; with one stream from the time per token."""
    rate = block.values.get("throughput")
    tpot = block.values.get("tpot")
    return rate if rate is not None else 1 / tpot if tpot else None
