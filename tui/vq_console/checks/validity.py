"""When a block does not count, and what has to be said about a run. Pure.

Limits are those of measurement.md §6: more than 1 % failed or short requests, more than 1 % prefix-cache hits, any
preemption, loop lag p99 above max(2 ms, 10 % of TPOT), generator CPU above 80 %, a server that restarted, load that is
not ours, a concurrency that was not reached, a clock that moved by more than 3 %. At its power limit a GPU's clock
moves with the load: such blocks count, and the run says so with its clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.counters import Counters, change
from vq_console.checks.measures import token_count
from vq_console.checks.records import COMPLETE, FAILED, RequestRecord
from vq_console.core.text import counted

FAILED_SHARE = 0.01
CACHE_SHARE = 0.01
LAG_FLOOR_MS = 2.0
LAG_SHARE_OF_TPOT = 0.1
CPU_SHARE = 0.8
CLOCK_SHARE = 0.03
OTHER_LOAD_SHARE = 0.01
CONCURRENCY_SHARE = 0.1
POWER_CAP = frozenset({"power cap"})
"""Reasons of a slower clock that belong to the load, as `hardware/nvml.py` names them."""
STALL_MS = (30.0, 60.0)
BUSY_GPU_PCT = 10


@dataclass(frozen=True, slots=True)
class Flag:
    """One thing to say: a slug and the figures behind it."""

    flag: str
    detail: str

    def to_json(self) -> dict[str, str]:
        return {"flag": self.flag, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What is known of a block beside its records. `idle` is the other arm on the same device, if any."""

    concurrency: int
    lag_p99_ms: float | None
    client_cpu: float | None
    before: Counters
    after: Counters
    idle_before: Counters | None = None
    idle_after: Counters | None = None
    problem: str | None = None
    clock_before_mhz: int | None = None
    clock_after_mhz: int | None = None
    throttle: tuple[str, ...] = ()


def void_reasons(
    records: Sequence[RequestRecord], facts: BlockFacts, *, tpot_s: float | None, in_flight: float | None = None
) -> tuple[Flag, ...]:
    """Why this block must not be used; empty when it may. `in_flight` is the mean concurrency in the steady window."""
    if facts.problem:
        return (Flag("no-load", facts.problem),)
    return (
        *_requests(records),
        *_server(records, facts),
        *_generator(facts, tpot_s, in_flight),
        *_machine(facts),
    )


def _requests(records: Sequence[RequestRecord]) -> list[Flag]:
    if not records:
        return [Flag("no-load", "no request was sent")]
    out = []
    failed = [record for record in records if record.end == FAILED]
    if len(failed) > FAILED_SHARE * len(records):
        out.append(Flag("failed-requests", f"{len(failed)} of {len(records)} failed: {failed[0].error}"))
    whole = [record for record in records if record.end == COMPLETE]
    short = [record for record in whole if (token_count(record)[0] or record.requested) != record.requested]
    if whole and len(short) > FAILED_SHARE * len(whole):
        got = token_count(short[0])[0]
        out.append(
            Flag(
                "short-requests",
                f"{len(short)} of {len(whole)}: {counted(got or 0, 'token')}, {short[0].requested} asked",
            )
        )
    if not any(record.token_chunks for record in records) and not failed:
        out.append(Flag("no-load", "no token came"))
    return out


def _server(records: Sequence[RequestRecord], facts: BlockFacts) -> list[Flag]:
    before, after = facts.before, facts.after
    if not (before.known and after.known):
        return []
    out = []
    started, now = before.process_start, after.process_start
    shrunk = (change(before, after, "generation_tokens") or 0) < 0
    if shrunk or (started is not None and now is not None and abs(now - started) > 1):
        return [Flag("server-restarted", "its counters began anew")]
    hits, queries = change(before, after, "prefix_hits"), change(before, after, "prefix_queries")
    if hits and queries and hits > CACHE_SHARE * queries:
        out.append(Flag("prefix-cache-hits", f"{hits:.0f} of {queries:.0f} prompt tokens came from the cache"))
    preempted = change(before, after, "preemptions")
    if preempted:
        out.append(
            Flag(
                "preemptions",
                f"{counted(preempted, 'request', '.0f')} preempted: the KV cache is too small for this load",
            )
        )
    out += _other_load(records, facts)
    return out


def _other_load(records: Sequence[RequestRecord], facts: BlockFacts) -> list[Flag]:
    if not (facts.before.idle and facts.after.running is not None):
        return [Flag("other-load", f"{counted(facts.before.running or 0, 'request', '.0f')} running before the block")]
    out = []
    came = change(facts.before, facts.after, "prompt_tokens")
    ours = [record.prompt_tokens or record.prompt_asked for record in records]
    if came is not None and all(tokens is not None for tokens in ours):
        total = sum(tokens or 0 for tokens in ours)
        # A request that was cut before its prefill ended is ours but not counted, so only a surplus is foreign.
        if came > total * (1 + OTHER_LOAD_SHARE) + 1:
            out.append(Flag("other-load", f"the server read {came:.0f} prompt tokens, {total} were sent from here"))
    if facts.idle_before is not None and facts.idle_after is not None:
        moved = change(facts.idle_before, facts.idle_after, "generation_tokens")
        if moved or not facts.idle_before.idle:
            out.append(Flag("other-load", "the other server on this device was not idle"))
    return out


def _generator(facts: BlockFacts, tpot_s: float | None, in_flight: float | None) -> list[Flag]:
    out = []
    limit = max(LAG_FLOOR_MS, LAG_SHARE_OF_TPOT * tpot_s * 1000) if tpot_s is not None else None
    if limit is not None and facts.lag_p99_ms is not None and facts.lag_p99_ms > limit:
        out.append(Flag("generator-lag", f"p99 {facts.lag_p99_ms:.1f} ms, allowed {limit:.1f} ms"))
    if facts.client_cpu is not None and facts.client_cpu > CPU_SHARE:
        out.append(Flag("generator-busy", f"{facts.client_cpu * 100:.0f} % of a core"))
    if in_flight is not None and abs(in_flight - facts.concurrency) > CONCURRENCY_SHARE * facts.concurrency:
        out.append(Flag("concurrency-not-reached", f"{in_flight:.1f} in flight, {facts.concurrency} asked"))
    return out


def _machine(facts: BlockFacts) -> list[Flag]:
    out = []
    before, after = facts.clock_before_mhz, facts.clock_after_mhz
    # At its power limit a GPU sets its clock by the load, in every block of that load: that is how this card serves,
    # and interleaved blocks meet it alike. Heat and a failing supply come and go.
    slowed = [reason for reason in facts.throttle if reason not in POWER_CAP]
    capped = len(slowed) < len(facts.throttle)
    if before and after and not capped and abs(after - before) > CLOCK_SHARE * before:
        out.append(Flag("clock-shift", f"SM clock {before} to {after} MHz within the block"))
    if slowed:
        out.append(Flag("throttled", ", ".join(slowed)))
    return out


def power_limited(facts: BlockFacts) -> Flag | None:
    """That the block ran at the GPU's power limit, with the clocks of its halves where they were read; else None."""
    if not POWER_CAP.intersection(facts.throttle):
        return None
    before, after = facts.clock_before_mhz, facts.clock_after_mhz
    return Flag("power-limited", f"SM clock {before} to {after} MHz" if before and after else "clock unknown")


def machine_notes(label: str, *, stall_ms: float | None, gpu_pct: int | None) -> tuple[Flag, ...]:
    """What the probes before a run require to be said of one server and its GPU."""
    out = []
    if stall_ms is not None and STALL_MS[0] <= stall_ms <= STALL_MS[1]:
        text = f"{label}: first tokens come {stall_ms:.0f} ms later on a kept connection (Nagle and delayed ACK)"
        out.append(Flag("keep-alive-stall", text))
    if gpu_pct is not None and gpu_pct > BUSY_GPU_PCT:
        out.append(Flag("gpu-busy", f"{label}: its GPU was {gpu_pct} % busy before any load of ours"))
    return tuple(out)


def run_notes(records: Sequence[RequestRecord]) -> tuple[Flag, ...]:
    """What the records of a whole run require to be said, without voiding anything."""
    out = []
    whole = [record for record in records if record.end == COMPLETE]
    if any(token_count(record)[1] for record in whole):
        out.append(Flag("counts-estimated", "the server sends no usage; token counts are what was asked for"))
    chunks = sum(len(record.token_chunks) for record in whole)
    tokens = sum(token_count(record)[0] or 0 for record in whole)
    if chunks and tokens > 1.2 * chunks:
        out.append(Flag("gap-is-not-token", f"{tokens / chunks:.1f} tokens per chunk: chunk gaps are not token times"))
    if any(record.reconnected for record in records):
        count = sum(record.reconnected for record in records)
        out.append(
            Flag("reconnected", f"{counted(count, 'request')} needed a new connection; its handshake is not counted")
        )
    return tuple(out)


def as_json(flags: Sequence[Flag]) -> list[Mapping[str, Any]]:
    """Flags as the contract has them."""
    return [flag.to_json() for flag in flags]
