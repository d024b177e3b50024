"""The word: from evidence and thresholds that were fixed before to a verdict and a sentence.

Pure. "Damage" is said only of a 16-bit baseline; below a billion parameters only with evidence from tasks; never of a
server against itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from vq_console.checks.divergence import Hazard
from vq_console.checks.health import HealthResult
from vq_console.checks.kld import KldResult
from vq_console.checks.quality_settings import Thresholds
from vq_console.checks.statistics import holm
from vq_console.checks.tasks.paired import ALL_TASKS, TaskResult, e_limit


class Word(StrEnum):
    """What the numbers allow to be said."""

    INDISTINGUISHABLE = "INDISTINGUISHABLE"
    SMALL = "SMALL"
    NOTICEABLE = "NOTICEABLE"
    DAMAGING = "DAMAGING"
    UNRESOLVED = "UNRESOLVED"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the verdict looks at. `floor` is the divergence of the baseline from itself, or None."""

    kld: KldResult | None
    floor: float | None
    tasks: Sequence[TaskResult] = ()
    health: Sequence[HealthResult] = ()
    hazard: Hazard | None = None
    floor_hazard: Hazard | None = None
    consistent_a: bool | None = None
    consistent_b: bool | None = None
    baseline_bits: int | None = None
    parameters: float | None = None
    identical: bool = False
    """Both sides are one and the same server."""
    speculative: bool = False
    blocked: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word, a narrower label where there is one, and why: each reason is a clause."""

    word: Word
    label: str | None
    reasons: tuple[str, ...]


def harmed_tasks(tasks: Sequence[TaskResult], thresholds: Thresholds) -> list[TaskResult]:
    """Tasks in which B is worse beyond chance: by the sequential test, or at the cap by McNemar over all (Holm)."""
    judged = [task for task in tasks if task.p is not None]
    limit = e_limit(len(judged), thresholds.harm_e)
    adjusted = holm([task.p if task.p is not None else 1.0 for task in judged])
    return [
        task
        for task, p in zip(judged, adjusted, strict=True)
        if task.worse and (task.log_e() >= limit or p <= thresholds.harm_p)
    ]


def kld_void(evidence: Evidence, thresholds: Thresholds) -> str | None:
    """Why the divergence may not be used, or None."""
    kld = evidence.kld
    if evidence.blocked is not None:
        return evidence.blocked
    if kld is None:
        return "no divergence was measured"
    if kld.problem is not None:
        return kld.problem
    if kld.missing_share > thresholds.missing_share:
        return f"{kld.missing_share * 100:.1f} % of the log-probabilities are missing or infinite"
    if evidence.consistent_a is False:
        return "the baseline's decoding does not match its own prefill scores"
    if evidence.speculative and not (evidence.consistent_a and evidence.consistent_b):
        return "speculative decoding, and decoding does not match prefill scores"
    if kld.interval is None:
        return "one sequence gives no interval"
    return None


def _by_kld(kld: KldResult, floor: float | None, t: Thresholds) -> tuple[Word, str | None, str]:
    low, high = kld.interval or (0.0, 0.0)
    said = f"KLD {nats(kld.value)} ({nats(low)} to {nats(high)})"
    if low > t.damaging:
        return Word.DAMAGING, None, f"{said}: all of the interval is above {t.damaging:g}"
    if not kld.on_policy:
        if kld.ppl_interval is not None and kld.ppl_interval[0] > t.ppl_ratio:
            return Word.DAMAGING, None, f"perplexity ratio above {t.ppl_ratio:g}"
        return Word.UNRESOLVED, None, f"{said} is only a lower bound: the text was not sampled from A"
    same = max(t.indistinguishable, t.floor_factor * (floor or 0.0))
    if high <= same:
        return Word.INDISTINGUISHABLE, None, f"{said} is below {nats(same)}"
    if high < t.small:
        label = "near-lossless" if high < t.near_lossless else None
        return Word.SMALL, label, f"{said} is below {t.small:g}"
    if low >= t.small and high <= t.damaging:
        return Word.NOTICEABLE, None, f"{said} lies between {t.small:g} and {t.damaging:g}"
    return Word.UNRESOLVED, None, f"{said} straddles a cut ({t.small:g} or {t.damaging:g})"


def _decode_suspect(evidence: Evidence) -> str | None:
    """Why decoding may be worse than scoring shows, or None."""
    if evidence.consistent_b is False:
        return "B's decoding does not match its own prefill scores: the divergence may understate what users see"
    hazard, kld = evidence.hazard, evidence.kld
    if hazard is None or kld is None or kld.top1_agreement is None:
        return None
    expected = max(1 - kld.top1_agreement, evidence.floor_hazard.interval[1] if evidence.floor_hazard else 0.0)
    if hazard.divergences >= 5 and hazard.interval[0] > 2 * expected:
        return f"greedy answers part at {hazard.value:.3f} per token, more than twice what scoring predicts"
    return None


def judge(evidence: Evidence, thresholds: Thresholds) -> Verdict:
    """The verdict by the table of the method."""
    reasons: list[str] = []
    harmed = harmed_tasks(evidence.tasks, thresholds)
    sick = [result for result in evidence.health if result.excess]
    behaviour = [f"{task.name}: {points(task.difference)} (n={task.n})" for task in harmed]
    behaviour += [f"{result.name} in {result.b} of {result.n} answers, A in {result.a}" for result in sick]
    void = kld_void(evidence, thresholds)
    label: str | None = None
    if void is not None or evidence.kld is None:
        word = Word.UNRESOLVED
        reasons.append(f"no divergence: {void}")
    else:
        word, label, why = _by_kld(evidence.kld, evidence.floor, thresholds)
        reasons.append(why)
    suspect = _decode_suspect(evidence)
    if suspect is not None:
        reasons.append(suspect)
        if word in {Word.INDISTINGUISHABLE, Word.SMALL}:
            word, label = Word.UNRESOLVED, None
    if behaviour:
        reasons += behaviour
        word, label = Word.DAMAGING, None
    if word is Word.DAMAGING:
        word = _allowed_damage(evidence, thresholds, bool(behaviour), reasons)
    return Verdict(word, label, tuple(reasons))


def _allowed_damage(evidence: Evidence, thresholds: Thresholds, behaviour: bool, reasons: list[str]) -> Word:
    """DAMAGING, or the word that may be said instead."""
    if evidence.identical:
        reasons.append("both sides are the same server, so this is chance or its own unsteadiness")
        return Word.UNRESOLVED
    if evidence.baseline_bits is not None and evidence.baseline_bits < 16:
        reasons.append(f"the baseline has {evidence.baseline_bits}-bit weights: a difference, not damage")
        return Word.NOTICEABLE
    if evidence.parameters is not None and evidence.parameters < thresholds.small_model and not behaviour:
        reasons.append("below a billion parameters only tasks can show damage")
        return Word.NOTICEABLE
    return Word.DAMAGING


def nats(value: float | None) -> str:
    """A divergence with the digits it deserves."""
    if value is None:
        return "–"
    if abs(value) < 5e-5:
        return "0"
    return f"{value:.4f}" if abs(value) < 0.01 else f"{value:.3f}"


def points(difference: float | None) -> str:
    """A difference of shares as percentage points."""
    return "–" if difference is None else f"{difference * 100:+.1f} pt".replace("-", "−")


def sentence(evidence: Evidence, verdict: Verdict, a: str, b: str) -> str:
    """The verdict as a reader gets it. Against a baseline that is not known to be 16-bit it speaks of a difference."""
    kld = evidence.kld
    head = f"{verdict.word.value}" + (f" ({verdict.label})" if verdict.label else "")
    if kld is None or kld.value is None or kld.interval is None:
        text = f"{head}: {b} against {a} has no KL divergence ({'; '.join(verdict.reasons)})"
    else:
        low, high = kld.interval
        about = "differs from" if evidence.baseline_bits != 16 else "against"
        bound = "" if kld.on_policy else "at least "
        text = f"{head}: {b} {about} {a} {'by ' if about == 'differs from' else ''}{bound}KLD {nats(kld.value)}"
        text += f" ({nats(low)} to {nats(high)})"
        if evidence.floor is not None:
            text += f", floor {nats(evidence.floor)}"
    harmed = harmed_tasks(evidence.tasks, Thresholds())
    for task in evidence.tasks:
        alone = len(evidence.tasks) == 1 or task.name == ALL_TASKS
        if task.difference is None or task.interval is None or not (alone or task in harmed):
            continue
        least, most = (points(bound).removesuffix(" pt") for bound in task.interval)
        text += f"; {task.name} {points(task.difference)} ({least} to {most}, n={task.n})"
        if task.detectable is not None and task not in harmed:
            text += f": a drop below {task.detectable * 100:.0f} points cannot be excluded"
    for result in evidence.health:
        if result.excess:
            text += f"; {result.name}: {result.b} of {result.n}, {a} {result.a}"
    return text + "."
