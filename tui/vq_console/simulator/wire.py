"""The JSON of vLLM's OpenAI API: requests taken apart, answers and stream chunks put together.

Source: vLLM 0.32 entrypoints/openai/{completion,chat_completion}. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vq_console.simulator.generation import Sampling
from vq_console.simulator.language import SIZE, Array, Tokenizer

VLLM_FIELDS = frozenset({
    "top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids", "prompt_logprobs",
    "cache_salt", "return_token_ids", "return_tokens_as_token_ids", "add_special_tokens", "skip_special_tokens",
    "allowed_token_ids", "priority", "vllm_xargs", "chat_template_kwargs", "logprob_token_ids", "stream_interval",
})  # fmt: skip


class BadRequest(Exception):
    """Answered with HTTP 400 and this message."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, for either endpoint. `logprobs` is the number of alternatives, None where none are wanted."""

    chat: bool
    prompt: tuple[int, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None
    prompt_logprobs: int | None
    token_ids: bool
    tokens_as_ids: bool
    salt: str
    stop: tuple[str, ...]
    last_user: str
    user_turns: int
    model: str


def _number(body: Mapping[str, Any], key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{key}: a number was expected")
    return float(value)


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def render_chat(messages: Sequence[Mapping[str, Any]], *, generation_prompt: bool = True) -> str:
    """The chat template of the simulated model."""
    text = "".join(f"<|im_start|>{m.get('role', 'user')}\n{_message_text(m)}<|im_end|>\n" for m in messages)
    return text + ("<|im_start|>assistant\n" if generation_prompt else "")


def _prompt_ids(prompt: Any, tokenizer: Tokenizer) -> tuple[tuple[int, ...], str]:
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt)), prompt
    if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
        if any(not 0 <= item < SIZE for item in prompt):
            raise BadRequest(f"Token id {max(prompt)} is out of vocabulary")
        return tuple(prompt), tokenizer.decode(prompt, special=True)
    raise BadRequest("prompt: a string or a list of token IDs was expected")


def parse_request(
    body: Mapping[str, Any],
    *,
    chat: bool,
    tokenizer: Tokenizer,
    models: Sequence[str],
    max_model_len: int,
    max_logprobs: int,
    vllm_fields: bool,
) -> list[Asked]:
    """One entry per prompt of the request. Raises BadRequest with vLLM's own wording where it has one."""
    model = str(body.get("model") or models[0])
    if model not in models:
        raise LookupError(f"The model `{model}` does not exist.")
    if not vllm_fields and (unknown := sorted(VLLM_FIELDS & body.keys())):
        raise BadRequest(f"Unrecognized request argument supplied: {unknown[0]}")
    if int(_number(body, "n", 1)) != 1:
        raise BadRequest("n: the simulator answers one choice")
    prompts: list[tuple[tuple[int, ...], str, int]] = []
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages: a list was expected")
        users = [message for message in messages if message.get("role") == "user"]
        text = render_chat(messages, generation_prompt=body.get("add_generation_prompt", True) is not False)
        prompts.append((tuple(tokenizer.encode(text)), _message_text(users[-1]) if users else "", len(users)))
    else:
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        for one in prompt if isinstance(prompt, list) and several else [prompt]:
            ids, text = _prompt_ids(one, tokenizer)
            prompts.append((ids, text, text.count("<|im_start|>user") or 1))
    logprobs, prompt_logprobs = _logprobs(body, chat, max_logprobs)
    options = body.get("stream_options") or {}
    stop = body.get("stop") or ()
    out = []
    for ids, last_user, turns in prompts:
        limit = body.get("max_completion_tokens") if chat else None
        limit = limit if limit is not None else body.get("max_tokens")
        most = max_model_len - len(ids)
        max_tokens = int(limit) if limit is not None else (most if chat else 16)
        if len(ids) + max_tokens > max_model_len or not ids:
            raise BadRequest(
                f"This model's maximum context length is {max_model_len} tokens. However, your request has {len(ids)} "
                f"input tokens and asks for {max_tokens} output tokens. Please reduce the length of the input messages."
            )
        wants_ids = bool(body.get("return_token_ids"))
        ignore_eos = bool(body.get("ignore_eos"))
        sampling = Sampling(
            temperature=_number(body, "temperature", 1.0),
            top_p=_number(body, "top_p", 1.0),
            top_k=max(0, int(_number(body, "top_k", 0))),
            min_p=_number(body, "min_p", 0.0),
            repetition_penalty=_number(body, "repetition_penalty", 1.0),
            seed=int(body["seed"]) if isinstance(body.get("seed"), int) else None,
            max_tokens=max_tokens,
            min_tokens=int(_number(body, "min_tokens", 0)),
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(int(token) for token in body.get("stop_token_ids") or ()),
            logit_bias={int(token): float(bias) for token, bias in (body.get("logit_bias") or {}).items()},
            needs_model=not (ignore_eos and logprobs is None and not wants_ids and body.get("stream")),
        )
        out.append(
            Asked(
                chat=chat,
                prompt=ids,
                sampling=sampling,
                stream=bool(body.get("stream")),
                include_usage=bool(options.get("include_usage")),
                continuous_usage=bool(options.get("continuous_usage_stats")),
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                token_ids=wants_ids,
                tokens_as_ids=bool(body.get("return_tokens_as_token_ids")),
                salt=str(body.get("cache_salt") or ""),
                stop=(stop,) if isinstance(stop, str) else tuple(str(item) for item in stop),
                last_user=last_user,
                user_turns=turns,
                model=model,
            )
        )
    return out


def _logprobs(body: Mapping[str, Any], chat: bool, most: int) -> tuple[int | None, int | None]:
    logprobs: int | None = None
    if chat:
        if body.get("logprobs"):
            logprobs = int(body.get("top_logprobs") or 0)
    elif body.get("logprobs") is not None and body.get("logprobs") is not False:
        logprobs = int(body["logprobs"])
    prompt_logprobs = body.get("prompt_logprobs")
    for kind, value in (("sample", logprobs), ("prompt", prompt_logprobs)):
        if value is not None and value > most >= 0:
            raise BadRequest(f"Requested {kind} logprobs of {value}, which is greater than max allowed: {most}")
        if value is not None and value < -1:
            raise BadRequest(f"{kind} logprobs must be non-negative or -1")
    if prompt_logprobs is not None and body.get("stream"):
        raise BadRequest("`prompt_logprobs` are not available when `stream=True`.")
    return logprobs, prompt_logprobs


def token_name(token: int, tokenizer: Tokenizer, as_id: bool) -> str:
    """A token as the API names it."""
    return f"token_id:{token}" if as_id else tokenizer.piece(token)


def top_tokens(row: Array, count: int) -> list[int]:
    """The most probable tokens, best first; −1 asks for all."""
    if count == 0:
        return []
    if count < 0 or count >= SIZE:
        return [int(token) for token in np.argsort(-row)]
    best = np.argpartition(-row, count)[:count]
    return [int(token) for token in best[np.argsort(-row[best])]]


def prompt_logprob_entry(row: Array, token: int, count: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """One position of `prompt_logprobs`: the best `count` tokens and the one that stands there, with ranks."""
    chosen = dict.fromkeys([token, *top_tokens(row, count)])
    return {
        str(item): {
            "logprob": float(row[item]),
            "rank": int((row > row[item]).sum()) + 1,
            "decoded_token": tokenizer.piece(item),
        }
        for item in chosen
    }


def completion_logprobs(
    tokens: Sequence[int], rows: Sequence[Array], count: int, tokenizer: Tokenizer, as_id: bool, offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice."""
    names, offsets, values, tops = [], [], [], []
    for token, row in zip(tokens, rows, strict=True):
        name = token_name(token, tokenizer, as_id)
        names.append(name)
        values.append(float(row[token]))
        chosen = dict.fromkeys([token, *top_tokens(row, count)])
        tops.append({token_name(item, tokenizer, as_id): float(row[item]) for item in chosen})
        offsets.append(offset)
        offset += len(name)
    return {"text_offset": offsets, "token_logprobs": values, "tokens": names, "top_logprobs": tops}


def chat_logprobs(
    tokens: Sequence[int], rows: Sequence[Array], count: int, tokenizer: Tokenizer, as_id: bool
) -> dict[str, Any]:
    """`logprobs` of a chat choice."""

    def entry(item: int, row: Array) -> dict[str, Any]:
        name = token_name(item, tokenizer, as_id)
        return {"token": name, "logprob": float(row[item]), "bytes": list(tokenizer.pieces[item])}

    return {
        "content": [
            {**entry(token, row), "top_logprobs": [entry(item, row) for item in top_tokens(row, count)]}
            for token, row in zip(tokens, rows, strict=True)
        ]
    }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
