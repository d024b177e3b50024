"""The comparison on two GPUs of one kind: servers on each, and after half of the pairs on each other's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from vq_console.compare.open import Arm, open_arm
from vq_console.compare.placement import Placement
from vq_console.compare.progress import RunProgress


def compare_swapped(
    a: Arm,
    b: Arm,
    third: Arm | None,
    placement: Placement,
    settings: Any,
    seed: int,
    name: str,
    folder: Path,
    progress: RunProgress,
) -> dict[str, Any]:
    """Latency in two halves with a restart between them, quality in the first (`settings` is an AbSettings)."""
    from vq_console.checks.latency import run_latency
    from vq_console.checks.latency_swap import FOLDER, combined, half_of
    from vq_console.compare.run import endpoint_of, keep_arm, latency_settings, run_quality_part, summarize

    whole = latency_settings(settings, seed)
    half = half_of(whole)
    quality: Mapping[str, Any] | None = None
    validity: list[Mapping[str, Any]] = []
    with ExitStack() as stack:
        for arm in (a, b, *((third,) if third else ())):
            open_arm(arm, placement, progress, stack, api_key_env=settings.api_key_env)
            keep_arm(arm, folder)
        first = run_latency(endpoint_of(a), endpoint_of(b), half, folder / "latency", progress)
        if settings.quality and not progress.cancelled():
            quality, flags = run_quality_part(a, b, third, settings, seed, folder, progress)
            validity += flags
    result = first
    if not progress.cancelled():
        progress.event("plan", "the arms change GPUs: both servers start again")
        other = replace(placement, gpus={**placement.gpus, "A": placement.gpus["B"], "B": placement.gpus["A"]})
        with ExitStack() as stack:
            opened = ExitStack() if settings.keep else stack  # a stack that is never entered stops nothing
            for arm in (a, b):
                arm.server = None
                open_arm(arm, other, progress, opened, api_key_env=settings.api_key_env)
            second = run_latency(endpoint_of(a), endpoint_of(b), half, folder / "latency" / FOLDER, progress)
        result = combined(first, second, whole)
    else:
        placement = replace(placement, design="separate-gpus")
    validity += result.validity
    return summarize(a, b, placement, settings, seed, name, result.to_json(), quality, validity, progress.cancelled())
