"""The profiles of the GPU runs: name → model folder and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENV = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}  # fmt: skip
"""Several GPUs of a shared host: nothing there uses NVLink multicast."""
DUMMY = {"load_format": "dummy"}
SPEED = {**DUMMY, "max_model_len": 4096, "max_num_seqs": 128, "gpu_memory_utilization": 0.28}
SMALL = {"max_model_len": 8192, "max_num_seqs": 64, "enforce_eager": True, "gpu_memory_utilization": 0.04}
FIT = {**DUMMY, "max_model_len": 4096, "enforce_eager": True}


def _fit(share: float, **more: Any) -> dict[str, Any]:
    return {**FIT, "gpu_memory_utilization": share, **more}


PROFILES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "speed-bf16": ("l8b", SPEED),
    "speed-fp8": ("l8b", {**SPEED, "quantization": "fp8_per_tensor"}),
    "speed-fp8-channel": ("l8b", {**SPEED, "quantization": "fp8_per_channel"}),
    "speed-fp8-block": ("l8b", {**SPEED, "quantization": "fp8_per_block"}),
    "speed-w4a16": ("l8b-w4a16", SPEED),
    "alone-fp8": ("l8b", {**SPEED, "quantization": "fp8_per_tensor", "enable_prefix_caching": False}),
    "small-bf16": ("smol-bf16", SMALL),
    "small-fp8": ("smol-bf16", {**SMALL, "quantization": "fp8_per_tensor"}),
    "small-fp8-channel": ("smol-bf16", {**SMALL, "quantization": "fp8_per_channel"}),
    "small-w4a16": ("smol-w4a16", SMALL),
    "small-fp8kv": ("smol-bf16", {**SMALL, "kv_cache_dtype": "fp8"}),
    "fit-nvfp4": ("l8b-nvfp4", _fit(0.045)),
    "fit-mla-bf16": ("mla", _fit(0.085)),
    "fit-window-and-full": ("gemma3", _fit(0.045)),
    "fit-tied-05b": ("qwen25-05b", _fit(0.025)),
    "fit-fp8-block": ("l8b", _fit(0.075, quantization="fp8_per_block")),
    "fit-fp8-channel-fp8kv": ("l8b", _fit(0.075, quantization="fp8_per_channel", kv_cache_dtype="fp8")),
    "fit-moe-fp8": ("moe", _fit(0.05, quantization="fp8_per_tensor")),
    "fit-moe-w4a16": ("moe-w4a16", _fit(0.05)),
    "fit-mixtral": ("mixtral", _fit(0.11)),
    "fit-mla-fp8kv": ("mla", _fit(0.085, kv_cache_dtype="fp8")),
    "fit-window-only": ("mistral-window", _fit(0.06, max_model_len=8192)),
    "fit-gemma2-fp8": ("gemma2", _fit(0.06, quantization="fp8_per_tensor")),
    "fit-tied-4b": ("qwen3-4b", _fit(0.075)),
    "fit-phi3": ("phi3", _fit(0.085)),
    "fit-70b-w4a16": ("l70b-w4a16", _fit(0.085)),
    "tp2-fp8": (
        "l8b", _fit(0.28, quantization="fp8_per_tensor", tensor_parallel_size=2, disable_custom_all_reduce=True),
    ),
}  # fmt: skip
FRESH = (
    "fit-fp8-channel-fp8kv", "fit-moe-fp8", "fit-moe-w4a16", "fit-mixtral", "fit-mla-fp8kv", "fit-window-only",
    "fit-gemma2-fp8", "fit-tied-4b", "fit-phi3", "fit-70b-w4a16", "fit-nvfp4",
)  # fmt: skip
"""Shapes that the memory model was not made on, and NVFP4."""


def share(name: str) -> float:
    """The part of the GPU that the profile takes."""
    return float(PROFILES[name][1]["gpu_memory_utilization"])


def write_profiles(models: Path) -> None:
    """Every profile of the round, beside the models."""
    import tomli_w

    folder = models / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (model, args) in PROFILES.items():
        env = {**ENV, **(NO_MULTICAST if args.get("tensor_parallel_size", 1) > 1 else {})}
        value: dict[str, Any] = {"name": name, "model": str(models / model), "args": dict(args), "env": env}
        (folder / f"{name}.toml").write_text(tomli_w.dumps(value))
