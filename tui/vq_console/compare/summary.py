"""Puts the parts of a comparison together as the answer of `ab --json`. Only decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.compare.differences import Difference, confounders
from vq_console.compare.verdict import memory_sentence, quality_sentence, speed_sentence


def arm_memory(facts: Mapping[str, Any], fit: Mapping[str, Any]) -> dict[str, Any]:
    """Memory of one arm: what its log says, else what preflight computed from the checkpoint. Absent stays absent."""
    weights = facts.get("model_load_gib")
    return {
        "weights_gib": weights if weights is not None else fit.get("weights_gib"),
        "weights_from": "log" if weights is not None else "checkpoint" if fit.get("weights_gib") is not None else None,
        "kv_tokens": facts.get("kv_cache_tokens"),
        "requests_at_context": facts.get("max_concurrency"),
    }


def build_summary(
    *,
    run: str,
    simulated: bool,
    labels: tuple[str, str],
    arms: Mapping[str, Mapping[str, Any]],
    fits: Mapping[str, Mapping[str, Any]],
    differences: Sequence[Difference],
    design: str,
    design_why: str,
    same_gpus: bool,
    latency: Mapping[str, Any] | None,
    quality: Mapping[str, Any] | None,
    validity: Sequence[Mapping[str, Any]],
    not_tested: Sequence[str],
    partial: bool,
    how: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole answer, in the keys of the command line's contract, with the sentences of the verdict."""
    a, b = labels
    blocking = [difference.key for difference in confounders(differences)]
    flags = [dict(item) for item in validity]
    if blocking:
        flags.append(
            {
                "flag": "undeclared-difference",
                "detail": f"the arms differ in {', '.join(blocking)}; make them equal, or say --declare KEY",
            }
        )
    if not same_gpus:
        flags.append({"flag": "different-gpus", "detail": "the figures include the difference of the GPUs"})
        blocking = [*blocking, "the GPU"]
    for side, label in (("A", a), ("B", b)):
        for row in (arms.get(side) or {}).get("asked_vs_runs") or ():
            if row.get("alarm"):
                flags.append(
                    {
                        "flag": "kernel-fallback",
                        "detail": f"{label}: {row['kind']} expected {row['expected']},"
                        f" runs {row['selected']} ({row['grade']})",
                    }
                )
    if simulated:
        flags.append({"flag": "simulated", "detail": "a stand-in engine answered: nothing here is about hardware"})
    if partial:
        flags.append({"flag": "partial", "detail": "stopped before the end; what was measured is kept"})
    memory = {side: arm_memory((arms.get(side) or {}).get("facts") or {}, fits.get(side) or {}) for side in ("A", "B")}
    contexts = {((arms.get(side) or {}).get("facts") or {}).get("max_model_len") for side in ("A", "B")}
    context = contexts.pop() if len(contexts) == 1 else None
    return {
        "run": run,
        "simulated": simulated,
        "partial": partial,
        "arms": {side: dict(value) for side, value in arms.items()},
        "differences": [difference.to_json() for difference in differences],
        "design": {"name": design, "why": design_why},
        "latency": latency,
        "quality": quality,
        "memory": memory,
        "verdict": {
            "speed": speed_sentence(latency, a, b, confounders=blocking, partial=partial),
            "quality": quality_sentence(quality, a, b),
            "memory": memory_sentence(memory, a, b, context=context),
        },
        "validity": flags,
        "not_tested": list(not_tested),
        "how": dict(how),
    }
