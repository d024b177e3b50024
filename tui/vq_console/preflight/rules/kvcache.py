"""Rules about the KV cache: dtypes against GPU, backend and checkpoint, and scales."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.attention import order, refusal
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.versions import span, vllm_text

BACKENDS = "vLLM source: v1/attention/backends supported_kv_cache_dtypes, supports_combination"


@rule("fp8-kv-unsupported-arch", "error", versions=">=0.10,<0.12", source="vLLM reports 0.10 and 0.11: fp8e4nv")
def fp8_on_ampere_before_selection(context: Context) -> Iterator[Hit]:
    """Before 0.12 an FP8 KV cache fell to Triton on Ampere, which has no E4M3 below SM 8.9."""
    s = context.s
    if s.sm is None or s.sm >= 89 or s.kv_dtype not in {"fp8", "fp8_e4m3"} or s.mla:
        return
    chosen = str(s.args.get("attention_backend") or s.env.get("VLLM_ATTENTION_BACKEND") or "").upper()
    if chosen.startswith("FLASHINFER"):
        return
    yield Hit(
        f"--kv-cache-dtype {s.kv_dtype} falls to the Triton backend, which needs SM 8.9 (fp8e4nv); "
        f"this GPU is SM {s.sm / 10:.1f}",
        fix="Use --kv-cache-dtype auto, or the FlashInfer backend, or fp8_e5m2 on Ampere",
        patch=drop("kv_cache_dtype"),
    )


@rule("fp8-kv-unsupported-arch", "error", versions=">=0.20", source=BACKENDS)
def no_backend_for_dtype(context: Context) -> Iterator[Hit]:
    """No attention backend can hold this KV dtype on this GPU."""
    s = context.s
    if s.sm is None or s.kv_dtype in {"auto", "float16", "bfloat16"} or s.mla or s.fact("hybrid"):
        return
    if s.catalogue.kv_cache_dtypes is not None and s.kv_dtype not in s.catalogue.kv_cache_dtypes:
        return
    if s.kv_dtype in {"fp8_ds_mla", "nvfp4_ds_mla"}:
        if s.mla is False:
            yield Hit(
                f"--kv-cache-dtype {s.kv_dtype} is for multi-head latent attention only",
                fix="Use fp8 or auto",
                patch=put(kv_cache_dtype="auto"),
            )
        return
    chosen = str(s.args.get("attention_backend") or "auto").upper()
    if chosen != "AUTO":
        return
    reasons = {name: refusal(s, name) for name in order(s)}
    if all(reason is not None for reason in reasons.values()):
        telling = next((r for n, r in reasons.items() if r and n == "TRITON_ATTN"), None)
        yield Hit(
            f"no attention backend holds a {s.kv_dtype} KV cache on SM {s.sm / 10:.1f}",
            evidence="; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or (telling or ""),
            fix="Use --kv-cache-dtype auto",
            patch=drop("kv_cache_dtype"),
        )


@rule("fp8-kv-unsupported-arch", "error", versions=">=0.19", source="report: TurboQuant on A100, BF16 on SM 8.0")
def turboquant_in_bfloat16(context: Context) -> Iterator[Hit]:
    """TurboQuant's kernels need FP8 instructions for BF16 models."""
    s = context.s
    dtype = str(s.args.get("dtype") or s.fact("dtype") or "auto")
    if s.kv_dtype.startswith("turboquant") and s.sm is not None and s.sm < 89 and dtype not in {"half", "float16"}:
        yield Hit(
            f"--kv-cache-dtype {s.kv_dtype} crashes with BF16 below SM 8.9",
            fix="Use --kv-cache-dtype auto, or --dtype half",
            patch=drop("kv_cache_dtype"),
        )


@rule("fp8-kv-unsupported-arch", "error", source="vLLM source: v1/attention/backends/cpu_attn.py; measured: 0.32.0")
def cpu_kv(context: Context) -> Iterator[Hit]:
    """The CPU backend holds FP8 from 0.24, with AVX-512 or AMX only."""
    s = context.s
    if s.device != "cpu" or s.kv_dtype in {"auto", "float16", "bfloat16", "float32"}:
        return
    flags = s.cpu_flags
    if not s.fp8_kv:
        why = f"the CPU backend does not know {s.kv_dtype}"
    elif span("<0.24").holds(s.version):
        why = f"{vllm_text(s.version)} has no FP8 KV cache on CPUs"
    elif flags is not None and not any(flag.startswith(("avx512", "amx")) for flag in flags):
        why = "FP8 needs AVX-512 or AMX, and this CPU has neither"
    else:
        return
    yield Hit(
        f"--kv-cache-dtype {s.kv_dtype} is not supported by the CPU attention backend: {why}",
        fix="Use --kv-cache-dtype auto",
        patch=drop("kv_cache_dtype"),
    )


def _fp8_checkpoint(context: Context) -> bool:
    scheme = context.s.fact("kv_cache_scheme") or context.s.fact("kv_cache_quant_algo")
    if scheme and str(scheme).lower() not in {"none", "null"}:
        return True
    if context.resolution.online or context.s.fact("quant_method") is None:
        return False
    if any(family.startswith("fp8") for family in context.families()):
        return True
    quant = str(context.s.fact("quant_method"))
    return span("<0.24").holds(context.s.version) and quant in {"fp8", "compressed-tensors", "modelopt", "quark"}


@rule("kv-dtype-checkpoint-conflict", "error", source="vLLM source: layers/quantization/kv_cache.py, attention.py")
def e5m2_with_fp8_checkpoint(context: Context) -> Iterator[Hit]:
    """FP8 checkpoints have E4M3 scales; E5M2 is refused for them."""
    s = context.s
    if s.kv_dtype == "fp8_e5m2" and _fp8_checkpoint(context):
        yield Hit(
            "--kv-cache-dtype fp8_e5m2 is refused for FP8 checkpoints: their KV scales are E4M3",
            fix="Use --kv-cache-dtype fp8, or auto",
            patch=put(kv_cache_dtype="fp8"),
            severity="warning" if context.resolution.presumed else None,
        )


@rule("kv-dtype-checkpoint-conflict", "error", versions=">=0.24", source="vLLM source: MLA attention, nvfp4")
def nvfp4_with_mla(context: Context) -> Iterator[Hit]:
    """An NVFP4 KV cache and multi-head latent attention exclude each other."""
    s = context.s
    if s.mla and s.kv_dtype in {"nvfp4", "nvfp4_4over6"}:
        yield Hit(
            f"--kv-cache-dtype {s.kv_dtype} is not supported with multi-head latent attention",
            fix="Use --kv-cache-dtype fp8",
            patch=put(kv_cache_dtype="fp8"),
        )


@rule("cli-invalid-value", "error", versions=">=0.33", source="vLLM source: config/vllm.py (0.33)")
def sixteen_bit_mixed(context: Context) -> Iterator[Hit]:
    """From 0.33 a 16-bit KV dtype must be the model's own."""
    s = context.s
    names = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16"}
    model = names.get(str(s.args.get("dtype") or s.stated("dtype") or s.stated("torch_dtype") or ""))
    if model is not None and s.kv_dtype in {"float16", "bfloat16"} and s.kv_dtype != model:
        yield Hit(
            f"--kv-cache-dtype {s.kv_dtype} is incompatible with dtype {model}",
            fix=f"Use --kv-cache-dtype auto, or {model}",
            patch=put(kv_cache_dtype="auto"),
        )


@rule("fp8-kv-uncalibrated", "warning", source="vLLM source: layers/quantization/kv_cache.py (scale 1.0)")
def without_scales(context: Context) -> Iterator[Hit]:
    """An FP8 KV cache whose checkpoint has no k/v scales: 1.0 is used."""
    s = context.s
    if s.kv_dtype not in {"fp8", "fp8_e4m3"} or s.on("calculate_kv_scales"):
        return
    given = s.checkpoint.get("kv_cache_scheme") or s.checkpoint.get("kv_cache_quant_algo")
    if given and str(given).lower() not in {"none", "null"}:
        return
    told = "kv_cache_scheme" in s.checkpoint or s.stated("hidden_size") is not None
    yield Hit(
        "the FP8 KV cache has no scales in this checkpoint: 1.0 is used, and accuracy may drop"
        if told
        else "if the checkpoint has no KV scales, 1.0 is used and accuracy may drop",
        evidence="config.json declares no KV cache scheme" if told else "the checkpoint's config is not known",
        fix="Evaluate it; calibrate with LLM Compressor, use fp8_per_token_head, or skip sensitive layers",
        patch=drop("kv_cache_dtype"),
        severity=None if told else "info",
    )
