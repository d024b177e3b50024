"""All rules asked about one situation, in order of weight.

Pure. A rule that fails is a defect of the console, not of the profile: it propagates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vq_console.preflight.method import Resolution
from vq_console.preflight.model import Finding, Fit, LayerExpectation
from vq_console.preflight.rules import (  # noqa: F401 - importing them fills the registry
    argument_values,
    arguments,
    config_table,
    coverage,
    defects,
    host,
    kernels,
    kvcache,
    memory,
    model_files,
    packages,
    parallel,
    provenance,
    quantization,
)
from vq_console.preflight.rules.base import RULES, Context, Rule
from vq_console.preflight.situation import Situation

_WEIGHT = {"error": 0, "warning": 1, "info": 2}

SILENCED: dict[str, frozenset[str]] = {
    "kernel-slow-fallback": frozenset(
        {
            "quant-unsupported-sm",
            "kernel-not-available",
            "kernel-crash-arch",
            "quant-checkpoint-conflict",
            "quant-method-unknown",
            "backend-override-unsupported",
            "quant-plugin-missing",
            "quant-method-deprecated",
        }
    ),
    "kernel-not-available": frozenset(
        {
            "quant-unsupported-sm",
            "quant-checkpoint-conflict",
            "quant-tp-shape-mismatch",
            "quant-method-unknown",
            "no-kernel-image",
            "quant-method-deprecated",
        }
    ),
    "fp8-kv-uncalibrated": frozenset(
        {
            "fp8-kv-unsupported-arch",
            "kv-dtype-checkpoint-conflict",
            "kv-fp8-wrong-output",
            "backend-override-unsupported",
        }
    ),
    "kv-cache-too-small": frozenset({"max-len-exceeds-model", "cuda-oom-load", "kv-cache-no-memory"}),
    "gpu-memory-busy": frozenset({"stale-engine-process"}),
    "startup-hang-deepgemm": frozenset({"deepgemm-incompatible"}),
    "arch-unsupported": frozenset({"trust-remote-code-required"}),
    "quant-wrong-output": frozenset({"kernel-crash-arch", "kernel-not-available"}),
    "cpu-illegal-instruction": frozenset({"kernel-not-available", "fp8-kv-unsupported-arch"}),
    "quant-config-invalid": frozenset({"cli-unrecognized-argument", "quant-method-unknown"}),
    "quant-checkpoint-conflict": frozenset({"quant-method-deprecated"}),
    "quant-tp-shape-mismatch": frozenset({"tp-not-divisible"}),
    "perf-weight-only-large-batch": frozenset({"quant-tp-shape-mismatch", "quant-unsupported-sm"}),
    "tokenizer-load-failed": frozenset({"weights-missing", "model-path-not-found"}),
    "cuda-oom-graph-capture": frozenset({"gpu-memory-busy", "cuda-oom-sampler-warmup"}),
}
"""A finding that says nothing new beside another one: it never gets that far, or it is the same cause again."""


_ADVICE = frozenset({"startup-hang-deepgemm", "perf-weight-only-large-batch", "memory-profiling-interference"})
"""What matters only to a launch that comes up."""


def rules() -> tuple[Rule, ...]:
    """All declared rules."""
    return tuple(RULES)


def findings(
    situation: Situation, resolution: Resolution, layers: Sequence[LayerExpectation], fit: Fit
) -> tuple[Finding, ...]:
    """The findings, errors first; what another finding makes pointless is left out."""
    context = Context(situation, resolution, layers, fit)
    found = [finding for rule in RULES for finding in rule.findings(context)]
    if situation.beyond:
        found = [_doubtful(finding) for finding in found]
    return tuple(sorted(_telling(found), key=lambda finding: _WEIGHT[finding.severity]))


_BY_LISTS = frozenset(
    {
        "cli-unrecognized-argument",
        "cli-invalid-choice",
        "quant-method-unknown",
        "quant-config-invalid",
        "arch-unsupported",
        "tool-parser-config",
    }
)
"""Rules that go by lists of what a release contains; a release newer than all lists may contain more."""


def _doubtful(finding: Finding) -> Finding:
    if finding.rule not in _BY_LISTS or finding.severity != "error":
        return finding
    note = "this vLLM is newer than the lists that this goes by"
    return replace(finding, severity="warning", evidence=f"{note}; {finding.evidence}".removesuffix("; "))


def _telling(found: Iterable[Finding]) -> list[Finding]:
    kept = _unique(found)
    loud = {finding.rule for finding in kept if finding.severity != "info"}
    if any(finding.severity == "error" for finding in kept):
        kept = [finding for finding in kept if finding.rule not in _ADVICE]
    return [finding for finding in kept if not SILENCED.get(finding.rule, frozenset()) & (loud - {finding.rule})]


def _unique(found: Iterable[Finding]) -> list[Finding]:
    seen: set[tuple[str, str]] = set()
    result = []
    for finding in found:
        if (finding.rule, finding.message) not in seen:
            seen.add((finding.rule, finding.message))
            result.append(finding)
    return result
