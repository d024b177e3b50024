"""The outcome of a quality check over two arms, and its JSON (keys of the `ab --json` contract, and a few more).

Owns shapes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vq_console.checks.divergence import Hazard
from vq_console.checks.health import HealthResult
from vq_console.checks.kld import Consistency, KldResult
from vq_console.checks.quality_settings import Thresholds
from vq_console.checks.quality_verdict import Evidence, Verdict
from vq_console.checks.tasks.paired import TaskResult


@dataclass(frozen=True, slots=True)
class QualityResult:
    """B against A. `against_baseline` holds the pairs baseline→A and baseline→B where a third arm was the baseline."""

    a: str
    b: str
    verdict: Verdict
    sentence: str
    kld: KldResult | None
    floor: KldResult | None
    hazard: Hazard | None
    floor_hazard: Hazard | None
    tasks: tuple[TaskResult, ...]
    health: tuple[HealthResult, ...]
    consistency: Mapping[str, Consistency | None]
    evidence: Evidence
    thresholds: Thresholds
    settings: Mapping[str, Any]
    validity: tuple[Mapping[str, Any], ...] = ()
    levels: Mapping[str, int] = field(default_factory=dict)
    answers_file: str | None = None
    against_baseline: Mapping[str, QualityResult] = field(default_factory=dict)
    partial: bool = False

    @property
    def word(self) -> str:
        """INDISTINGUISHABLE, SMALL, NOTICEABLE, DAMAGING or UNRESOLVED."""
        return self.verdict.word.value

    def with_validity(self, *flags: Mapping[str, Any]) -> QualityResult:
        """The result with more validity flags."""
        return replace(self, validity=(*self.validity, *flags))

    def to_json(self) -> dict[str, Any]:
        """The `quality` part of `ab --json`; intervals are [low, high], absent is null."""
        kld: dict[str, Any] = (
            self.kld.to_json()
            if self.kld
            else {"value": None, "ci": None, "sequences": 0, "tokens": 0, "on_policy": None}
        )
        kld["floor"] = self.evidence.floor
        kld["floor_ci"] = list(self.floor.interval) if self.floor and self.floor.interval else None
        hazard: dict[str, Any] = self.hazard.to_json() if self.hazard else {"hazard": None, "ci": None}
        hazard["floor"] = self.floor_hazard.to_json() if self.floor_hazard else None
        ppl = self.kld.ppl_interval if self.kld else None
        value: dict[str, Any] = {
            "word": self.word,
            "label": self.verdict.label,
            "sentence": self.sentence,
            "reasons": list(self.verdict.reasons),
            "arms": {"A": self.a, "B": self.b},
            "kld": kld,
            "top1_agreement": self.kld.top1_agreement if self.kld else None,
            "ppl_ratio": {"value": self.kld.ppl_ratio if self.kld else None, "ci": list(ppl) if ppl else None},
            "divergence": hazard,
            "tasks": [task.to_json() for task in self.tasks],
            "health": [result.to_json() for result in self.health],
            "consistency": {side: found.to_json() if found else None for side, found in self.consistency.items()},
            "levels": dict(self.levels),
            "settings": dict(self.settings),
            "answers": self.answers_file,
            "validity": [dict(flag) for flag in self.validity],
            "partial": self.partial,
        }
        if self.against_baseline:
            value["against_baseline"] = {side: pair.to_json() for side, pair in self.against_baseline.items()}
        return value
