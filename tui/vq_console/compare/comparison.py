"""What one comparison works on, from its plan to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vq_console.compare.open import Arm
from vq_console.compare.placement import Placement
from vq_console.compare.progress import RunProgress

_QUALITY_SHARE = 0.3
_LEAST_CHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class AbSettings:
    """What a comparison does. Budgets in seconds, None for the mode's own; everything here is fixed before it runs."""

    mode: str = "quick"
    latency: bool = True
    quality: bool = True
    baseline: str | None = None
    prompts: Path | None = None
    declared: tuple[str, ...] = ()
    engine: str | None = None
    api_key_env: str | None = None
    seed: int | None = None
    latency_budget_s: float | None = None
    quality_budget_s: float | None = None
    within_s: float | None = None
    """Seconds for the whole run, starts of servers included: the checks share what the starts left."""
    keep: bool = False
    load: Mapping[str, Any] = field(default_factory=dict)
    """Fields of LatencySettings (levels, lengths, objective …) that differ from the mode's own."""
    copy_test: bool = False
    """Measure memory bandwidth by copying, for the floor beside the figures."""


@dataclass(slots=True)
class Comparison:
    """Two arms, with a third as baseline where one was named, and what was found out about them so far."""

    name: str
    folder: Path
    a: Arm
    b: Arm
    third: Arm | None
    settings: AbSettings
    seed: int
    placement: Placement
    progress: RunProgress
    started: float
    """Unix time."""
    latency: Mapping[str, Any] | None = None
    quality: Mapping[str, Any] | None = None
    validity: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All arms, the baseline last."""
        return (self.a, self.b) if self.third is None else (self.a, self.b, self.third)


def share_time(settings: AbSettings, spent_s: float, *, quality_done: bool = False) -> AbSettings:
    """The same with budgets for both checks, when the run as a whole has one: shares of what is left of it. Pure."""
    if settings.within_s is None:
        return settings
    left = settings.within_s - spent_s
    quality = max(left * _QUALITY_SHARE if settings.latency else left, _LEAST_CHECK_S)
    latency = left - quality if settings.quality and not quality_done else left
    return replace(settings, latency_budget_s=max(latency, _LEAST_CHECK_S), quality_budget_s=quality)
