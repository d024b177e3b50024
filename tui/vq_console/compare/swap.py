"""The comparison on two GPUs of one kind: servers on each, and after half of the pairs on each other's."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from vq_console.compare.comparison import Comparison
from vq_console.compare.parts import endpoint_of, latency_settings, measure_quality, open_arms


def compare_swapped(comparison: Comparison) -> None:
    """Latency in two halves with a restart between them, quality in the first."""
    from vq_console.checks.latency import run_latency
    from vq_console.checks.latency_swap import FOLDER, combined, half_of

    a, b, settings = comparison.a, comparison.b, comparison.settings
    placement, progress, folder = comparison.placement, comparison.progress, comparison.folder / "latency"
    whole = latency_settings(settings, comparison.seed)
    half = half_of(whole)
    with ExitStack() as stack:
        open_arms(comparison, comparison.arms, stack)
        first = run_latency(endpoint_of(a), endpoint_of(b), half, folder, progress)
        if settings.quality and not progress.cancelled():
            measure_quality(comparison)
    result = first
    if not progress.cancelled():
        progress.event("plan", "the arms change GPUs: both servers start again")
        other = replace(placement, gpus={**placement.gpus, "A": placement.gpus["B"], "B": placement.gpus["A"]})
        with ExitStack() as stack:
            opened = ExitStack() if settings.keep else stack  # a stack that is never entered stops nothing
            a.server = b.server = None
            open_arms(comparison, (a, b), opened, other)
            second = run_latency(endpoint_of(a), endpoint_of(b), half, folder / FOLDER, progress)
        result = combined(first, second, whole)
    else:
        comparison.placement = replace(placement, design="separate-gpus")
    comparison.latency = result.to_json()
    comparison.validity += result.validity
