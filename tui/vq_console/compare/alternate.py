"""The comparison when both arms cannot be up together: A, then B, then A again, each started and stopped.

Latency takes the A-B-A design with its drift term; quality records A in the first phase and replays it on B.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from vq_console.compare.comparison import Comparison
from vq_console.compare.parts import endpoint_of, latency_settings, open_arms
from vq_console.core.errors import UsageError


def compare_alternating(comparison: Comparison) -> None:
    """Run the three phases.

    Raises UsageError when a third arm was asked for: three restarts of three servers is not a quick check.
    """
    from vq_console.checks.latency_alternate import AlternatingLatency
    from vq_console.checks.quality import QualitySettings, record_baseline, replay_baseline

    if comparison.third is not None:
        raise UsageError(
            "a baseline arm does not fit beside arms that run one at a time",
            "record it once with `vq-console reference record`, then say --baseline ref:NAME",
        )
    a, b, settings, progress = comparison.a, comparison.b, comparison.settings, comparison.progress
    folder = comparison.folder
    timing = AlternatingLatency(latency_settings(settings, comparison.seed), folder / "latency", progress)
    judged = QualitySettings.of(settings.mode, seed=comparison.seed, budget_s=settings.quality_budget_s)
    recording: Any = None
    for phase, arm in enumerate((a, b, a) if settings.latency else (a, b)):
        if progress.cancelled():
            break
        with ExitStack() as stack:
            if phase == 2:
                arm.server = None
            open_arms(comparison, (arm,), stack)
            endpoint = endpoint_of(arm)
            if settings.latency:
                timing.measure(arm.side, endpoint)
            if settings.quality and phase == 0 and not progress.cancelled():
                recording = record_baseline(endpoint, judged, progress, prompts=settings.prompts, facts=arm.facts)
            if settings.quality and phase == 1 and recording is not None and not progress.cancelled():
                result = replay_baseline(recording, endpoint, judged, folder / "quality", progress, facts=arm.facts)
                comparison.quality = result.to_json()
                comparison.validity += result.validity
    if settings.latency:
        timed = timing.result()
        comparison.latency = timed.to_json()
        comparison.validity += timed.validity
