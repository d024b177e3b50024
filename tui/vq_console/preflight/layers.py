"""The table of layers: which kind runs which scheme on which kernel, and what ignore lists leave out of it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from vq_console.preflight.assign import Shares, assign
from vq_console.preflight.kernels import UNKNOWN, Pick, Where, linear_kernel, moe_kernel
from vq_console.preflight.kv import resolved_kv_dtype
from vq_console.preflight.method import Resolution, is_online
from vq_console.preflight.model import Grade, LayerExpectation
from vq_console.preflight.scheme import NONE, Scheme
from vq_console.preflight.shapes import Linear, anatomy
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import as_list, truthy
from vq_console.preflight.versions import span

_NO_DEEP_GEMM_TYPES = frozenset({"qwen3_5_text", "qwen3_5_moe_text"})


def conditions(situation: Situation, shapes: tuple[tuple[int, int], ...] = ()) -> Where:
    """The conditions of the situation that kernel gates look at."""
    installed = situation.installed
    full = installed is not None and "vllm" in installed
    dtype = str(situation.args.get("dtype") or "")
    return Where(
        device=situation.device,
        sm=situation.sm,
        version=situation.version,
        half=dtype in {"half", "float16"} or (situation.sm is not None and situation.sm < 80 and dtype in {"", "auto"}),
        batch_invariant=truthy(situation.env.get("VLLM_BATCH_INVARIANT")),
        deep_gemm=not situation.deep_gemm_off() and not _deep_gemm_unsuited(situation),
        expert_parallel=situation.on("enable_expert_parallel"),
        cpu_flags=situation.cpu_flags,
        gfx=situation.gfx,
        packages=frozenset(installed) if full and installed is not None else None,
        disabled=frozenset(as_list(situation.env.get("VLLM_DISABLED_KERNELS"))),
        shapes=shapes,
        static_activations=_static(situation),
    )


def _static(situation: Situation) -> bool | None:
    """Whether activations have one scale for the tensor; quantized on load they have one per token (cutlass_fp8)."""
    if situation.fact("quant_method") is None and is_online(situation):
        return False
    words = " ".join(str(situation.fact(key) or "") for key in ("scheme", "activation_scheme")).lower()
    return False if "dynamic" in words else None


def _deep_gemm_unsuited(situation: Situation) -> bool:
    return situation.model_type in _NO_DEEP_GEMM_TYPES and situation.family in {10, 12}


def backend_classes(situation: Situation) -> tuple[str, ...] | None:
    """Kernel classes that `--linear-backend` leaves over; None where it is auto, absent or not understood."""
    backend = str(situation.args.get("linear_backend") or "auto")
    if backend == "auto" or situation.catalogue.linear_backend_kernels is None:
        return None
    return situation.catalogue.linear_backend_kernels.get(backend.replace("-", "_"))


def pick_linear(situation: Situation, scheme: Scheme, shapes: tuple[tuple[int, int], ...] = ()) -> Pick:
    """The kernel of linear layers of one scheme, with what `--linear-backend` asks for as vLLM takes it."""
    where = conditions(situation, shapes)
    only = backend_classes(situation)
    if only is not None:
        forced = linear_kernel(scheme, where, only)
        if forced.kernel is not None:
            return forced
        if scheme.quantized and not span(">=0.29").holds(situation.version):
            return forced
        # From 0.29 a backend without a kernel for this type is ignored with a warning.
        if any(row in only for row in _class_names(scheme)):
            return forced
    return linear_kernel(scheme, where)


def _class_names(scheme: Scheme) -> set[str]:
    from vq_console.preflight.kernel_table import CUDA_LINEAR

    return {row.kernel for row in CUDA_LINEAR.get(scheme.family, ())}


def layer_table(situation: Situation, resolution: Resolution) -> tuple[LayerExpectation, ...]:
    """One row per kind of layer, scheme and kernel, in the order linear, moe, attention, kv_cache, lm_head."""
    shape = anatomy(situation.facts)
    rows: list[LayerExpectation] = []
    if shape is None:
        rows += _without_anatomy(situation, resolution)
    else:
        rows += _rows(situation, resolution, shape.linears, assign(situation, resolution, shape).shares)
    rows.append(_attention(situation))
    rows.append(_kv_cache(situation))
    rows.append(LayerExpectation("lm_head", 1, NONE.label, None, "unquantized", "left in 16 bit by every method"))
    return tuple(rows)


def _without_anatomy(situation: Situation, resolution: Resolution) -> list[LayerExpectation]:
    rows = []
    if resolution.linear is not None:
        rows.append(_expectation("linear", None, resolution.linear, pick_linear(situation, resolution.linear)))
    if situation.moe and resolution.moe is not None:
        rows.append(_expectation("moe", None, resolution.moe, moe_kernel(resolution.moe, conditions(situation))))
    return rows


def _rows(
    situation: Situation, resolution: Resolution, linears: tuple[Linear, ...], shares: Mapping[str, Shares]
) -> list[LayerExpectation]:
    grouped: dict[tuple[str, str, str | None, Grade], tuple[int, Scheme, Pick]] = {}
    for layer in linears:
        for scheme, count in shares[layer.name]:
            if layer.kind == "moe":
                pick = moe_kernel(scheme, conditions(situation))
            else:
                pick = pick_linear(situation, scheme, (layer.shard(situation.tp),))
            if not resolution.schemes:
                pick = UNKNOWN
            key = (layer.kind, scheme.label, pick.kernel, pick.grade)
            grouped[key] = (grouped.get(key, (0, scheme, pick))[0] + count, scheme, pick)
    rows = [_expectation(kind, count, scheme, pick) for (kind, *_), (count, scheme, pick) in grouped.items()]
    return sorted(rows, key=lambda row: (row.kind, row.grade == "unquantized", -(row.count or 0)))


def _expectation(kind: str, count: int | None, scheme: Scheme, pick: Pick) -> LayerExpectation:
    grade: Grade = pick.grade if scheme.quantized else "unquantized"
    return LayerExpectation(kind, count, scheme.label, pick.kernel, grade, pick.fails or pick.source)


def _attention(situation: Situation) -> LayerExpectation:
    from vq_console.preflight.attention import attention_backend

    backend, source = attention_backend(situation)
    return LayerExpectation("attention", None, "16-bit", backend, "native" if backend else "unknown", source)


def _kv_cache(situation: Situation) -> LayerExpectation:
    dtype = resolved_kv_dtype(situation, situation.kv_dtype)
    plain = dtype in {"bfloat16", "float16", "float32"}
    scheme = "16-bit" if plain and dtype != "float32" else dtype
    return LayerExpectation("kv_cache", None, scheme, None, "unquantized" if plain else "native", "")
