"""What a kernel's name says: its family, and whether it computes in the quantized format.

Owns the table from class names (vLLM 0.6 to 0.33, `model_executor/kernels/linear`, `fused_moe/oracle`) to families and
grades. INT4 and other weight-only schemes are meant to compute in 16 bits: there that is native.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vq_console.preflight.model import Grade


@dataclass(frozen=True, slots=True)
class KernelKind:
    """Family of a kernel and how it computes: native, weight-only (16-bit math) or emulated."""

    family: str
    grade: Grade


_LINEAR_ROWS: tuple[tuple[str, str, Grade], ...] = (
    (r"Emulation", "emulation", "emulated"),
    (r"W4A16|W8A16|WFP8A16", "weight-only", "weight-only"),
    (r"^Marlin(?:FP8|Fp8|Mxfp8|MxFp8|NvFp4|MxFp4)", "marlin", "weight-only"),
    (r"^Humming(?:FP8|Mxfp8|NvFp4|MxFp4|MxFp6)", "humming", "weight-only"),
    (r"^FlashInferFp8DeepGEMM", "flashinfer + deep_gemm", "native"),
    (r"^DeepGemm", "deep_gemm", "native"),
    (r"^FlashInferCute?[Dd][Ss][Ll]|^FlashInferCutedsl", "flashinfer_cutedsl", "native"),
    (r"^FlashInferCutlass", "flashinfer_cutlass", "native"),
    (r"^FlashInferTrtllm", "flashinfer_trtllm", "native"),
    (r"^FlashInferCudnn", "flashinfer_cudnn", "native"),
    (r"^FlashInfer", "flashinfer", "native"),
    (r"^Cutlass", "cutlass", "native"),
    (r"^B12x", "b12x", "native"),
    (r"^Fbgemm", "fbgemm", "native"),
    (r"^(?:PerTensor|ChannelWise|RowWise|BlockWise)?Torch", "torch", "native"),
    (r"^Triton", "triton", "native"),
    (r"^Aiter", "aiter", "native"),
    (r"^R(?:OC|oc)m|^RDNA|^Rdna", "rocm", "native"),
    (r"^XPU", "xpu", "native"),
    (r"^CPU|^Zentorch|^Dynamic4bit", "cpu", "native"),
    (r"^Machete", "machete", "native"),
    (r"^Marlin", "marlin", "native"),
    (r"^Humming", "humming", "native"),
    (r"^AllSpark", "allspark", "native"),
    (r"^Conch", "conch", "native"),
    (r"^[Ee]xllama", "exllama", "native"),
)
_LINEAR = tuple((re.compile(pattern), family, grade) for pattern, family, grade in _LINEAR_ROWS)
_FOUR_BIT_16 = re.compile(r"^(?:Triton|RDNA|RDNA3|RDNAHybrid)W4A16|^XPUwNa16")

WEIGHTS_ALONE = "INT weights"
"""The format of kernels whose activations stay in 16 bits by design."""
_FORMATS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(?i)nvfp4", "NVFP4"),
        (r"(?i)mxfp(?P<bits>[468])", "MXFP"),
        (r"(?i)w4a8", "W4A8"),
        (r"(?i)w[48]a16|wna16|^(?:Machete|Marlin|Exllama|ExllamaV2|AllSpark|Conch|Humming)LinearKernel", WEIGHTS_ALONE),
        (r"(?i)int8", "INT8"),
        (r"(?i)fp8|DeepGemm", "FP8"),
    )
)

_MOE: dict[str, tuple[str, Grade]] = {
    "MARLIN": ("marlin", "weight-only"),
    "BATCHED_MARLIN": ("marlin", "weight-only"),
    "HUMMING": ("humming", "weight-only"),
    "EMULATION": ("emulation", "emulated"),
}
WEIGHT_ONLY_SCHEMES = frozenset({"WNA16", "Unquantized", "W4A16"})
"""Schemes of expert layers that compute in 16 bits by design."""

_PROMISES = re.compile(r"Fp8|FP8|W8A8|W4A8|W4A4|MXFP8|MxFp8|NVFP4|NvFp4|MXFP4 GEMM|MXFP6")
_WITHOUT_PROMISE = re.compile(r"W8A16|W4A16|WNA16|wNa16|mixed-precision|AWQ|GPTQ|Awq|Gptq")


def linear_kernel(name: str) -> KernelKind:
    """Family and grade of a linear kernel by its class name; `unknown` for names that no table row fits."""
    if _FOUR_BIT_16.match(name):
        return KernelKind("triton" if name.startswith("Triton") else "rocm" if name[0] == "R" else "xpu", "native")
    for pattern, family, grade in _LINEAR:
        if pattern.search(name):
            return KernelKind(family, grade)
    return KernelKind("unknown", "unknown")


def number_format(name: str) -> str | None:
    """The number format that a linear kernel's class name speaks of; None where it speaks of none."""
    for pattern, format_name in _FORMATS:
        match = pattern.search(name)
        if match:
            return f"{format_name}{match['bits']}" if "bits" in pattern.groupindex else format_name
    return None


def moe_backend(name: str, scheme: str | None = None) -> KernelKind:
    """Family and grade of an expert backend; weight-only schemes have no better than 16-bit math."""
    family, grade = _MOE.get(name.upper(), (name.lower(), "native"))
    if scheme in WEIGHT_ONLY_SCHEMES and grade == "weight-only":
        grade = "native"
    return KernelKind(family, grade)


def promises_activations(module: str) -> bool:
    """Whether a layer method, by its name in the log, quantizes activations too."""
    return bool(_PROMISES.search(module)) and not _WITHOUT_PROMISE.search(module)


def is_expert_module(module: str) -> bool:
    """Whether a kernel line is about expert layers."""
    return module.endswith("MoE")
