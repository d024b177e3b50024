"""Metrics: the text format, windows across restarts, percentiles of bucket deltas, and advice that stays silent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq_console.hardware.model import Gpu
from vq_console.metrics.adviser import RULES, advise
from vq_console.metrics.scrape import Scrape, parse_labels, parse_metrics, scrape
from vq_console.metrics.window import Window, bucket_percentile

PAGE = r"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \"b\" } c"} 3.0
vllm:num_requests_running{engine="1",model_name="a \"b\" } c"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prompt_tokens_total{engine="0"} 1.5e+06 1700000000000
vllm:prompt_tokens_created{engine="0"} 1.7e+09
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",engine="0"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop"} 9.0
vllm:request_success_total{engine="0",finished_reason="error"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 2.0
vllm:iteration_tokens_total_count{engine="0"} NaN
vllm:broken{engine="0"
vllm:nothing
process_start_time_seconds 1.75e+09
python_gc_objects_collected_total{generation="0"} 5.0
"""


def test_the_text_format() -> None:
    page = parse_metrics(PAGE, at=1.0)
    assert page.total("vllm:num_requests_running") == 5.0
    assert page.peak("vllm:kv_cache_usage_perc") == 0.75
    assert page.total("vllm:prompt_tokens") == 1.5e6, "a counter loses its suffix, a timestamp is no value"
    assert page.by_label("vllm:num_requests_waiting_by_reason", "reason") == {"capacity": 4.0, "deferred": 1.0}
    assert page.buckets("vllm:time_to_first_token_seconds") == {0.1: 1.0, float("inf"): 2.0}
    assert page.info("vllm:cache_config_info")["cache_dtype"] == "fp8"
    assert page.total("vllm:iteration_tokens_total_count") is None, "NaN is absent"
    assert page.total("vllm:no_such") is None
    assert not any(name.startswith("python") for name in page.values)


def test_labels_with_everything_in_them() -> None:
    assert parse_labels(r'a="x",b="y\"z\\",c="{n=1}, \n"') == (("a", "x"), ("b", 'y"z\\'), ("c", "{n=1}, \n"))
    assert parse_labels("") == ()
    assert parse_labels('a="unfinished') == (("a", "unfinished"),)


@given(st.text(max_size=300))
def test_no_page_breaks_the_parser(text: str) -> None:
    parse_metrics("vllm:x{" + text, at=0.0)
    parse_metrics(text, at=0.0)


def test_a_server_without_metrics() -> None:
    assert scrape("http://127.0.0.1:9", timeout_s=0.5) is None


def page(at: float, started: float = 1.0, **values: Any) -> Scrape:
    """A scrape with counters by short name; `ttft` is a dict of cumulative buckets."""
    rows: dict[str, dict[Any, float]] = {"process_start_time_seconds": {(): started}}
    for key, value in values.items():
        if isinstance(value, dict):
            rows["vllm:time_to_first_token_seconds_bucket"] = {(("le", str(le)),): c for le, c in value.items()}
        else:
            rows[f"vllm:{key}"] = {(("engine", "0"),): float(value)}
    return Scrape(at, rows)


def test_rates() -> None:
    window = Window(seconds=60)
    assert window.values() == {}
    window.add(page(100.0, generation_tokens=1000))
    assert window.values()["generation_tokens_per_s"] is None, "one look has no rate"
    window.add(page(110.0, generation_tokens=1500))
    window.add(page(110.0, generation_tokens=9999))
    assert window.values()["generation_tokens_per_s"] == 50.0
    assert window.values()["prompt_tokens_per_s"] is None, "what is not exposed is absent"
    window.add(page(200.0, generation_tokens=1500))
    assert window.values()["generation_tokens_per_s"] == 0.0, "only the window counts"
    assert window.length_s == 90.0


def test_a_restart_counts_from_zero() -> None:
    window = Window()
    window.add(page(0.0, generation_tokens=1000, ttft={"0.1": 10, "1": 20, "+Inf": 20}))
    window.add(page(10.0, generation_tokens=50, ttft={"0.1": 4, "1": 4, "+Inf": 4}))
    assert window.increase("vllm:generation_tokens") == 50
    assert window.percentile("vllm:time_to_first_token_seconds", 0.99) == pytest.approx(0.099)
    # A restart whose counters have already overtaken the old ones is seen by the start time.
    window = Window()
    window.add(page(0.0, started=1.0, generation_tokens=100))
    window.add(page(10.0, started=2.0, generation_tokens=300))
    assert window.increase("vllm:generation_tokens") == 300


def test_percentiles_are_of_the_window_and_not_of_all_time() -> None:
    window = Window(seconds=30)
    window.add(page(0.0, ttft={"0.1": 1000, "1": 1000, "+Inf": 1000}))
    window.add(page(10.0, ttft={"0.1": 1000, "1": 1010, "+Inf": 1010}))
    assert window.percentile("vllm:time_to_first_token_seconds", 0.5) == pytest.approx(0.55)
    assert window.values()["ttft_p50_ms"] == pytest.approx(550)
    window.add(page(20.0, ttft={"0.1": 1000, "1": 1010, "+Inf": 1010}))
    window.add(page(45.0, ttft={"0.1": 1000, "1": 1010, "+Inf": 1010}))
    window.add(page(55.0, ttft={"0.1": 1000, "1": 1010, "+Inf": 1010}))
    assert window.values()["ttft_p50_ms"] is None, "nothing was observed: absent, not 0"


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({1.0: 10, 2.0: 10, float("inf"): 10}, 0.5, 0.5),
        ({1.0: 5, 2.0: 10, float("inf"): 10}, 0.95, 1.9),
        ({1.0: 0, 2.0: 10, float("inf"): 10}, 0.5, 1.5),
        ({1.0: 5, float("inf"): 10}, 0.99, 1.0),
        ({1.0: 10, float("inf"): 10}, 1.0, 1.0),
    ],
)
def test_bucket_percentile(buckets: dict[float, float], share: float, expected: float | None) -> None:
    assert bucket_percentile(buckets, share) == (None if expected is None else pytest.approx(expected))


def test_bucket_percentile_is_within_its_bucket_of_the_truth() -> None:
    draw = random.Random(1)
    bounds = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5]
    values = sorted(draw.lognormvariate(-3, 0.8) for _ in range(5000))
    buckets = {b: float(sum(v <= b for v in values)) for b in bounds} | {float("inf"): 5000.0}
    for share in (0.5, 0.95, 0.99):
        truth = values[int(share * len(values))]
        found = bucket_percentile(buckets, share)
        low = max([b for b in bounds if b < truth], default=0.0)
        high = min(b for b in bounds if b >= truth)
        assert found is not None
        assert low <= found <= high


def test_gauges_and_what_is_derived() -> None:
    window = Window()
    window.add(parse_metrics(PAGE, at=0.0))
    later = PAGE.replace('error"} 1.0', 'error"} 3.0').replace('"stop"} 9.0', '"stop"} 19.0')
    window.add(parse_metrics(later, at=10.0))
    values = window.values()
    assert (values["running"], values["kv_usage_pct"], values["failed_requests"]) == (5.0, 75.0, 2.0)
    assert (values["prefix_caching"], values["kv_cache_dtype"], values["asleep"]) == (False, "fp8", False)
    assert values["requests_per_s"] == pytest.approx(1.2)
    assert values["waiting_for_capacity"] == 4.0
    assert values["prefix_hit_pct"] is None
    assert values["spec_acceptance_pct"] is None
    drafts = Window()
    drafts.add(page(0.0, spec_decode_num_drafts=0, spec_decode_num_draft_tokens=0, spec_decode_num_accepted_tokens=0))
    drafts.add(
        page(9.0, spec_decode_num_drafts=10, spec_decode_num_draft_tokens=40, spec_decode_num_accepted_tokens=20)
    )
    assert drafts.values()["spec_acceptance_pct"] == 50.0
    assert drafts.values()["spec_tokens_per_step"] == 3.0


HEALTHY: dict[str, Any] = {
    "window_s": 60.0,
    "running": 8.0,
    "waiting": 0.0,
    "kv_usage_pct": 40.0,
    "preemptions": 0.0,
    "failed_requests": 0.0,
    "corrupted_requests": 0.0,
    "queue_p95_ms": 3.0,
    "prefix_caching": True,
    "prompt_tokens_per_s": 4000.0,
    "kv_cache_dtype": "auto",
    "spec_acceptance_pct": None,
}
BUSY = (Gpu(0, utilization_pct=97, throttle=("power cap",)),)


@pytest.mark.parametrize(
    ("changes", "gpus", "rule", "words"),
    [
        ({"preemptions": 3.0}, BUSY, "preemptions", "--max-num-seqs"),
        ({"kv_usage_pct": 99.0, "waiting": 5.0}, BUSY, "kv-full", "--kv-cache-dtype fp8"),
        ({"queue_p95_ms": 2500.0, "waiting": 5.0}, BUSY, "queueing", "--max-num-seqs"),
        ({"prefix_caching": False}, BUSY, "prefix-cache-off", "--enable-prefix-caching"),
        ({}, (Gpu(0, utilization_pct=12),), "idle-gpu", "--enforce-eager"),
        ({}, (Gpu(1, utilization_pct=99, throttle=("hardware thermal limit",)),), "throttling", "GPU 1"),
        ({"spec_acceptance_pct": 12.0}, BUSY, "poor-drafts", "--speculative-config"),
        ({"failed_requests": 2.0}, BUSY, "failed-requests", "2 requests failed"),
        ({"corrupted_requests": 1.0}, BUSY, "corrupted", "NaN"),
    ],
)
def test_each_rule_names_its_flag(changes: dict[str, Any], gpus: tuple[Gpu, ...], rule: str, words: str) -> None:
    (found,) = advise({**HEALTHY, **changes}, gpus)
    assert found.rule == rule
    assert words in str(found)
    assert advise({**HEALTHY, **changes, "window_s": 5.0}, gpus) == (), "a burst is no state"


def test_silence() -> None:
    assert advise(HEALTHY, BUSY) == ()
    assert advise(HEALTHY) == ()
    assert advise({}) == ()
    unknown = dict.fromkeys(HEALTHY) | {"window_s": 60.0}
    assert advise(unknown, (Gpu(0),)) == (), "what is not known fires nothing"
    assert advise({**HEALTHY, "kv_usage_pct": 99.0}, BUSY) == (), "a full cache without waiting is good use"
    assert (
        advise({**HEALTHY, "kv_cache_dtype": "fp8", "kv_usage_pct": 99.0, "waiting": 1.0}, BUSY)[0].text.count("fp8")
        == 0
    )
    assert len(RULES) == 9
