"""What a model's name lets one presume: the published shape of well-known models, and the format in the suffix.

Owns guesses that are marked as such; must never be used where config.json states the fact. A name that is not known
gives nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

_SUFFIXES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    (r"mxfp4", {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}),
    (r"nvfp4|[-_]fp4\b", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    (r"mxfp8", {"quant_method": "modelopt", "quant_algo": "MXFP8"}),
    (r"fp8[-_]block", {"quant_method": "compressed-tensors", "format": "float-quantized", "scheme": "FP8_BLOCK"}),
    (r"fp8[-_]dynamic", {"quant_method": "compressed-tensors", "format": "float-quantized", "scheme": "FP8_DYNAMIC"}),
    (r"[-_]fp8\b", {"quant_method": "fp8"}),
    (r"w8a8", {"quant_method": "compressed-tensors", "format": "int-quantized", "bits": 8}),
    (r"w4a16", {"quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4, "group_size": 128}),
    (r"gptq[-_]int8", {"quant_method": "gptq", "bits": 8}),
    (r"gptq", {"quant_method": "gptq", "bits": 4}),
    (r"awq", {"quant_method": "awq", "bits": 4}),
    (r"bnb|bitsandbytes", {"quant_method": "bitsandbytes", "bits": 4}),
    (r"gguf", {"quant_method": "gguf"}),
)

_GATED = (
    "meta-llama/",
    "google/gemma-2",
    "google/gemma-3",
    "google/gemma-7b",
    "google/gemma-1",
    "mistralai/mistral-large",
    "mistralai/mistral-small-24b",
    "mistralai/mixtral-8x22b-v0.3",
    "mistralai/ministral-8b",
    "mistralai/codestral",
    "cohereforai/",
    "coherelabs/",
    "tiiuae/falcon-180b",
    "bigcode/starcoder",
    "databricks/dbrx",
)
"""Beginnings of hub ids whose files need an accepted licence, as published."""


QUANT_MARKS = frozenset(
    {"quant_method", "quant_algo", "format", "scheme", "bits", "group_size", "weight_block_size", "weights_gib"}
)
"""Facts that speak of quantization rather than of the model's shape."""


@dataclass(frozen=True, slots=True)
class Presumed:
    """Facts under config.json's names, and where they come from."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


@lru_cache(maxsize=1)
def _known() -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    text = files("vq_console.preflight").joinpath("models.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return tuple((re.compile(entry.pop("name"), re.IGNORECASE), entry) for entry in table["model"])


def is_local(model: str) -> bool:
    """Whether the model is named by a path rather than by a hub id."""
    return model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf") or model.count("/") > 1


def is_gated(model: str) -> bool:
    """Whether the hub id belongs to a family that is known to need an accepted licence."""
    return not is_local(model) and model.lower().startswith(_GATED)


@lru_cache(maxsize=256)
def presume(model: str) -> Presumed:
    """What is published of a well-known model of this name, and the quantization that its suffix names."""
    name = model.rstrip("/").rsplit("/", 1)[-1]
    facts: dict[str, Any] = {}
    sources = []
    for pattern, entry in _known():
        if pattern.search(name):
            facts.update(entry)
            sources.append("published shape")
            break
    lowered = name.lower()
    for expression, marks in _SUFFIXES:
        if re.search(expression, lowered):
            facts.update(marks)
            sources.append("the name's suffix")
            if marks.get("quant_method") == "fp8" and model.lower().startswith("qwen/"):
                # Qwen's own FP8 releases are fine-grained, in blocks of 128 (their model cards).
                facts["weight_block_size"] = [128, 128]
            break
    return Presumed(facts, " and ".join(sources))
