"""What good runs say too: warnings with a cause of their own.

Texts: vLLM 0.6 to 0.33. "Your GPU does not have native support …" is printed whenever Marlin is used, on any GPU:
it tells the kernel, not the hardware.
"""

from __future__ import annotations

from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, remove_args, rule, say, set_args, set_env
from vq_console.preflight.model import Patch


def _unknown_variable(hit: Hit) -> tuple[Fix, ...]:
    name = hit.match["name"]
    fixes = [Fix(f"Remove {name}: this vLLM does not read it.", Patch(remove_env=(name,)))]
    flags = {
        "VLLM_ATTENTION_BACKEND": "attention_backend",
        "VLLM_FLASHINFER_MOE_BACKEND": "moe_backend",
        "VLLM_USE_FLASHINFER_MOE_FP8": "moe_backend",
        "VLLM_USE_FLASHINFER_MOE_FP4": "moe_backend",
        "VLLM_NVFP4_GEMM_BACKEND": "linear_backend",
        "VLLM_MXFP4_USE_MARLIN": "moe_backend",
        "VLLM_TEST_FORCE_FP8_MARLIN": "linear_backend",
    }
    if name in flags:
        fixes.append(say(f"The flag for it is {flags[name]}."))
    return tuple(fixes)


def _fallback_words(hit: Hit) -> str:
    kind = hit.group("kind")
    return (
        f"{kind} weights run through the Marlin kernel: 16-bit math, weights read in {kind}. The message speaks "
        f"of missing "
        "hardware support on every GPU; it only tells that Marlin was chosen."
        if kind
        else ""
    )


def _fallback_fixes(hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Accept it: at small batch weight-only is fast; at large batch a native format is faster."),
        say("If this GPU has native kernels for the format, see why they were not taken (VLLM_LOGGING_LEVEL=DEBUG)."),
    )


def _ignored(hit: Hit) -> tuple[Fix, ...]:
    return (remove_args("Remove linear_backend, or choose one that has a kernel for this format.", "linear_backend"),)


WARNINGS = (
    rule(
        "env-var-unknown",
        "Unknown vLLM environment variable detected",
        90,
        scope="warning",
        pattern=r"Unknown vLLM environment variable detected: (?P<name>\w+)",
        fixes=_unknown_variable,
        explain=lambda hit: f"{hit.match['name']} is not known to this vLLM and has no effect.",
    ),
    rule(
        "backend-override-ignored",
        "--linear-backend=",
        88,
        scope="warning",
        pattern=r"--linear-backend=(?P<asked>\w+).*(?:falling back|automatic selection|unavailable|no \S+ kernel)",
        fixes=_ignored,
        explain=lambda hit: f"{hit.match['asked']} has no kernel for this kind of layer; vLLM chose itself.",
    ),
    rule("backend-override-ignored", "overrides --linear-backend", 87, scope="warning", fixes=_ignored),
    rule(
        "backend-override-ignored",
        "Tried to force",
        86,
        scope="warning",
        pattern=r"Tried to force (?P<asked>\S+), but the kernel couldn't be implemented",
    ),
    rule(
        "backend-override-ignored",
        "ackend",
        80,
        scope="warning",
        pattern=(
            r"(?:requested|specified|selected) .*backend.*(?:not supported|ignored|falling back|fall "
            r"back)|(?:[Ff]alling back|[Ii]gnoring).*(?:--?\w*-?backend)"
        ),
    ),
    rule(
        "flashinfer-version-mismatch",
        "FlashInfer's precompiled kernels are missing or do not match",
        84,
        scope="warning",
        fixes=lambda hit: (say("Run `vllm download-kernels` in the engine's environment."),),
    ),
    rule(
        "flashinfer-version-mismatch",
        "flashinfer",
        80,
        scope="warning",
        pattern=r"(?i)flashinfer-(?:cubin|jit-cache).*(?:does not match|mismatch)",
    ),
    rule(
        "kernel-slow-fallback",
        "falling back to the slow and unoptimized emulation",
        82,
        scope="warning",
        pattern=r"(?P<what>\S+) \w+ falling back to the slow and unoptimized emulation",
        fixes=lambda hit: (say("Choose a format this GPU has kernels for (INT4 AWQ or GPTQ from Turing on)."),),
        explain=lambda hit: f"{hit.match['what']} layers are emulated: dequantized to 16 bits in every step.",
    ),
    rule(
        "kernel-slow-fallback",
        "emulat",
        78,
        scope="warning",
        pattern=r"(?i)(?:falling back|fall back|using|will be).{0,60}emulat",
    ),
    rule(
        "kernel-slow-fallback",
        "does not have native support for",
        70,
        scope="warning",
        pattern=r"does not have native support for (?P<kind>FP\d)",
        soft=True,
        fixes=_fallback_fixes,
        explain=_fallback_words,
    ),
    rule(
        "kernel-slow-fallback",
        "is a weight-only",
        72,
        scope="warning",
        pattern=r"(?P<kernel>\w+) is a weight-only \(A16\) kernel",
        soft=True,
        fixes=_fallback_fixes,
        explain=lambda hit: (
            f"{hit.match['kernel']} reads quantized weights and computes in 16 bits; the requested activation "
            f"quantization is ignored."
        ),
    ),
    rule("kernel-slow-fallback", "quantization is not fully optimized yet", 40, scope="warning", soft=True),
    rule(
        "kernel-slow-fallback",
        "for faster inference",
        60,
        scope="info",
        soft=True,
        pattern=r"[Uu]se quantization=(?P<method>\w+) for faster inference",
        fixes=lambda hit: (set_args(f"quantization = {hit.match['method']!r}.", quantization=hit.match["method"]),),
    ),
    rule(
        "fp8-kv-uncalibrated",
        "Using KV cache scaling factor 1.0 for",
        68,
        scope="warning",
        soft=True,
        fixes=lambda hit: (
            say("Measure quality; often it is fine."),
            set_args("Scales per token and head, computed at run time.", kv_cache_dtype="fp8_per_token_head"),
            say("Or calibrate the checkpoint with LLM Compressor."),
        ),
    ),
    rule("fp8-kv-uncalibrated", "Using uncalibrated q_scale", 64, scope="warning", soft=True),
    rule(
        "wsl-pin-memory",
        "Using 'pin_memory=False' as WSL is detected",
        66,
        scope="warning",
        fixes=lambda hit: (
            say("Run `wsl --update`."),
            set_env("On newer WSL kernels pinned memory can be switched on.", VLLM_WSL2_ENABLE_PIN_MEMORY="1"),
        ),
    ),
    rule(
        "quant-method-deprecated",
        "is deprecated and will be removed in future versions of vLLM",
        62,
        scope="warning",
        pattern=r"quantization method (?P<method>\S+) is deprecated",
        soft=True,
    ),
    rule("disk-full", "Not enough free disk space", 60, scope="warning", soft=True),
)
"""Warnings that are a diagnosis when nothing failed; `soft` ones only where they are what the log is about."""
