"""Measures one arm: records a baseline, or replays a recording on another server.

Touches servers through `quality_client` only, and decides nothing about quality.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vq_console.checks.endpoint import Endpoint, probe
from vq_console.checks.kld import KldSoFar
from vq_console.checks.progress import Progress
from vq_console.checks.quality_client import GREEDY_TOP, Client, run_many
from vq_console.checks.quality_data import (
    ArmIdentity,
    Generated,
    ModelFacts,
    PromptIds,
    Recording,
    Replay,
    Scored,
)
from vq_console.checks.quality_settings import QualitySettings, Speed
from vq_console.checks.quality_tasks import ask_items, ask_until_harm, choose_levels, make_task_items
from vq_console.checks.tasks.model import Item
from vq_console.core.errors import CheckError


def connect(endpoint: Endpoint, settings: QualitySettings) -> Client:
    """Probe a server and return a client. Raises CheckError when it does not answer."""
    capabilities = probe(endpoint)
    allowed = capabilities.max_logprobs if capabilities.max_logprobs is not None else 0
    return Client(endpoint, capabilities, top_k=min(settings.top_k, allowed))


def identify(client: Client, facts: ModelFacts) -> ArmIdentity:
    """Who this arm is, for the record."""
    endpoint = client.endpoint
    return ArmIdentity(
        endpoint.label, endpoint.model, client.capabilities.version, client.fingerprint(), facts, endpoint.simulated,
        endpoint.url,
    )  # fmt: skip


def measure_speed(client: Client, prompts: Sequence[PromptIds], concurrency: int) -> Speed:
    """Eight tokens on up to eight streams, one stream alone and one scoring: what this server does right now."""
    streams = max(1, min(8, concurrency, len(prompts)))

    def burst(prompt: PromptIds) -> Generated:
        return client.generate(0, prompt.ids, max_tokens=8, temperature=1.0, seed=1)

    began = time.monotonic()
    alone = burst(prompts[0])
    single_s = max(time.monotonic() - began, 1e-3)
    began = time.monotonic()
    made = run_many(
        prompts[:streams], burst, concurrency=streams, progress=_Quiet(), stage="", message="", arm="", total=streams
    )
    burst_s = max(time.monotonic() - began, 1e-3)
    text = [token for prompt in prompts[:4] for token in prompt.ids][:200]
    began = time.monotonic()
    if client.scores_prompts and len(text) > 1:
        client.score(text, 1)
    prefill_s = max(time.monotonic() - began, 1e-3)
    tokens = sum(len(one.ids) for one in made) or 8 * streams
    decode = tokens / burst_s * (min(2.0, concurrency / streams) ** 0.5)
    return Speed(decode, len(text) / prefill_s, max(1, len(alone.ids)) / single_s)


class _Quiet:
    def event(self, *_: object, **__: object) -> None:
        """Nothing is said while the speed is measured."""

    def cancelled(self) -> bool:
        return False


def render_prompts(client: Client, items: Sequence[Item]) -> list[PromptIds]:
    """The prompts as token IDs by this server's template. Raises CheckError when it cannot tokenize."""
    rendered: list[PromptIds] = []
    for item in items:
        ids = client.render(item.messages, item.tools)
        if not ids:
            raise CheckError(
                f"{client.label}: the prompt {item.id!r} could not be tokenized by the server",
                "KL divergence needs vLLM's /tokenize route; compare by tasks only, or put vLLM in front.",
            )
        rendered.append(PromptIds(item.id, ids, str(item.messages[-1].get("content") or "")))
    return rendered


def _clipped(prompts: Sequence[PromptIds], client: Client, tokens: int) -> list[PromptIds]:
    limit = client.capabilities.max_model_len
    if limit is None:
        return list(prompts)
    return [prompt for prompt in prompts if len(prompt.ids) + tokens + 1 <= limit]


def sample(
    client: Client, prompts: Sequence[PromptIds], settings: QualitySettings, progress: Progress, arm: str
) -> list[Generated]:
    """Texts that this arm samples at temperature 1 from its whole distribution; prompts repeat when they run out."""
    fitting = _clipped(prompts, client, settings.tokens)
    if not fitting:
        return []
    jobs = [(i, fitting[i % len(fitting)]) for i in range(settings.sequences)]
    where = {id(prompt): index for index, prompt in enumerate(prompts)}
    return run_many(
        jobs,
        lambda job: client.generate(
            where[id(job[1])],
            job[1].ids,
            max_tokens=settings.tokens,
            temperature=1.0,
            seed=(settings.seed * 1_000_003 + job[0]) % 2**31,
        ),
        concurrency=settings.concurrency,
        progress=progress,
        stage="sample",
        message="sampling text at temperature 1",
        arm=arm,
        total=len(jobs),
    )


def _score_job(
    client: Client, prompts: Sequence[PromptIds], texts: Sequence[Generated], index: int
) -> tuple[int, Scored]:
    prompt = prompts[texts[index].prompt].ids
    return index, client.score([*prompt, *texts[index].ids], len(prompt))


def score_texts(
    client: Client,
    prompts: Sequence[PromptIds],
    texts: Sequence[Generated],
    order: Sequence[int],
    progress: Progress,
    *,
    arm: str,
    concurrency: int,
    message: str,
    so_far: Callable[[tuple[int, Scored]], Mapping[str, Any] | None] | None = None,
) -> dict[int, Scored]:
    """Scores of the texts with these indices, in this order; fewer when cancelled. At most four are in flight.

    `so_far` sees each (index, scores) as it comes; what it returns goes out with the progress.
    """
    found = run_many(
        [index for index in order if texts[index].ids],
        lambda index: _score_job(client, prompts, texts, index),
        concurrency=min(4, concurrency),
        progress=progress,
        stage="score",
        message=message,
        arm=arm,
        total=len(order),
        so_far=so_far,
    )
    return dict(found)


def greedy_answers(
    client: Client,
    prompts: Sequence[PromptIds],
    indices: Sequence[int],
    settings: QualitySettings,
    progress: Progress,
    *,
    arm: str,
    concurrency: int,
    message: str,
) -> list[Generated]:
    """Greedy answers to the prompts with these indices."""
    limit = client.capabilities.max_model_len or 1 << 30
    fitting = [i for i in indices if len(prompts[i].ids) + settings.divergence_tokens <= limit]
    return run_many(
        fitting,
        lambda index: client.generate(
            index, prompts[index].ids, max_tokens=settings.divergence_tokens, temperature=0.0, seed=0, top=GREEDY_TOP
        ),
        concurrency=concurrency,
        progress=progress,
        stage="greedy",
        message=message,
        arm=arm,
        total=len(fitting),
    )


def _scored_twice(
    client: Client,
    prompts: Sequence[PromptIds],
    texts: Sequence[Generated],
    settings: QualitySettings,
    progress: Progress,
    arm: str,
) -> tuple[dict[int, Scored], dict[int, Scored]]:
    """Scores of an arm's own texts, and of some of them once more: alone and in another order, for the floor."""
    scores = score_texts(
        client, prompts, texts, range(len(texts)), progress,
        arm=arm, concurrency=settings.score_concurrency, message="scoring its own text",
    )  # fmt: skip
    shuffled = list(range(min(settings.floor_sequences, len(texts))))
    random.Random(settings.seed).shuffle(shuffled)
    floor = score_texts(
        client, prompts, texts, shuffled, progress, arm=arm, concurrency=1, message="scoring again for the floor"
    )
    return scores, floor


def record(
    client: Client,
    facts: ModelFacts,
    prompts: Sequence[Item],
    settings: QualitySettings,
    progress: Progress,
    *,
    arm: str = "A",
    own_items: Sequence[Item] = (),
    kv_quantized: bool | None = None,
    text: bool = True,
) -> Recording:
    """Measure a baseline. `prompts` drive KLD and divergence; `own_items` are the user's labelled ones.

    `text` False asks task items only.

    What the server cannot do is left empty and noted.
    """
    notes: list[str] = []
    rendered: list[PromptIds] = []
    samples: list[Generated] = []
    greedy: list[Generated] = []
    scores: dict[int, Scored] = {}
    floor: dict[int, Scored] = {}
    repeat: dict[int, Generated] = {}
    if text and client.scores_prompts and client.capabilities.tokenize:
        rendered = render_prompts(client, prompts)
        samples = [one for one in sample(client, rendered, settings, progress, arm) if not one.error and one.ids]
        scores, floor = _scored_twice(client, rendered, samples, settings, progress, arm)
        count = min(settings.divergence_sequences, len(rendered))
        greedy = greedy_answers(
            client, rendered, range(count), settings, progress,
            arm=arm, concurrency=settings.concurrency, message="greedy answers",
        )  # fmt: skip
        again = greedy_answers(
            client, rendered, [one.prompt for one in greedy[: settings.repeat_sequences]], settings, progress,
            arm=arm, concurrency=2, message="greedy answers again for the floor",
        )  # fmt: skip
        place = {one.prompt: index for index, one in enumerate(greedy)}
        repeat = {place[one.prompt]: one for one in again}
        if not samples:
            notes.append("no KL divergence: the baseline sent no usable text")
    elif text:
        notes.append("no KL divergence: the server does not score token IDs (prompt_logprobs)")
    levels = choose_levels(client, settings, progress, arm=arm)
    items, left_out = make_task_items(client, settings, levels, kv_quantized=kv_quantized)
    items = [*items, *own_items]
    answers = ask_items(client, items, settings, progress, arm=arm, message="task items") if items else {}
    kept = [index for index in range(len(samples)) if index in scores]
    position = {old: new for new, old in enumerate(kept)}
    return Recording(
        arm=identify(client, facts),
        prompts=tuple(rendered),
        on_policy=all(text.exact for text in samples),
        samples=tuple(samples[index] for index in kept),
        scores=tuple(scores[index] for index in kept),
        floor={position[index]: scored for index, scored in floor.items() if index in position},
        greedy=tuple(greedy),
        repeat=repeat,
        items=tuple(items),
        answers=answers,
        levels=levels,
        settings=settings.to_json(),
        notes=(*notes, *left_out),
        created=time.time(),
    )


def token_mismatch(reference: ArmIdentity, arm: ArmIdentity) -> str | None:
    """Why tokens of the two cannot be compared, or None."""
    mine, theirs = reference.fingerprint, arm.fingerprint
    if mine.tokenizer is None or theirs.tokenizer is None:
        return "one server does not show its tokenizer (/tokenize)"
    if mine.tokenizer != theirs.tokenizer:
        return f"{arm.label} and {reference.label} split text into different tokens"
    return None


def replay(
    client: Client,
    facts: ModelFacts,
    recording: Recording,
    settings: QualitySettings,
    progress: Progress,
    *,
    arm: str = "B",
) -> Replay:
    """Measure an arm on what the baseline recorded: the same tokens, prompts and items."""
    identity = identify(client, facts)
    result = Replay(
        identity,
        blocked=token_mismatch(recording.arm, identity),
        template_differs=recording.arm.fingerprint.template != identity.fingerprint.template,
    )
    if result.blocked is None and recording.samples:
        if not client.scores_prompts:
            result = replace(result, blocked=f"{identity.label} does not score token IDs (prompt_logprobs)")
        else:
            result = _replay_tokens(client, recording, settings, progress, result, arm)
    if recording.items:
        answers, stopped = ask_until_harm(client, recording.items, recording.answers, settings, progress, arm=arm)
        result = replace(result, answers=answers, stopped=tuple(stopped))
    return result


def score_recording(
    client: Client, recording: Recording, settings: QualitySettings, progress: Progress, *, arm: str
) -> tuple[Scored, ...]:
    """This arm's scores of the recorded texts, aligned with them; the tail is missing when cancelled.

    The progress carries the divergence so far.
    """
    kld = KldSoFar(on_policy=recording.on_policy)

    def so_far(result: tuple[int, Scored]) -> Mapping[str, Any] | None:
        index, mine = result
        found = kld.add(recording.scores[index], mine) if index < len(recording.scores) else None
        return {"kld": found, "of": client.label, "from": recording.arm.label} if found else None

    scored = score_texts(
        client, recording.prompts, recording.samples, range(len(recording.samples)), progress,
        arm=arm, concurrency=settings.score_concurrency, message=f"scoring the text of {recording.arm.label}",
        so_far=so_far,
    )  # fmt: skip
    return tuple(scored[index] for index in range(len(recording.samples)) if index in scored)


def _replay_tokens(
    client: Client, recording: Recording, settings: QualitySettings, progress: Progress, result: Replay, arm: str
) -> Replay:
    scores = score_recording(client, recording, settings, progress, arm=arm)
    length = int(recording.settings.get("divergence_tokens", settings.divergence_tokens))
    asked = replace(settings, divergence_tokens=length)
    greedy = greedy_answers(
        client, recording.prompts, [one.prompt for one in recording.greedy], asked, progress,
        arm=arm, concurrency=settings.concurrency, message="greedy answers",
    )  # fmt: skip
    own = score_texts(
        client, recording.prompts, greedy, range(min(settings.own_sequences, len(greedy))), progress,
        arm=arm, concurrency=settings.score_concurrency, message="scoring its own answers",
    )  # fmt: skip
    return replace(result, scores=scores, greedy=tuple(greedy), own=own)


def sample_recording(
    client: Client, recording: Recording, made: Replay, settings: QualitySettings, progress: Progress, *, arm: str
) -> Recording:
    """A recording of an arm that has already replayed another: new on-policy text, the answers that it gave there."""
    base = Recording(
        arm=made.arm, prompts=recording.prompts, items=recording.items, answers=made.answers, levels=recording.levels,
        greedy=made.greedy, settings=recording.settings,
    )  # fmt: skip
    if made.blocked or not recording.samples:
        return base
    texts = [one for one in sample(client, recording.prompts, settings, progress, arm) if not one.error and one.ids]
    scores, floor = _scored_twice(client, recording.prompts, texts, settings, progress, arm)
    kept = [index for index in range(len(texts)) if index in scores]
    return replace(
        base,
        on_policy=all(text.exact for text in texts),
        samples=tuple(texts[index] for index in kept),
        scores=tuple(scores[index] for index in kept),
        floor={kept.index(index): scored for index, scored in floor.items() if index in kept},
    )
