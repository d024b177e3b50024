"""What config.json says of a model's shape, as flat facts under config.json's own names.

Pure. Nested configurations of multimodal models are flattened to their language part; what is missing but follows from
what is there (head size, key and value heads, kind of attention, whether there are experts) is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
_DROPPED = frozenset({
    "_name_or_path", "quantization_config", "compression_config", "bos_token_id", "eos_token_id", "pad_token_id",
    "unk_token_id", "initializer_range", "use_cache", "attention_dropout", "hidden_dropout", "auto_map", "torch_dtype",
    "architectures", "vision_config", "audio_config", "task_specific_params", "id2label", "label2id",
    "transformers_version",
})  # fmt: skip
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def model_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flat facts: numbers, words, booleans and short lists of the language model, architectures and what follows."""
    facts: dict[str, Any] = {}
    architectures = config.get("architectures")
    if isinstance(architectures, list):
        facts["architectures"] = [name for name in architectures if isinstance(name, str)]
        if facts["architectures"]:
            facts["architecture"] = facts["architectures"][0]
    inner = language_config(config)
    for source in (config, inner):
        facts.update({key: value for key, value in source.items() if key not in _DROPPED and _is_flat(value)})
    if inner is not config:
        facts["multimodal"] = True
    dtype = inner.get("dtype") or inner.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    if isinstance(dtype, str):
        facts["dtype"] = dtype.removeprefix("torch.")
    if config.get("auto_map") or inner.get("auto_map"):
        facts["auto_map"] = True
    version = config.get("transformers_version")
    if isinstance(version, str):
        facts["transformers_version"] = version
    _complete(facts)
    return facts


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model: a nested one, or the whole."""
    for key in _INNER:
        inner = config.get(key)
        if isinstance(inner, dict) and inner:
            return language_config(inner) if any(isinstance(inner.get(name), dict) for name in _INNER) else inner
    return config


def _complete(facts: dict[str, Any]) -> None:
    hidden, heads = _whole(facts.get("hidden_size")), _whole(facts.get("num_attention_heads"))
    latent = _whole(facts.get("kv_lora_rank"))
    if heads and "num_key_value_heads" not in facts and not latent:
        facts["num_key_value_heads"] = 1 if facts.get("multi_query") else heads
    if hidden and heads and not _whole(facts.get("head_dim")) and not latent:
        facts["head_dim"] = hidden // heads
    if not _whole(facts.get("head_dim")):
        facts.pop("head_dim", None)
    counts = [_whole(facts[key]) for key in _EXPERTS if key in facts]
    experts = max((count for count in counts if count), default=0)
    if experts:
        facts["num_experts"] = experts
    used = _whole(facts.get("experts_per_token")) or _whole(facts.get("num_experts_per_token"))
    if experts and used:
        facts.setdefault("num_experts_per_tok", used)
    if hidden:
        facts["moe"] = experts > 1
    kind = _attention(facts, heads, latent)
    if kind:
        facts["attention"] = kind


def _attention(facts: Mapping[str, Any], heads: int | None, latent: int | None) -> str | None:
    """`mla`, `hybrid` (some layers keep a state instead of a cache), `mqa`, `gqa` or `mha`."""
    if latent:
        return "mla"
    layers = facts.get("layer_types")
    if isinstance(layers, list) and any("linear" in str(kind) or "mamba" in str(kind) for kind in layers):
        return "hybrid"
    if _whole(facts.get("full_attention_interval")) or _whole(facts.get("linear_num_value_heads")):
        return "hybrid"
    groups = _whole(facts.get("num_key_value_heads"))
    if not heads or not groups:
        return None
    return "mha" if groups == heads else "mqa" if groups == 1 else "gqa"


def _is_flat(value: Any) -> bool:
    if isinstance(value, bool | int | float | str):
        return not isinstance(value, str) or len(value) <= 200
    return isinstance(value, list) and len(value) <= 512 and all(isinstance(item, bool | int | str) for item in value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
