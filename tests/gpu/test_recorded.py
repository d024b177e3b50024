"""What the console did on an H200 with vLLM 0.26.0, held to what its rules and readers say today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.judging import plan_of
from vq_console.compare.report import report_markdown
from vq_console.logs.asked import asked_vs_runs
from vq_console.logs.explain import explain_path

DATA = Path(__file__).parent.parent / "data" / "h200"
RUNS: list[dict[str, Any]] = json.loads((DATA / "runs.json").read_text())
IDS = [run["name"] for run in RUNS]
H200 = {"vllm_version": "0.26.0", "device": "cuda", "gpu_sm": 90, "gpu_count": 1, "gpu_mem_gib": 139.8}


def _plan(run: dict[str, Any]) -> Any:
    asked = {"model": f"/models/{run['model']}", "args": run["args"], "checkpoint": run["checkpoint"]}
    return plan_of({**H200, "gpu_free_gib": 139.2, **asked})


@pytest.mark.parametrize("run", RUNS, ids=IDS)
def test_the_log_says_what_was_read_from_it_there(run: dict[str, Any]) -> None:
    found = explain_path(DATA / f"{run['name']}.log")
    assert found.diagnosis.slug == "healthy"
    assert found.facts["ready"]
    assert {key: found.facts.get(key) for key in run["logged"]} == run["logged"]


@pytest.mark.parametrize("run", RUNS, ids=IDS)
def test_kernels_are_those_that_preflight_expects(run: dict[str, Any]) -> None:
    rows = asked_vs_runs(_plan(run).layers, explain_path(DATA / f"{run['name']}.log").facts)
    # NVFP4 on Hopper: the kernel is the foretold one, and still not what was asked for.
    assert [row.selected for row in rows if row.alarm] == (
        ["MarlinNvFp4LinearKernel"] if run["name"] == "fit-nvfp4" else []
    )
    linear = [row for row in rows if row.kind == "linear"]
    assert all(row.selected == row.expected for row in linear if not row.alarm)
    logged = {kernel["kernel"] for kernel in run["logged"]["kernels"] or ()}
    assert {row.selected for row in linear if row.selected} == logged


@pytest.mark.parametrize("run", RUNS, ids=IDS)
def test_memory_fits_as_vllm_reported(run: dict[str, Any]) -> None:
    fit, logged = _plan(run).fit, run["logged"]
    assert fit.weights_gib == pytest.approx(logged["model_load_gib"], rel=0.05, abs=0.02)
    assert fit.kv_tokens == pytest.approx(logged["kv_cache_tokens"], rel=0.1)


def test_narrow_layers_of_one_model_run_on_two_kernels() -> None:
    facts = explain_path(DATA / "small-w4a16.log").facts
    assert {row["kernel"] for row in facts["kernels"]} == {"MarlinLinearKernel", "MacheteLinearKernel"}


def test_nvfp4_is_called_weight_only() -> None:
    run = next(run for run in RUNS if run["name"] == "fit-nvfp4")
    plan = _plan(run)
    assert "kernel-slow-fallback" in [finding.rule for finding in plan.findings]
    grades = {row.kind: row.grade for row in asked_vs_runs(plan.layers, explain_path(DATA / "fit-nvfp4.log").facts)}
    assert grades["linear"] == "weight-only"


def test_the_comparison_of_that_day_decides_no_more_than_its_blocks_allow() -> None:
    """Its raw samples analysed again: one block at 64 streams is void by the generator's lag, so a pair is missing."""
    summary = json.loads((DATA / "ab-speed.json").read_text())
    primary = [row for row in summary["latency"]["endpoints"] if row["primary"]]
    assert {(row["metric"], row["concurrency"]): (row["word"], row["pairs"]) for row in primary} == {
        ("tpot", 1): ("slower", 6),
        ("throughput", 64): ("inconclusive", 5),
    }
    assert {"generator-lag", "power-limited", "few-pairs"} <= {item["flag"] for item in summary["validity"]}
    report = report_markdown(summary)
    assert "MacheteLinearKernel" in report
    assert "power-limited" in report


def test_a_baseline_whose_decoding_is_not_its_prefill_leaves_the_quality_open() -> None:
    summary = json.loads((DATA / "ab-small.json").read_text())
    assert summary["quality"]["word"] == "UNRESOLVED"
    assert {"decode-differs", "kld-void"} <= {item["flag"] for item in summary["validity"]}
    assert summary["quality"]["against_baseline"]["B"]["kld"]["value"] == pytest.approx(0.674, abs=0.001)
