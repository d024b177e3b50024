"""Rules about the Python packages beside the engine: pins, FlashInfer, transformers, LLM Compressor."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.model import Patch
from vq_console.preflight.rules import knowledge
from vq_console.preflight.rules.base import Context, Hit, rule
from vq_console.preflight.versions import number_tuple, vllm_text


@rule("flashinfer-version-mismatch", "warning", source="FlashInfer checks flashinfer-cubin and -jit-cache at import")
def flashinfer_versions(context: Context) -> Iterator[Hit]:
    """Precompiled kernels of another FlashInfer."""
    s = context.s
    main = s.package("flashinfer-python")
    if main is None:
        return
    for name in ("flashinfer-cubin", "flashinfer-jit-cache"):
        other = s.package(name)
        if other is not None and other.partition("+")[0] != main.partition("+")[0]:
            yield Hit(
                f"{name} {other} does not fit flashinfer-python {main}: kernels are built anew at the first start",
                fix=f"Install {name} {main.partition('+')[0]}, or run vllm download-kernels",
            )


@rule("package-env-broken", "error", source="vLLM METADATA: compressed-tensors is pinned; LLM Compressor pins another")
def compressor_beside_vllm(context: Context) -> Iterator[Hit]:
    """LLM Compressor and vLLM in one environment."""
    s = context.s
    pinned = s.package("compressed-tensors")
    if s.package("llmcompressor"):
        wanted = knowledge.requirement("compressed-tensors", s.version)
        if wanted is not None and pinned is not None and wanted == f"=={pinned}":
            return
        yield Hit(
            "llmcompressor and vLLM share an environment and pin different compressed-tensors",
            evidence=f"compressed-tensors {pinned or 'unknown'}" + (f", vLLM wants {wanted}" if wanted else ""),
            fix="Use two environments, one for LLM Compressor and one for vLLM",
        )


@rule("package-env-broken", "error", source="vLLM METADATA of the releases that were read")
def pins(context: Context) -> Iterator[Hit]:
    """A package outside the range that this vLLM requires."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    s = context.s
    if s.package("llmcompressor"):
        return
    for name in ("compressed-tensors", "torch", "flashinfer-python"):
        have, wanted = s.package(name), knowledge.requirement(name, s.version)
        if have is None or wanted is None:
            continue
        try:
            version = Version(have.partition("+")[0])
            # Post-releases of FlashInfer repackage the same kernels.
            same = name == "flashinfer-python" and number_tuple(wanted.lstrip("=")) == version.release
            fits = same or SpecifierSet(wanted).contains(version, prereleases=True)
        except (InvalidSpecifier, InvalidVersion):
            continue
        if not fits and not (name == "flashinfer-python" and s.device != "cuda"):
            yield Hit(
                f"{name} {have} is not what {vllm_text(s.version)} requires ({wanted})",
                fix=f"pip install '{name}{wanted}' in the engine's environment",
                severity="error" if name != "flashinfer-python" else "info",
            )


@rule("package-env-broken", "error", versions=">=0.24,<0.32", source="measured: H200, vLLM 0.26.0 without flashinfer")
def flashinfer_absent(context: Context) -> Iterator[Hit]:
    """FlashInfer is a hard requirement of the CUDA build: its sampler imports it."""
    s = context.s
    if not s.cuda or s.installed is None or s.env.get("VLLM_USE_FLASHINFER_SAMPLER") == "0":
        return
    if "flashinfer-python" in s.installed and not s.installed["flashinfer-python"]:
        yield Hit(
            "flashinfer-python is not installed: the sampler imports it",
            fix="pip install flashinfer-python in the version that vLLM pins, or VLLM_USE_FLASHINFER_SAMPLER=0",
            patch=Patch(set_env={"VLLM_USE_FLASHINFER_SAMPLER": "0"}),
        )


_MODEL_NEEDS: dict[str, str] = {
    "qwen3": "4.51.0",
    "qwen3_moe": "4.51.0",
    "gemma3": "4.50.0",
    "gemma3_text": "4.50.0",
    "gemma3n": "4.53.0",
    "gemma4": "5.5.0",
    "llama4": "4.51.0",
    "gpt_oss": "4.55.0",
    "glm4_moe": "4.54.0",
    "glm4v_moe": "4.55.0",
    "glm4_moe_lite": "5.0.0",
    "glm_moe_dsa": "5.1.0",
    "qwen3_vl": "4.57.0",
    "qwen3_vl_moe": "4.57.0",
    "qwen3_5": "5.2.0",
    "qwen3_5_moe": "5.2.0",
    "qwen2_5_vl": "4.49.0",
    "deepseek_v3": "4.50.0",
    "mistral3": "4.50.0",
    "ernie4_5": "4.54.0",
    "ernie4_5_moe": "4.54.0",
    "smollm3": "4.53.0",
    "seed_oss": "4.56.0",
    "olmo3": "4.57.0",
    "qwen3_next": "4.57.0",
    "qwen3_omni_moe": "4.57.0",
    "qwen2_5_omni": "4.52.0",
    "granitemoehybrid": "4.52.0",
    "falcon_h1": "4.53.0",
    "dots1": "4.53.0",
    "minimax": "4.53.0",
    "glm4": "4.51.3",
    "glm4v": "4.54.0",
    "exaone4": "4.54.0",
    "lfm2": "4.54.0",
    "hunyuan_v1_dense": "4.56.0",
    "hunyuan_v1_moe": "4.56.0",
    "apertus": "4.56.0",
    "cohere2": "4.48.0",
    "olmo2": "4.47.0",
}
"""The first transformers release that knows a model type (its changelog)."""
_OWN_CONFIG = frozenset({"qwen3_5", "qwen3_5_moe"})
"""Types for which some releases of vLLM bring a config class of their own."""


@rule("transformers-too-old", "error", source="transformers changelog: model types by release")
def transformers_old(context: Context) -> Iterator[Hit]:
    """A model type that the installed transformers does not know, or a transformers below vLLM's range."""
    s = context.s
    have = number_tuple(s.package("transformers"))
    if have is None:
        return
    needed = _MODEL_NEEDS.get(s.model_type)
    if needed is not None and have < (number_tuple(needed) or ()):
        yield Hit(
            f"transformers {s.package('transformers')} does not know the model type {s.model_type} (from {needed})",
            fix="pip install -U transformers within vLLM's range, or upgrade vLLM",
            severity=None if s.stated("model_type") and s.model_type not in _OWN_CONFIG else "warning",
        )
        return
    low = _bound(knowledge.requirement("transformers", s.version), ">=")
    if low is not None and have < low:
        yield Hit(
            f"transformers {s.package('transformers')} is below what {vllm_text(s.version)} requires",
            evidence=str(knowledge.requirement("transformers", s.version)),
            fix="pip install -U transformers within vLLM's range",
        )


def _bound(wanted: str | None, sign: str) -> tuple[int, ...] | None:
    for part in (wanted or "").split(","):
        if part.strip().startswith(sign):
            return number_tuple(part.strip()[len(sign) :])
    return None


@rule("transformers-too-new", "error", source="vLLM METADATA; transformers 5 removed APIs of 4")
def transformers_new(context: Context) -> Iterator[Hit]:
    """transformers 5 under a vLLM made for 4, or one above the stated range."""
    s = context.s
    have = number_tuple(s.package("transformers"))
    if have is None or s.version is None:
        return
    high = _bound(knowledge.requirement("transformers", s.version), "<")
    if (have[0] >= 5 and s.version < (0, 14, 0)) or (high is not None and have >= high):
        limit = "<5" if high is None else "<" + ".".join(str(n) for n in high)
        yield Hit(
            f"transformers {s.package('transformers')} is newer than {vllm_text(s.version)} allows ({limit})",
            fix=f"pip install 'transformers{limit}', or upgrade vLLM",
        )
