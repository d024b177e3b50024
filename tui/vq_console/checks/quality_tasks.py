"""Asks task items of one arm: difficulty, answers turn by turn, early stop once harm is proven.

Touches servers through `quality_client` only. Pilot items choose a level; they are never among the tested ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from vq_console.checks.health import loops
from vq_console.checks.progress import Progress
from vq_console.checks.quality_client import Client, run_many
from vq_console.checks.quality_settings import QualitySettings
from vq_console.checks.tasks import context
from vq_console.checks.tasks.checkers import outcome
from vq_console.checks.tasks.model import Answer, Item, Outcome, conversation
from vq_console.checks.tasks.paired import e_limit, harm_reached
from vq_console.checks.tasks.registry import GENERATORS, best_level, make_items, next_level


def ask_item(client: Client, item: Item) -> Answer:
    """The arm's answer to one item, turn by turn with its own words in between."""
    texts: list[str] = []
    tokens = 0
    finish: str | None = None
    looped = False
    for _ in range(len(item.follow_ups) + 1):
        made = client.answer(conversation(item, texts), max_tokens=item.max_tokens, tools=item.tools)
        if made.error is not None:
            return Answer(item.id, tuple(texts), tokens, None, made.error)
        texts.append(made.text)
        tokens += len(made.ids)
        finish = made.finish
        looped = looped or loops(made.ids)
    return Answer(item.id, tuple(texts), tokens, finish, looped=looped)


def ask_items(
    client: Client, items: Sequence[Item], settings: QualitySettings, progress: Progress, *, arm: str, message: str
) -> dict[str, Answer]:
    """Answers to all items."""
    long = any(len(str(item.messages)) > 40_000 for item in items)
    answers = run_many(
        items,
        lambda item: ask_item(client, item),
        concurrency=2 if long else settings.concurrency,
        progress=progress,
        stage="tasks",
        message=message,
        arm=arm,
        total=len(items),
    )
    return {answer.item: answer for answer in answers}


def choose_levels(client: Client, settings: QualitySettings, progress: Progress, *, arm: str) -> dict[str, int]:
    """For each generator the level at which this arm is right in about 70 % of pilot items that are not tested."""
    levels: dict[str, int] = {}
    for name in settings.tasks:
        generator = GENERATORS[name]
        if settings.level is not None or not settings.calibrate:
            levels[name] = min(settings.level or 2, generator.levels)
            continue
        tried: dict[int, float] = {}
        while (level := next_level(tried, generator.levels)) is not None and len(tried) < 3:
            if progress.cancelled():
                break
            items = make_items(name, seed=settings.seed, level=level, count=settings.pilot_items, pilot=True)
            answers = ask_items(
                client, items, settings, progress, arm=arm, message=f"choosing the difficulty of {generator.title}"
            )
            right = [outcome(item, answers[item.id]) is Outcome.RIGHT for item in items if item.id in answers]
            tried[level] = sum(right) / max(1, len(right))
        levels[name] = best_level(tried) if tried else 1
    return levels


def _fitting_needles(client: Client, settings: QualitySettings, length: int, per_token: float) -> list[Item]:
    """Needles of about this length that fit the context together with their answers.

    One sample of text says how many characters a token has, but each item has sentences of its own, a template around
    them and an answer to come: near the limit their tokens are counted, and a text that is too long is made shorter.
    """
    limit = client.capabilities.max_model_len
    for _ in range(4):
        items = context.needles(settings.seed, length, characters_per_token=per_token, repeats=settings.needle_repeats)
        if limit is None or length < limit - max(400, limit // 5):
            return items
        over = max(len(client.render(item.messages) or ()) + item.max_tokens for item in items) - limit
        if over <= 0:
            return items
        per_token *= 1 - (over + 8) / length
    return items


def make_task_items(
    client: Client, settings: QualitySettings, levels: Mapping[str, int], *, kv_quantized: bool | None
) -> tuple[list[Item], list[str]]:
    """The items of a run, and what was left out because it does not fit.

    Needle and three-turn recall are always asked when the KV cache is quantized.
    """
    counts = dict(settings.tasks)
    lengths = list(settings.needle_tokens)
    if kv_quantized:
        counts.setdefault("recall", settings.recall_with_quantized_kv)
        lengths = lengths or [8192]
    items: list[Item] = []
    notes: list[str] = []
    for name, count in counts.items():
        items += make_items(name, seed=settings.seed, level=levels.get(name, 1), count=count)
    limit = client.capabilities.max_model_len
    if lengths:
        sentences = " ".join(context.filler(random.Random("measure"), 2000))
        ids = (
            client.tokenize({"prompt": sentences, "add_special_tokens": False})
            if client.capabilities.tokenize
            else None
        )
        per_token = len(sentences) / len(ids) if ids else 4.0
        for length in dict.fromkeys(min(length, (limit or length + 200) - 200) for length in lengths):
            if length < 256:
                notes.append("needle: the context is too short for it")
                continue
            items += _fitting_needles(client, settings, length, per_token)
        cut = [length for length in lengths if limit is not None and length > limit - 200]
        if cut:
            notes.append(f"needle: {', '.join(map(str, cut))} tokens do not fit the context of {limit}")
    return items, notes


def ask_until_harm(
    client: Client,
    items: Sequence[Item],
    baseline: Mapping[str, Answer],
    settings: QualitySettings,
    progress: Progress,
    *,
    arm: str,
) -> tuple[dict[str, Answer], list[str]]:
    """Answers of the arm under test, task by task, ending a task early once harm is proven; and the tasks so ended."""
    by_task: dict[str, list[Item]] = {}
    for item in items:
        if item.id in baseline:
            by_task.setdefault(item.task, []).append(item)
    limit = e_limit(len(by_task), settings.thresholds.harm_e)
    answers: dict[str, Answer] = {}
    stopped: list[str] = []
    for task, members in by_task.items():
        pairs: list[tuple[Outcome, Outcome]] = []
        step = settings.concurrency
        for start in range(0, len(members), step):
            if progress.cancelled():
                return answers, stopped
            group = members[start : start + step]
            made = ask_items(
                client, group, settings, progress, arm=arm, message=f"{task}: {start} of {len(members)} done"
            )
            answers |= made
            if not members[0].check:
                continue
            pairs += [(outcome(i, baseline[i.id]), outcome(i, made[i.id])) for i in group if i.id in made]
            if start + step < len(members) and harm_reached(pairs, limit):
                stopped.append(task)
                progress.event("tasks", f"{task}: harm is proven, stopped early", arm=arm)
                break
    return answers, stopped
