"""What was expected beside what runs: preflight's layers against the kernels that the log names.

A silent fallback raises an alarm; a missing line is `not found`, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.logs.kernels import (
    WEIGHTS_ALONE,
    is_expert_module,
    linear_kernel,
    moe_backend,
    number_format,
    promises_activations,
)
from vq_console.logs.model import AskedVsRuns
from vq_console.preflight.model import Grade, LayerExpectation

_ORDER: Mapping[str, int] = {"native": 3, "weight-only": 2, "emulated": 1, "unquantized": 0, "unsupported": 0}
_ASKS_ACTIVATIONS = re.compile(r"(?:FP8|MXFP[48]|NVFP4|INT8|W[48]A[48])(?!.*A16)")
"""Schemes, by their name in the plan, that quantize activations too: 16-bit math is not what was asked for."""
_INTEGER_RANK = {"machete": 3, "marlin": 2, "humming": 2, "allspark": 2, "conch": 1, "exllama": 1, "triton": 1}
"""Families that multiply integer weights with 16-bit activations, by how fast they are where several can run."""
_SIXTEEN_BIT_MOE = frozenset({"Mxfp4", "MXFP4"})
"""gpt-oss experts compute in 16 bits in most backends; without a plan nothing can be said against it."""


def asked_vs_runs(layers: Sequence[LayerExpectation], facts: Mapping[str, Any]) -> tuple[AskedVsRuns, ...]:
    """One row per kind of layer. Without `layers` the method's own promise stands in for the expectation: a layer
    method that quantizes activations but got a weight-only or emulating kernel is an alarm."""
    if not layers:
        return tuple(_from_log(facts))
    rows = []
    for layer in layers:
        row = _row(layer, layers, facts)
        if row is not None:
            rows.append(row)
    return tuple(rows)


def _row(layer: LayerExpectation, layers: Sequence[LayerExpectation], facts: Mapping[str, Any]) -> AskedVsRuns | None:
    if layer.kind == "attention":
        return _attention(layer, facts)
    if layer.kind == "kv_cache":
        return _kv_cache(layer, facts)
    if layer.kind in ("linear", "moe") and layer.grade != "unquantized" and _warned_without_name(layer, facts):
        words = "the log warns of 16-bit math and names no kernel"
        return AskedVsRuns(layer.kind, layer.scheme, "a weight-only kernel", "weight-only", True, words)
    if layer.kernel is None and layer.grade in ("unquantized", "unknown"):
        if layer.kind in ("linear", "moe") and layer.grade == "unquantized":
            return _left_alone(layer, layers, facts)
        return None
    names = _selected(layer.kind, facts)
    if not names:
        return AskedVsRuns(layer.kind, layer.kernel, None, "unknown", False, "not found in the log")
    mine = _fitting(layer, layers, names)
    worst = min((_grade(layer, name, facts) for name in mine), key=lambda grade: _ORDER.get(grade, 9))
    fell = _ORDER.get(worst, 9) < _ORDER.get(layer.grade, 0)
    if not fell and worst in ("weight-only", "emulated") and _ASKS_ACTIVATIONS.match(layer.scheme):
        # Foretold or not: what was asked for is another thing than what runs.
        foretold = " Preflight foretold it." if layer.kernel in mine else ""
        words = f"{layer.scheme} was asked for, this computes in 16 bits.{foretold}"
        return AskedVsRuns(layer.kind, layer.scheme, ", ".join(mine), worst, True, words)
    if not fell and _slower_integer_kernel(layer, mine):
        words = "a slower kernel of the same kind: shape, group size or version rule the expected one out"
        return AskedVsRuns(layer.kind, layer.kernel, ", ".join(mine), worst, True, words)
    return AskedVsRuns(layer.kind, layer.kernel, ", ".join(mine), worst, fell, _words(layer, mine, worst, fell))


def _warned_without_name(layer: LayerExpectation, facts: Mapping[str, Any]) -> bool:
    """Whether the log says that these layers run weight-only, in a version that names no kernel for them."""
    return "kernel-slow-fallback" in (facts.get("warnings") or ()) and not _selected(layer.kind, facts)


def _slower_integer_kernel(layer: LayerExpectation, mine: Sequence[str]) -> bool:
    """Whether integer weights run on a family that is slower than the expected one, such as Marlin for Machete."""
    if layer.kernel is None or layer.kernel in mine or number_format(layer.kernel) != WEIGHTS_ALONE:
        return False
    ranks = [_INTEGER_RANK.get(linear_kernel(name).family) for name in mine if number_format(name) == WEIGHTS_ALONE]
    expected = _INTEGER_RANK.get(linear_kernel(layer.kernel).family)
    return expected is not None and any(rank is not None and rank < expected for rank in ranks)


def _words(layer: LayerExpectation, mine: Sequence[str], worst: Grade, fell: bool) -> str:
    if fell:
        return f"expected {layer.grade}, runs {worst}"
    if layer.kernel is not None and layer.kernel not in mine:
        if any(_other_format(layer, name) for name in mine):
            return "another number format than expected: is this the log of this profile?"
        return "another kernel of the same kind"
    if len(mine) > 1:
        return "several kernels: shapes differ from layer to layer"
    return ""


def _selected(kind: str, facts: Mapping[str, Any]) -> list[str]:
    kernels = facts.get("kernels") or []
    if kind == "moe":
        backend = facts.get("moe_backend")
        return [str(backend)] if backend else []
    names: list[str] = []
    for kernel in kernels:
        name = str(kernel.get("kernel"))
        if not is_expert_module(str(kernel.get("module"))) and name not in names:
            names.append(name)
    return names


def _fitting(layer: LayerExpectation, layers: Sequence[LayerExpectation], names: list[str]) -> list[str]:
    """Of several kernels those that belong to this row: what other rows of the kind expect is theirs."""
    others = {other.kernel for other in layers if other is not layer and other.kind == layer.kind and other.kernel}
    mine = [name for name in names if name == layer.kernel or name not in others]
    return mine or names


def _grade(layer: LayerExpectation, name: str, facts: Mapping[str, Any]) -> Grade:
    if name == layer.kernel:
        return layer.grade
    if layer.kind == "moe":
        return moe_backend(name, facts.get("moe_scheme")).grade
    if layer.grade == "native" and _other_format(layer, name) and number_format(name) == WEIGHTS_ALONE:
        return "weight-only"
    return linear_kernel(name).grade


def _other_format(layer: LayerExpectation, name: str) -> bool:
    """Whether the expected and the selected kernel speak of different number formats."""
    if layer.kind != "linear" or layer.kernel is None:
        return False
    expected, selected = number_format(layer.kernel), number_format(name)
    return None not in (expected, selected) and expected != selected


def _left_alone(
    layer: LayerExpectation, layers: Sequence[LayerExpectation], facts: Mapping[str, Any]
) -> AskedVsRuns | None:
    """Layers that are meant to stay in 16 bits print no kernel; a kernel without any quantized row is news."""
    quantized = any(other.kind == layer.kind and other.grade != "unquantized" for other in layers)
    names = _selected(layer.kind, facts)
    if quantized or not names or layer.kind == "moe":
        return None
    return AskedVsRuns(
        layer.kind, None, ", ".join(names), linear_kernel(names[0]).grade, False, "quantized by the checkpoint"
    )


def _attention(layer: LayerExpectation, facts: Mapping[str, Any]) -> AskedVsRuns:
    selected = facts.get("attention_backend")
    if not selected:
        return AskedVsRuns("attention", layer.kernel, None, "unknown", False, "not found in the log")
    requested = facts.get("requested")
    asked = requested.get("attention_backend") if isinstance(requested, Mapping) else None
    ignored = bool(asked) and str(asked).lower() != "auto" and str(asked).upper() != str(selected).upper()
    detail = f"{asked} was asked for" if ignored else ""
    if not ignored and layer.kernel and layer.kernel.upper() != str(selected).upper():
        detail = "another backend than expected"
    return AskedVsRuns("attention", layer.kernel, str(selected), "native", ignored, detail)


def _kv_cache(layer: LayerExpectation, facts: Mapping[str, Any]) -> AskedVsRuns:
    selected = facts.get("kv_cache_dtype")
    if selected is None:
        return AskedVsRuns("kv_cache", layer.scheme, None, "unknown", False, "not found in the log")
    name = str(selected)
    plain = name in ("auto", "bfloat16", "float16", "half", "float32")
    if layer.grade == "unquantized":
        grade: Grade = "unquantized" if plain else "native"
        return AskedVsRuns(
            "kv_cache", layer.scheme, name, grade, False, "" if plain else "quantized, though not expected"
        )
    if name == "auto":
        return AskedVsRuns(
            "kv_cache", layer.scheme, name, "unknown", False, "auto: the checkpoint decides, the log does not say how"
        )
    return AskedVsRuns("kv_cache", layer.scheme, name, "unquantized" if plain else layer.grade, plain, "")


def _from_log(facts: Mapping[str, Any]) -> list[AskedVsRuns]:
    rows: list[AskedVsRuns] = []
    method = facts.get("quantization")
    for kernel in facts.get("kernels") or []:
        name, module = str(kernel.get("kernel")), str(kernel.get("module"))
        if is_expert_module(module) or any(row.selected == name for row in rows):
            continue
        kind = linear_kernel(name)
        promised = promises_activations(module)
        alarm = kind.grade == "emulated" or (promised and kind.grade == "weight-only")
        grade: Grade = kind.grade
        if grade == "weight-only" and not promised:
            grade = "native"
        detail = f"{module} quantizes activations, this kernel does not" if alarm else ""
        rows.append(AskedVsRuns("linear", None, name, grade, alarm, detail))
    if method and "kernels" in facts and not rows and facts.get("model_load_gib") is not None:
        rows.append(AskedVsRuns("linear", None, None, "unknown", False, "not found in the log"))
    backend = facts.get("moe_backend")
    if backend:
        scheme = facts.get("moe_scheme")
        kind = moe_backend(str(backend), scheme)
        quiet = scheme in _SIXTEEN_BIT_MOE and kind.grade == "weight-only"
        alarm = kind.grade in ("weight-only", "emulated") and not quiet and bool(method)
        rows.append(AskedVsRuns("moe", None, str(backend), kind.grade, alarm, f"scheme {scheme}" if scheme else ""))
    attention = facts.get("attention_backend")
    if attention:
        rows.append(AskedVsRuns("attention", None, str(attention), "native", False, ""))
    dtype = facts.get("kv_cache_dtype")
    if dtype:
        requested = facts.get("requested")
        asked = requested.get("kv_cache_dtype") if isinstance(requested, Mapping) else None
        plain = str(dtype) in ("auto", "bfloat16", "float16", "half", "float32")
        lost = bool(asked) and str(asked).startswith(("fp8", "int", "nvfp4", "turbo")) and plain
        grade = "unquantized" if plain and dtype != "auto" else "unknown" if plain else "native"
        rows.append(AskedVsRuns("kv_cache", str(asked) if asked else None, str(dtype), grade, lost, ""))
    return rows
