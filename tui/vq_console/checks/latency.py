"""The latency comparison of two servers: probe, plan, warm-up, interleaved pairs, anytime-valid stop.

Starts and stops no server. Everything measured is on disk before the next block begins; calling it again on the same
folder continues where it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vq_console.checks import latency_swap
from vq_console.checks.bench import Bench, Load, devices_of, hold_devices, share_device
from vq_console.checks.endpoint import Endpoint, same_chat
from vq_console.checks.latency_blocks import BlockResult, measure_folder
from vq_console.checks.latency_decide import (
    BUDGET,
    CANCELLED,
    DECIDED,
    OPEN,
    active_levels,
    log_differences,
    outcomes,
    pair_values,
    pairs_left,
    primary_of,
    settle,
)
from vq_console.checks.latency_one import check_latency
from vq_console.checks.latency_result import LatencyResult, make_result
from vq_console.checks.latency_settings import LatencySettings, own_requests, settings_from_json
from vq_console.checks.measures import Slo
from vq_console.checks.progress import Progress, Silent
from vq_console.checks.prompts import same_pool
from vq_console.checks.records import measured_records
from vq_console.checks.schedule import LatencyPlan, choose_plan, plan_from_json, refine_plan, turns_of_pair, warmup_s
from vq_console.checks.validity import Flag, machine_notes, run_notes
from vq_console.core.errors import CheckError
from vq_console.core.files import read_json, write_json
from vq_console.core.text import counted

__all__ = ["LatencyResult", "LatencySettings", "check_latency", "reanalyse", "run_latency"]

PLAN_FILE = "latency.json"
_MOST_REPEATS = 3
_MOST_VOID_PAIRS = 6


def run_latency(
    a: Endpoint, b: Endpoint, settings: LatencySettings, folder: Path, progress: Progress | None = None
) -> LatencyResult:
    """Compare B with A and return what may be said.

    Raw records go to `folder`. A folder with a started run of the same settings is continued. Raises CheckError when a
    server gives no tokens, when another check loads the same device, or when the folder holds another run.
    """
    own_requests(settings)
    with hold_devices((a, b)), Bench(folder, progress or Silent()) as bench:
        return _Comparison(bench, a, b, settings).run()


def reanalyse(folder: Path) -> LatencyResult:
    """The result of a finished or interrupted run, computed again from its raw records alone.

    Raises CheckError when the folder holds none.
    """
    first = _reanalyse_part(folder)
    if not (folder / latency_swap.FOLDER / PLAN_FILE).exists():
        return first
    half = first.settings
    whole = replace(half, pairs_min=half.pairs_min, pairs_cap=2 * half.pairs_cap, budget_s=2 * half.budget_s)
    return latency_swap.combined(first, _reanalyse_part(folder / latency_swap.FOLDER), whole)


def _reanalyse_part(folder: Path) -> LatencyResult:
    try:
        value = read_json(folder / PLAN_FILE)
        settings = settings_from_json(value["settings"])
        plan = plan_from_json(value["plan"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckError(f"{folder / PLAN_FILE}: no latency run can be read ({error})") from error
    slo = Slo(settings.slo_ttft_s, settings.slo_tpot_s)
    blocks = measure_folder(folder, slo)
    ends = {int(level): str(end) for level, end in (value.get("ends") or {}).items()}
    for level in plan.levels:
        ends.setdefault(level.concurrency, CANCELLED)
    notes = [Flag(str(flag["flag"]), str(flag["detail"])) for flag in value.get("notes") or ()]
    return make_result(
        blocks, plan, settings, ends, flags=notes, seconds=float(value.get("seconds") or 0.0), extra=value.get("extra")
    )


class _Comparison:
    """One run; its fields are what later steps need of earlier ones."""

    def __init__(self, bench: Bench, a: Endpoint, b: Endpoint, settings: LatencySettings) -> None:
        self._bench = bench
        self._progress = bench.progress
        self._endpoints = {"A": a, "B": b}
        self._settings = settings
        self._slo = Slo(settings.slo_ttft_s, settings.slo_tpot_s)
        self._began = time.monotonic()
        self._blocks: list[BlockResult] = []
        self._notes: list[Flag] = []
        self._ends: dict[int, str] = {}
        self._spent_before = 0.0
        self._plan_file = bench.folder / PLAN_FILE
        self._void_pairs = 0

    def _left(self) -> float:
        return self._settings.budget_s - self._spent()

    def _spent(self) -> float:
        return self._spent_before + time.monotonic() - self._began

    def run(self) -> LatencyResult:
        """All steps in order."""
        recorded = self._recorded()
        for name, endpoint in self._endpoints.items():
            self._bench.add(name, endpoint)
        self._notes += self._fairness()
        plan = self._plan(recorded)
        self._ends = {level.concurrency: OPEN for level in plan.levels}
        self._keep(plan)
        self._announce(plan)
        try:
            self._pairs(plan)
        finally:
            seconds = round(self._spent(), 2)
            for level, end in self._ends.items():
                if end == OPEN:
                    self._ends[level] = CANCELLED
            self._notes += run_notes(measured_records(self._bench.folder))
            self._keep(plan, seconds)
        return make_result(
            self._blocks,
            plan,
            self._settings,
            self._ends,
            flags=self._notes,
            seconds=seconds,
            extra=self._extra(),
        )

    def _extra(self) -> dict[str, Any]:
        return {
            "arms": {name: endpoint.label for name, endpoint in self._endpoints.items()},
            "shared_device": share_device(self._endpoints["A"], self._endpoints["B"]),
            "devices": list(devices_of(tuple(self._endpoints.values()))),
        }

    def _recorded(self) -> dict[str, Any] | None:
        if not self._plan_file.exists():
            return None
        value = read_json(self._plan_file)
        if value.get("digest") != self._settings.digest():
            raise CheckError(
                f"{self._bench.folder} holds a latency run with other settings",
                "Continue it with its own settings, or give another folder; thresholds are fixed before a run.",
            )
        self._blocks = measure_folder(self._bench.folder, self._slo)
        # A killed run wrote no total; its blocks say at least how long it worked.
        self._spent_before = max(float(value.get("seconds") or 0.0), sum(block.seconds for block in self._blocks))
        return value

    def _keep(self, plan: LatencyPlan, seconds: float = 0.0) -> None:
        write_json(
            self._plan_file,
            {
                "settings": self._settings.to_json(),
                "digest": self._settings.digest(),
                "plan": plan.to_json(),
                "arms": {
                    name: {
                        "label": arm.endpoint.label,
                        "url": arm.endpoint.url,
                        "model": arm.endpoint.model,
                        "version": arm.capabilities.version,
                    }
                    for name, arm in self._bench.arms.items()
                },
                "ends": {str(level): end for level, end in self._ends.items()},
                "notes": [flag.to_json() for flag in self._notes],
                "seconds": seconds,
                "extra": self._extra(),
            },
        )

    def _fairness(self) -> list[Flag]:
        a, b = self._bench.arms["A"], self._bench.arms["B"]
        out = []
        if not same_pool(a.pool, b.pool):
            out.append(
                Flag("different-tokenizers", "prompts have the same length but not the same tokens on both arms")
            )
        if self._settings.chat and not same_chat(a.endpoint, b.endpoint):
            out.append(Flag("different-chat-templates", "the same messages become different tokens on the two arms"))
        for arm in (a, b):
            able = arm.capabilities
            if not able.exact_length:
                out.append(Flag("length-not-forced", f"{arm.endpoint.label} does not know ignore_eos and min_tokens"))
            if not able.cache_salt:
                out.append(Flag("no-cache-salt", f"{arm.endpoint.label}: only fresh prompts keep its cache out"))
            if not able.metrics:
                out.append(Flag("no-metrics", f"{arm.endpoint.label}: preemptions, cache and other load are unknown"))
            if not able.token_prompts:
                out.append(
                    Flag("lengths-estimated", f"{arm.endpoint.label} takes no token IDs; prompt length is estimated")
                )
        return out

    def _cpu(self) -> bool:
        return any(endpoint.device == "cpu" for endpoint in self._endpoints.values())

    def _plan(self, recorded: Mapping[str, Any] | None) -> LatencyPlan:
        settings, bench = self._settings, self._bench
        if recorded is not None:
            plan = plan_from_json(recorded["plan"])
            bench.warm_up(self._load(plan), [level.concurrency for level in plan.levels], 1)
            return plan
        probes = []
        for name, endpoint in self._endpoints.items():
            busy = bench.busy_gpu(name)
            probes.append(bench.probe_times(name, settings.seed))
            stall = bench.stall_ms(name, settings.seed)
            self._notes += machine_notes(endpoint.label, stall_ms=stall, gpu_pct=busy)
            times = f"first token {probes[-1].ttft_s * 1000:.0f} ms, then {probes[-1].tpot_s * 1000:.1f} ms per token"
            self._progress.event("probe", f"{self._endpoints[name].label}: {times}", arm=name)
        plan = choose_plan(settings, probes, cpu=self._cpu(), left_s=self._left())
        concurrencies = [level.concurrency for level in plan.levels]
        lifetimes = [level.lifetime_s for level in plan.levels]
        blocks = settings.warmup_blocks
        if settings.pairs_min * plan.pair_s + warmup_s(settings, lifetimes) > self._left():
            blocks = 1
        seen = bench.warm_up(self._load(plan), concurrencies, blocks)
        return refine_plan(settings, plan, seen, self._left(), cpu=self._cpu())

    def _load(self, plan: LatencyPlan) -> Load:
        settings = self._settings
        return Load(
            plan.prompt_tokens, plan.output_tokens, plan.seed, settings.chat, own_requests(settings), slo=self._slo
        )

    def _announce(self, plan: LatencyPlan) -> None:
        settings = self._settings
        levels = " and ".join(str(level.concurrency) for level in plan.levels)
        fits = plan.pairs_in(self._left())
        words = (
            f"{plan.prompt_tokens} tokens in, {plan.output_tokens} out, at {levels} "
            f"stream{'' if levels == '1' else 's'}; "
            f"about {plan.pair_s:.0f} s a pair, {settings.pairs_min} to {settings.pairs_cap} pairs, "
            f"budget {settings.budget_s / 60:.1f} min of which {max(0.0, self._left()) / 60:.1f} are left"
        )
        if fits < settings.pairs_min:
            words += f"; it holds about {counted(fits, 'pair')}, too few for a verdict"
        self._progress.event("plan", words, total=settings.pairs_cap, eta_s=self._eta(plan))

    def _eta(self, plan: LatencyPlan) -> float:
        active = self._active(plan)
        each = sum(2 * level.block_s for level in plan.levels if level.concurrency in active)
        need = 0
        primaries = primary_of([level.concurrency for level in plan.levels])
        for concurrency in active:
            metric = primaries.get(concurrency)
            if metric is None:
                continue
            differences = log_differences(pair_values(self._blocks, metric, concurrency))
            guess = pairs_left(differences, self._settings)
            need = max(need, self._settings.pairs_min - len(differences) if guess is None else guess)
        return max(0.0, min(self._left(), need * each))

    def _active(self, plan: LatencyPlan) -> list[int]:
        return active_levels([level.concurrency for level in plan.levels], self._ends)

    def _pairs(self, plan: LatencyPlan) -> None:
        settings = self._settings
        first = 1 + max((block.turn.pair for block in self._blocks), default=-1)
        # A pair that a kill left half done is not used; its number is not used again either.
        self._settle(plan)
        for pair in range(first, first + settings.pairs_cap + _MOST_VOID_PAIRS):
            active = self._active(plan)
            if not active:
                break
            expected = sum(2 * level.block_s for level in plan.levels if level.concurrency in active)
            if expected > self._left():
                self._close(active, BUDGET)
                break
            if not self._pair(plan, pair, active):
                break
            self._settle(plan)
            self._tell(plan, pair)
            if self._void_pairs >= _MOST_VOID_PAIRS:
                self._notes.append(
                    Flag("too-many-void", "six pairs in a row were void; see the reasons of their blocks")
                )
                self._close(self._active(plan), BUDGET)
                break
        for concurrency, end in self._ends.items():
            if end == OPEN:
                self._ends[concurrency] = CANCELLED if self._progress.cancelled() else DECIDED

    def _close(self, concurrencies: Sequence[int], why: str) -> None:
        for concurrency in concurrencies:
            self._ends[concurrency] = why

    def _settle(self, plan: LatencyPlan) -> None:
        concurrencies = [level.concurrency for level in plan.levels]
        self._ends = settle(self._blocks, concurrencies, self._settings, self._ends)

    def _pair(self, plan: LatencyPlan, pair: int, active: Sequence[int]) -> bool:
        """Run one pair at the active levels, void ones again; False when the run must end."""
        levels = {level.concurrency: level for level in plan.levels}
        todo = list(active)
        for attempt in range(_MOST_REPEATS):
            for turn in turns_of_pair(plan.seed, pair, todo, attempt=attempt):
                label = self._endpoints[turn.arm].label
                self._progress.event(
                    "latency",
                    f"pair {pair + 1}: {label} at {counted(turn.concurrency, 'stream')}",
                    arm=turn.arm,
                    done=pair,
                    total=self._settings.pairs_cap,
                    eta_s=self._eta(plan),
                )
                block = self._bench.measure(turn, self._load(plan), levels[turn.concurrency])
                if self._progress.cancelled():
                    return False
                self._blocks.append(block)
                if not block.valid:
                    reasons = "; ".join(f"{flag.flag}: {flag.detail}" for flag in block.void)
                    self._progress.event("void", f"{turn.block} does not count ({reasons})", arm=turn.arm)
                    if not self._alive(turn.arm):
                        self._notes.append(Flag("server-lost", f"{label} does not answer any more"))
                        self._close(active, CANCELLED)
                        return False
            todo = [
                concurrency
                for concurrency in todo
                if any(
                    not block.valid
                    for block in self._blocks
                    if block.turn.pair == pair
                    and block.turn.attempt == attempt
                    and block.turn.concurrency == concurrency
                )
            ]
            self._void_pairs = self._void_pairs + 1 if todo else 0
            if not todo or sum(2 * levels[c].block_s for c in todo) > self._left():
                return True
            if self._void_pairs >= _MOST_VOID_PAIRS:
                return True
        return True

    def _alive(self, name: str) -> bool:
        endpoint = self._endpoints[name]
        return any(endpoint.get("/v1/models", timeout=10.0).ok for _ in range(2))

    def _tell(self, plan: LatencyPlan, pair: int) -> None:
        """Anytime-valid intervals only: nothing else may be shown while the run goes on (trap 15)."""
        concurrencies = [level.concurrency for level in plan.levels]
        found = [
            one
            for one in outcomes(self._blocks, concurrencies, self._settings, self._ends)
            if one.primary and one.pairs
        ]
        words = ", ".join(
            f"{one.metric} at {one.concurrency}: B/A {one.ratio:.3f}"
            + (f" ({one.ci[0]:.3f} to {one.ci[1]:.3f}, {one.word})" if one.ci else " (no interval yet)")
            for one in found
            if one.ratio is not None
        )
        self._progress.event(
            "pair",
            words or "no valid pair yet",
            done=pair + 1,
            total=self._settings.pairs_cap,
            eta_s=self._eta(plan),
            interim={"endpoints": [one.to_json() for one in found]},
        )
