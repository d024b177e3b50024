"""Known defects of releases: combinations that crash, or answer nonsense, in a range of versions and nowhere else.

Each names the report or the fix that bounds it. A defect whose fix is not known ends where the reports end.
"""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.attention import refusal
from vq_console.preflight.model import Patch
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.shapes import anatomy
from vq_console.preflight.values import as_list, whole
from vq_console.preflight.versions import span, version_text, vllm_text


def _workstation(context: Context) -> bool:
    """SM 12.x: GeForce RTX 50, RTX PRO Blackwell, GB10."""
    return context.s.family == 12


def _nvfp4(context: Context) -> bool:
    return bool(context.families() & {"nvfp4", "nvfp4_a16"})


def _gpt_oss(context: Context) -> bool:
    s = context.s
    return bool(s.moe) and str(s.fact("quant_method")) in {"mxfp4", "gpt_oss_mxfp4"}


def _forced_marlin(context: Context, moe: bool) -> bool:
    return str(context.s.args.get("moe_backend" if moe else "linear_backend")) == "marlin"


@rule("online-quant-bias-dropped", "warning", versions="<0.21", source="vLLM issue 39663, fixed by PR 41424 in 0.21.0")
def bias(context: Context) -> Iterator[Hit]:
    """Online FP8 left bias tensors at zero before 0.21."""
    s = context.s
    if not context.resolution.online:
        return
    biased = s.fact("attention_bias") or s.model_type in {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"}
    if biased or s.fact("mlp_bias"):
        yield Hit(
            f"online quantization before vLLM 0.21 loses bias terms, and this model has them: it answers nonsense on "
            f"{version_text(s.version)}",
            fix="Upgrade to 0.21 or newer, or use a pre-quantized checkpoint",
            patch=drop("quantization"),
        )


@rule("kv-fp8-wrong-output", "warning", versions="<0.19", source="vLLM issue 38652, fixed by PR 37054 (0.19)")
def mla_fp8_kv(context: Context) -> Iterator[Hit]:
    """An FP8 KV cache corrupted later turns of MLA models before 0.19."""
    if context.s.mla and context.s.fp8_kv:
        yield Hit(
            f"an FP8 KV cache with multi-head latent attention corrupts later turns on "
            f"{version_text(context.s.version)}",
            fix="Upgrade to 0.19 or newer, or use --kv-cache-dtype auto",
            patch=put(kv_cache_dtype="auto"),
        )


@rule("kv-fp8-wrong-output", "warning", versions=">=0.18,<0.19", source="vLLM 0.18 reports: Qwen3.5 KV regression")
def qwen35_fp8_kv(context: Context) -> Iterator[Hit]:
    """Qwen3.5 with an FP8 KV cache on 0.18."""
    s = context.s
    if s.model_type.startswith("qwen3_5") and s.fp8_kv:
        yield Hit(
            f"Qwen3.5 with an FP8 KV cache answers wrongly on {version_text(s.version)}",
            fix="Upgrade to 0.19 or newer, or use --kv-cache-dtype auto",
            patch=put(kv_cache_dtype="auto"),
        )


@rule("quant-wrong-output", "warning", source="vLLM issues 39407 and 39049, closed without a fix; PR 40391 open")
def gemma4_block(context: Context) -> Iterator[Hit]:
    """Gemma 4 with block FP8 saturates its logits."""
    s = context.s
    gemma = s.model_type.startswith("gemma4") or any(n.startswith("Gemma4") for n in s.architectures)
    if gemma and "fp8_block" in context.families():
        yield Hit(
            "Gemma 4 with block FP8 repeats itself: activations are scaled twice, and no fix is merged",
            fix="Use an FP8 checkpoint without blocks, or BF16",
            patch=put(quantization="fp8_per_tensor") if context.resolution.online else None,
        )


@rule("quant-wrong-output", "warning", versions="<0.23", source="report: gpt-oss on GB10 with Marlin; 0.23 validated")
def gpt_oss_marlin(context: Context) -> Iterator[Hit]:
    """Marlin MXFP4 on SM 12.1 emits a wrong first token for gpt-oss."""
    s = context.s
    if not _gpt_oss(context) or s.sm != 121:
        return
    backend = str(s.args.get("moe_backend") or "auto")
    if backend in {"auto", "marlin"}:
        yield Hit(
            f"gpt-oss experts run on Marlin on SM 12.1, whose first token is wrong on {version_text(s.version)}: "
            "content comes back empty",
            fix="Upgrade to 0.23 or newer, or use another --moe-backend",
        )


@rule("kernel-slow-fallback", "warning", versions="<0.20", source="vLLM issue 31085: MXFP4 on SM 12.0 falls to Marlin")
def mxfp4_on_workstation(context: Context) -> Iterator[Hit]:
    """Early releases knew FP4 on SM 10.x only; the hardware of SM 12.x has it too."""
    s = context.s
    if _gpt_oss(context) and _workstation(context) and str(s.args.get("moe_backend") or "auto") in {"auto", "marlin"}:
        yield Hit(
            f"MXFP4 experts fall to Marlin with 16-bit math on SM {(s.sm or 0) / 10:.1f}: vLLM "
            f"{version_text(s.version)} uses FP4 on SM 10.x only, though this GPU has it",
            fix="Upgrade, then --moe-backend flashinfer_b12x or auto",
        )


@rule(
    "kernel-crash-arch",
    "error",
    versions="<0.32",
    source="report: Triton MXFP4 uses TMA scatter4, which SM 12.x does not have; 0.32 constrains it there",
)
def triton_mxfp4(context: Context) -> Iterator[Hit]:
    """The Triton MXFP4 experts on workstation Blackwell."""
    s = context.s
    backend = str(s.args.get("moe_backend") or "")
    if _gpt_oss(context) and _workstation(context) and backend in {"triton", "triton_unfused"}:
        yield Hit(
            f"--moe-backend {backend} for MXFP4 cannot be assembled for SM {(s.sm or 0) / 10:.1f} (TMA scatter)",
            fix="Use --moe-backend marlin, or auto",
            patch=put(moe_backend="marlin"),
        )


@rule("kernel-crash-arch", "error", versions=">=0.12,<0.19", source="vLLM PR 38423: NVFP4 kernels of another family")
def nvfp4_traps(context: Context) -> Iterator[Hit]:
    """NVFP4 kernels compiled for SM 10.x trap on SM 12.x during decode."""
    s = context.s
    if not (_nvfp4(context) and _workstation(context)):
        return
    if _forced_marlin(context, moe=True) or (not s.moe and _forced_marlin(context, moe=False)):
        return
    yield Hit(
        f"NVFP4 on SM {(s.sm or 0) / 10:.1f} traps with an illegal instruction on {version_text(s.version)}",
        fix="Upgrade past the fix, or force --moe-backend marlin and --linear-backend marlin",
        patch=put(moe_backend="marlin") if s.moe else None,
    )


@rule("kernel-not-available", "error", versions="<0.12", source="vLLM issue: NVFP4 MoE on SM 12.0 landed after 0.11")
def nvfp4_moe_early(context: Context) -> Iterator[Hit]:
    """Grouped FP4 kernels were not built for SM 12.x."""
    s = context.s
    if _nvfp4(context) and _workstation(context) and s.moe:
        yield Hit(
            f"{vllm_text(s.version)} has no grouped FP4 kernel for SM {(s.sm or 0) / 10:.1f}",
            fix="Upgrade vLLM, or serve an FP8 or AWQ checkpoint",
        )


@rule("quant-wrong-output", "warning", versions="<0.27", source="report: NVFP4 CUTLASS on SM 12.0, K not 32-aligned")
def nvfp4_unaligned(context: Context) -> Iterator[Hit]:
    """The NVFP4 CUTLASS kernel on SM 12.x answers nonsense when a shard's K is no multiple of 32."""
    s = context.s
    if not (_nvfp4(context) and _workstation(context)) or _forced_marlin(context, moe=False):
        return
    shape = anatomy(s.facts)
    widths = [layer.shard(s.tp)[1] for layer in shape.linears if layer.kind == "linear"] if shape is not None else []
    if not widths and (width := whole(s.fact("intermediate_size"))):
        widths = [width // s.tp]
    bad = next((width for width in widths if width % 32), None)
    if bad is not None:
        yield Hit(
            f"the NVFP4 kernel of SM {(s.sm or 0) / 10:.1f} answers nonsense where K per GPU is no multiple of 32 "
            f"(here {bad})",
            fix="Use --linear-backend marlin, or a tensor-parallel size that keeps K a multiple of 32",
            patch=put(linear_backend="marlin"),
        )


@rule("quant-wrong-output", "warning", versions="<0.25.1", source="vLLM PR 48330: fused allreduce + RMSNorm + quant")
def nvfp4_fused_allreduce(context: Context) -> Iterator[Hit]:
    """The fused all-reduce corrupts NVFP4 on several GPUs for Gemma and Qwen norms."""
    s = context.s
    families = ("qwen", "gemma")
    known = s.model_type.startswith(families) or s.model.lower().rsplit("/", 1)[-1].startswith(families)
    if _nvfp4(context) and s.tp > 1 and known and s.family in {10, 12} and span(">=0.20").holds(s.version):
        yield Hit(
            f"NVFP4 over {s.tp} GPUs corrupts output on {version_text(s.version)} for this model's norm (fused "
            "all-reduce)",
            fix="Upgrade to 0.25.1 or newer",
        )


@rule(
    "kernel-crash-arch", "error", versions=">=0.18,<0.20", source="report: CUTLASS FP8 'Error Internal' on GB10, 0.19.1"
)
def online_fp8_gb10(context: Context) -> Iterator[Hit]:
    """Online FP8 on SM 12.1 failed in CUTLASS."""
    s = context.s
    if context.resolution.online and s.sm == 121 and context.families() & {"fp8_tensor", "fp8_channel"}:
        yield Hit(
            f"online FP8 fails in CUTLASS on SM 12.1 with {vllm_text(s.version)} (Error Internal)",
            fix="Serve BF16 or a pre-quantized checkpoint, or upgrade",
            patch=drop("quantization"),
        )


@rule(
    "deepgemm-incompatible",
    "error",
    versions=">=0.24,<0.25",
    source="report: DeepGEMM 'Unknown recipe', SM 12.0, 0.24.0",
)
def deep_gemm_warmup_sm120(context: Context) -> Iterator[Hit]:
    """0.24.0 warms DeepGEMM up on SM 12.x although it does not use it there."""
    s = context.s
    skipped = s.deep_gemm_off() or s.env.get("VLLM_DEEP_GEMM_WARMUP") == "skip"
    if "fp8_block" in context.families() and _workstation(context) and not skipped:
        yield Hit(
            f"{vllm_text(s.version)} warms DeepGEMM up on SM {(s.sm or 0) / 10:.1f}, which it does not know",
            fix="Set VLLM_USE_DEEP_GEMM=0 (or VLLM_DEEP_GEMM_WARMUP=skip), or use another release",
            patch=Patch(set_env={"VLLM_USE_DEEP_GEMM": "0"}),
        )


@rule("kernel-crash-arch", "error", versions="<0.19", source="seed: MXFP8 with DeepGEMM crashed before 0.19")
def mxfp8_deep_gemm(context: Context) -> Iterator[Hit]:
    """MXFP8 with DeepGEMM before 0.19."""
    s = context.s
    if "mxfp8" in context.families() and s.family in {9, 10} and not s.deep_gemm_off():
        yield Hit(
            f"MXFP8 with DeepGEMM crashes on {version_text(s.version)}",
            fix="Upgrade to 0.19 or newer, or set VLLM_USE_DEEP_GEMM=0",
            patch=Patch(set_env={"VLLM_USE_DEEP_GEMM": "0"}),
        )


@rule("quant-ignore-mismatch", "warning", versions="<0.21", source="vLLM issue 40252, closed 2026-04-20")
def split_linear_attention(context: Context) -> Iterator[Hit]:
    """Ignore lists with the split names of linear attention, which vLLM fuses."""
    names = as_list(context.s.stated("ignore"))
    tails = {n.rsplit(".", 1)[-1] for n in names}
    whole = any(n.endswith(("linear_attn.*", "linear_attn")) for n in names)
    split = [n for n in names if "linear_attn" in n and _SPLIT.get(n.rsplit(".", 1)[-1], "") not in {"", *tails}]
    if split and not whole and not context.resolution.online:
        yield Hit(
            "the checkpoint's ignore list names split linear-attention tensors, which vLLM fuses: 16-bit weights are "
            f"read as quantized on {version_text(context.s.version)}",
            evidence=", ".join(split[:4]),
            fix="Write the fused names (in_proj_qkvz, in_proj_ba) into config.json, or upgrade",
        )


_SPLIT = {
    **dict.fromkeys(("in_proj_qkv", "in_proj_z", "in_proj_q", "in_proj_k", "in_proj_v"), "in_proj_qkvz"),
    **dict.fromkeys(("in_proj_b", "in_proj_a"), "in_proj_ba"),
}
"""Names in the checkpoint → the one that vLLM fuses them into."""


@rule("quant-ignore-mismatch", "warning", versions="<0.21", source="vLLM issue 40252: hybrid models, NVFP4")
def hybrid_without_ignore(context: Context) -> Iterator[Hit]:
    """An NVFP4 checkpoint of a hybrid model whose ignore list forgets linear attention."""
    s = context.s
    names = as_list(s.stated("ignore"))
    hybrid = bool(s.fact("hybrid")) or s.model_type.startswith(("qwen3_next", "qwen3_5"))
    if hybrid and _nvfp4(context) and names and not any("linear_attn" in n for n in names):
        yield Hit(
            "the NVFP4 checkpoint of a hybrid model does not leave linear attention alone",
            evidence=", ".join(names[:4]),
            fix="Use a checkpoint whose ignore list names linear_attn, or upgrade",
        )


@rule("triton-out-of-resources", "error", source="report: Triton attention needs 80 KiB on Turing's 64 KiB, 0.17.0")
def turing_shared_memory(context: Context) -> Iterator[Hit]:
    """Triton attention with heads wider than 128 does not fit Turing's shared memory."""
    s = context.s
    head = s.head_dim
    backend = str(s.args.get("attention_backend") or "auto").upper()
    if s.sm is None or s.sm >= 80 or head is None or head <= 128 or backend not in {"AUTO", "TRITON_ATTN"}:
        return
    if backend == "AUTO" and not span(">=0.12").holds(s.version):
        return
    if backend == "AUTO" and span(">=0.20,<0.32").holds(s.version) and refusal(s, "FLASHINFER") is None:
        return
    yield Hit(
        f"Triton attention with a head size of {head} needs more shared memory than SM {s.sm / 10:.1f} has (64 KiB)",
        fix="Use --attention-backend FLASHINFER where it runs, another model, or SM 8.0 and newer",
        patch=put(attention_backend="FLASHINFER"),
        severity=None if s.stated("head_dim") is not None else "warning",
    )


@rule("illegal-memory-access", "warning", versions="<0.12", source="report: Marlin MoE on SM 12.0, vLLM 0.11.0")
def marlin_moe_workstation(context: Context) -> Iterator[Hit]:
    """Marlin experts read out of bounds on SM 12.x with tensor parallelism."""
    s = context.s
    if s.moe and "wna16" in context.families() and _workstation(context) and s.tp > 1:
        yield Hit(
            f"Marlin experts over {s.tp} GPUs crash on SM {(s.sm or 0) / 10:.1f} with {vllm_text(s.version)}",
            fix="Upgrade vLLM",
        )
