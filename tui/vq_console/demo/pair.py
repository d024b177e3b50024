"""Which two ways of serving the starter model this machine can run. Only decides; the proof is the first token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

CPU_ARGS: Mapping[str, Any] = {
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "generation_config": "vllm",
}
CPU_ENV: Mapping[str, str] = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
GPU_ARGS: Mapping[str, Any] = {"max_model_len": 4096, "generation_config": "vllm"}


@dataclass(frozen=True, slots=True)
class DemoArm:
    """One way of serving: `scheme` names the checkpoint (bf16, w8a8, w4a16, fp8), `args` and `env` the profile."""

    name: str
    scheme: str
    description: str
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DemoPair:
    """Two arms and why they are the best pair here."""

    a: DemoArm
    b: DemoArm
    why: str

    @property
    def schemes(self) -> tuple[str, ...]:
        """The checkpoints that must exist."""
        return tuple(dict.fromkeys((self.a.scheme, self.b.scheme)))


def _cpu(name: str, scheme: str, description: str, dtype: str) -> DemoArm:
    return DemoArm(name, scheme, description, {"dtype": dtype, **CPU_ARGS}, CPU_ENV)


def _gpu(name: str, scheme: str, description: str, **args: Any) -> DemoArm:
    return DemoArm(name, scheme, description, {**GPU_ARGS, **args})


def demo_pairs(device: str | None, sm: int | None, cpu_isa: Collection[str]) -> tuple[DemoPair, ...]:
    """Pairs to try, best first.

    On GPUs: FP8 computes natively from SM 8.9 on and is weight-only (Marlin) from 7.5 on (facts of vLLM 0.33,
    `CompressedTensorsW8A8Fp8` and `MarlinFP8`). On CPUs: INT4 kernels need AVX-512 (`CPUWNA16LinearKernel` is
    selected without it, then dies at the first request) and BF16 activations; INT8 and 16-bit weights run on AVX2,
    three times as fast with FP32 activations as with emulated BF16 ones.
    """
    int4 = _gpu("demo-int4", "w4a16", "SmolLM2-135M, INT4 weights (W4A16, group 64), made by LLM Compressor")
    if device == "cuda" and sm is not None and sm >= 89:
        fp8 = _gpu("demo-fp8", "bf16", "SmolLM2-135M, FP8 on load, one scale per tensor", quantization="fp8_per_tensor")
        return (DemoPair(fp8, int4, f"SM {sm / 10:.1f} computes in FP8: FP8 W8A8 against INT4 weights"),)
    if device == "cuda" and sm is not None and sm >= 75:
        fp8 = _gpu("demo-fp8", "bf16", "SmolLM2-135M, FP8 weights, 16-bit math", quantization="fp8_per_tensor")
        int8 = _gpu("demo-int8", "w8a8", "SmolLM2-135M, INT8 weights and activations (W8A8)")
        why = f"SM {sm / 10:.1f} has no FP8 math: weight-only FP8 (Marlin) against INT4 weights"
        return (DemoPair(fp8, int4, why), DemoPair(int8, int4, "INT8 against INT4 weights"))
    dtype = "bfloat16" if "avx512f" in cpu_isa else "float32"
    bf16 = _cpu("demo-bf16", "bf16", "SmolLM2-135M as published, 16-bit weights, the baseline", dtype)
    int8 = _cpu("demo-int8", "w8a8", "SmolLM2-135M, INT8 weights and activations (W8A8), made by LLM Compressor", dtype)
    int4_cpu = _cpu("demo-int4", "w4a16", "SmolLM2-135M, INT4 weights (W4A16, group 64), made by LLM Compressor", dtype)
    fallback = DemoPair(bf16, int8, "this CPU runs 16-bit and INT8 kernels: BF16 against W8A8-INT8")
    if "avx512f" in cpu_isa:
        return (
            DemoPair(int8, int4_cpu, "AVX-512 is there, so INT4 kernels run: INT8 (W8A8) against INT4 (W4A16)"),
            fallback,
        )
    return (fallback,)
