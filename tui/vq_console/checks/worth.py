"""What speed is worth: requests a device serves within an objective, energy and cost per token, the knee of a sweep,
and the floor that memory bandwidth sets. Pure; every figure with its interval or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.latency_blocks import ENERGY, BlockResult
from vq_console.checks.latency_decide import log_differences, pair_values
from vq_console.checks.latency_settings import LatencySettings
from vq_console.checks.schedule import ARMS

SLO_SHARE = 0.95
"""A level counts as served when this share of its requests meets every objective."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 % interval over blocks; the interval is None below two blocks."""

    value: float
    low: float | None
    high: float | None
    blocks: int

    def to_json(self) -> dict[str, Any]:
        interval = [self.low, self.high] if self.low is not None else None
        return {"value": self.value, "ci": interval, "blocks": self.blocks}


def geometric_figure(values: Sequence[float]) -> Figure | None:
    """Geometric mean with a t interval on the logarithms; None without values."""
    from vq_console.checks.statistics import t_interval

    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return None
    interval = t_interval(logs)
    low, high = (math.exp(interval[0]), math.exp(interval[1])) if interval else (None, None)
    return Figure(math.exp(sum(logs) / len(logs)), low, high, len(logs))


def _mine(blocks: Sequence[BlockResult], arm: str, concurrency: int) -> list[BlockResult]:
    return [b for b in blocks if b.valid and b.turn.arm == arm and b.turn.concurrency == concurrency]


def served_level(blocks: Sequence[BlockResult], arm: str) -> dict[str, Any] | None:
    """The highest measured concurrency at which 95 % of an arm's requests met the objectives, and its goodput.

    None when no level did; `at_top` says that a higher level was not measured, so the figure is a lower bound.
    """
    levels = sorted({block.turn.concurrency for block in blocks if block.turn.arm == arm})
    best = None
    for concurrency in levels:
        shares = [block.slo_share for block in _mine(blocks, arm, concurrency) if block.slo_share is not None]
        if shares and sum(shares) / len(shares) >= SLO_SHARE:
            best = concurrency
    if best is None:
        return None
    rates = [block.goodput for block in _mine(blocks, arm, best) if block.goodput]
    figure = geometric_figure(rates)
    return {
        "concurrency": best,
        "requests_per_s": figure.to_json() if figure else None,
        "at_top": best == levels[-1],
    }


def energy(blocks: Sequence[BlockResult]) -> list[dict[str, Any]]:
    """Joules per token of both arms and their ratio B/A over pairs, for each level where NVML gave power."""
    from vq_console.checks.statistics import ratio_interval

    out: list[dict[str, Any]] = []
    for concurrency in sorted({block.turn.concurrency for block in blocks}):
        row: dict[str, Any] = {"concurrency": concurrency}
        for arm in ARMS:
            values = [value for block in _mine(blocks, arm, concurrency) if (value := block.values.get(ENERGY))]
            figure = geometric_figure(values)
            row[arm] = figure.to_json() if figure else None
        pairs = pair_values(blocks, ENERGY, concurrency)
        found = ratio_interval(log_differences(pairs)) if pairs else None
        row["ratio"] = found.value if found else None
        row["ci"] = list(found.interval) if found and found.interval else None
        if row["A"] or row["B"]:
            out.append(row)
    return out


def cost_per_million(tokens_per_s: Figure | None, price_per_hour: float | None) -> dict[str, Any] | None:
    """Price of a million output tokens at this rate, in the currency of the price; the interval turns round."""
    if tokens_per_s is None or price_per_hour is None or tokens_per_s.value <= 0:
        return None

    def cost(rate: float) -> float:
        return price_per_hour / 3600 / rate * 1e6

    low = cost(tokens_per_s.high) if tokens_per_s.high else None
    high = cost(tokens_per_s.low) if tokens_per_s.low else None
    return Figure(cost(tokens_per_s.value), low, high, tokens_per_s.blocks).to_json()


def worth(blocks: Sequence[BlockResult], settings: LatencySettings) -> dict[str, Any]:
    """Everything of this module for a run, as JSON."""
    arms = [arm for arm in ARMS if any(block.turn.arm == arm for block in blocks)]
    costs: dict[str, Any] = {}
    for arm in arms:
        top = max((b.turn.concurrency for b in blocks if b.turn.arm == arm), default=1)
        rates = [value for block in _mine(blocks, arm, top) if (value := block.values.get("throughput"))]
        costs[arm] = cost_per_million(geometric_figure(rates), settings.price_per_hour)
    return {
        "slo": {"ttft_s": settings.slo_ttft_s, "tpot_s": settings.slo_tpot_s, "share": SLO_SHARE},
        "served": {arm: served_level(blocks, arm) for arm in arms},
        "joules_per_token": energy(blocks),
        "cost_per_million_tokens": costs if settings.price_per_hour is not None else None,
    }


def knee(levels: Mapping[int, tuple[float, float]]) -> int | None:
    """The concurrency with the greatest throughput per end-to-end second (Kleinrock's power); None below three levels.

    `levels` maps a concurrency to (tokens/s, E2E seconds).
    """
    if len(levels) < 3:
        return None
    return max(levels, key=lambda concurrency: levels[concurrency][0] / levels[concurrency][1])


@dataclass(frozen=True, slots=True)
class Floor:
    """The shortest possible decode step: every weight byte and the batch's KV bytes read once at full bandwidth."""

    step_s: float
    weight_bytes: float
    kv_bytes: float
    bandwidth_gb_s: float

    def share(self, tpot_s: float) -> float:
        """How much of a step is explained by the floor; 1 is perfect."""
        return self.step_s / tpot_s

    def to_json(self, tpot_s: float | None) -> dict[str, Any]:
        return {
            "step_s": self.step_s,
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "bandwidth_gb_s": self.bandwidth_gb_s,
            "share": self.share(tpot_s) if tpot_s else None,
        }


def decode_floor(
    *,
    weight_gib: float | None,
    kv_bytes_per_token: float | None,
    context_tokens: float,
    batch: int,
    bandwidth: float | None,
) -> Floor | None:
    """The floor of one arm; None where weights or bandwidth are unknown. `bandwidth` in GB/s.

    All weights are read each step, also of a sparse model's experts once the batch is large; so for a mixture of
    experts at batch 1 this is an upper bound of the floor and the caller must say so.
    """
    if not weight_gib or not bandwidth:
        return None
    weights = weight_gib * 2**30
    kv = (kv_bytes_per_token or 0.0) * context_tokens * batch
    return Floor((weights + kv) / (bandwidth * 1e9), weights, kv, bandwidth)
