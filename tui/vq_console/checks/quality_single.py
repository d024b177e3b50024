"""One server by itself: its noise floor, whether decoding matches scoring, its tasks and its health.

Nothing here compares two models; what it records can be replayed on another arm later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.checks.divergence import Hazard, hazard, repeated_pairs
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.health import SIGNS, Reply
from vq_console.checks.kld import Consistency, KldResult, consistency, noise_floor
from vq_console.checks.progress import Progress
from vq_console.checks.quality import record_baseline
from vq_console.checks.quality_data import Recording
from vq_console.checks.quality_settings import QualitySettings
from vq_console.checks.quality_verdict import nats
from vq_console.checks.reference import SUFFIX, save_reference
from vq_console.checks.statistics import Interval, share_interval
from vq_console.checks.tasks.checkers import outcome
from vq_console.checks.tasks.model import Outcome
from vq_console.core.files import append_jsonl, write_json
from vq_console.core.text import counted


@dataclass(frozen=True, slots=True)
class TaskShare:
    """One task on one arm: the share of right ones among the items answered in full."""

    name: str
    n: int
    right: int
    share: float | None
    interval: Interval | None
    truncated: int
    errors: int
    level: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "n": self.n,
            "right": self.right,
            "share": self.share,
            "ci": list(self.interval) if self.interval else None,
            "truncated": self.truncated,
            "errors": self.errors,
            "level": self.level,
        }


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What one server showed of itself. `samples` are its sequences, answers and items."""

    label: str
    simulated: bool
    floor: KldResult | None
    hazard: Hazard | None
    consistency: Consistency | None
    consistent: bool | None
    tasks: tuple[TaskShare, ...]
    health: Mapping[str, tuple[int, int]]
    """Sign → (answers with it, answers judged)."""
    samples: Mapping[str, int]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]
    partial: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "arm": self.label,
            "simulated": self.simulated,
            "samples": dict(self.samples),
            "summary": {
                "floor": self.floor.to_json() if self.floor else None,
                "divergence": self.hazard.to_json() if self.hazard else None,
                "consistency": self.consistency.to_json() if self.consistency else None,
                "consistent": self.consistent,
                "tasks": [task.to_json() for task in self.tasks],
                "health": [{"name": name, "n": n, "count": count} for name, (count, n) in self.health.items()],
            },
            "validity": [{"flag": "quality-note", "detail": note} for note in self.notes],
            "settings": dict(self.settings),
            "partial": self.partial,
        }

    def lines(self) -> list[str]:
        """The result for a reader."""
        out = []
        if self.floor is not None:
            out.append(
                f"noise floor: KLD {nats(self.floor.value)} nats/token when scored twice "
                f"({counted(self.floor.sequences, 'text')}, {counted(self.floor.tokens, 'token')})"
            )
        if self.hazard is not None:
            out.append(
                f"greedy answers repeated: {self.hazard.divergences} of {self.hazard.sequences} parted "
                f"({self.hazard.value:.4f} per token)"
            )
        if self.consistency is not None:
            word = "match" if self.consistent else "DO NOT match"
            out.append(
                f"decoding and prefill scores {word}: {self.consistency.mean_shift:.3f} nats apart on average, "
                f"{self.consistency.far_share * 100:.1f} % of tokens more than 1 nat"
            )
        for task in self.tasks:
            if task.share is None or task.interval is None:
                out.append(f"{task.name}: no complete answer ({task.truncated} truncated, {task.errors} failed)")
                continue
            low, high = task.interval
            out.append(
                f"{task.name}: {task.share * 100:.0f} % right ({low * 100:.0f} to {high * 100:.0f}, n={task.n}"
                f"{f', level {task.level}' if task.level else ''}; {task.truncated} truncated)"
            )
        signs = [f"{name} {count} of {n}" for name, (count, n) in self.health.items() if count]
        out.append("health: " + (", ".join(signs) if signs else "no sign of trouble"))
        return out + list(self.notes)


def task_shares(recording: Recording) -> list[TaskShare]:
    """The share of right answers of each task."""
    found: dict[str, Counter[Outcome]] = {}
    levels: dict[str, int | None] = {}
    for item in recording.items:
        if item.check and item.id in recording.answers:
            found.setdefault(item.task, Counter())[outcome(item, recording.answers[item.id])] += 1
            levels[item.task] = item.facts.get("level")
    rows = []
    for name, counts in found.items():
        right = counts[Outcome.RIGHT]
        n = right + counts[Outcome.WRONG]
        rows.append(
            TaskShare(
                name, n, right, right / n if n else None, share_interval(right, n), counts[Outcome.TRUNCATED],
                counts[Outcome.ERROR], levels[name],
            )
        )  # fmt: skip
    return rows


def _replies(recording: Recording) -> list[Reply]:
    greedy = [
        Reply(recording.prompts[one.prompt].text, one.text, one.ids) for one in recording.greedy if one.error is None
    ]
    answers = []
    for item in recording.items:
        answer = recording.answers.get(item.id)
        if answer is not None and answer.error is None:
            question = " ".join([str(item.messages[-1].get("content") or ""), *item.follow_ups])
            answers.append(
                Reply(question, answer.text, looped=answer.looped, finish=answer.finish, expects_json=item.expects_json)
            )
    return greedy + answers


def health_counts(replies: Sequence[Reply]) -> dict[str, tuple[int, int]]:
    """Sign → (answers with it, answers it applies to)."""
    counts: dict[str, tuple[int, int]] = {}
    for name, (applies, shows) in SIGNS.items():
        judged = [shows(reply) for reply in replies if applies(reply)]
        if judged:
            counts[name] = (sum(judged), len(judged))
    return counts


def check_quality(
    endpoint: Endpoint,
    settings: QualitySettings,
    folder: Path,
    progress: Progress,
    *,
    prompts: Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> SelfCheck:
    """Measure one server; its recording and every answer are kept under `folder`. Raises CheckError when it fails."""
    recording = record_baseline(endpoint, settings, progress, prompts=prompts, facts=facts, any_arm=False)
    return _self_check(recording, endpoint, settings, folder, progress)


def run_tasks(
    endpoint: Endpoint, settings: QualitySettings, folder: Path, progress: Progress, *, prompts: Path | None = None
) -> SelfCheck:
    """Ask task items of one server, nothing else; every answer is kept under `folder`."""
    recording = record_baseline(endpoint, settings, progress, prompts=prompts, text=False, any_arm=False)
    return _self_check(recording, endpoint, settings, folder, progress)


def _self_check(
    recording: Recording, endpoint: Endpoint, settings: QualitySettings, folder: Path, progress: Progress
) -> SelfCheck:
    t = settings.thresholds
    floor = noise_floor(recording.scores, recording.floor, on_policy=recording.on_policy)
    own = consistency(
        [(text.logprobs, scored) for text, scored in zip(recording.samples, recording.scores, strict=True)]
    )
    result = SelfCheck(
        label=endpoint.label,
        simulated=endpoint.simulated,
        floor=floor,
        hazard=hazard(repeated_pairs(recording.greedy, recording.repeat)),
        consistency=own,
        consistent=own.passes(
            floor.mean_shift if floor else None,
            limit=t.consistency_shift,
            floor_factor=t.consistency_factor,
            far_limit=t.consistency_far,
        )
        if own
        else None,
        tasks=tuple(task_shares(recording)),
        health=health_counts(_replies(recording)),
        samples={
            "sequences": len(recording.samples),
            "tokens": sum(scored.tokens for scored in recording.scores),
            "greedy": len(recording.greedy),
            "items": len(recording.answers),
        },
        notes=recording.notes,
        settings=recording.settings,
        partial=progress.cancelled(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_reference(recording, folder / f"baseline{SUFFIX}")
    write_json(folder / "result.json", result.to_json())
    path = folder / "items.jsonl"
    path.unlink(missing_ok=True)
    for item in recording.items:
        if item.id in recording.answers:
            answer = recording.answers[item.id]
            said = outcome(item, answer) if item.check else None
            append_jsonl(path, {**answer.to_json(), "task": item.task, "outcome": said})
    return result
