"""Causes in kernels: none for a layer or GPU, forced backends, KV cache dtypes, DeepGEMM, kernels that crash.

Texts: vLLM 0.6 to 0.33 (kernels/linear, fused_moe/oracle, platforms/cuda.py, v1/attention), Triton, CUTLASS,
FlashInfer, DeepGEMM.
"""

from __future__ import annotations

import re

from vq_console.logs.model import Fix
from vq_console.logs.rules.quantization import other_format, split_fixes
from vq_console.logs.rules.rule import Hit, remove_args, rule, say, set_args, set_env
from vq_console.preflight.model import Patch


def _drop_backend(hit: Hit) -> tuple[Fix, ...]:
    text = hit.line.message.lower()
    for key, word in (("moe_backend", "moe"), ("linear_backend", "linear"), ("attention_backend", "attention")):
        if word in text or hit.context.asked(key):
            return (remove_args(f"Remove {key}: vLLM then takes what runs.", key),)
    if "selected backend" in text:
        return (remove_args("Remove attention_backend: vLLM then takes what runs.", "attention_backend"),)
    return ()


def _attention_override(hit: Hit) -> tuple[Fix, ...]:
    fixes = [remove_args("Remove attention_backend: vLLM then takes what runs.", "attention_backend")]
    if "kv_cache_dtype" in hit.line.message:
        fixes.append(set_args("Or keep it and use kv_cache_dtype = 'auto'.", kv_cache_dtype="auto"))
    return tuple(fixes)


def _kv_plain(_hit: Hit) -> tuple[Fix, ...]:
    return (
        set_args("kv_cache_dtype = 'auto'.", kv_cache_dtype="auto"),
        set_args("Or another attention backend.", attention_backend="FLASHINFER"),
    )


def _kv_quantized(hit: Hit) -> bool:
    dtype = str(hit.context.facts.get("kv_cache_dtype") or hit.context.asked("kv_cache_dtype") or "")
    stored = any("data type to store kv cache" in line.message for line in hit.context.lines)
    near = any("attention" in line.message for line in hit.context.lines if 0 <= hit.line.number - line.number < 6)
    return "fp8" in dtype or stored or near or "attention" in hit.frames


def _marlin(hit: Hit) -> tuple[Fix, ...]:
    moe = "moe" in (hit.frames + hit.line.message).lower()
    key = "moe_backend" if moe else "linear_backend"
    return (
        Fix(
            f"{key} = 'marlin': another kernel, slower but made for all GPUs from 7.5 on.",
            Patch(set_args={key: "marlin"}),
        ),
        say("Upgrade vLLM and FlashInfer."),
    )


def _no_deep_gemm(_hit: Hit) -> tuple[Fix, ...]:
    return (
        set_env("Do without DeepGEMM.", VLLM_USE_DEEP_GEMM="0"),
        set_env("Or only without its warm-up.", VLLM_DEEP_GEMM_WARMUP="skip"),
    )


def _kernel_fixes(hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Read the reasons in the lines below the message: one per kernel."),
        say("Re-quantize with group size 128, or another format for this GPU; or upgrade vLLM."),
    )


_DEEP = re.compile(r"deep_?gemm", re.IGNORECASE)
_NO_SCHEME = r"No (?:compressed-tensors compatible scheme|quark compatible scheme|INC scheme)"

RULES = (
    rule(
        "backend-override-unsupported",
        "Failed to find a kernel that can implement",
        76,
        when=lambda hit: hit.context.asked("linear_backend") is not None,
        fixes=lambda hit: (remove_args("Remove linear_backend: vLLM then takes what runs.", "linear_backend"),),
    ),
    rule("kernel-not-available", "Failed to find a kernel that can implement", 75, fixes=_kernel_fixes),
    rule("kernel-not-available", "MoE backend supports the deployment configuration", 84, fixes=_kernel_fixes),
    rule("kernel-not-available", "No compiled", 82, pattern=r"No compiled \w+", fixes=_marlin),
    rule("kernel-not-available", "kernel for CUDA device capability", 82, fixes=_marlin),
    rule("kernel-not-available", "No ", 80, pattern=_NO_SCHEME, fixes=_kernel_fixes),
    rule(
        "kernel-not-available",
        "object has no attribute",
        78,
        pattern=r"'_OpNamespace' '\w+' object has no attribute '(?P<op>\w+)'",
        fixes=_kernel_fixes,
        explain=lambda hit: f"The kernel was selected, but this build does not contain its operator {hit.match['op']}.",
    ),
    rule(
        "kernel-not-available",
        "expected at most 0 argument(s) but received",
        80,
        pattern=r"(?P<op>\w+::\w+)\(\) expected at most 0 argument",
        explain=lambda hit: f"{hit.match['op']} exists in this build by name only, without its code.",
        fixes=_kernel_fixes,
    ),
    rule(
        "kernel-not-available",
        "Could not run '",
        76,
        pattern=r"Could not run '(?P<op>[\w:]+)' with arguments from the",
        fixes=_kernel_fixes,
    ),
    rule("kernel-not-available", "Unsupported FusedMoe scheme", 78, fixes=_kernel_fixes),
    rule(
        "kernel-not-available",
        "MoE backends available",
        78,
        pattern=r"No MXFP\d MoE backends available",
        fixes=_kernel_fixes,
    ),
    rule(
        "kernel-not-available",
        "is not implemented for",
        45,
        pattern=r"(?i)(?:kernel|gemm|mm|attention|quant\w*)\b.*is not implemented for",
        fixes=_kernel_fixes,
    ),
    rule("kernel-not-available", "Expected torch::kInt8", 60, fixes=_kernel_fixes),
    rule("kernel-not-available", "Marlin does not support", 70, fixes=_kernel_fixes),
    rule(
        "backend-override-unsupported",
        "only supported on",
        62,
        pattern=r"(?:Flash\w+|Cutlass\w*|Triton\w*|\w+MLA\w*)(?: backend)? is only supported on",
        when=lambda hit: hit.context.asked("attention_backend", "linear_backend", "moe_backend") is not None,
        fixes=_drop_backend,
    ),
    rule(
        "kernel-not-available",
        "only supported on",
        60,
        pattern=r"(?:Flash\w+|Cutlass\w*|Triton\w*|\w+MLA\w*)(?: backend)? is only supported on",
        fixes=_kernel_fixes,
    ),
    rule(
        "quant-tp-shape-mismatch",
        "nvalid thread config",
        71,
        pattern=r"nvalid thread config",
        when=lambda hit: int(hit.context.facts.get("tensor_parallel_size") or 1) > 1,
        fixes=split_fixes,
    ),
    rule("kernel-not-available", "nvalid thread config", 70, fixes=_kernel_fixes),
    rule(
        "fp8-kv-unsupported-arch",
        "No valid attention backend found",
        84,
        pattern=r"No valid (?:MLA )?(?:prefill )?attention backend found.*kv_cache_dtype not supported",
        fixes=_kv_plain,
    ),
    rule(
        "kernel-not-available",
        "No valid ",
        80,
        pattern=r"No valid (?:CPU )?(?:MLA )?(?:prefill |attention )+backend found",
    ),
    rule(
        "backend-override-unsupported",
        "Selected backend",
        90,
        pattern=r"Selected backend \S+ is not valid for this configuration",
        fixes=_attention_override,
    ),
    rule(
        "backend-override-unsupported",
        "moe_backend=",
        90,
        pattern=(
            r"moe_backend='?(?P<backend>\w+)'? (?:is not supported for|does not support|is only supported|dispatches)"
        ),
        fixes=_drop_backend,
    ),
    rule(
        "backend-override-unsupported", "does not support the deployment configuration since", 90, fixes=_drop_backend
    ),
    rule("backend-override-unsupported", "does not support this MoE deployment", 84, fixes=_drop_backend),
    rule("backend-override-unsupported", "explicitly requested moe_backend", 86, fixes=_drop_backend),
    rule("backend-override-unsupported", "backend is disabled for this configuration", 84, fixes=_drop_backend),
    rule(
        "backend-override-unsupported",
        "--linear-backend=",
        86,
        fixes=lambda hit: (remove_args("Remove linear_backend: vLLM then takes what runs.", "linear_backend"),),
    ),
    rule("backend-override-unsupported", "Forced NVFP4 kernel", 86, fixes=_drop_backend),
    rule(
        "backend-override-unsupported",
        "has been removed",
        84,
        pattern=r"[Aa]ttention backend '?\w+'? has been removed",
        fixes=_attention_override,
    ),
    rule("backend-override-unsupported", "nvalid attention backend for", 84, fixes=_attention_override),
    rule("backend-override-unsupported", "MoE quant is not supported with the", 82, fixes=_drop_backend),
    rule(
        "kv-dtype-checkpoint-conflict",
        "fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
        92,
        fixes=lambda hit: (
            set_args("kv_cache_dtype = 'fp8' (E4M3).", kv_cache_dtype="fp8"),
            set_args("Or 'auto'.", kv_cache_dtype="auto"),
        ),
    ),
    rule(
        "fp8-kv-unsupported-arch",
        "KV cache",
        86,
        pattern=r"(?i)(?:fp8|nvfp4|turboquant\w*|int\d) kv cache (?:is not (?:yet )?supported|requires)",
        fixes=_kv_plain,
    ),
    rule(
        "fp8-kv-unsupported-arch",
        "--kv-cache-dtype",
        86,
        pattern=r"--kv-cache-dtype \S+ (?:is not supported by|requires)",
        fixes=_kv_plain,
    ),
    rule(
        "fp8-kv-unsupported-arch",
        "not supported in this architecture",
        82,
        pattern=r"type fp8e\w+ not supported in this architecture",
        when=_kv_quantized,
        fixes=lambda hit: (
            set_args("kv_cache_dtype = 'auto'.", kv_cache_dtype="auto"),
            set_args("Or FlashInfer, which converts FP8 itself.", attention_backend="FLASHINFER"),
            set_args("Or E5M2, which Triton has here.", kv_cache_dtype="fp8_e5m2"),
        ),
    ),
    rule(
        "quant-unsupported-sm",
        "not supported in this architecture",
        80,
        pattern=r"type fp8e\w+ not supported in this architecture",
        fixes=other_format,
    ),
    rule(
        "fp8-kv-unsupported-arch",
        "urbo",
        70,
        pattern=r"(?i)turboquant.*(?:not supported|unsupported|requires)",
        fixes=_kv_plain,
    ),
    rule("deepgemm-incompatible", "Unknown recipe", 82, fixes=_no_deep_gemm),
    rule("deepgemm-incompatible", "Unknown SF transformation", 82, fixes=_no_deep_gemm),
    rule(
        "deepgemm-incompatible",
        "ssertion error (",
        80,
        pattern=r"ssertion error \([^)]*(?:deep_?gemm|jit_kernels/|csrc/(?:apis|jit)/)",
        fixes=_no_deep_gemm,
    ),
    rule(
        "deepgemm-incompatible",
        "DeepGEMM",
        78,
        pattern=r"DeepGEMM (?:backend )?(?:is not available|requires a usable)",
        fixes=_no_deep_gemm,
    ),
    rule("deepgemm-incompatible", "No module named 'deep_gemm'", 80, fixes=_no_deep_gemm),
    rule(
        "deepgemm-incompatible",
        "rror",
        48,
        pattern=r"^[\w.]*(?:Error|Exception)\b",
        when=lambda hit: hit.spot.raised and _DEEP.search(hit.frames[-700:]) is not None,
        fixes=_no_deep_gemm,
    ),
    rule(
        "kernel-crash-arch",
        "not supported on .target",
        84,
        pattern=r"Feature '(?P<feature>[^']+)' not supported on \.target '(?P<target>[^']+)'",
        fixes=_marlin,
        explain=lambda hit: f"The kernel uses {hit.match['feature']}, which {hit.match['target']} does not have.",
    ),
    rule("kernel-crash-arch", "an illegal instruction was encountered", 80, fixes=_marlin),
    rule(
        "kernel-crash-arch", "Error Internal", 72, pattern=r"(?:^|: |\S+:\d+\D{1,3})Error Internal\s*$", fixes=_marlin
    ),
    rule("kernel-crash-arch", "only support", 70, pattern=r"only supports? (?:sm|SM)_?\d+", fixes=_marlin),
    rule(
        "kernel-crash-arch",
        "gemm",
        70,
        pattern=(
            r"(?i)(?:failed to (?:run|initialize)|error "
            r"(?:in|running)).{0,40}(?:cutlass|fp4|gemm)|\[FP4 gemm Runner\]|fp4 gemm runner"
        ),
        fixes=_marlin,
    ),
    rule("kernel-crash-arch", "rch conditional MMA", 70, fixes=_marlin),
    rule("kernel-crash-arch", "Ptx assembly aborted", 40, fixes=_marlin),
    rule("kernel-crash-arch", "Internal Triton PTX codegen error", 38, fixes=_marlin),
    rule(
        "ptxas-arch-unsupported",
        "is not defined for option 'gpu-name'",
        88,
        fixes=lambda hit: (
            set_env("Point Triton at the ptxas of a newer CUDA.", TRITON_PTXAS_PATH="/usr/local/cuda/bin/ptxas"),
            say("Or take a build or image made with a newer CUDA."),
        ),
    ),
    rule(
        "ptxas-arch-unsupported",
        "ptxas",
        70,
        pattern=r"ptxas.*(?:Unsupported|unknown|not (?:recognized|supported)).*(?:sm_|arch)",
        fixes=lambda hit: (
            set_env("Point Triton at the ptxas of a newer CUDA.", TRITON_PTXAS_PATH="/usr/local/cuda/bin/ptxas"),
        ),
    ),
)
