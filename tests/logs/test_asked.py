"""What was expected beside what runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from logs.cases import DATA
from preflight.judging import plan_of
from vq_console.logs.asked import asked_vs_runs
from vq_console.logs.explain import explain_path
from vq_console.logs.kernels import linear_kernel, moe_backend, number_format, promises_activations
from vq_console.preflight.model import LayerExpectation


def _facts(*kernels: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"kernels": [{"module": module, "kernel": kernel} for module, kernel in kernels], **more}


_FP8 = LayerExpectation("linear", 128, "FP8 W8A8", "CutlassFP8ScaledMMLinearKernel", "native")


def test_expected_and_selected_agree() -> None:
    (row,) = asked_vs_runs([_FP8], _facts(("Fp8LinearMethod", "CutlassFP8ScaledMMLinearKernel")))
    assert (row.selected, row.grade, row.alarm) == ("CutlassFP8ScaledMMLinearKernel", "native", False)


def test_a_silent_fallback_raises_the_alarm() -> None:
    (row,) = asked_vs_runs([_FP8], _facts(("Fp8LinearMethod", "MarlinFP8ScaledMMLinearKernel")))
    assert (row.grade, row.alarm) == ("weight-only", True)
    assert row.detail == "expected native, runs weight-only"


@pytest.mark.parametrize(
    ("scheme", "kernel", "grade"),
    [
        ("FP8 W8A8 per tensor", "MarlinFP8ScaledMMLinearKernel", "weight-only"),
        ("NVFP4 W4A4", "MarlinNvFp4LinearKernel", "weight-only"),
        ("MXFP8", "MarlinMxfp8LinearKernel", "weight-only"),
        ("NVFP4 W4A4", "EmulationNvFp4LinearKernel", "emulated"),
    ],
)
def test_a_fallback_that_preflight_foretold_is_still_not_what_was_asked(scheme: str, kernel: str, grade: Any) -> None:
    (row,) = asked_vs_runs([LayerExpectation("linear", 128, scheme, kernel, grade)], _facts(("m", kernel)))
    assert (row.expected, row.selected, row.grade, row.alarm) == (scheme, kernel, grade, True)
    assert row.detail.endswith("Preflight foretold it.")


@pytest.mark.parametrize("scheme", ["FP8 W8A16", "NVFP4 W4A16", "MXFP4 W4A16", "W4A16 g128", "GGUF"])
def test_weights_alone_that_were_asked_for_are_no_alarm(scheme: str) -> None:
    layer = LayerExpectation("linear", 128, scheme, "MarlinFP8ScaledMMLinearKernel", "weight-only")
    (row,) = asked_vs_runs([layer], _facts(("m", "MarlinFP8ScaledMMLinearKernel")))
    assert not row.alarm


@pytest.mark.parametrize(
    ("expected", "selected", "alarm"),
    [
        ("MacheteLinearKernel", ("MarlinLinearKernel",), True),
        ("MacheteLinearKernel", ("ExllamaLinearKernel",), True),
        ("MarlinLinearKernel", ("TritonW4A16LinearKernel",), True),
        ("MacheteLinearKernel", ("MacheteLinearKernel", "MarlinLinearKernel"), False),
        ("MarlinLinearKernel", ("MacheteLinearKernel",), False),
        ("MarlinLinearKernel", ("HummingLinearKernel",), False),
    ],
)
def test_a_slower_kernel_for_integer_weights(expected: str, selected: tuple[str, ...], alarm: bool) -> None:
    layer = LayerExpectation("linear", 128, "W4A16 g32", expected, "native")
    (row,) = asked_vs_runs([layer], _facts(*(("CompressedTensorsWNA16", name) for name in selected)))
    assert (row.alarm, row.expected) == (alarm, expected)


def test_another_kernel_of_the_same_kind_is_said_but_no_alarm() -> None:
    (row,) = asked_vs_runs([_FP8], _facts(("Fp8LinearMethod", "ChannelWiseTorchFP8ScaledMMLinearKernel")))
    assert (row.alarm, row.detail) == (False, "another kernel of the same kind")


def test_a_kernel_for_integer_weights_is_no_fp8_kernel() -> None:
    (row,) = asked_vs_runs([_FP8], _facts(("CompressedTensorsWNA16", "MacheteLinearKernel")))
    assert (row.grade, row.alarm) == ("weight-only", True)
    layer = LayerExpectation("linear", 128, "NVFP4", "FlashInferCutlassNvFp4LinearKernel", "native")
    (row,) = asked_vs_runs([layer], _facts(("Fp8LinearMethod", "CutlassFP8ScaledMMLinearKernel")))
    assert not row.alarm
    assert row.detail.startswith("another number format")


def test_number_formats_of_kernel_names() -> None:
    names = {
        "CutlassFP8ScaledMMLinearKernel": "FP8",
        "FlashInferFp8DeepGEMMDynamicBlockScaledKernel": "FP8",
        "CutlassInt8ScaledMMLinearKernel": "INT8",
        "MarlinMxfp8LinearKernel": "MXFP8",
        "FlashInferCuteDslNvFp4W4A16LinearKernel": "NVFP4",
        "MacheteLinearKernel": "INT weights",
        "TritonW4A16LinearKernel": "INT weights",
        "CutlassW4A8LinearKernel": "W4A8",
        "SomethingElse": None,
    }
    assert {name: number_format(name) for name in names} == names


def test_a_missing_line_is_not_found() -> None:
    (row,) = asked_vs_runs([_FP8], _facts())
    assert (row.selected, row.grade, row.alarm, row.detail) == (None, "unknown", False, "not found in the log")


def test_emulation_is_an_alarm() -> None:
    layer = LayerExpectation("linear", 1, "NVFP4", "FlashInferCutlassNvFp4LinearKernel", "native")
    (row,) = asked_vs_runs([layer], _facts(("NVFP4 GEMM", "EmulationNvFp4LinearKernel")))
    assert (row.grade, row.alarm) == ("emulated", True)


def test_experts_attention_and_cache_have_rows_of_their_own() -> None:
    layers = [
        LayerExpectation("moe", 48, "FP8", "TRITON", "native"),
        LayerExpectation("attention", None, "16-bit", "FLASH_ATTN", "native"),
        LayerExpectation("kv_cache", None, "fp8", None, "native"),
        LayerExpectation("lm_head", 1, "16-bit", None, "unquantized"),
    ]
    facts = _facts(moe_backend="MARLIN", moe_scheme="Fp8", attention_backend="FLASHINFER", kv_cache_dtype="bfloat16")
    rows = {row.kind: row for row in asked_vs_runs(layers, facts)}
    assert set(rows) == {"moe", "attention", "kv_cache"}
    assert (rows["moe"].grade, rows["moe"].alarm) == ("weight-only", True)
    assert (rows["attention"].selected, rows["attention"].alarm) == ("FLASHINFER", False)
    assert (rows["kv_cache"].grade, rows["kv_cache"].alarm) == ("unquantized", True)


def test_an_attention_backend_that_was_asked_for_and_not_taken() -> None:
    layer = LayerExpectation("attention", None, "16-bit", "FLASHINFER", "native")
    facts = _facts(attention_backend="FLASH_ATTN", requested={"attention_backend": "FLASHINFER"})
    (row,) = asked_vs_runs([layer], facts)
    assert (row.alarm, row.detail) == (True, "FLASHINFER was asked for")


def test_two_kinds_of_linear_layers_get_their_own_kernels() -> None:
    layers = [
        LayerExpectation("linear", 64, "W4A16", "MacheteLinearKernel", "native"),
        LayerExpectation("linear", 32, "FP8", "CutlassFP8ScaledMMLinearKernel", "native"),
    ]
    facts = _facts(("a", "MacheteLinearKernel"), ("b", "CutlassFP8ScaledMMLinearKernel"))
    assert [row.selected for row in asked_vs_runs(layers, facts)] == [
        "MacheteLinearKernel",
        "CutlassFP8ScaledMMLinearKernel",
    ]


@pytest.mark.parametrize(
    ("case", "selected", "alarm"),
    [
        ("healthy-fp8-per-tensor-a5000-marlin", "MarlinFP8ScaledMMLinearKernel", True),
        ("healthy-fp8-l40s-cutlass", "CutlassFP8ScaledMMLinearKernel", False),
        ("healthy-awq-3090-marlin", "MarlinLinearKernel", False),
        ("healthy-w4a16-h100-machete", "MacheteLinearKernel", False),
        ("mxfp8-on-l40s-marlin", "MarlinMxfp8LinearKernel", True),
        ("nvfp4-w4a16-kernel-preferred-sm121", "FlashInferCuteDslNvFp4W4A16LinearKernel", True),
        ("tricky-crlf-continuation", "EmulationNvFp4LinearKernel", True),
    ],
)
def test_without_a_plan_the_method_is_taken_at_its_word(case: str, selected: str, alarm: bool) -> None:
    facts = explain_path(DATA / "cases" / case / "log.txt").facts
    row = next(row for row in asked_vs_runs((), facts) if row.kind == "linear")
    assert (row.selected, row.alarm) == (selected, alarm)


def test_a_log_without_kernel_lines_says_so() -> None:
    facts = explain_path(DATA / "real" / "h200-vllm-0.26.0" / "healthy-gptq-int4.log").facts
    row = next(row for row in asked_vs_runs((), facts) if row.kind == "linear")
    assert (row.selected, row.grade, row.alarm) == (None, "unknown", False)


@pytest.mark.parametrize(
    ("name", "family", "grade"),
    [
        ("MarlinLinearKernel", "marlin", "native"),
        ("MarlinFP8ScaledMMLinearKernel", "marlin", "weight-only"),
        ("HummingNvFp4LinearKernel", "humming", "weight-only"),
        ("TritonW4A16LinearKernel", "triton", "native"),
        ("XPUW8A16FP8LinearKernel", "weight-only", "weight-only"),
        ("FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "flashinfer + deep_gemm", "native"),
        ("CPUWNA16LinearKernel", "cpu", "native"),
        ("ChannelWiseTorchFP8ScaledMMLinearKernel", "torch", "native"),
        ("SomethingNew", "unknown", "unknown"),
    ],
)
def test_what_a_kernels_name_says(name: str, family: str, grade: str) -> None:
    kind = linear_kernel(name)
    assert (kind.family, kind.grade) == (family, grade)


def test_experts_in_sixteen_bits_by_design() -> None:
    assert moe_backend("MARLIN", "WNA16").grade == "native"
    assert moe_backend("MARLIN", "Fp8").grade == "weight-only"
    assert moe_backend("TRITON", "Fp8").grade == "native"


def test_every_kernel_of_preflights_table_is_known_here() -> None:
    from vq_console.preflight import kernel_table

    rows = [row for family in kernel_table.CUDA_LINEAR.values() for row in family]
    assert len(rows) > 30
    assert [row.kernel for row in rows if linear_kernel(row.kernel).family == "unknown"] == []


@pytest.mark.parametrize(
    ("module", "promised"),
    [
        ("Fp8LinearMethod", True),
        ("CompressedTensorsW8A8Fp8", True),
        ("NVFP4 GEMM", True),
        ("CompressedTensorsW8A16Fp8", False),
        ("mixed-precision linear", False),
        ("AutoAWQMarlinLinearMethod", False),
    ],
)
def test_which_methods_quantize_activations(module: str, promised: bool) -> None:
    assert promises_activations(module) is promised


def _judged() -> list[tuple[str, str, dict[str, Any], Path]]:
    """(name, right diagnosis, what was launched where, log) of recorded logs that are healthy or a slow fallback."""
    answers = tomllib.loads((DATA / "real" / "answers.toml").read_text())["log"]
    found = [(a["file"], a["diagnosis"], a.get("lint_input"), DATA / "real" / a["file"]) for a in answers]
    for folder in sorted((DATA / "cases").iterdir()):
        case = tomllib.loads((folder / "case.toml").read_text())
        found.append((case["id"], case["expected_diagnosis"], case.get("lint_input"), folder / "log.txt"))
    return [row for row in found if row[2] and row[1] in ("healthy", "kernel-slow-fallback")]


def test_recorded_fallbacks_raise_the_alarm_and_native_runs_never() -> None:
    alarms = {}
    for name, diagnosis, launched, log in _judged():
        rows = asked_vs_runs(plan_of(launched).layers, explain_path(log).facts)
        alarms[name] = (diagnosis, [row.selected for row in rows if row.alarm])
    assert {name: selected for name, (_, selected) in alarms.items() if selected} == {
        # NVFP4 on Hopper serves well, but in 16 bits.
        "h200-vllm-0.26.0/healthy-nvfp4-modelopt.log": ["MarlinNvFp4LinearKernel"],
        "mxfp8-on-l40s-marlin": ["MarlinMxfp8LinearKernel"],
        "nvfp4-w4a16-kernel-preferred-sm121": ["FlashInferCuteDslNvFp4W4A16LinearKernel"],
        "tricky-crlf-continuation": ["EmulationNvFp4LinearKernel"],
        "mxfp4-activation-ignored-marlin": ["MarlinMxFp4LinearKernel"],
        # Versions that warn of it without naming the kernel.
        "marlin-fp8-fallback-a100": ["a weight-only kernel"] * 2,
        "marlin-fp4-fallback-on-blackwell": ["a weight-only kernel"],
    }
    assert all(selected for diagnosis, selected in alarms.values() if diagnosis == "kernel-slow-fallback")
    assert len(alarms) > 15
