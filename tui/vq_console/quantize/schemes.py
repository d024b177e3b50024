"""The weight formats and ways of LLM Compressor 0.14 and ModelOpt 0.47 that the console offers, by name. Pure.

Source: compressed-tensors 0.19 `quantization/quant_scheme.py` (PRESET_SCHEMES); ModelOpt 0.47 `quantization/config.py`.
"""

from __future__ import annotations

from vq_console.core.errors import UsageError
from vq_console.core.text import nearest
from vq_console.quantize.model import Scheme

METHODS = {
    "rtn": "round to nearest, needs no data",
    "gptq": "GPTQ: rounds so that the errors of a layer's outputs cancel (calibration data)",
    "awq": "AWQ: scales the inputs that matter before rounding (calibration data)",
    "smoothquant": "SmoothQuant: moves outliers of activations into the weights (calibration data)",
    "smoothquant-gptq": "SmoothQuant, then GPTQ (calibration data)",
}

_INT4 = ("rtn", "gptq", "awq")
SCHEMES: tuple[Scheme, ...] = (
    Scheme("FP8_DYNAMIC", "FP8 weights per channel, FP8 activations per token", 8, "float-quantized", per_channel=True),
    Scheme("FP8_STATIC", "FP8 weights and activations, one static scale each", 8, "float-quantized", needs_data=True,
           preset="FP8"),
    Scheme("FP8_BLOCK", "FP8 weights in blocks of 128 × 128", 8, "float-quantized", block=(128, 128)),
    Scheme("W8A8", "INT8 weights per channel, INT8 activations per token", 8, "int-quantized", per_channel=True,
           methods=("rtn", "smoothquant", "gptq", "smoothquant-gptq")),
    Scheme("W8A16", "INT8 weights in groups, 16-bit activations", 8, "pack-quantized", 128, True, methods=_INT4),
    Scheme("W4A16", "INT4 weights in groups, 16-bit activations", 4, "pack-quantized", 128, True, methods=_INT4),
    Scheme("W4A16_ASYM", "INT4 weights in groups with zero points", 4, "pack-quantized", 128, True, scale_bytes=2.5,
           methods=_INT4),
    Scheme("NVFP4", "FP4 weights and activations in groups of 16", 4, "nvfp4-pack-quantized", 16, scale_bytes=1,
           needs_data=True, methods=("rtn", "gptq")),
    Scheme("NVFP4A16", "FP4 weights in groups of 16, 16-bit activations", 4, "nvfp4-pack-quantized", 16, scale_bytes=1),
    Scheme("MXFP4", "FP4 weights and activations in groups of 32", 4, "mxfp4-pack-quantized", 32, scale_bytes=1),
    Scheme("MODELOPT_FP8", "ModelOpt: FP8 weights and activations, one static scale each", 8, "FP8", needs_data=True,
           preset="FP8_DEFAULT_CFG", maker="modelopt"),
    Scheme("MODELOPT_NVFP4", "ModelOpt: FP4 weights and activations in groups of 16", 4, "NVFP4", 16, scale_bytes=1,
           needs_data=True, preset="NVFP4_DEFAULT_CFG", maker="modelopt"),
    Scheme("MXFP8", "FP8 weights and activations in groups of 32", 8, "mxfp8-quantized", 32, scale_bytes=1),
)  # fmt: skip

_OTHER_NAMES = {
    "int8": ("W8A8", "rtn"),
    "int4": ("W4A16", "rtn"),
    "fp8": ("FP8_DYNAMIC", "rtn"),
    "w8a8int8": ("W8A8", "rtn"),
    "w8a8fp8": ("FP8_DYNAMIC", "rtn"),
    "gptq": ("W4A16", "gptq"),
    "awq": ("W4A16", "awq"),
    "smoothquant": ("W8A8", "smoothquant"),
}

TOOL_NAMES = {"compressor": "llmcompressor", "modelopt": "nvidia-modelopt"}
"""The package of each tool's environment."""

GROUP_SIZES = (256, 128, 64, 32, 16)
SERVED_GROUPS = (128, 64, 32)
"""Group sizes of INT weights that vLLM's Marlin kernels take (Machete 128 and 64)."""


def find_scheme(name: str, method: str | None = None) -> tuple[Scheme, str]:
    """The scheme and method that a person means: `W4A16`, `w4a16-gptq`, `int8`, … Raises UsageError."""
    wanted = _plain(name)
    by_name = {_plain(scheme.name): scheme for scheme in SCHEMES}
    found, implied = by_name.get(wanted), None
    if found is None and wanted in _OTHER_NAMES:
        scheme_name, implied = _OTHER_NAMES[wanted]
        found = by_name[_plain(scheme_name)]
    if found is None:
        for suffix in sorted(METHODS, key=len, reverse=True):
            if wanted.endswith(_plain(suffix)) and wanted.removesuffix(_plain(suffix)) in by_name:
                found, implied = by_name[wanted.removesuffix(_plain(suffix))], suffix
                break
    if found is None:
        names = [scheme.name for scheme in SCHEMES]
        guess = nearest(name.upper(), names)
        raise UsageError(
            f"{name}: no such scheme", (f"did you mean {guess}? " if guess else "") + f"one of {', '.join(names)}"
        )
    chosen = (method or implied or "rtn").lower()
    if chosen not in METHODS:
        raise UsageError(f"{chosen}: no such method", f"one of {', '.join(METHODS)}")
    if chosen not in found.methods:
        raise UsageError(f"{found.name} cannot be made with {chosen}", f"{found.name} takes {', '.join(found.methods)}")
    return found, chosen


def split_kv_cache(name: str) -> tuple[str, str | None]:
    """`FP8_DYNAMIC-fp8kv` → (`FP8_DYNAMIC`, `fp8`): the name without what it says about the KV cache."""
    for suffix, kind in (("-fp8kv-per-head", "fp8_per_head"), ("-fp8kv", "fp8")):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], kind
    return name, None


def needs_data(scheme: Scheme, method: str, kv_cache: str | None) -> bool:
    """Whether calibration data decides the result."""
    return scheme.needs_data or method != "rtn" or kv_cache is not None


def label(scheme: Scheme, method: str, group_size: int | None, kv_cache: str | None) -> str:
    """What the result is called: `W4A16-g64-gptq-fp8kv`."""
    parts = [scheme.name]
    if scheme.group_free and group_size:
        parts.append(f"g{group_size}")
    if method != "rtn":
        parts.append(method)
    if kv_cache:
        parts.append("fp8kv" if kv_cache == "fp8" else "fp8kv-per-head")
    return "-".join(parts)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
