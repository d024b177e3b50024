"""Server-sent events of an OpenAI stream, taken apart after they were stamped.

Owns the question "does this chunk carry tokens?". Bytes come with their time of arrival and are never re-timed here:
an event has the time of the read that completed it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TOKEN, ROLE, USAGE, COMMENT, FINISH, ERROR, DONE, OTHER = "t", "r", "u", "c", "f", "e", "d", "o"
_TOKEN_FIELDS = ("content", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind` is a letter of this module; `tokens` is their number where the server says it, else None.

    `answer` is True where the event carries visible answer text rather than reasoning.
    """

    at_ns: int
    kind: str
    tokens: int | None = None
    answer: bool = False
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None


def split_events(reads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Whole events as (time of the completing read, bytes), whatever way the reads cut them.

    Lines may end in LF, CRLF or CR (the HTML standard's rule); an event ends at an empty line. A last event without
    its empty line is dropped, as the standard says.
    """
    rest = b""
    event: list[bytes] = []
    after_cr = False
    for at_ns, data in reads:
        if after_cr and data:
            data = data.removeprefix(b"\n")
            after_cr = False
        after_cr = data.endswith(b"\r") or (after_cr and not data)
        lines = (rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line:
                event.append(line)
            elif event:
                yield at_ns, b"\n".join(event)
                event = []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _carries(delta: Any, finish: str | None) -> bool:
    """Whether a chat delta carries tokens.

    Reasoning and tool-call deltas do; so does an empty content in a delta without a role (a token whose bytes are not
    a character yet). A role with empty content does not, nor an empty delta.
    """
    if not isinstance(delta, dict):
        return False
    if any(delta.get(field) for field in _TOKEN_FIELDS):
        return True
    if delta.get("role") is not None:
        return False
    return any(delta.get(field) is not None for field in _TOKEN_FIELDS)


def read_event(at_ns: int, raw: bytes, *, vllm: bool = False) -> Event:
    """What one event means. `vllm` decides how a finish chunk with empty text counts (vLLM: it is a token)."""
    data = [line[5:].removeprefix(b" ") for line in raw.split(b"\n") if line.startswith(b"data:")]
    if not data:
        return Event(at_ns, COMMENT)
    payload = b"\n".join(data)
    if payload.strip() == b"[DONE]":
        return Event(at_ns, DONE)
    try:
        value = json.loads(payload)
    except ValueError:
        return Event(at_ns, ERROR, error="an event is not JSON")
    if not isinstance(value, dict):
        return Event(at_ns, ERROR, error="an event is not a JSON object")
    if value.get("error") is not None:
        error = value["error"]
        message = error.get("message") if isinstance(error, dict) else error
        return Event(at_ns, ERROR, error=str(message)[:300])
    usage = value.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Event(at_ns, USAGE if usage else OTHER, prompt_tokens=counts[0], completion_tokens=counts[1])
    return _read_choice(at_ns, choices[0], counts, vllm)


def _read_choice(at_ns: int, choice: dict[str, Any], counts: tuple[int | None, int | None], vllm: bool) -> Event:
    finish = choice.get("finish_reason")
    finish = str(finish) if finish else None
    ids = choice.get("token_ids")
    tokens = len(ids) if isinstance(ids, list) else None
    delta = choice.get("delta")
    if isinstance(delta, dict):
        text = delta.get("content")
        carries = _carries(delta, finish)
        answer = bool(text)
        role = delta.get("role") is not None
    else:
        text = choice.get("text")
        carries = isinstance(text, str)
        answer = bool(text)
        role = False
    if finish is not None and not text and tokens is None and not _has_thought(delta):
        # vLLM's last chunk holds the last token even where that is an invisible stop token; others send an empty end.
        carries = carries and vllm and finish != "abort"
    if tokens is not None:
        carries = tokens > 0
    if carries:
        kind = TOKEN
    elif finish is not None:
        kind = FINISH
    else:
        kind = ROLE if role else OTHER
    return Event(
        at_ns,
        kind,
        tokens=tokens if carries else None,
        answer=answer and carries,
        finish=finish,
        prompt_tokens=counts[0],
        completion_tokens=counts[1],
    )


def _has_thought(delta: Any) -> bool:
    return isinstance(delta, dict) and any(delta.get(field) for field in _TOKEN_FIELDS[1:])


def read_stream(reads: Sequence[tuple[int, bytes]], *, vllm: bool = False) -> list[Event]:
    """All events of one response."""
    return [read_event(at_ns, raw, vllm=vllm) for at_ns, raw in split_events(reads)]
