"""One prompt, two answers side by side: streams both, finds the first token where they part.

For looking, not for verdicts: one request an arm. Arms that share a device answer one after the other, so that the
figures under each answer are its own. Model output is data: control sequences are stripped before anyone sees it.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from vq_console.checks.endpoint import Endpoint
from vq_console.core.http import key_from_environment
from vq_console.core.text import strip_control

TOP = 5
"""Alternatives asked for at each token; vLLM's default limit is 20."""


@dataclass(frozen=True, slots=True)
class LiveToken:
    """One token: its text, log-probability in nats, and the likeliest alternatives (text → log-probability)."""

    text: str
    logprob: float | None = None
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """One arm's answer so far. Times in seconds from sending; None until known."""

    label: str
    text: str = ""
    tokens: tuple[LiveToken, ...] = ()
    ttft_s: float | None = None
    elapsed_s: float | None = None
    finish: str | None = None
    error: str | None = None
    done: bool = False

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate after the first token; None below two tokens."""
        if self.ttft_s is None or self.elapsed_s is None or len(self.tokens) < 2 or self.elapsed_s <= self.ttft_s:
            return None
        return (len(self.tokens) - 1) / (self.elapsed_s - self.ttft_s)


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token where two answers differ. Probabilities 0 to 1, None where the token is not among the top."""

    index: int
    a_token: str
    b_token: str
    a_of_a: float | None
    a_of_b: float | None
    b_of_a: float | None
    b_of_b: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "a_token": self.a_token,
            "b_token": self.b_token,
            "p_a": {"A": self.a_of_a, "B": self.a_of_b},
            "p_b": {"A": self.b_of_a, "B": self.b_of_b},
        }


def find_parting(a: Sequence[LiveToken], b: Sequence[LiveToken]) -> Parting | None:
    """Compare token by token as far as both go. `x_of_y` is the probability that arm X gave to the token of arm Y."""

    def chance(token: LiveToken, text: str) -> float | None:
        value = token.logprob if token.text == text and token.logprob is not None else token.top.get(text)
        return None if value is None else math.exp(value)

    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left.text != right.text:
            return Parting(
                index,
                left.text,
                right.text,
                chance(left, left.text),
                chance(left, right.text),
                chance(right, left.text),
                chance(right, right.text),
            )
    return None


def request_body(model: str, messages: Sequence[Mapping[str, str]], max_tokens: int, *, chat: bool) -> dict[str, Any]:
    """A greedy streaming request with every sampling field said, so that a model's own defaults do not slip in."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "top_p": 1,
        "seed": 0,
        "max_tokens": max_tokens,
        "frequency_penalty": 0,
        "presence_penalty": 0,
    }
    if chat:
        return {**body, "messages": list(messages), "logprobs": True, "top_logprobs": TOP}
    return {**body, "prompt": "\n".join(m["content"] for m in messages), "logprobs": TOP}


def read_chunk(data: Mapping[str, Any]) -> tuple[str, list[LiveToken], str | None]:
    """Text, tokens and finish reason of one stream chunk of either endpoint; role-only and usage chunks are empty."""
    choices = data.get("choices") or []
    if not choices:
        return "", [], None
    choice = choices[0]
    delta = choice.get("delta")
    if delta is not None:
        text = "".join(str(delta.get(key) or "") for key in ("reasoning_content", "reasoning", "content"))
    else:
        text = str(choice.get("text") or "")
    tokens: list[LiveToken] = []
    logprobs = choice.get("logprobs") or {}
    for item in logprobs.get("content") or ():
        top = {str(t["token"]): float(t["logprob"]) for t in item.get("top_logprobs") or ()}
        tokens.append(LiveToken(str(item["token"]), float(item["logprob"]), top))
    names, values = logprobs.get("tokens") or (), logprobs.get("token_logprobs") or ()
    tops = logprobs.get("top_logprobs") or [{}] * len(names)
    for name, value, alternatives in zip(names, values, tops, strict=False):
        tokens.append(LiveToken(str(name), value, {str(k): float(v) for k, v in (alternatives or {}).items()}))
    if text and not tokens:
        tokens.append(LiveToken(text))
    return text, tokens, choice.get("finish_reason")


async def stream_answer(
    endpoint: Endpoint, messages: Sequence[Mapping[str, str]], *, max_tokens: int = 256, timeout_s: float = 300
) -> AsyncIterator[LiveAnswer]:
    """Yield the growing answer of one arm; the last one has `done`. Trouble is in `error`, nothing is raised."""
    answer = LiveAnswer(endpoint.label)
    headers = {"Authorization": f"Bearer {key}"} if (key := key_from_environment(endpoint.api_key_env)) else {}
    limits = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with aiohttp.ClientSession(timeout=limits, headers=headers) as session:
            for chat in (True, False):
                path = "/v1/chat/completions" if chat else "/v1/completions"
                body = request_body(endpoint.model, messages, max_tokens, chat=chat)
                sent = time.perf_counter()
                async with session.post(endpoint.url + path, json=body) as response:
                    if response.status == 400 and chat and "chat template" in (await response.text()).lower():
                        continue
                    if response.status != 200:
                        message = strip_control((await response.text())[:300])
                        yield replace(answer, error=f"HTTP {response.status}: {message}", done=True)
                        return
                    async for raw in response.content:
                        stamp = time.perf_counter() - sent
                        line = raw.decode("utf-8", errors="replace").strip()
                        if not line.startswith("data:") or line == "data: [DONE]":
                            continue
                        text, tokens, finish = read_chunk(json.loads(line[5:]))
                        if tokens:
                            answer = replace(
                                answer,
                                text=answer.text + strip_control(text),
                                tokens=(*answer.tokens, *tokens),
                                ttft_s=stamp if answer.ttft_s is None else answer.ttft_s,
                                elapsed_s=stamp,
                            )
                        if finish:
                            answer = replace(answer, finish=str(finish))
                        if tokens or finish:
                            yield answer
                    break
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        yield replace(answer, error=f"{type(error).__name__}: {error}", done=True)
        return
    yield replace(answer, done=True)


def shares_device(a: Endpoint, b: Endpoint) -> bool:
    """Would a request to one slow the other? Unknown placement on one host counts as shared."""
    if a.gpu_uuids and b.gpu_uuids:
        return bool(set(a.gpu_uuids) & set(b.gpu_uuids))
    return a.url.split(":")[1] == b.url.split(":")[1]


async def stream_pair(
    a: Endpoint,
    b: Endpoint,
    messages: Sequence[Mapping[str, str]],
    *,
    max_tokens: int = 256,
    together: bool | None = None,
) -> AsyncIterator[tuple[LiveAnswer, LiveAnswer, Parting | None]]:
    """Yield both answers as they grow, with their parting once it is known.

    `together` None decides: at the same time on separate devices, one after the other on a shared one.
    """
    at_once = not shares_device(a, b) if together is None else together
    left, right = LiveAnswer(a.label), LiveAnswer(b.label)
    if not at_once:
        async for left in stream_answer(a, messages, max_tokens=max_tokens):
            yield left, right, None
        async for right in stream_answer(b, messages, max_tokens=max_tokens):
            yield left, right, find_parting(left.tokens, right.tokens)
        return
    queue: asyncio.Queue[tuple[int, LiveAnswer]] = asyncio.Queue()

    async def pump(side: int, endpoint: Endpoint) -> None:
        async for answer in stream_answer(endpoint, messages, max_tokens=max_tokens):
            await queue.put((side, answer))

    tasks = [asyncio.create_task(pump(0, a)), asyncio.create_task(pump(1, b))]
    try:
        while not (left.done and right.done):
            side, answer = await queue.get()
            if side == 0:
                left = answer
            else:
                right = answer
            yield left, right, find_parting(left.tokens, right.tokens)
    finally:
        for task in tasks:
            task.cancel()
