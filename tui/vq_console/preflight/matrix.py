"""The knowledge as a table: method × device × version → kernel and grade, each cell with its source.

Pure. Cells come from the same tables and demands that plans are made of; what is not known says `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vq_console.preflight.kernels import Pick, Where, linear_kernel, moe_kernel
from vq_console.preflight.model import Grade
from vq_console.preflight.scheme import (
    FP8_A16,
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_TENSOR,
    INT8,
    INT8_A16,
    MXFP4,
    MXFP4_A16,
    MXFP8,
    NONE,
    NVFP4,
    NVFP4_A16,
    W4A8,
    Scheme,
    wna16,
)
from vq_console.preflight.versions import ALWAYS, READ, Span, Version, neighbours, span, version_text


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One way of quantizing. `method` is how one gets it; `kind` the kind of layer; `sm` the inclusive ranges where
    vLLM lets it start at all, `versions` where it exists."""

    method: str
    kind: Literal["linear", "moe"]
    scheme: Scheme
    sm: tuple[tuple[int, int], ...] | None = None
    versions: Span = ALWAYS
    demand: str = ""


_ONLINE = span(">=0.20")
METHODS: tuple[MethodRow, ...] = (
    MethodRow("fp8_per_tensor (online)", "linear", FP8_TENSOR, versions=_ONLINE),
    MethodRow("fp8_per_tensor (online)", "moe", FP8_TENSOR, versions=_ONLINE),
    MethodRow(
        "fp8_per_channel (online)",
        "linear",
        FP8_CHANNEL,
        ((89, 999),),
        span(">=0.24"),
        "vLLM source: Fp8PtpcOnlineLinearMethod refuses weight-only kernels",
    ),
    MethodRow("fp8_per_block (online)", "linear", FP8_BLOCK, versions=_ONLINE),
    MethodRow("fp8_per_block (online)", "moe", FP8_BLOCK, versions=_ONLINE),
    MethodRow("mxfp8 (online)", "linear", MXFP8, versions=_ONLINE),
    MethodRow("mxfp4 (online)", "linear", MXFP4, versions=span(">=0.29")),
    MethodRow("int8_per_channel_weight_only (online)", "linear", NONE, versions=_ONLINE),
    MethodRow("int8_per_channel_weight_only (online)", "moe", INT8_A16, versions=_ONLINE),
    MethodRow("nvfp4_per_token (online)", "linear", NONE, ((100, 109),), span(">=0.26")),
    MethodRow(
        "nvfp4_per_token (online)",
        "moe",
        NVFP4,
        ((100, 109),),
        span(">=0.26"),
        "vLLM source: nvfp4_per_token requires a Blackwell (SM100) GPU",
    ),
    MethodRow("fp8 checkpoint, per tensor", "linear", FP8_TENSOR),
    MethodRow("FP8_DYNAMIC checkpoint, per channel", "linear", FP8_CHANNEL),
    MethodRow("fp8 checkpoint, block 128", "linear", FP8_BLOCK),
    MethodRow("fp8 checkpoint, block 128", "moe", FP8_BLOCK),
    MethodRow("W8A16 FP8 checkpoint", "linear", FP8_A16, versions=_ONLINE),
    MethodRow("W4A16 g128 (compressed-tensors, GPTQ)", "linear", wna16(4, 128)),
    MethodRow("W4A16 g32 (compressed-tensors, GPTQ)", "linear", wna16(4, 32)),
    MethodRow("AWQ g128", "linear", wna16(4, 128, symmetric=False)),
    MethodRow("W8A16 g128", "linear", wna16(8, 128)),
    MethodRow("W4A16 g128", "moe", wna16(4, 128)),
    MethodRow("W4A8 FP8 g128", "linear", W4A8, ((90, 90),), _ONLINE, "vLLM source: chosen only at SM 9.0"),
    MethodRow("W8A8 INT8", "linear", INT8),
    MethodRow("NVFP4 W4A4", "linear", NVFP4),
    MethodRow("NVFP4 W4A4", "moe", NVFP4),
    MethodRow("NVFP4 W4A16", "linear", NVFP4_A16),
    MethodRow("MXFP8 checkpoint", "linear", MXFP8),
    MethodRow("MXFP4 W4A4", "linear", MXFP4),
    MethodRow("MXFP4 (gpt-oss)", "moe", MXFP4_A16, ((80, 999),)),
    MethodRow("16-bit", "linear", NONE),
    MethodRow("16-bit", "moe", NONE),
)

CAPABILITIES = (75, 80, 86, 89, 90, 100, 103, 120, 121)
CPUS: tuple[tuple[str, frozenset[str]], ...] = (
    ("cpu avx2", frozenset({"avx2"})),
    ("cpu avx512", frozenset({"avx2", "avx512f", "avx512_vnni", "avx512_bf16"})),
    ("cpu amx", frozenset({"avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"})),
)
AMD = ("gfx942", "gfx950")
DEVICES: tuple[str, ...] = (*(f"sm{number}" for number in CAPABILITIES), *(name for name, _ in CPUS), *AMD)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one method runs on one device in one version."""

    method: str
    kind: str
    scheme: str
    device: str
    vllm: str
    kernel: str | None
    grade: Grade
    source: str


def cell(row: MethodRow, device: str, version: Version) -> Cell:
    """One cell; `device` is one of `DEVICES` or `sm` with any capability."""
    where = _where(device, version)
    if row.method.endswith("(online)"):
        where = replace(where, static_activations=False)
    pick = _pick(row, where)
    return Cell(
        row.method,
        row.kind,
        row.scheme.label,
        device,
        version_text(version),
        pick.kernel,
        pick.grade,
        pick.fails or pick.source,
    )


def _where(device: str, version: Version) -> Where:
    if device.startswith("sm"):
        return Where("cuda", int(device[2:]), version)
    flags = dict(CPUS).get(device)
    if flags is not None:
        return Where("cpu", None, version, cpu_flags=flags)
    return Where("rocm", None, version, gfx=device)


def _pick(row: MethodRow, where: Where) -> Pick:
    if not row.versions.holds(where.version):
        known = where.version is not None and neighbours(where.version)
        return Pick(None, "unsupported", f"exists in vLLM {row.versions}") if known else Pick(None, "unknown")
    if row.sm is not None:
        if where.device != "cuda" and row.scheme.family != "fp8_channel":
            return Pick(None, "unknown")
        if where.sm is not None and not any(low <= where.sm <= high for low, high in row.sm):
            return Pick(None, "unsupported", row.demand)
    if row.kind == "moe":
        return moe_kernel(row.scheme, where)
    if not row.scheme.quantized:
        return Pick(None, "unquantized", "no quantization")
    return linear_kernel(row.scheme, where)


def cells(
    *, devices: Sequence[str] = DEVICES, versions: Iterable[Version] = (READ[-1],), methods: str = ""
) -> tuple[Cell, ...]:
    """All cells of these devices and versions; `methods` filters by a part of the name."""
    return tuple(
        cell(row, device, version)
        for version in versions
        for row in METHODS
        if methods.lower() in f"{row.method} {row.scheme.label}".lower()
        for device in devices
    )


LEGEND = "◐ weight-only   ◌ emulated   ✖ cannot run   ? not known"
_SIGNS: dict[Grade, str] = {"weight-only": " ◐", "emulated": " ◌", "unsupported": " ✖", "unknown": " ?"}
_TAILS = ("ScaledMMLinearKernel", "ScaledMMKernel", "LinearKernel", "ScaledKernel", "Kernel")
_SCHEME_WORDS = re.compile(r"N[vV]Fp4|M[xX][fF]p[48]|F[pP]8|Int8|MXFP4|Block$|DynamicBlock$|W8A8")
COLUMNS: tuple[tuple[str, ...], ...] = (
    ("sm75", "sm86", "sm89", "sm90", "sm100", "sm120"),
    ("cpu avx2", "cpu avx512", "cpu amx", "gfx942", "gfx950"),
)
"""What is printed when nothing is asked for: one column for each group of devices that mostly agree."""


def cell_text(found: Cell) -> str:
    """A cell as a person reads it: the kernel without the words that every name has, and a sign for its grade."""
    if found.kernel is None:
        return {"unknown": "?", "unsupported": "✖", "unquantized": "16-bit"}.get(found.grade, f"?{_sign(found)}")
    name = found.kernel
    if not name.isupper():
        for tail in _TAILS:
            name = name.removesuffix(tail)
        name = _SCHEME_WORDS.sub("", name)
        name = name.replace("FlashInferDeepGEMM", "FlashInfer+DeepGEMM")
    return name + _sign(found)


def _sign(found: Cell) -> str:
    return _SIGNS.get(found.grade, "")
