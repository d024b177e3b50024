"""What is known of an arm's model: bits of its weights, its size, its KV cache, its shape.

Reads the checkpoint where it lies on this machine, the facts of its log where the caller has them, and `/metrics`.
Never guesses that a model is unquantized: unknown stays None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vq_console.checks.endpoint import Endpoint
from vq_console.checks.quality_data import ModelFacts
from vq_console.core.errors import VqError

_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([bBmM])(?![a-zA-Z0-9])")
_CACHE_DTYPE = re.compile(rb'vllm:cache_config_info\{(?:[^}]*,)?cache_dtype="([^"]*)"')
_SHAPE_KEYS = ("architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_PLAIN_CACHE = frozenset({"auto", "bfloat16", "float16", "half", "float32", "float"})
_FOUR_BIT = ("awq", "gptq", "w4a16", "int4", "fp4", "nvfp4", "mxfp4", "bitsandbytes", "moe_wna16")


def size_from_name(name: str) -> float | None:
    """Parameters that a model's name claims (`Llama-3.1-8B` is 8e9), or None."""
    found = [match for part in re.split(r"[/_-]", name) for match in _SIZE.finditer(part)]
    if not found:
        return None
    number, unit = found[-1].groups()
    return float(number) * (1e9 if unit in "bB" else 1e6)


def bits_of_method(method: str | None) -> int | None:
    """Bits of a weight under a vLLM quantization method; 16 for none, None where the name does not tell."""
    if method is None or method in {"", "None", "none"}:
        return 16
    name = method.lower()
    if any(part in name for part in _FOUR_BIT):
        return 4
    if "fp8" in name or "int8" in name or "w8a8" in name:
        return 8
    return None


def model_facts(endpoint: Endpoint, log_facts: Mapping[str, Any] | None = None) -> ModelFacts:
    """Everything known of the model behind an endpoint. `log_facts` are the facts of its server's log."""
    known = dict(log_facts or {})
    root = _root(endpoint)
    checkpoint, parameters = _checkpoint(str(known.get("model") or root or ""))
    bits = checkpoint.get("bits")
    if bits is None and "quantization" in known:
        bits = bits_of_method(known["quantization"])
        if bits == 16 and checkpoint.get("quant_method"):
            bits = None
    cache = known.get("kv_cache_dtype") or _cache_dtype(endpoint)
    return ModelFacts(
        bits=bits if isinstance(bits, int) else None,
        parameters=parameters or size_from_name(root or endpoint.model) or size_from_name(endpoint.model),
        kv_quantized=None if cache is None else str(cache).lower() not in _PLAIN_CACHE,
        speculative=bool(known["speculative_config"]) if "speculative_config" in known else None,
        shape={key: checkpoint[key] for key in _SHAPE_KEYS if checkpoint.get(key) is not None},
    )


def _root(endpoint: Endpoint) -> str | None:
    value = endpoint.get("/v1/models", timeout=15.0).json()
    rows = value.get("data") if isinstance(value, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("id") == endpoint.model:
            return str(row.get("root") or row["id"])
    return None


def _checkpoint(model: str) -> tuple[Mapping[str, Any], float | None]:
    if not model:
        return {}, None
    from vq_console.profiles.checkpoint import read_checkpoint

    try:
        found = read_checkpoint(model)
    except (VqError, OSError, ValueError):
        return {}, None
    return found.facts, float(found.parameters) if found.parameters else None


def _cache_dtype(endpoint: Endpoint) -> str | None:
    answer = endpoint.get("/metrics", timeout=15.0)
    found = _CACHE_DTYPE.search(answer.body) if answer.ok else None
    return found[1].decode("utf-8", "replace") if found else None


def shape_conflict(a: ModelFacts, b: ModelFacts) -> str | None:
    """Why the two cannot be precisions of one model, or None."""
    for key in _SHAPE_KEYS:
        mine, theirs = a.shape.get(key), b.shape.get(key)
        if mine is not None and theirs is not None and mine != theirs:
            return f"{key} is {mine} there and {theirs} here"
    return None
