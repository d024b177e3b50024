"""Lists that rules ask: what vLLM's releases contained, read from their source, and what older reports say.

Reads only the data shipped with the package; guesses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from vq_console.engines.model import Catalogue
from vq_console.preflight.versions import READ, Span, Version, neighbours, parse_version, span, version_text


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    text = files("vq_console.preflight").joinpath("data/vllm.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


READ_IN = "0.32.0"
"""The release whose registries of models, parsers and environment variables were read."""


def architectures() -> frozenset[str]:
    """Model classes in the registry of 0.32.0."""
    return frozenset(_data()["architectures"])


def transformers_architectures() -> frozenset[str]:
    """Text-generating classes of transformers that vLLM has no own code for; its generic backend may serve them."""
    return frozenset(_data()["transformers_architectures"])


def previously_supported() -> Mapping[str, str]:
    """Model classes that were dropped, with the last release that had them."""
    result: Mapping[str, str] = _data()["previously_supported"]
    return result


def out_of_tree() -> Mapping[str, str]:
    """Model classes that moved to a plugin, with its address."""
    result: Mapping[str, str] = _data()["out_of_tree"]
    return result


def parsers(kind: str) -> tuple[str, ...]:
    """Names of `tool` or `reasoning` parsers in 0.32.0."""
    return tuple(_data()[f"{kind}_parsers"])


def environment() -> frozenset[str]:
    """Environment variables that 0.32.0 registers."""
    return frozenset(_data()["env"])


def _at(table: Mapping[str, Any], version: Version | None) -> list[Any]:
    if version is None:
        return []
    return [table[version_text(known)] for known in neighbours(version)]


def speculative_methods(version: Version | None) -> frozenset[str] | None:
    """Methods of `--speculative-config` known around this version; None where none was read."""
    found = _at(_data()["speculative_methods"], version)
    return frozenset(name for names in found for name in names) if found else None


def requirement(package: str, version: Version | None) -> str | None:
    """vLLM's own requirement on a package in exactly this release, such as `==0.17.0`; None where not read."""
    if version is None or version not in READ:
        return None
    found = _data()["requires"][version_text(version)].get(package)
    return str(found) if found is not None else None


def platform_methods(device: str, version: Version | None) -> frozenset[str] | None:
    """Quantization methods that a platform lists (`supported_quantization`); None where it lists none."""
    found = _at(_data()["platform_quantization"], version)
    lists = [entry.get(device) for entry in found]
    if not lists or any(not names for names in lists):
        return None
    return frozenset(name for names in lists for name in names)


@lru_cache(maxsize=16)
def catalogue_at(version: Version) -> Catalogue | None:
    """The shipped catalogue of exactly this release, or None."""
    from vq_console.engines.catalogue import snapshot

    found = snapshot(version_text(version))
    return found if parse_version(found.vllm_version) == version else None


def around(version: Version | None) -> tuple[Catalogue, ...]:
    """The shipped catalogues of the releases around a version: itself, or the one below and the one above."""
    if version is None:
        return ()
    found = (catalogue_at(known) for known in neighbours(version))
    return tuple(catalogue for catalogue in found if catalogue is not None)


@lru_cache(maxsize=1)
def every_flag() -> frozenset[str]:
    """Every serve flag of any release that was read."""
    names: set[str] = set()
    for version in READ:
        catalogue = catalogue_at(version)
        if catalogue is not None and catalogue.flags is not None:
            names.update(catalogue.flags)
            for flag in catalogue.flags.values():
                names.update(flag.aliases)
    return frozenset(name.lstrip("-").replace("-", "_") for name in names)


REMOVED_FLAGS: Mapping[str, tuple[Span, str]] = {
    "swap_space": (span(">=0.18"), "there is no CPU swap space any more; delete it"),
    "disable_log_requests": (span(">=0.12"), "request logging is off by default; --enable-log-requests turns it on"),
    "calculate_kv_scales": (
        span(">=0.28"),
        "use scales of the checkpoint, or --kv-cache-dtype fp8_per_token_head for scales at run time",
    ),
    "override_attention_dtype": (span(">=0.28"), "delete it; the attention dtype follows the KV cache dtype"),
    "device": (span(">=0.10"), "the wheel decides the device; delete it"),
    "task": (span(">=0.20"), "use --runner and --convert"),
    "max_long_partial_prefills": (span(">=0.27"), "delete it"),
    "max_num_partial_prefills": (span(">=0.27"), "delete it"),
    "enable_bf16x3_router_gemm": (span(">=0.30"), "delete it"),
    "enable_mamba_fine_grained_prefix_cache": (span(">=0.31"), "use --enable-mamba-shared-prefix-checkpoint"),
    "enable_reasoning": (span(">=0.10"), "--reasoning-parser alone turns it on"),
    "num_scheduler_steps": (span(">=0.10"), "multi-step scheduling is gone; async scheduling is on by default"),
    "use_v2_block_manager": (span(">=0.9"), "delete it"),
    "num_lookahead_slots": (span(">=0.10"), "delete it"),
    "speculative_model": (span(">=0.9"), "use --speculative-config '{\"model\": …}'"),
    "num_speculative_tokens": (span(">=0.9"), "use --speculative-config '{\"num_speculative_tokens\": …}'"),
    "guided_decoding_backend": (span(">=0.12"), "use --structured-outputs-config"),
    "quantization_param_path": (span(">=0.8"), "KV scales come from the checkpoint"),
    "enable_prompt_adapter": (span(">=0.10"), "prompt adapters are gone"),
    "max_seq_len_to_capture": (span(">=0.12"), "use --max-cudagraph-capture-size"),
    "cuda_graph_sizes": (span(">=0.14"), "use --cudagraph-capture-sizes"),
    "worker_use_ray": (span(">=0.6"), "use --distributed-executor-backend ray"),
    "engine_use_ray": (span(">=0.6"), "delete it"),
    "rope_scaling": (span(">=0.14"), "use --hf-overrides '{\"rope_parameters\": …}'"),
    "rope_theta": (span(">=0.14"), "use --hf-overrides '{\"rope_parameters\": …}'"),
    "quantization_config_file": (span(), "pass the JSON itself with --quantization-config"),
    "preemption_mode": (span(">=0.10"), "delete it"),
    "disable_async_output_proc": (span(">=0.10"), "delete it"),
}
"""Flags that releases dropped (or never had), and what to do; spans from vLLM's release notes and source."""

REMOVED_ENV: Mapping[str, tuple[Span, str]] = {
    "VLLM_ATTENTION_BACKEND": (span(">=0.14"), "use --attention-backend {value}"),
    "VLLM_USE_V1": (span(">=0.14"), "there is only the V1 engine; delete it"),
    "VLLM_FLASH_ATTN_VERSION": (span(">=0.14"), "use --attention-config.flash_attn_version={value}"),
    "VLLM_TEST_FORCE_FP8_MARLIN": (span(">=0.29"), "use --linear-backend marlin or --moe-backend marlin"),
    "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM": (span(">=0.29"), "delete it"),
    "VLLM_NVFP4_GEMM_BACKEND": (span(">=0.24"), "use --linear-backend"),
    "VLLM_USE_NVFP4_CT_EMULATIONS": (span(">=0.24"), "use --linear-backend emulation"),
    "VLLM_USE_FLASHINFER_MOE_FP16": (span(">=0.24"), "use --moe-backend flashinfer_cutlass or flashinfer_trtllm"),
    "VLLM_USE_FLASHINFER_MOE_FP8": (span(">=0.24"), "use --moe-backend flashinfer_cutlass or flashinfer_trtllm"),
    "VLLM_USE_FLASHINFER_MOE_FP4": (span(">=0.24"), "use --moe-backend flashinfer_cutlass or flashinfer_trtllm"),
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": (span(">=0.32"), "use --moe-backend flashinfer_trtllm"),
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": (span(">=0.32"), "use --moe-backend flashinfer_trtllm"),
    "VLLM_FLASHINFER_MOE_BACKEND": (span(">=0.24"), "use --moe-backend"),
    "VLLM_MXFP4_USE_MARLIN": (span(">=0.24"), "use --moe-backend marlin"),
    "VLLM_USE_FBGEMM": (span(">=0.24"), "use --linear-backend fbgemm"),
    "VLLM_CPU_SGL_KERNEL": (span(">=0.29"), "delete it"),
    "VLLM_USE_TRITON_FLASH_ATTN": (span(">=0.14"), "use --attention-backend TRITON_ATTN"),
    "VLLM_ALLOW_RUNTIME_LORA": (span(), "it is called VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
}
"""VLLM_ variables that releases dropped, and what replaced them; spans from the sources that were read."""
