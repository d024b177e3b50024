"""The comparison when both arms cannot be up together: A, then B, then A again, each started and stopped.

Latency takes the A-B-A design with its drift term; quality records A in the first phase and replays it on B.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vq_console.compare.open import Arm, open_arm
from vq_console.compare.placement import Placement
from vq_console.compare.progress import RunProgress
from vq_console.core.errors import UsageError


def compare_alternating(
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
    """Run the three phases and put the answer together (`settings` is the comparison's AbSettings).

    Raises UsageError when a third arm was asked for: three restarts of three servers is not a quick check.
    """
    from vq_console.checks.latency_alternate import AlternatingLatency
    from vq_console.checks.quality import QualitySettings, record_baseline, replay_baseline
    from vq_console.compare.run import endpoint_of, keep_arm, latency_settings, summarize

    if third is not None:
        raise UsageError(
            "a baseline arm does not fit beside arms that run one at a time",
            "record it once with `vq-console reference record`, then say --baseline ref:NAME",
        )
    timing = AlternatingLatency(latency_settings(settings, seed), folder / "latency", progress)
    judged = QualitySettings.of(settings.mode, seed=seed, budget_s=settings.quality_budget_s)
    quality: Mapping[str, Any] | None = None
    validity: list[Mapping[str, Any]] = []
    recording: Any = None
    for phase, arm in enumerate((a, b, a) if settings.latency else (a, b)):
        if progress.cancelled():
            break
        with ExitStack() as stack:
            if phase == 2:
                arm.server = None
            open_arm(arm, placement, progress, stack, api_key_env=settings.api_key_env)
            keep_arm(arm, folder)
            endpoint = endpoint_of(arm)
            if settings.latency:
                timing.measure(arm.side, endpoint)
            if settings.quality and phase == 0 and not progress.cancelled():
                recording = record_baseline(endpoint, judged, progress, prompts=settings.prompts, facts=arm.facts)
            if settings.quality and phase == 1 and recording is not None and not progress.cancelled():
                result = replay_baseline(recording, endpoint, judged, folder / "quality", progress, facts=arm.facts)
                quality = result.to_json()
                validity += result.validity
    latency: Mapping[str, Any] | None = None
    if settings.latency:
        timed = timing.result()
        latency = timed.to_json()
        validity += timed.validity
    return summarize(a, b, placement, settings, seed, name, latency, quality, validity, progress.cancelled())
