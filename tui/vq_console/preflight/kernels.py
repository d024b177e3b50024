"""The kernel that vLLM's automatic choice takes for a scheme on a GPU in a version.

Pure. Walks `kernel_table` as vLLM walks its lists. Between two releases that were read the answer is only given where
both agree; below the oldest there are reports, else the answer is `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vq_console.preflight.kernel_table import CPU_LINEAR, CUDA_LINEAR, CUDA_MOE, LEGACY_LINEAR, ROCM_LINEAR, UNREAD, Row
from vq_console.preflight.model import Grade
from vq_console.preflight.scheme import Scheme
from vq_console.preflight.versions import READ, Version, neighbours


@dataclass(frozen=True, slots=True)
class Pick:
    """The expected kernel. `kernel` None with grade `unsupported` means that no kernel can run it."""

    kernel: str | None
    grade: Grade
    source: str = ""
    fails: str = ""


UNKNOWN = Pick(None, "unknown")


@dataclass(frozen=True, slots=True)
class Where:
    """The conditions that gates look at. `packages` None means unknown: packages that vLLM itself requires count
    as there. `widths` are (output, input) sizes of one GPU's shards, where the checkpoint states them."""

    device: str = "cuda"
    sm: int | None = None
    version: Version | None = None
    half: bool = False
    batch_invariant: bool = False
    deep_gemm: bool = True
    expert_parallel: bool = False
    cpu_flags: frozenset[str] | None = None
    gfx: str | None = None
    packages: frozenset[str] | None = None
    disabled: frozenset[str] = field(default_factory=frozenset)
    shapes: tuple[tuple[int, int], ...] = ()
    static_activations: bool | None = None


_CHIPS: Mapping[str, tuple[str, ...]] = {"cdna3": ("gfx942", "gfx95", "gfx12"), "cdna4": ("gfx95",)}
"""Beginnings of the AMD architectures that a condition means (platforms/rocm.py)."""
_OPTIONAL = frozenset({"conch-triton-kernels", "zentorch", "aiter", "amd-quark"})
"""Packages that vLLM does not require: without evidence they are not there."""


def linear_kernel(scheme: Scheme, where: Where, only: Sequence[str] | None = None) -> Pick:
    """The kernel of linear layers. `only` are class names that `--linear-backend` leaves over."""
    if not scheme.quantized:
        return Pick(None, "unquantized", "no quantization")
    if where.device == "cuda":
        return _by_version(CUDA_LINEAR, LEGACY_LINEAR, scheme, where, only)
    if where.device == "cpu":
        return _first(CPU_LINEAR.get(scheme.family, ()), scheme, where, where.version, only)
    if where.device == "rocm":
        return _rocm(scheme, where, only)
    return UNKNOWN


def _rocm(scheme: Scheme, where: Where, only: Sequence[str] | None) -> Pick:
    """AMD: what depends on the chip or on packages that vLLM does not require is unknown where those are."""
    rows = ROCM_LINEAR.get(scheme.family)
    if rows is None:
        return UNKNOWN
    if where.gfx is None and any(row.only in _CHIPS for row in rows):
        return UNKNOWN
    if where.packages is None and any(row.needs in _OPTIONAL for row in rows):
        return UNKNOWN
    return _first(rows, scheme, where, where.version, only)


def moe_kernel(scheme: Scheme, where: Where) -> Pick:
    """The backend of routed experts, by the name that vLLM logs."""
    if where.device != "cuda":
        return UNKNOWN
    family = "fp8_channel" if scheme.family == "fp8_a16" else scheme.family
    return _by_version(CUDA_MOE, {}, Scheme(family, scheme.bits, scheme.group), where, None)


def _by_version(
    table: Mapping[str, tuple[Row, ...]],
    legacy: Mapping[str, tuple[Row, ...]],
    scheme: Scheme,
    where: Where,
    only: Sequence[str] | None,
) -> Pick:
    if where.sm is None or where.version is None:
        return UNKNOWN
    rows = table.get(scheme.family)
    if where.version < READ[0]:
        old = legacy.get(scheme.family)
        pick = _first(old, scheme, where, where.version, only) if old else UNKNOWN
        # What no report speaks of is not known; that the table has no row for it proves nothing here.
        return pick if pick.grade != "unsupported" else UNKNOWN
    if rows is None:
        return UNKNOWN
    picks = [_first(rows, scheme, where, version, only) for version in neighbours(where.version)]
    if len({(pick.kernel, pick.grade) for pick in picks}) == 1:
        return picks[0]
    grades: set[Grade] = {pick.grade for pick in picks}
    grade: Grade = grades.pop() if len(grades) == 1 else "unknown"
    return Pick(None, grade, "the releases before and after differ: " + " / ".join(str(p.kernel) for p in picks))


def _first(
    rows: Iterable[Row] | None, scheme: Scheme, where: Where, version: Version | None, only: Sequence[str] | None
) -> Pick:
    for row in rows or ():
        if only is not None and row.kernel not in only:
            continue
        if row.kernel in where.disabled or not row.versions.holds(version):
            continue
        if _fits(row, scheme, where):
            kernel = None if row.kernel == UNREAD else row.kernel
            return Pick(kernel, row.grade, row.source, row.fails.format(sm=where.sm))
    return Pick(None, "unsupported", "no kernel of the list can run it")


def _fits(row: Row, scheme: Scheme, where: Where) -> bool:
    if row.sm is not None and (where.sm is None or not any(low <= where.sm <= high for low, high in row.sm)):
        return False
    if row.groups is not None and scheme.group is not None and scheme.group not in row.groups:
        return False
    if row.bits is not None and int(scheme.bits) not in row.bits:
        return False
    if row.needs and not _there(row.needs, where):
        return False
    return _condition(row.only, scheme, where)


def _there(package: str, where: Where) -> bool:
    if where.packages is None:
        return package not in _OPTIONAL
    return package in where.packages or (package == "humming-kernels" and not where.packages)


def _condition(name: str, scheme: Scheme, where: Where) -> bool:
    flags = where.cpu_flags or frozenset()
    match name:
        case "":
            return True
        case "machete":
            # K and N must be multiples of 64 and 128 (check_machete_supports_shape); no act-order across ranks.
            return all(k % 64 == 0 and n % 128 == 0 for n, k in where.shapes)
        case "allspark":
            return scheme.symmetric is not False
        case "float16":
            return where.half
        case "static":
            # Per-tensor activation scales: what the checkpoint says, dynamic online quantization has none per tensor.
            return where.static_activations is not False
        case "no batch invariance":
            return not where.batch_invariant
        case "deep_gemm":
            return where.deep_gemm and all(n % 64 == 0 and k % 128 == 0 for n, k in where.shapes)
        case "n32":
            return where.sm is None or where.sm // 10 != 12 or all(n % 32 == 0 for n, _ in where.shapes)
        case "gb10":
            return where.sm == 121
        case "no expert parallelism":
            return not where.expert_parallel
        case "avx2":
            return where.cpu_flags is not None and not any(flag.startswith("avx512") for flag in flags)
        case "amx":
            return any(flag.startswith("amx") for flag in flags)
        case "cdna3" | "cdna4":
            return where.gfx is not None and where.gfx.startswith(_CHIPS[name])
    raise ValueError(f"kernel_table uses an unknown condition: {name}")
