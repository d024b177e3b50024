"""From a recording and its replay to numbers, health, flags and the verdict. Pure.

Owns how the parts are put together; each formula lives in its own module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.checks.divergence import hazard, repeated_pairs
from vq_console.checks.health import (
    HealthResult,
    Reply,
    compare_replies,
    count_sign,
    mark_excess,
)
from vq_console.checks.kld import Consistency, KldResult, compare_scores, consistency, noise_floor
from vq_console.checks.quality_data import Generated, Recording, Replay
from vq_console.checks.quality_result import QualityResult
from vq_console.checks.quality_settings import QualitySettings
from vq_console.checks.quality_verdict import Evidence, judge, kld_void, sentence
from vq_console.checks.statistics import top1_disagreement_expected
from vq_console.checks.tasks.checkers import outcome
from vq_console.checks.tasks.model import Item, Outcome
from vq_console.checks.tasks.paired import TaskResult, compare_outcomes, group_by_task, pooled
from vq_console.core.text import counted

_GREEDY_SIGNS = ("loop", "wrong script", "empty", "refusal")
_OUTCOME_SIGNS = {"needle": "needle", "three-turn recall": "multi-turn", "instructions": "constraints"}
"""Beginning of a task's name → the health sign that its wrong answers count for."""


def greedy_pairs(recording: Recording, replay: Replay) -> list[tuple[Generated, Generated]]:
    """Greedy answers of both sides to the same prompts."""
    theirs = {one.prompt: one for one in replay.greedy}
    return [(one, theirs[one.prompt]) for one in recording.greedy if one.prompt in theirs]


def outcomes(recording: Recording, replay: Replay) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """What became of each labelled item on both sides, by item id."""
    labelled = [item for item in recording.items if item.check]
    return (
        {item.id: outcome(item, recording.answers[item.id]) for item in labelled if item.id in recording.answers},
        {item.id: outcome(item, replay.answers[item.id]) for item in labelled if item.id in replay.answers},
    )


def task_results(recording: Recording, replay: Replay) -> list[TaskResult]:
    """Each task over both arms, in the order in which they were asked, and all together where there are several."""
    a, b = outcomes(recording, replay)
    tasks = {item.id: item.task for item in recording.items if item.check}
    levels = {item.task: item.facts.get("level") for item in recording.items}
    results = [
        compare_outcomes(name, pairs, stopped_early=name in replay.stopped, level=levels.get(name))
        for name, pairs in group_by_task(tasks, a, b).items()
    ]
    together = pooled(results)
    return [*results, together] if together is not None else results


def health_results(recording: Recording, replay: Replay, alpha: float) -> list[HealthResult]:
    """All signs over greedy answers and task answers together."""
    prompts = recording.prompts
    greedy = [
        (
            Reply(prompts[a.prompt].text, a.text, a.ids, error=a.error is not None),
            Reply(prompts[b.prompt].text, b.text, b.ids, error=b.error is not None),
        )
        for a, b in greedy_pairs(recording, replay)
    ]
    answered = [
        (_reply(item, recording), _reply(item, replay))
        for item in recording.items
        if item.id in recording.answers and item.id in replay.answers
    ]
    results = compare_replies(greedy + answered, _GREEDY_SIGNS)
    results += compare_replies(answered, ("invalid JSON", "truncated"))
    results += _outcome_signs(recording.items, *outcomes(recording, replay))
    return mark_excess(results, alpha)


def _reply(item: Item, side: Recording | Replay) -> Reply:
    answer = side.answers[item.id]
    question = " ".join(str(message.get("content") or "") for message in item.messages[-1:])
    return Reply(
        " ".join((question, *item.follow_ups)),
        answer.text,
        looped=answer.looped,
        finish=answer.finish,
        expects_json=item.expects_json,
        error=answer.error is not None,
    )


def _outcome_signs(items: Sequence[Item], a: Mapping[str, Outcome], b: Mapping[str, Outcome]) -> list[HealthResult]:
    judged: dict[str, list[tuple[bool, bool]]] = {}
    for item in items:
        sign = next((name for start, name in _OUTCOME_SIGNS.items() if item.task.startswith(start)), None)
        left, right = a.get(item.id), b.get(item.id)
        if sign is None or left is None or right is None or Outcome.ERROR in (left, right):
            continue
        judged.setdefault(sign, []).append((left is not Outcome.RIGHT, right is not Outcome.RIGHT))
    return [count_sign(name, pairs) for name, pairs in judged.items()]


def _flag(name: str, detail: str) -> dict[str, Any]:
    return {"flag": name, "detail": detail}


def validity_flags(
    recording: Recording, replay: Replay, kld: KldResult | None, floor: KldResult | None, evidence: Evidence
) -> list[dict[str, Any]]:
    """What a reader must know before believing the numbers."""
    flags = [_flag("quality-note", note) for note in recording.notes]
    if replay.blocked:
        flags.append(_flag("tokenizer-mismatch" if "token" in replay.blocked else "no-kld", replay.blocked))
    if replay.template_differs:
        flags.append(_flag("chat-template-differs", "the arms format a conversation differently; A's tokens were sent"))
    if kld is not None:
        if kld.missing_a or kld.missing_b:
            flags.append(
                _flag(
                    "missing-logprobs", f"{kld.missing_a} positions of A and {kld.missing_b} of B have none (counted)"
                )
            )
        if kld.failed_sequences:
            flags.append(_flag("failed-sequences", f"{counted(kld.failed_sequences, 'sequence')} could not be scored"))
        if kld.problem:
            flags.append(_flag("kld-void", kld.problem))
        if kld.value is not None and kld.top1_agreement is not None and kld.value > 1e-4:
            expected = top1_disagreement_expected(kld.value)
            seen = 1 - kld.top1_agreement
            least = 4 / max(kld.tokens, 1)
            if seen > 2 * expected + least or seen < expected / 2 - least:
                flags.append(
                    _flag("top1-unusual", f"{seen * 100:.1f} % other first choices, {expected * 100:.1f} % expected")
                )
        if not kld.on_policy:
            flags.append(_flag("off-policy", "the text was not sampled from A: the divergence is a lower bound"))
    if floor is None and kld is not None:
        flags.append(_flag("no-floor", "the baseline was not scored twice"))
    for side, passed in (("A", evidence.consistent_a), ("B", evidence.consistent_b)):
        if passed is False:
            flags.append(_flag("decode-differs", f"{side}: decoding does not match its own prefill scores"))
    if evidence.baseline_bits is None:
        flags.append(_flag("baseline-precision-unknown", "the baseline is not known to be a 16-bit model"))
    elif evidence.baseline_bits < 16:
        flags.append(_flag("baseline-quantized", f"the baseline has {evidence.baseline_bits}-bit weights"))
    failed = sum(1 for answer in [*recording.answers.values(), *replay.answers.values()] if answer.error)
    if failed:
        flags.append(_flag("failed-requests", f"{failed} task requests got no answer"))
    return flags


def analyse(
    recording: Recording,
    replay: Replay,
    settings: QualitySettings,
    *,
    identical: bool = False,
    partial: bool = False,
) -> QualityResult:
    """B (the replay) against A (the recording)."""
    t = settings.thresholds
    n = min(len(recording.scores), len(replay.scores))
    scored_a, scored_b = recording.scores[:n], replay.scores[:n]
    kld = compare_scores(scored_a, scored_b, on_policy=recording.on_policy) if n else None
    floor = noise_floor(recording.scores, recording.floor, on_policy=recording.on_policy)
    floor_shift = floor.mean_shift if floor else None
    own: dict[str, Consistency | None] = {
        "A": consistency([(s.logprobs, scored) for s, scored in zip(recording.samples, recording.scores, strict=True)]),
        "B": consistency([(replay.greedy[i].logprobs, scored) for i, scored in replay.own.items()]),
    }
    passed = {
        side: found.passes(
            floor_shift, limit=t.consistency_shift, floor_factor=t.consistency_factor, far_limit=t.consistency_far
        )
        if found
        else None
        for side, found in own.items()
    }
    pairs = greedy_pairs(recording, replay)
    tasks = task_results(recording, replay)
    health = health_results(recording, replay, t.health_alpha)
    speculative = bool(recording.arm.facts.speculative or replay.arm.facts.speculative)
    evidence = Evidence(
        kld=kld,
        floor=max(floor.value, 0.0) if floor is not None and floor.value is not None else None,
        tasks=tasks,
        health=health,
        hazard=hazard(pairs),
        floor_hazard=hazard(repeated_pairs(recording.greedy, recording.repeat)),
        consistent_a=passed["A"],
        consistent_b=passed["B"],
        baseline_bits=recording.arm.facts.bits,
        parameters=recording.arm.facts.parameters,
        identical=identical,
        speculative=speculative,
        blocked=replay.blocked,
    )
    verdict = judge(evidence, t)
    a, b = recording.arm.label, replay.arm.label
    flags = validity_flags(recording, replay, kld, floor, evidence)
    void = kld_void(evidence, t)
    if void and not any(flag["detail"] == void for flag in flags):
        flags.append(_flag("kld-void", void))
    return QualityResult(
        a=a,
        b=b,
        verdict=verdict,
        sentence=sentence(evidence, verdict, a, b),
        kld=kld,
        floor=floor,
        hazard=evidence.hazard,
        floor_hazard=evidence.floor_hazard,
        tasks=tuple(tasks),
        health=tuple(health),
        consistency=own,
        evidence=evidence,
        thresholds=t,
        settings=settings.to_json(),
        validity=tuple(flags),
        levels=recording.levels,
        partial=partial,
    )
