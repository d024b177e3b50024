"""Requests of the quality check to one server: render, generate, score, ask.

Owns the request bodies and the reading of answers. All sampling fields are explicit, since vLLM otherwise takes the
model's own defaults. Never streams, never uses guided decoding, keeps at most four scoring requests in flight
(prompt log-probabilities can exhaust a server's memory), and never measures time for a verdict.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from vq_console.checks.endpoint import Capabilities, Endpoint
from vq_console.checks.progress import Progress
from vq_console.checks.quality_data import Fingerprint, Generated, Scored, empty_scored
from vq_console.checks.tasks.model import Message
from vq_console.core.http import Answer
from vq_console.core.text import strip_control

T = TypeVar("T")
R = TypeVar("R")

TIMEOUT_S = 900.0
GREEDY_TOP = 10
"""Alternatives kept at each greedy token: where answers part, the other side's token is nearly always among them."""

_TOKENIZER_PROBE = (
    "The quick brown fox, 12345.678 — naïve façade; Größe: 3½ m²",
    "def f(x):\n\treturn {'a': [x, \"y\"]}  # ≥ 0",
    "Привет, мир! 你好，世界。 こんにちは 안녕하세요 🙂🚀",
)
_ID_PROBE = (tuple(range(300, 1000, 23)), tuple(range(1000, 32_000, 487)), tuple(range(32_000, 128_000, 2003)))
"""Token IDs whose text tells vocabularies apart; those beyond a vocabulary simply give nothing."""
_TEMPLATE_PROBE: tuple[Message, ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
)


class Client:
    """One server as the quality check talks to it. Thread-safe; every method blocks."""

    def __init__(self, endpoint: Endpoint, capabilities: Capabilities, *, top_k: int) -> None:
        self.endpoint = endpoint
        self.capabilities = capabilities
        self.top_k = top_k
        self._templated: bool | None = None
        self._lock = threading.Lock()

    @property
    def label(self) -> str:
        return self.endpoint.label

    @property
    def scores_prompts(self) -> bool:
        """Whether KLD is possible at all."""
        return self.capabilities.prompt_logprobs and self.capabilities.token_prompts and self.top_k > 0

    def _post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """POST, once more after a pause when the server was too busy or the connection broke."""
        full = {"model": self.endpoint.model, **body}
        answer = self.endpoint.post(path, full, timeout=TIMEOUT_S)
        if answer.status in {0, 429, 503}:
            time.sleep(1.0)
            answer = self.endpoint.post(path, full, timeout=TIMEOUT_S)
        return answer

    def _sampling(self, temperature: float, seed: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "temperature": temperature,
            "top_p": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "seed": seed,
            "n": 1,
            "stream": False,
        }
        if self.capabilities.extra_sampling:
            fields |= {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        return fields

    def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Token IDs by the server's own tokenizer, None where it refuses."""
        answer = self._post("/tokenize", body)
        value = answer.json()
        tokens = value.get("tokens") if answer.ok and isinstance(value, dict) else None
        return tuple(int(token) for token in tokens) if isinstance(tokens, list) else None

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...] | None:
        """Token IDs of a conversation by the chat template, or of its plain text where the model has none."""
        if not self.capabilities.tokenize:
            return None
        if self._templated is not False:
            body: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": True}
            ids = self.tokenize({**body, "tools": list(tools)} if tools else body)
            if ids is None and tools:
                ids = self.tokenize(body)
            if ids:
                self._templated = True
                return ids
            if self._templated is None:
                self._templated = False
        return self.tokenize({"prompt": plain_text(messages), "add_special_tokens": True})

    def fingerprint(self) -> Fingerprint:
        """Hashes of how this server's tokenizer and template treat fixed text; None where it does not say."""
        if not self.capabilities.tokenize:
            return Fingerprint(None, None)
        texts: list[Any] = [self.tokenize({"prompt": t, "add_special_tokens": False}) for t in _TOKENIZER_PROBE]
        template = self.tokenize({"messages": list(_TEMPLATE_PROBE), "add_generation_prompt": True})
        return Fingerprint(
            _hash([texts, [self._text_of(ids) for ids in _ID_PROBE]]) if None not in texts else None,
            _hash(template) if template is not None else "none",
        )

    def _text_of(self, tokens: Sequence[int]) -> str | None:
        answer = self._post("/detokenize", {"tokens": list(tokens)})
        value = answer.json()
        text = value.get("prompt") if answer.ok and isinstance(value, dict) else None
        return text if isinstance(text, str) else None

    def token_text(self, token: int) -> str:
        """One token as text, control sequences removed."""
        text = self._text_of([token])
        return strip_control(text) if text is not None else f"#{token}"

    def generate(
        self, index: int, ids: Sequence[int], *, max_tokens: int, temperature: float, seed: int, top: int = 1
    ) -> Generated:
        """Continue token IDs; the generated IDs come with their log-probabilities and `top` alternatives each."""
        body: dict[str, Any] = {
            "prompt": list(ids),
            "max_tokens": max_tokens,
            "logprobs": max(1, min(top, self.top_k or 1)),
            **self._sampling(temperature, seed),
        }
        if self.capabilities.vllm:
            body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        answer = self._post("/v1/completions", body)
        value = answer.json()
        if not answer.ok or not isinstance(value, dict) or not value.get("choices"):
            return Generated(index, (), np.empty(0, np.float32), error=failure(answer))
        made = read_generated(index, value["choices"][0])
        if made.ids or not made.text or not self.capabilities.tokenize:
            return made
        again = self.tokenize({"prompt": made.text, "add_special_tokens": False}) or ()
        return replace(made, ids=again, logprobs=np.full(len(again), np.nan, np.float32), top=(), exact=False)

    def score(self, ids: Sequence[int], first: int) -> Scored:
        """This server's log-probabilities of the tokens from position `first` on, and its `top_k` likeliest there."""
        body = {
            "prompt": list(ids),
            "max_tokens": 1,
            "prompt_logprobs": self.top_k,
            **self._sampling(1.0, 0),
        }
        answer = self._post("/v1/completions", body)
        value = answer.json()
        if not answer.ok or not isinstance(value, dict) or not value.get("choices"):
            return empty_scored(failure(answer))
        rows = value["choices"][0].get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(ids):
            return empty_scored("the server sent no log-probabilities of the prompt")
        return read_scored(ids, rows, first, self.top_k)

    def answer(
        self, messages: Sequence[Message], *, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Generated:
        """A greedy answer to a conversation, by token IDs where the server renders them, else by its chat route."""
        ids = self.render(messages, tools) if self.capabilities.token_prompts else None
        if ids is not None:
            limit = self.capabilities.max_model_len
            if limit is not None and len(ids) + max_tokens > limit:
                return Generated(0, (), np.empty(0, np.float32), error="the prompt does not fit the context")
            return self.generate(0, ids, max_tokens=max_tokens, temperature=0.0, seed=0)
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens, **self._sampling(0.0, 0)}
        if tools:
            body["tools"] = [
                dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools
            ]
        answer = self._post("/v1/chat/completions", body)
        value = answer.json()
        if not answer.ok or not isinstance(value, dict) or not value.get("choices"):
            return Generated(0, (), np.empty(0, np.float32), error=failure(answer))
        choice = value["choices"][0]
        message = choice.get("message") or {}
        text = str(message.get("content") or "")
        calls = message.get("tool_calls")
        if not text and calls:
            text = json.dumps(calls[0].get("function", {}), ensure_ascii=False)
        return Generated(0, (), np.empty(0, np.float32), strip_control(text), choice.get("finish_reason"))


def plain_text(messages: Sequence[Message]) -> str:
    """A conversation for a model without a chat template: one message as it is, several with their roles."""
    if len(messages) == 1:
        return str(messages[0].get("content") or "")
    lines = [f"{str(message['role']).capitalize()}: {message.get('content') or ''}" for message in messages]
    return "\n".join(lines) + "\nAssistant:"


def failure(answer: Answer) -> str:
    """Why a request gave nothing, in one line."""
    return strip_control(answer.error or f"HTTP {answer.status}: {answer.body[:160].decode('utf-8', 'replace')}")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _token_id(name: str) -> int | None:
    return int(name[9:]) if name.startswith("token_id:") and name[9:].isdigit() else None


def read_generated(index: int, choice: Mapping[str, Any]) -> Generated:
    """A completion choice: IDs from `token_ids`, or else from tokens written as `token_id:N`."""
    logprobs = choice.get("logprobs") or {}
    names = [str(name) for name in logprobs.get("tokens") or ()]
    values = logprobs.get("token_logprobs") or []
    ids = choice.get("token_ids")
    if not isinstance(ids, list):
        found = [_token_id(name) for name in names]
        ids = [token for token in found if token is not None]
        if len(ids) != len(names) or not names:
            ids = []
    tops: list[dict[int, float]] = []
    for row in logprobs.get("top_logprobs") or ():
        named = {_token_id(str(name)): value for name, value in (row or {}).items()}
        tops.append({token: float(lp) for token, lp in named.items() if token is not None and lp is not None})
    decoded = np.asarray([math.nan if value is None else float(value) for value in values], np.float32)
    return Generated(
        prompt=index,
        ids=tuple(int(token) for token in ids),
        logprobs=decoded if len(decoded) == len(ids) else np.full(len(ids), np.nan, np.float32),
        text=strip_control(str(choice.get("text") or "")),
        finish=choice.get("finish_reason"),
        top=tuple(tops) if len(tops) == len(ids) else (),
    )


def read_scored(ids: Sequence[int], rows: Sequence[Any], first: int, k: int) -> Scored:
    """vLLM's `prompt_logprobs` (dicts of token id → {logprob, rank}) from position `first` on.

    The observed token is an extra entry where it is not among the k likeliest; that one is kept apart.
    """
    n = len(ids) - first
    x = np.asarray(ids[first:], np.int32)
    x_lp = np.full(n, np.nan, np.float32)
    top_ids = np.full((n, k), -1, np.int32)
    top_lp = np.full((n, k), np.nan, np.float32)
    for position in range(n):
        row = rows[first + position]
        if not isinstance(row, dict):
            continue
        entries: list[tuple[int, float]] = []
        observed = int(x[position])
        for name, entry in row.items():
            token, value = int(name), entry.get("logprob")
            lp = math.nan if value is None else float(value)
            if token == observed:
                x_lp[position] = lp
                rank = entry.get("rank")
                if len(row) > k or (isinstance(rank, int) and rank > k):
                    continue
            entries.append((token, lp))
        for column, (token, lp) in enumerate(entries[:k]):
            top_ids[position, column] = token
            top_lp[position, column] = lp
    return Scored(x, x_lp, top_ids, top_lp)


def run_many(
    jobs: Iterable[T],
    work: Callable[[T], R],
    *,
    concurrency: int,
    progress: Progress,
    stage: str,
    message: str,
    arm: str,
    total: int,
    so_far: Callable[[R], Mapping[str, Any] | None] | None = None,
) -> list[R]:
    """The results of all jobs in order; when the person cancels, those of the jobs that were already begun.

    Reports after each finished job, with the time left at the pace so far and what `so_far` makes of its result.
    """
    queue = iter(jobs)
    started = time.monotonic()
    results: dict[int, R] = {}
    running: dict[Future[R], int] = {}
    number = 0
    progress.event(stage, message, arm=arm, done=0, total=total)
    with ThreadPoolExecutor(max_workers=max(1, concurrency), thread_name_prefix="quality") as pool:
        while True:
            while len(running) < concurrency and not progress.cancelled():
                job = next(queue, None)
                if job is None:
                    break
                running[pool.submit(work, job)] = number
                number += 1
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            interim: Mapping[str, Any] | None = None
            for future in done:
                result = results[running.pop(future)] = future.result()
                interim = so_far(result) if so_far is not None else None
            elapsed = time.monotonic() - started
            left = elapsed / len(results) * (total - len(results)) if total > len(results) else 0.0
            progress.event(
                stage, message, arm=arm, done=len(results), total=total, eta_s=round(left, 1), interim=interim
            )
    return [results[index] for index in sorted(results)]
