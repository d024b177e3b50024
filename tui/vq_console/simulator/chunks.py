"""Stream chunks of one request, shaped as vLLM shapes them. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from vq_console.simulator import wire
from vq_console.simulator.language import Array, LanguageModel
from vq_console.simulator.wire import Asked


class Chunks:
    """Stream chunks of one request, shaped as vLLM shapes them."""

    def __init__(self, asked: Asked, request_id: str, model: LanguageModel) -> None:
        self._asked = asked
        self._tokenizer = model.tokenizer
        self._decoder = model.tokenizer.stream()
        self._text = ""
        self._offset = 0
        self._count = 0
        self._first = True
        kind = ("chatcmpl", "chat.completion.chunk") if asked.chat else ("cmpl", "text_completion")
        self._head = {
            "id": f"{kind[0]}-{request_id}",
            "object": kind[1],
            "created": int(time.time()),
            "model": asked.model,
        }
        self._prefix = json.dumps(self._head, ensure_ascii=False)[:-1] + ', "choices": [{"index": 0, '
        self._plain = asked.logprobs is None and not asked.token_ids and not asked.continuous_usage and not asked.stop

    def role(self) -> bytes:
        """The chunk that only says who speaks."""
        choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        value: dict[str, Any] = {**self._head, "choices": [{**choice, "finish_reason": None}]}
        value["prompt_token_ids"] = list(self._asked.prompt) if self._asked.token_ids else None
        return wire.event(value)

    def tokens(self, tokens: Sequence[int], rows: Sequence[Array | None], reason: str | None) -> tuple[bytes, bool]:
        """The chunk for these tokens, and whether a stop string ended the answer."""
        asked = self._asked
        text = self._decoder.feed(tokens, final=reason is not None)
        self._count += len(tokens)
        if self._plain:
            said = json.dumps(text, ensure_ascii=False)
            ended = "null" if reason is None else f'"{reason}"'
            content = f'"delta": {{"content": {said}}}' if asked.chat else f'"text": {said}'
            rest = f'{content}, "logprobs": null, "finish_reason": {ended}, "stop_reason": null, "token_ids": null}}]}}'
            return f"data: {self._prefix}{rest}\n\n".encode(), False
        stopped = False
        if asked.stop:
            cut = cut_at_stop(self._text + text, asked.stop)
            stopped = len(cut) < len(self._text + text)
            text = cut[len(self._text) :]
            reason = "stop" if stopped else reason
        self._text += text
        logprobs: dict[str, Any] | None = None
        known = [row for row in rows if row is not None]
        if asked.logprobs is not None and len(known) == len(tokens):
            if asked.chat:
                logprobs = wire.chat_logprobs(tokens, known, asked.logprobs, self._tokenizer, asked.tokens_as_ids)
            else:
                logprobs = wire.completion_logprobs(
                    tokens, known, asked.logprobs, self._tokenizer, asked.tokens_as_ids, self._offset
                )
            self._offset += len(text)
        choice: dict[str, Any] = {"index": 0}
        choice.update({"delta": {"content": text}} if asked.chat else {"text": text})
        choice.update(logprobs=logprobs, finish_reason=reason, stop_reason=None)
        choice["token_ids"] = list(tokens) if asked.token_ids else None
        if not asked.chat:
            choice["prompt_token_ids"] = list(asked.prompt) if asked.token_ids and self._first else None
        self._first = False
        value: dict[str, Any] = {**self._head, "choices": [choice]}
        if asked.continuous_usage:
            value["usage"] = wire.usage(len(asked.prompt), self._count)
        return wire.event(value), stopped

    def usage(self, produced: int) -> bytes:
        """The chunk with the counts and no choices."""
        value: dict[str, Any] = {**self._head, "choices": [], "usage": wire.usage(len(self._asked.prompt), produced)}
        return wire.event(value)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop string in it."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
