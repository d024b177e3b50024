"""The quality check: is B still the model that A is? Records A (or takes a recording), replays on B, judges.

Owns the order of things: probe, fit to the budget, announce, record, replay, analyse, keep the raw data. Formulas,
requests and verdict live in the modules beside it. Never runs while latency is measured: it loads the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from vq_console.checks.endpoint import Endpoint
from vq_console.checks.progress import Progress
from vq_console.checks.quality_analysis import analyse
from vq_console.checks.quality_answers import differing_answers, load_answers, save_answers
from vq_console.checks.quality_client import Client
from vq_console.checks.quality_data import ModelFacts, Recording, Replay
from vq_console.checks.quality_facts import model_facts
from vq_console.checks.quality_measure import (
    connect,
    identify,
    measure_speed,
    record,
    render_prompts,
    replay,
    sample_recording,
    score_recording,
)
from vq_console.checks.quality_prompts import built_in_prompts
from vq_console.checks.quality_result import QualityResult
from vq_console.checks.quality_settings import (
    Cost,
    QualitySettings,
    Speed,
    Thresholds,
    announce,
    cost,
    fitted,
)
from vq_console.checks.reference import SUFFIX, refuse_unfit, save_reference
from vq_console.checks.tasks.model import Item
from vq_console.checks.tasks.user_file import read_prompts
from vq_console.core.errors import CheckError
from vq_console.core.files import write_json
from vq_console.core.text import counted

__all__ = [
    "QualityResult",
    "QualitySettings",
    "Thresholds",
    "load_answers",
    "record_baseline",
    "replay_baseline",
    "run_quality",
]

Side: TypeAlias = "Endpoint | Recording"
PROMPT_COUNT = 96


@dataclass(frozen=True, slots=True)
class _Prompts:
    """What drives the check: prompts without labels, and the user's labelled items."""

    free: Sequence[Item]
    labelled: Sequence[Item]


def _read(prompts: Path | None, settings: QualitySettings) -> _Prompts:
    if prompts is None:
        need = min(PROMPT_COUNT, max(settings.sequences, settings.divergence_sequences))
        return _Prompts(built_in_prompts(need, settings.seed), ())
    items = read_prompts(Path(prompts))
    return _Prompts(items, [item for item in items if item.check])


def run_quality(
    a: Side,
    b: Endpoint,
    settings: QualitySettings,
    folder: Path,
    progress: Progress,
    *,
    baseline: Side | None = None,
    prompts: Path | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> QualityResult:
    """B against A; with a `baseline` also A and B against it, in `against_baseline`.

    `a` and `baseline` may be recordings. `facts` are the log facts of the arms by side (A, B, R). Files go under
    `folder`: result, recording, differing answers. Raises CheckError when an arm does not answer or does not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = facts or {}
    if baseline is None:
        pair, recording, _ = _pair(
            a, b, settings, folder, progress, prompts, (known.get("A"), known.get("B")), ("A", "B")
        )
        result = replace(pair, partial=progress.cancelled())
    else:
        result, recording = _three(a, b, baseline, settings, folder, progress, prompts, known)
    if not isinstance(a if baseline is None else baseline, Recording):
        save_reference(recording, folder / f"baseline{SUFFIX}")
    write_json(folder / "result.json", result.to_json())
    progress.event("quality", result.sentence, interim={"word": result.word})
    return result


def record_baseline(
    endpoint: Endpoint,
    settings: QualitySettings,
    progress: Progress,
    *,
    prompts: Path | None = None,
    facts: Mapping[str, Any] | None = None,
    text: bool = True,
    any_arm: bool = True,
) -> Recording:
    """Record one arm for later replays; `text` False asks task items only.

    `any_arm` adds needle and recall items, which an arm with a quantized KV cache will need.
    Raises CheckError when nothing useful came of it.
    """
    client = connect(endpoint, settings)
    chosen = _read(prompts, settings)
    known = model_facts(endpoint, facts)
    if text:
        settings, price = _fit(client, None, settings, chosen)
        progress.event("plan", announce(settings, price), eta_s=price.seconds)
    made = record(
        client,
        known,
        chosen.free,
        settings,
        progress,
        own_items=chosen.labelled,
        kv_quantized=any_arm or known.kv_quantized,
        text=text,
    )
    if not made.samples and not made.answers:
        raise CheckError(f"{endpoint.label}: nothing could be recorded", "; ".join(made.notes))
    return made


def replay_baseline(
    recording: Recording,
    endpoint: Endpoint,
    settings: QualitySettings,
    folder: Path,
    progress: Progress,
    *,
    facts: Mapping[str, Any] | None = None,
) -> QualityResult:
    """An arm against a recorded baseline. Raises CheckError with the reason when the two do not fit."""
    return run_quality(recording, endpoint, settings, folder, progress, facts={"B": facts or {}})


def _fit(a: Client, b: Client | None, settings: QualitySettings, prompts: _Prompts) -> tuple[QualitySettings, Cost]:
    """Settings that fit the budget at the speed that both servers show, and their cost."""
    if not (a.scores_prompts and a.capabilities.tokenize):
        return settings, cost(settings)
    few = render_prompts(a, prompts.free[:8])
    length = sum(len(prompt.ids) for prompt in few) // len(few)
    fastest = Speed(1e9, 1e9, 1e9)
    speed_a = measure_speed(a, few, settings.concurrency)
    speed_b = measure_speed(b, few, settings.concurrency) if b is not None and b.scores_prompts else fastest
    return fitted(settings, speed_a, speed_b, prompt_tokens=length)


def _facts(client: Client, known: Mapping[str, Any] | None) -> ModelFacts:
    return model_facts(client.endpoint, known)


def _recorded(
    side: Side,
    other: Client,
    settings: QualitySettings,
    progress: Progress,
    prompts: Path | None,
    known: Mapping[str, Any] | None,
    other_facts: ModelFacts,
    arm: str,
) -> tuple[Recording, QualitySettings]:
    """The recording of a side: measured now, or the given one if the other arm fits it."""
    if isinstance(side, Recording):
        refuse_unfit(side, identify(other, other_facts))
        kept = {
            name: side.settings[name]
            for name in ("sequences", "tokens", "divergence_sequences", "divergence_tokens", "seed", "mode")
            if name in side.settings
        }
        settings = replace(settings, **kept)
        price = cost(replace(settings, tasks={}, needle_tokens=()))
        progress.event(
            "plan",
            f"replaying {side.arm.label}: {counted(len(side.samples), 'text')}, {counted(len(side.items), 'item')}",
        )
        if settings.budget_s is not None and other.scores_prompts and side.prompts:
            side, settings = _shorten(side, other, settings, price)
        return side, settings
    client = connect(side, settings)
    chosen = _read(prompts, settings)
    settings, price = _fit(client, other, settings, chosen)
    progress.event("plan", announce(settings, price), eta_s=price.seconds)
    mine = _facts(client, known)
    recording = record(
        client, mine, chosen.free, settings, progress,
        arm=arm, own_items=chosen.labelled, kv_quantized=mine.kv_quantized or other_facts.kv_quantized,
    )  # fmt: skip
    return recording, settings


def _shorten(
    side: Recording, other: Client, settings: QualitySettings, price: Cost
) -> tuple[Recording, QualitySettings]:
    speed = measure_speed(other, side.prompts[:8], settings.concurrency)
    seconds = price.b_generated / speed.decode_tokens_s + price.b_prompt / speed.prefill_tokens_s
    share = min(1.0, (settings.budget_s or seconds) / max(seconds, 1e-9))
    sequences = max(8, int(len(side.samples) * share))
    greedy = max(4, int(len(side.greedy) * share))
    return side.limited(sequences, greedy), replace(settings, sequences=sequences, divergence_sequences=greedy)


def _pair(
    a: Side,
    b: Endpoint,
    settings: QualitySettings,
    folder: Path,
    progress: Progress,
    prompts: Path | None,
    known: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    arms: tuple[str, str],
) -> tuple[QualityResult, Recording, Replay]:
    client = connect(b, settings)
    theirs = _facts(client, known[1])
    recording, settings = _recorded(a, client, settings, progress, prompts, known[0], theirs, arms[0])
    made = replay(client, theirs, recording, settings, progress, arm=arms[1])
    result = analyse(recording, made, settings, identical=_same(a, b))
    answers = differing_answers(recording, made, client.token_text, pair="-".join(arms))
    return replace(result, answers_file=save_answers(folder, answers).name), recording, made


def _same(a: Side, b: Endpoint) -> bool:
    """Whether both are one running server. A recording never is: another server may have its address by now."""
    return isinstance(a, Endpoint) and a.url == b.url


def _three(
    a: Side,
    b: Endpoint,
    baseline: Side,
    settings: QualitySettings,
    folder: Path,
    progress: Progress,
    prompts: Path | None,
    known: Mapping[str, Mapping[str, Any]],
) -> tuple[QualityResult, Recording]:
    """Baseline→A and baseline→B on the baseline's text, then A→B on text that A samples itself."""
    if isinstance(a, Recording):
        raise CheckError("A is a recorded baseline and another baseline is named", "Give a running arm as A.")
    client_a, client_b = connect(a, settings), connect(b, settings)
    facts_a, facts_b = _facts(client_a, known.get("A")), _facts(client_b, known.get("B"))
    quantized = replace(facts_a, kv_quantized=facts_a.kv_quantized or facts_b.kv_quantized)
    recording, settings = _recorded(baseline, client_a, settings, progress, prompts, known.get("R"), quantized, "R")
    if isinstance(baseline, Recording):
        refuse_unfit(baseline, identify(client_b, facts_b))
    made_a = replay(client_a, facts_a, recording, settings, progress, arm="A")
    made_b = replay(client_b, facts_b, recording, settings, progress, arm="B")
    pairs = {
        "A": analyse(recording, made_a, settings, identical=_same(baseline, a)),
        "B": analyse(recording, made_b, settings, identical=_same(baseline, b)),
    }
    own = sample_recording(client_a, recording, made_a, settings, progress, arm="A")
    scores = score_recording(client_b, own, settings, progress, arm="B") if own.samples and not made_b.blocked else ()
    between = replace(made_b, scores=scores)
    result = analyse(own, between, settings, identical=_same(a, b))
    answers = [
        *differing_answers(own, between, client_b.token_text, pair="A-B"),
        *differing_answers(recording, made_a, client_a.token_text, pair="R-A"),
        *differing_answers(recording, made_b, client_b.token_text, pair="R-B"),
    ]
    name = save_answers(folder, answers).name
    partial = progress.cancelled()
    return replace(result, against_baseline=pairs, answers_file=name, partial=partial), recording
