"""The answers behind the numbers: flips and first divergences side by side, kept as JSON lines in the run folder.

Owns the records and their file. Texts are a model's output: control sequences were removed when they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.checks.divergence import Parted, partings
from vq_console.checks.quality_analysis import greedy_pairs, outcomes
from vq_console.checks.quality_data import Recording, Replay
from vq_console.core.files import read_jsonl, write_atomic

ANSWERS_FILE = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers that differ. `kind` is `flip` (a labelled item changed its outcome) or `parting` (greedy text).

    For a parting, `index` is the first differing token, and `a_of_b` A's probability of B's token (0 to 1, None where
    it is not among the likeliest). `pair` names the arms. In JSON `p_a` holds A's probabilities of both tokens.
    """

    kind: str
    pair: str
    name: str
    prompt: str
    a_text: str
    b_text: str
    a_outcome: str | None = None
    b_outcome: str | None = None
    index: int | None = None
    a_token: str | None = None
    b_token: str | None = None
    a_of_a: float | None = None
    a_of_b: float | None = None
    b_of_a: float | None = None
    b_of_b: float | None = None
    common: str = ""
    """For a parting: the text that both share before it."""

    @property
    def worse(self) -> bool:
        """A flip that B lost."""
        return self.a_outcome == "right" and self.b_outcome != "right"

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "kind": self.kind, "pair": self.pair, "name": self.name, "prompt": self.prompt,
            "a_text": self.a_text, "b_text": self.b_text,
        }  # fmt: skip
        if self.kind == "flip":
            return {**value, "a_outcome": self.a_outcome, "b_outcome": self.b_outcome, "worse": self.worse}
        return {
            **value, "common": self.common, "index": self.index, "a_token": self.a_token, "b_token": self.b_token,
            "p_a": {"A": self.a_of_a, "B": self.a_of_b}, "p_b": {"A": self.b_of_a, "B": self.b_of_b},
        }  # fmt: skip


def pair_from_json(value: Mapping[str, Any]) -> AnswerPair:
    """The record that `AnswerPair.to_json` wrote."""
    by_a, by_b = value.get("p_a") or {}, value.get("p_b") or {}
    return AnswerPair(
        kind=str(value.get("kind")), pair=str(value.get("pair")), name=str(value.get("name")),
        prompt=str(value.get("prompt", "")), a_text=str(value.get("a_text", "")), b_text=str(value.get("b_text", "")),
        a_outcome=value.get("a_outcome"), b_outcome=value.get("b_outcome"), index=value.get("index"),
        a_token=value.get("a_token"), b_token=value.get("b_token"), a_of_a=by_a.get("A"), a_of_b=by_a.get("B"),
        b_of_a=by_b.get("A"), b_of_b=by_b.get("B"), common=str(value.get("common", "")),
    )  # fmt: skip


def differing_answers(
    recording: Recording, replay: Replay, token_text: Callable[[int], str], *, pair: str = "A-B"
) -> list[AnswerPair]:
    """All flips (lost ones first), then all partings in the order of the prompts. `token_text` decodes one token."""
    a, b = outcomes(recording, replay)
    flips = [
        AnswerPair(
            "flip", pair, item.task, _question(item.messages, item.follow_ups), recording.answers[item.id].text,
            replay.answers[item.id].text, str(a[item.id]), str(b[item.id]),
        )
        for item in recording.items
        if item.id in a and item.id in b and a[item.id] is not b[item.id]
    ]  # fmt: skip
    flips.sort(key=lambda flip: not flip.worse)
    pairs = greedy_pairs(recording, replay)
    texts = {left.prompt: (left.text, right.text) for left, right in pairs}
    cache: dict[int, str] = {}

    def name(token: int | None) -> str | None:
        if token is None:
            return None
        if token not in cache:
            cache[token] = token_text(token)
        return cache[token]

    return flips + [_parting(parted, recording, texts[parted.prompt], name, pair) for parted in partings(pairs)]


def _parting(
    parted: Parted, recording: Recording, texts: tuple[str, str], name: Callable[[int | None], str | None], pair: str
) -> AnswerPair:
    prompt = recording.prompts[parted.prompt]
    common = ""
    for left, right in zip(*texts, strict=False):
        if left != right:
            break
        common += left
    return AnswerPair(
        "parting", pair, prompt.id, prompt.text, *texts, index=parted.index, a_token=name(parted.a_token),
        b_token=name(parted.b_token), a_of_a=parted.a_of_a, a_of_b=parted.a_of_b, b_of_a=parted.b_of_a,
        b_of_b=parted.b_of_b, common=common,
    )  # fmt: skip


def _question(messages: Iterable[Mapping[str, Any]], follow_ups: Iterable[str]) -> str:
    turns = [str(message.get("content") or "") for message in messages] + list(follow_ups)
    text = "\n\n".join(turns)
    return text if len(text) <= 4000 else text[:2000] + "\n…\n" + text[-2000:]


def save_answers(folder: Path, pairs: Iterable[AnswerPair]) -> Path:
    """Write the records under a run's quality folder."""
    import json

    path = folder / ANSWERS_FILE
    write_atomic(path, "".join(json.dumps(pair.to_json(), ensure_ascii=False) + "\n" for pair in pairs))
    return path


def load_answers(folder: Path) -> Iterator[AnswerPair]:
    """The records of a run's quality folder, for the screen; nothing when there are none."""
    for value in read_jsonl(folder / ANSWERS_FILE):
        yield pair_from_json(value)
