"""Quantization schemes: what a checkpoint declares and what an online shorthand makes, as plain values.

Owns the translation from config.json's words (and from vLLM's shorthands) to one scheme per kind of layer. Pure;
what a checkpoint does not say stays None, and a scheme that is not understood has the family `other`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way of storing and multiplying weights.

    `family` is one of: none, wna16, w4a8, fp8_tensor, fp8_channel, fp8_block, fp8_a16, int8, int8_a16, mxfp8,
    mxfp4, mxfp4_a16, nvfp4, nvfp4_a16, gguf, bnb, other. `group` is weights per scale (-1: one per channel).
    """

    family: str
    bits: float = 16.0
    group: int | None = None
    label: str = "16-bit"
    symmetric: bool | None = None
    desc_act: bool = False
    online: bool = False

    @property
    def quantized(self) -> bool:
        return self.family != "none"

    @property
    def weight_only(self) -> bool:
        """By design: 16-bit activations whatever the GPU."""
        return self.family in {"wna16", "fp8_a16", "int8_a16", "mxfp4_a16", "nvfp4_a16", "bnb", "gguf"}

    @property
    def scale_bits(self) -> float:
        """Bits of scales per weight that the format stores beside the weights."""
        if self.family in {"nvfp4", "nvfp4_a16"}:
            return 8 / (self.group or 16)
        if self.family in {"mxfp4", "mxfp4_a16", "mxfp8"}:
            return 8 / 32
        if self.family == "fp8_block":
            return 32 / (128 * 128)
        if self.family == "wna16" and self.group and self.group > 0:
            return (16 + (0 if self.symmetric in (None, True) else self.bits)) / self.group
        return 0.0


NONE = Scheme("none")


def wna16(bits: int, group: int | None, *, symmetric: bool | None = None, desc_act: bool = False) -> Scheme:
    """Integer weights of `bits` with 16-bit activations."""
    where = "" if group is None else " per channel" if group == -1 else f" g{group}"
    return Scheme("wna16", float(bits), group, f"W{bits}A16{where}", symmetric, desc_act)


FP8_TENSOR = Scheme("fp8_tensor", 8, label="FP8 W8A8 per tensor")
FP8_CHANNEL = Scheme("fp8_channel", 8, group=-1, label="FP8 W8A8 per channel")
FP8_BLOCK = Scheme("fp8_block", 8, group=128, label="FP8 W8A8 block 128")
FP8_A16 = Scheme("fp8_a16", 8, label="FP8 W8A16")
INT8 = Scheme("int8", 8, group=-1, label="INT8 W8A8")
INT8_A16 = Scheme("int8_a16", 8, group=-1, label="INT8 W8A16")
MXFP8 = Scheme("mxfp8", 8, group=32, label="MXFP8")
MXFP4 = Scheme("mxfp4", 4, group=32, label="MXFP4")
MXFP4_A16 = Scheme("mxfp4_a16", 4, group=32, label="MXFP4 W4A16")
NVFP4 = Scheme("nvfp4", 4, group=16, label="NVFP4 W4A4")
NVFP4_A16 = Scheme("nvfp4_a16", 4, group=16, label="NVFP4 W4A16")
W4A8 = Scheme("w4a8", 4, group=128, label="W4A8 FP8")

ONLINE: Mapping[str, tuple[Scheme, Scheme]] = {
    "fp8": (FP8_TENSOR, FP8_TENSOR),
    "fp8_per_tensor": (FP8_TENSOR, FP8_TENSOR),
    "fp8_per_channel": (FP8_CHANNEL, FP8_CHANNEL),
    "fp8_per_block": (FP8_BLOCK, FP8_BLOCK),
    "mxfp8": (MXFP8, MXFP8),
    "mxfp4": (MXFP4, MXFP4_A16),
    "int8_per_channel_weight_only": (NONE, INT8_A16),
    "nvfp4_per_token": (NONE, NVFP4),
    "experts_int8": (NONE, INT8_A16),
}
"""Online shorthand → (linear, experts); vLLM 0.33 config/quantization.py `_ONLINE_SHORTHANDS` and its comments."""

KEY_NAMES: Mapping[str, Scheme] = {
    "fp8_per_tensor_static": FP8_TENSOR,
    "fp8_per_tensor_dynamic": FP8_TENSOR,
    "fp8_per_token": FP8_CHANNEL,
    "fp8_per_channel_static": FP8_CHANNEL,
    "fp8_per_block_static": FP8_BLOCK,
    "fp8_per_block_dynamic": FP8_BLOCK,
    "mxfp8": MXFP8,
    "mxfp4": MXFP4_A16,
    "int8_per_channel_static": INT8_A16,
    "nvfp4_per_token": NVFP4,
    "int4_per_group_32": wna16(4, 32),
    "int8_per_group_32": wna16(8, 32),
}
"""Key names of `--quantization-config` (config/quantization.py `QUANT_KEY_NAMES`)."""


def online_schemes(name: str) -> tuple[Scheme, Scheme] | None:
    """What a shorthand does to linear layers and to experts; None for a name that is no shorthand."""
    found = ONLINE.get(name)
    return (replace(found[0], online=True), replace(found[1], online=True)) if found else None


_INTEGER = frozenset(
    {"gptq", "auto-gptq", "gptq-marlin", "awq", "auto-awq", "awq-marlin", "moe-wna16", "inc", "auto-round"}
)


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def checkpoint_scheme(facts: Mapping[str, Any]) -> Scheme | None:
    """The scheme that the checkpoint's quantization_config declares for its main layers.

    None where it declares no quantization at all (`quant_method` absent); family `other` where it is not understood.
    """
    method = str(facts.get("quant_method") or "").lower().replace("_", "-")
    if not method:
        return None
    words = " ".join(
        str(facts.get(key) or "") for key in ("scheme", "quant_algo", "format", "weight_type", "fmt", "quant_type")
    ).lower()
    bits = _number(facts.get("bits"))
    group = _number(facts.get("group_size"))
    if method in {
        "gptq",
        "auto-gptq",
        "gptq-marlin",
        "awq",
        "auto-awq",
        "awq-marlin",
        "moe-wna16",
        "inc",
        "auto-round",
    }:
        symmetric = facts.get("sym")
        if symmetric is None and facts.get("zero_point") is not None:
            symmetric = not facts["zero_point"]
        if symmetric is None and "awq" in method:
            symmetric = False
        return wna16(
            bits or 4,
            group if group is not None else 128,
            symmetric=None if symmetric is None else bool(symmetric),
            desc_act=bool(facts.get("desc_act")),
        )
    if method in {"bitsandbytes", "bnb"}:
        return Scheme("bnb", float(bits or 4), label=f"bitsandbytes {bits or 4}-bit")
    if method == "gguf":
        return Scheme("gguf", float(bits or 4.5), label="GGUF")
    if method in {"mxfp4", "gpt-oss-mxfp4"}:
        return MXFP4_A16
    if method in {"mxfp8", "modelopt-mxfp8"}:
        return MXFP8
    if method in {"fp8", "deepseek-v4-fp8"}:
        return FP8_BLOCK if facts.get("weight_block_size") else FP8_TENSOR
    if method == "fbgemm-fp8":
        return FP8_CHANNEL
    if method.startswith("modelopt"):
        return _modelopt(method, words)
    if method in {"compressed-tensors", "compressed_tensors", "quark"}:
        return _compressed(facts, words, bits, group)
    if method == "experts-int8":
        return INT8_A16
    return Scheme("other", float(bits or 8), group, method)


def _modelopt(method: str, words: str) -> Scheme:
    if "nvfp4" in words or method == "modelopt-fp4":
        return NVFP4_A16 if "awq" not in words and "a16" in words else NVFP4
    if "mxfp8" in words:
        return MXFP8
    if "mixed" in words or method == "modelopt-mixed":
        return Scheme("other", 8, label="ModelOpt mixed precision")
    if "pb" in words.split() or "fp8_pb" in words:
        return FP8_BLOCK
    return FP8_CHANNEL if "per_channel" in words else FP8_TENSOR


def _compressed(facts: Mapping[str, Any], words: str, bits: int | None, group: int | None) -> Scheme:
    acts = str(facts.get("input_activations") or "").lower()
    strategy = str(facts.get("strategy") or "").lower()
    no_acts = facts.get("input_activations") in (False, "none", "") or "a16" in words
    if "nvfp4" in words or (bits == 4 and "float" in words and group == 16):
        return NVFP4_A16 if no_acts else NVFP4
    if "mxfp4" in words:
        return MXFP4_A16 if no_acts else MXFP4
    if "mxfp8" in words:
        return MXFP8
    if "w8a16_fp8" in words:
        return FP8_A16
    if "w4a8" in words or (bits == 4 and acts in {"fp8", "float8", "8"}):
        return Scheme("other", 4, group, "W4A8 INT8") if acts.startswith("int") else W4A8
    if "pack-quantized" in words or "w4a16" in words or "w8a16" in words:
        return wna16(bits or (8 if "w8a16" in words else 4), group, symmetric=facts.get("sym"))
    if "fp8_block" in words or "block" in strategy or facts.get("weight_block_size"):
        return FP8_BLOCK
    if "float-quantized" in words or "fp8" in words or "naive-quantized" in words:
        if no_acts and acts == "" and facts.get("input_activations") is not None:
            return FP8_A16
        return FP8_CHANNEL if "dynamic" in words or strategy == "channel" else FP8_TENSOR
    if "int-quantized" in words or "w8a8" in words or "int8" in words:
        return INT8
    if bits == 4:
        return wna16(4, group, symmetric=facts.get("sym"))
    if bits == 8 and group:
        return wna16(8, group, symmetric=facts.get("sym"))
    return Scheme("other", float(bits or 8), group, "compressed-tensors")
