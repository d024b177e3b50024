"""One measured block: its figures from raw records, its facts, and how both are kept.

The figures of a block are computed from `requests.jsonl` and the facts in `blocks.jsonl` alone, during the run and
whenever it is analysed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vq_console.checks.counters import Counters, counters_from_json
from vq_console.checks.measures import RequestTimes, Slo, geometric_mean, goodput, times_of
from vq_console.checks.records import BLOCKS_FILE, COMPLETE, RequestRecord, records_by_block
from vq_console.checks.schedule import Turn
from vq_console.checks.steady import Window, concurrency_in, loaded_requests, steady_window, throughput
from vq_console.checks.validity import BlockFacts, Flag, power_limited, void_reasons
from vq_console.core.files import append_jsonl, read_jsonl

METRICS = ("ttft", "tpot", "e2e", "throughput")
ENERGY = "joules_per_token"


@dataclass(frozen=True, slots=True)
class BlockResult:
    """What one block gave. `values` are geometric means in seconds, throughput in tokens/s; None where unknown."""

    turn: Turn
    values: Mapping[str, float | None]
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Single requests, for pooled percentiles; never the unit of an interval of a comparison."""
    requests: int = 0
    goodput: float | None = None
    void: tuple[Flag, ...] = ()
    started: float = 0.0
    """Unix seconds."""
    seconds: float = 0.0
    phase: int = 0
    """Which of the phases A, B, A it belongs to, in a one-at-a-time design."""
    limited: Flag | None = None
    """Said where the block ran at the power limit; it counts all the same."""
    slo_share: float | None = None
    """Share of the complete requests that met every objective."""

    @property
    def valid(self) -> bool:
        return not self.void

    def to_json(self) -> dict[str, Any]:
        return {
            "block": self.turn.block,
            "pair": self.turn.pair,
            "concurrency": self.turn.concurrency,
            "arm": self.turn.arm,
            "values": dict(self.values),
            "requests": self.requests,
            "void": [flag.to_json() for flag in self.void],
            "started": self.started,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One line of `blocks.jsonl`: the turn and everything beside the records that judges it."""

    turn: Turn
    facts: BlockFacts
    started: float
    seconds: float
    phase: int = 0
    power: tuple[tuple[int, float], ...] = ()
    """(monotonic nanoseconds, watts) where NVML gave samples."""

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["block"] = self.turn.block
        return value


def entry_from_json(value: Mapping[str, Any]) -> BlockEntry:
    """A line of `blocks.jsonl`; KeyError or TypeError means that it is none."""
    facts = dict(value["facts"])
    for key in ("before", "after", "idle_before", "idle_after"):
        item = facts.get(key)
        facts[key] = counters_from_json(item) if item is not None else (None if key.startswith("idle") else Counters())
    facts["throttle"] = tuple(facts.get("throttle") or ())
    return BlockEntry(
        turn=Turn(**value["turn"]),
        facts=BlockFacts(**facts),
        started=float(value["started"]),
        seconds=float(value["seconds"]),
        phase=int(value.get("phase", 0)),
        power=tuple((int(at), float(watts)) for at, watts in value.get("power") or ()),
    )


def keep_entry(folder: Path, entry: BlockEntry) -> None:
    """Append a block's facts; its records are there already."""
    append_jsonl(folder / BLOCKS_FILE, entry.to_json())


def read_entries(folder: Path) -> list[BlockEntry]:
    """All blocks of a run in the order in which they ran."""
    out = []
    for value in read_jsonl(folder / BLOCKS_FILE):
        try:
            out.append(entry_from_json(value))
        except (KeyError, TypeError, ValueError):
            continue
    return out


def measure_block(entry: BlockEntry, records: Sequence[RequestRecord], slo: Slo | None = None) -> BlockResult:
    """The figures of a block and whether it counts.

    At a concurrency above one only requests sent while all streams were loaded are counted, and throughput is that of
    the steady window.
    """
    several = entry.turn.concurrency > 1
    used = loaded_requests(records) if several else list(records)
    times = [(record, times_of(record)) for record in used]
    samples = {
        "ttft": tuple(t.ttft for _, t in times if t.ttft is not None),
        "tpot": tuple(t.tpot for _, t in times if t.tpot is not None),
        "e2e": tuple(t.e2e for r, t in times if t.e2e is not None and r.end == COMPLETE),
    }
    values: dict[str, float | None] = {metric: geometric_mean(sample) for metric, sample in samples.items()}
    window = steady_window(records) if several else None
    values["throughput"] = throughput(records, window) if window is not None else None
    in_flight = concurrency_in(records, window) if window is not None else None
    values[ENERGY] = joules_per_token(entry.power, records, window)
    return BlockResult(
        turn=entry.turn,
        values=values,
        samples=samples,
        requests=len(used),
        goodput=goodput(used, slo) if slo is not None else None,
        slo_share=_slo_share([t for r, t in times if r.end == COMPLETE], slo),
        void=void_reasons(records, entry.facts, tpot_s=values["tpot"], in_flight=in_flight),
        started=entry.started,
        seconds=entry.seconds,
        phase=entry.phase,
        limited=power_limited(entry.facts),
    )


def joules_per_token(
    power: Sequence[tuple[int, float]], records: Sequence[RequestRecord], window: Window | None
) -> float | None:
    """Mean power in the steady window over the tokens a second in it; with one stream from first send to last end.

    None below three power samples inside.
    """
    sent = [record for record in records if record.token_chunks]
    if window is None and sent:
        window = Window(min(record.send_ns for record in sent), max(record.end_ns for record in sent))
    if window is None:
        return None
    inside = [watts for at, watts in power if window.start_ns <= at <= window.end_ns]
    rate = throughput(records, window)
    if len(inside) < 3 or not rate:
        return None
    return sum(inside) / len(inside) / rate


def _slo_share(times: Sequence[RequestTimes], slo: Slo | None) -> float | None:
    return sum(slo.met(one) for one in times) / len(times) if slo is not None and times else None


def measure_folder(folder: Path, slo: Slo | None = None) -> list[BlockResult]:
    """Every block of a run from its raw records; warm-up blocks (pair below zero) are not among them."""
    records = records_by_block(folder)
    return [
        measure_block(entry, records.get(entry.turn.block, []), slo)
        for entry in read_entries(folder)
        if entry.turn.pair >= 0
    ]
