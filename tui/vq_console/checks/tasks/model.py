"""Values of the task checks: an item, an answer to it, and what became of it.

Owns no logic beyond its own shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]


class Outcome(StrEnum):
    """What became of one answer. Only RIGHT and WRONG enter a comparison of accuracies."""

    RIGHT = "right"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    """Cut off at the token limit before a right answer stood there; its own class, never counted as wrong."""
    ERROR = "error"
    """The server gave no answer."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question. `follow_ups` are later user turns, asked after the model's own answers; the last answer counts."""

    id: str
    task: str
    messages: tuple[Message, ...]
    check: Mapping[str, Any]
    max_tokens: int = 160
    follow_ups: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    expects_json: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a reader wants to know about it: level, depth of the needle, length of the context, language."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "id": self.id,
            "task": self.task,
            "messages": [dict(message) for message in self.messages],
            "check": dict(self.check),
            "max_tokens": self.max_tokens,
        }
        if self.follow_ups:
            value["follow_ups"] = list(self.follow_ups)
        if self.tools:
            value["tools"] = [dict(tool) for tool in self.tools]
        if self.expects_json:
            value["expects_json"] = True
        if self.facts:
            value["facts"] = dict(self.facts)
        return value


def item_from_json(value: Mapping[str, Any]) -> Item:
    """The item that `Item.to_json` wrote. Raises KeyError and TypeError when it is none."""
    return Item(
        id=str(value["id"]),
        task=str(value["task"]),
        messages=tuple(dict(message) for message in value["messages"]),
        check=dict(value["check"]),
        max_tokens=int(value.get("max_tokens", 160)),
        follow_ups=tuple(str(turn) for turn in value.get("follow_ups", ())),
        tools=tuple(dict(tool) for tool in value.get("tools", ())),
        expects_json=bool(value.get("expects_json", False)),
        facts=dict(value.get("facts", {})),
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What one arm said to one item: a text for each turn, the tokens of the last, and why it ended."""

    item: str
    texts: tuple[str, ...] = ()
    tokens: int = 0
    finish: str | None = None
    error: str | None = None
    looped: bool = False

    @property
    def text(self) -> str:
        """The answer that counts: the last turn."""
        return self.texts[-1] if self.texts else ""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "item": self.item,
            "texts": list(self.texts),
            "tokens": self.tokens,
            "finish": self.finish,
            "looped": self.looped,
        }
        if self.error is not None:
            value["error"] = self.error
        return value


def answer_from_json(value: Mapping[str, Any]) -> Answer:
    """The answer that `Answer.to_json` wrote."""
    return Answer(
        item=str(value["item"]),
        texts=tuple(str(text) for text in value.get("texts", ())),
        tokens=int(value.get("tokens", 0)),
        finish=value.get("finish"),
        error=value.get("error"),
        looped=bool(value.get("looped", False)),
    )


def user(text: str) -> dict[str, str]:
    """A user message."""
    return {"role": "user", "content": text}


def conversation(item: Item, texts: Sequence[str]) -> list[Message]:
    """The messages up to the next question, given the model's own answers so far."""
    messages: list[Message] = list(item.messages)
    for text, follow_up in zip(texts, item.follow_ups, strict=False):
        messages.append({"role": "assistant", "content": text})
        messages.append(user(follow_up))
    return messages
