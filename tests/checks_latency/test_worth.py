"""What speed is worth: served requests, energy, cost, knee, bandwidth floor."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from checks_latency.synthetic import facts, record
from simulator.running import served as serving
from vq_console.checks import validity
from vq_console.checks.latency_blocks import ENERGY, BlockEntry, BlockResult, measure_block
from vq_console.checks.latency_settings import LatencySettings
from vq_console.checks.latency_sweep import still_gains, sweep_latency
from vq_console.checks.measures import Slo
from vq_console.checks.schedule import Turn
from vq_console.checks.validity import Flag
from vq_console.checks.worth import (
    Figure,
    cost_per_million,
    decode_floor,
    energy,
    geometric_figure,
    knee,
    served_level,
    worth,
)


def _block(arm: str, concurrency: int, pair: int = 0, **more: object) -> BlockResult:
    values = {"throughput": 100.0, ENERGY: 2.0 if arm == "A" else 1.5}
    return replace(BlockResult(Turn(pair, concurrency, arm, 0), values), **more)  # type: ignore[arg-type]


def test_served_level_is_the_highest_that_keeps_the_objective() -> None:
    blocks = [
        _block("A", concurrency, pair, slo_share=share, goodput=concurrency / 2)
        for concurrency, share in ((1, 1.0), (4, 0.97), (16, 0.5))
        for pair in range(3)
    ]
    found = served_level(blocks, "A")
    assert found is not None
    assert (found["concurrency"], found["at_top"]) == (4, False)
    assert found["requests_per_s"]["value"] == pytest.approx(2.0)
    assert served_level([_block("A", 1, slo_share=0.9)], "A") is None
    void = replace(blocks[3], void=(Flag("preemptions", "1"),))
    assert served_level([void], "A") is None


def test_energy_is_paired() -> None:
    blocks = [_block(arm, 8, pair) for pair in range(4) for arm in "AB"]
    [row] = energy(blocks)
    assert (row["A"]["value"], row["B"]["value"], row["ratio"]) == pytest.approx((2.0, 1.5, 0.75))
    assert energy([replace(blocks[0], values={ENERGY: None})]) == []


def test_joules_from_power_and_tokens() -> None:
    records = [record(number=k, send_s=k * 0.32, ttft=0.02, tpot=0.02, tokens=16, all_chunks=True) for k in range(10)]
    power = tuple((round(t * 1e8), 400.0) for t in range(1, 32))
    entry = BlockEntry(Turn(0, 1, "A", 0), facts(), 0.0, 3.2, power=power)
    assert measure_block(entry, records).values[ENERGY] == pytest.approx(400 / 50, rel=0.02)
    assert measure_block(replace(entry, power=power[:2]), records).values[ENERGY] is None


def test_cost_turns_the_interval_round() -> None:
    found = cost_per_million(Figure(1000.0, 800.0, 1250.0, 6), 3.6)
    assert found == {"value": pytest.approx(1.0), "ci": [pytest.approx(0.8), pytest.approx(1.25)], "blocks": 6}
    assert cost_per_million(None, 3.6) is None
    assert cost_per_million(Figure(10.0, None, None, 1), None) is None


def test_a_single_block_has_no_interval() -> None:
    assert geometric_figure([1.0]) == Figure(1.0, None, None, 1)
    assert geometric_figure([]) is None


def test_knee_of_a_saturating_server() -> None:
    levels = {c: (100 * c / (1 + c / 8), 1.0 * (1 + c / 8)) for c in (1, 2, 4, 8, 16, 32, 64)}
    assert knee(levels) == 8
    assert knee({1: (1.0, 1.0), 2: (2.0, 1.0)}) is None


def test_the_floor_of_the_recorded_h200() -> None:
    """BF16 of an 8B shape: 3.4 ms by 4.3 TB/s, of 4.58 ms a step, is 75 %."""
    floor = decode_floor(weight_gib=13.8, kv_bytes_per_token=131072, context_tokens=512, batch=1, bandwidth=4300)
    assert floor is not None
    assert floor.step_s == pytest.approx(0.00346, rel=0.02)
    assert floor.share(0.00458) == pytest.approx(0.75, abs=0.02)
    assert decode_floor(weight_gib=None, kv_bytes_per_token=1, context_tokens=1, batch=1, bandwidth=1) is None


def test_goodput_and_shares_come_from_records() -> None:
    records = [record(number=k, send_s=k, ttft=0.1 if k % 2 else 3.0) for k in range(8)]
    block = measure_block(BlockEntry(Turn(0, 1, "A", 0), facts(), 0.0, 8.0), records, Slo(2.0, 0.1))
    assert block.slo_share == 0.5
    assert worth([block], LatencySettings(price_per_hour=2.0))["served"] == {"A": None}


@pytest.mark.parametrize(
    ("rates", "more"),
    [([10], True), ([10, 10.1], True), ([10, 10.1, 10.2], False), ([10, 20, 20.1], True), ([10, 10.1, 15], True)],
)
def test_a_sweep_ends_after_two_vain_doublings(rates: list[float], more: bool) -> None:
    assert still_gains(rates) is more


def test_a_sweep_finds_where_a_server_saturates(tmp_path: Path, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "LAG_FLOOR_MS", 1000.0)
    monkeypatch.setattr(validity, "CONCURRENCY_SHARE", 2.0)
    settings = LatencySettings(budget_s=60, prompt_tokens=16, output_tokens=6, window_min_s=0.3, single_min_s=0.1)
    with serving(tmp_path, {"ttft_ms": 10, "tpot_ms": 10}, "--max-num-seqs", "2") as running:
        found = sweep_latency(running.endpoint, settings, tmp_path / "sweep")
    value = found.to_json()
    levels = sorted({block.turn.concurrency for block in found.blocks})
    assert levels[:3] == [1, 2, 4]
    assert levels[-1] <= 16
    rates = {row["concurrency"]: row["value"] for row in value["summary"]["levels"] if row["metric"] == "throughput"}
    assert rates[levels[-1]] == pytest.approx(rates[2], rel=0.35)
    assert math.isfinite(rates[2])
