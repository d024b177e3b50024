"""Prompts of a chosen token length that no cache has seen, the same for both arms.

A prompt is a random sequence over a pool of ordinary word tokens, drawn from a seed and a key: the same key gives the
same prompt in every process, another key another one, so the two halves of a pair get identical prompts and nothing
is ever sent twice. Pure, except `make_pool`, which asks a server's tokenizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.endpoint import Capabilities, Endpoint, tokenize

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense garden river bridge "
    "summer winter letter paper table window street north south light sound color horse bird fish stone wood iron "
    "green blue white black small large early late open close begin follow learn watch carry build plan answer"
)


@dataclass(frozen=True, slots=True)
class PromptPool:
    """What prompts are made of. `ids` is empty where the server takes no token IDs; then words are sent and the
    length is an estimate. `head` are the special tokens that its tokenizer puts in front."""

    ids: tuple[int, ...]
    head: tuple[int, ...] = ()
    tokens_per_word: float = 1.3

    @property
    def exact(self) -> bool:
        return bool(self.ids)

    def to_json(self) -> dict[str, Any]:
        return {"ids": list(self.ids), "head": list(self.head), "tokens_per_word": self.tokens_per_word}


def pool_from_json(value: Mapping[str, Any]) -> PromptPool:
    """The pool from its JSON."""
    return PromptPool(tuple(value["ids"]), tuple(value["head"]), float(value["tokens_per_word"]))


def make_pool(endpoint: Endpoint, capabilities: Capabilities) -> PromptPool:
    """A pool from the server's tokenizer, or of words where it has none or takes no IDs."""
    if not capabilities.tokenize:
        return PromptPool(())
    plain = tokenize(endpoint, WORDS)
    special = tokenize(endpoint, "time", special=True)
    bare = tokenize(endpoint, "time")
    if not plain:
        return PromptPool(())
    per_word = len(plain) / len(WORDS.split())
    if not capabilities.token_prompts:
        return PromptPool((), (), per_word)
    head: tuple[int, ...] = ()
    if special and bare and len(special) > len(bare) and special[-len(bare) :] == bare:
        head = special[: len(special) - len(bare)]
    ids = tuple(sorted(set(plain)))
    return PromptPool(ids if len(ids) >= 20 else (), head, per_word)


def token_prompt(pool: PromptPool, length: int, seed: int, key: str) -> list[int]:
    """`length` token IDs, head included."""
    source = random.Random(f"{seed}/{key}")
    return [*pool.head, *source.choices(pool.ids, k=max(1, length - len(pool.head)))]


def text_prompt(pool: PromptPool, length: int, seed: int, key: str) -> str:
    """Words that come to about `length` tokens."""
    source = random.Random(f"{seed}/{key}")
    return " ".join(source.choices(WORDS.split(), k=max(1, round(length / pool.tokens_per_word))))


def same_pool(a: PromptPool, b: PromptPool) -> bool:
    """Whether both arms can be sent identical token IDs."""
    return a.ids == b.ids and a.head == b.head


def read_requests(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The user's own requests from JSONL, each an object with `messages` or `prompt`. ValueError names the line."""

    out = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(value, dict) or not (value.get("messages") or value.get("prompt")):
            raise ValueError(f"line {number}: an object with `messages` or `prompt` was expected")
        out.append(value)
    return out
