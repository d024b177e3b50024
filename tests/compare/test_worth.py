"""What speed is worth, and how far it is from what memory bandwidth allows: rows of a report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vq_console.compare.bandwidth import best_rate, copied_bandwidth, nvml_bandwidth
from vq_console.compare.floor import ArmBytes, arm_bytes, floor_rows
from vq_console.compare.worth_rows import worth_rows

LATENCY = {
    "plan": {"prompt_tokens": 512, "output_tokens": 128},
    "endpoints": [
        {"metric": "ttft", "concurrency": 1, "a": 0.1, "b": 0.1},
        {"metric": "tpot", "concurrency": 1, "a": 0.00318, "b": 0.00352},
        {"metric": "tpot", "concurrency": 64, "a": 0.00487, "b": None},
    ],
}


def test_an_h200_reads_fp8_at_57_and_int4_at_29_percent() -> None:
    """The figures of a Llama 8B shape: 7.34 and 4.16 GiB of weights, 3.18 and 3.52 ms a step, 4.3 TB/s."""
    arms = {"A": ArmBytes(7.34, 65_536.0), "B": ArmBytes(4.16, 65_536.0)}
    rows = floor_rows(LATENCY, arms, {"A": 4300.0, "B": 4300.0})
    assert [row["concurrency"] for row in rows] == [1, 64]
    assert rows[0]["A"]["share"] == pytest.approx(0.57, abs=0.01)
    assert rows[0]["B"]["share"] == pytest.approx(0.29, abs=0.01)
    assert rows[1]["A"]["kv_bytes"] == 64 * 576 * 65_536
    assert rows[1]["B"]["share"] is None, "what was not measured has no share"


def test_what_is_not_known_has_no_floor() -> None:
    assert floor_rows(LATENCY, {"A": ArmBytes(None, 1.0), "B": ArmBytes(1.0, None)}, {"A": 900.0, "B": None}) == []
    assert nvml_bandwidth(()) is None


def test_bytes_come_from_the_log_before_the_plan() -> None:
    said = arm_bytes(
        {"model_load_gib": 7.34, "kv_cache_gib": 1.0, "kv_cache_tokens": 16_384}, {"weights_gib": 9.0}, experts=True
    )
    assert said == ArmBytes(7.34, 65_536.0, True)
    assert arm_bytes({}, {"weights_gib": 9.0, "kv_bytes_per_token": 5.0}, experts=False) == ArmBytes(9.0, 5.0)


def test_rows_say_what_is_known_and_leave_out_what_nobody_knows() -> None:
    latency = {
        "worth": {
            "slo": {"ttft_s": 2.0, "tpot_s": 0.1, "share": 0.95},
            "served": {
                "A": {"concurrency": 32, "requests_per_s": {"value": 9.0, "ci": [8.0, 10.0]}, "at_top": True},
                "B": None,
            },
            "joules_per_token": [{"concurrency": 8, "A": {"value": 0.5, "ci": None}, "B": None}],
            "cost_per_million_tokens": None,
        },
        "floor": [{"concurrency": 1, "A": {"share": 0.57, "bandwidth_gb_s": 4300.0, "upper_bound": True}}],
    }
    assert worth_rows(latency) == [
        ("streams within 2,000 ms to the first token, 100 ms per token", "32 or more", "none measured"),
        ("requests/s there", "9 (8 to 10)", "–"),
        ("joules per token at 8 streams", "0.5", "–"),
        ("memory bandwidth used at 1 stream", "at most 57 % of 4,300 GB/s", "–"),
    ]
    assert worth_rows({}) == []


def test_the_best_of_several_copies_counts_and_the_first_does_not() -> None:
    now, took = [0.0], iter((0.001, 1.0, 0.5, 0.8, 9.0))

    def copy() -> None:
        now[0] += next(took)

    assert best_rate(copy, 10**9, 2.0, lambda: now[0]) == pytest.approx(2.0)
    assert next(took) == 9.0


def test_a_copy_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    rate, why = copied_bandwidth(str(tmp_path / "no-python"), "cpu")
    assert rate is None
    assert "No such file" in why
    rate, why = copied_bandwidth(sys.executable, "cpu")
    assert rate is None
    assert "torch" in why
