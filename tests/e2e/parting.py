"""Where two servers part, worked out beside the console: whole answers, token IDs, plain HTTP."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOKENS = 32
CLEAR = 0.03
"""Nats between the first and the second choice, below which rounding may turn a greedy answer."""


@dataclass(frozen=True)
class Parted:
    """Position of the first token that differs, both tokens, and the probability that each server gave to each."""

    prompt: str
    index: int
    tokens: tuple[str, str]
    chances: dict[str, tuple[float | None, float | None]]
    """`A` and `B`: what that server gave to A's token and to B's."""


def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer to a POST."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        value: dict[str, Any] = json.load(response)
    return value


def greedy(url: str, model: str, prompt: str) -> dict[str, Any]:
    """One whole greedy answer: `token_ids`, and the likeliest tokens at each position as text → log-probability."""
    chat = {"model": model, "messages": [{"role": "user", "content": prompt}], "add_generation_prompt": True}
    ids = ask(url, "/tokenize", chat)["tokens"]
    body = {"model": model, "prompt": ids, "temperature": 0, "max_tokens": TOKENS, "logprobs": 5}
    choice = ask(url, "/v1/completions", {**body, "return_token_ids": True})["choices"][0]
    return {"token_ids": choice["token_ids"], **choice["logprobs"]}


def clear(answer: dict[str, Any], upto: int) -> bool:
    """Whether no choice up to `upto` was close to a tie."""
    for top in answer["top_logprobs"][: upto + 1]:
        first, second, *_ = sorted(top.values(), reverse=True)
        if first - second < CLEAR:
            return False
    return True


def first_clear_parting(urls: Sequence[str], models: Sequence[str], prompts: Sequence[str]) -> Parted | None:
    """The first prompt whose answers part, with no close choice on the way; None where all agree or are close."""
    for prompt in prompts:
        a, b = (greedy(url, model, prompt) for url, model in zip(urls, models, strict=True))
        pairs = enumerate(zip(a["token_ids"], b["token_ids"], strict=False))
        index = next((i for i, (left, right) in pairs if left != right), None)
        if index is None or not (clear(a, index) and clear(b, index)):
            continue
        tokens = a["tokens"][index], b["tokens"][index]
        chances = {}
        for side, answer in (("A", a), ("B", b)):
            top = answer["top_logprobs"][index]
            left, right = (math.exp(top[token]) if token in top else None for token in tokens)
            chances[side] = left, right
        return Parted(prompt, index, tokens, chances)
    return None
