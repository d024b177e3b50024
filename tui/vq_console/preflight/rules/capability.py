"""What each quantization method demands of the GPU, by version.

Data and one lookup. Source: `get_min_capability` of vLLM's quantization configs (0.20.2 to 0.33.0) and, for older
releases, the messages in public issues. Where two releases that were read differ, what lies between them is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from vq_console.preflight.situation import Situation
from vq_console.preflight.versions import Span, span

SOURCE = "vLLM source: model_executor/layers/quantization get_min_capability"


@dataclass(frozen=True, slots=True)
class Minimum:
    """The lowest capability of a method within a span of versions."""

    methods: frozenset[str]
    sm: int
    versions: Span
    source: str = SOURCE


def _row(methods: str, sm: int, versions: str = "", source: str = SOURCE) -> Minimum:
    return Minimum(frozenset(methods.split()), sm, span(versions), source)


METHODS: tuple[Minimum, ...] = (
    _row("awq auto_awq awq_marlin", 75),
    _row("gptq_marlin", 80, "<0.14", "vLLM reports up to 0.13: gptq_marlin needs SM 8.0"),
    _row("gptq auto_gptq", 60),
    _row("gptq_marlin", 75, ">=0.20,<0.24"),
    _row("fp8 fp8_per_tensor fp8_per_block", 80, "<0.14", "vLLM reports up to 0.13: FP8 Marlin needs SM 8.0"),
    _row("fp8 deepseek_v4_fp8", 75),
    _row("fbgemm_fp8", 80),
    _row("fp_quant", 100),
    _row("modelopt", 89, "<0.26.1"),
    _row("modelopt", 80),
    _row("modelopt_fp4", 75),
    _row("modelopt_mxfp8", 80),
    _row("modelopt_mixed", 89, "<0.20.3"),
    _row("modelopt_mixed", 75),
    _row("humming", 75),
    _row("experts_int8", 80),
    _row("compressed-tensors quark moe_wna16 bitsandbytes", 70),
    _row("torchao", 75),
    _row("inc", 60),
    _row("mxfp4 gpt_oss_mxfp4", 80),
    _row("online fp8_per_tensor fp8_per_block mxfp8", 75, ">=0.20"),
)

SCHEMES: tuple[Minimum, ...] = (
    _row("wna16", 80, "<0.14", "vLLM 0.10.2 report: CompressedTensorsWNA16 Min capability: 80"),
    _row("wna16 int8 fp8_a16 nvfp4 nvfp4_a16 mxfp8", 75, ">=0.20"),
    _row("int8", 75),
    _row("fp8_tensor fp8_channel fp8_block", 75, ">=0.20"),
    _row("fp8_tensor fp8_channel fp8_block", 80, "<0.14", "vLLM reports up to 0.13: FP8 Marlin needs SM 8.0"),
    _row("mxfp4 mxfp4_a16", 80),
    _row("w4a8", 90),
)
"""compressed-tensors schemes (`_check_scheme_supported`)."""


def _highest(rows: tuple[Minimum, ...], name: str, situation: Situation) -> Minimum | None:
    found = [row for row in rows if name in row.methods and row.versions.holds(situation.version)]
    return max(found, key=lambda row: row.sm, default=None)


def method_minimum(name: str, situation: Situation) -> Minimum | None:
    """The demand of a method: the engine's own source where it was read, else the table."""
    own = situation.catalogue.min_capability
    if situation.exact and own is not None and name in own:
        return Minimum(frozenset({name}), own[name], span(), f"{SOURCE}, this version")
    return _highest(METHODS, name, situation)


def scheme_minimum(family: str, situation: Situation) -> Minimum | None:
    """The demand of a compressed-tensors scheme."""
    return _highest(SCHEMES, family, situation)
