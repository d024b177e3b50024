"""What carries a token and when it came (traps 1, 2, 3, 4, 9)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq_console.checks import stream
from vq_console.checks.stream import read_event, read_stream, split_events


def _sse(*values: Any) -> bytes:
    return (
        b"".join(f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode() for value in values)
        + b"data: [DONE]\n\n"
    )


def _chat(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _text(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


@pytest.mark.parametrize(
    ("value", "kind", "answer"),
    [
        (_chat({"role": "assistant", "content": ""}), stream.ROLE, False),
        (_chat({"role": "assistant"}), stream.ROLE, False),
        (_chat({"content": "Hi"}), stream.TOKEN, True),
        (_chat({"role": "assistant", "content": "Hi"}), stream.TOKEN, True),
        (_chat({"content": ""}), stream.TOKEN, False),  # a token whose bytes are no character yet
        (_chat({"reasoning": "hm"}), stream.TOKEN, False),
        (_chat({"reasoning_content": "hm"}), stream.TOKEN, False),
        (_chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), stream.TOKEN, False),
        (_chat({}), stream.OTHER, False),
        (_chat({}, "stop"), stream.FINISH, False),
        (_chat({"content": "end"}, "length"), stream.TOKEN, True),
        (_text("x"), stream.TOKEN, True),
        (_text(""), stream.TOKEN, False),
        (_text("", token_ids=[]), stream.OTHER, False),
        (_text("abc", token_ids=[1, 2, 3]), stream.TOKEN, True),
        ({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, stream.USAGE, False),
        ({"choices": []}, stream.OTHER, False),
        ({"error": {"message": "engine died"}}, stream.ERROR, False),
    ],
)
def test_kinds(value: dict[str, Any], kind: str, answer: bool) -> None:
    event = read_event(5, b"data: " + json.dumps(value).encode())
    assert (event.kind, event.answer, event.at_ns) == (kind, answer, 5)


@pytest.mark.parametrize(("vllm", "kind"), [(True, stream.TOKEN), (False, stream.FINISH)])
def test_an_empty_end_is_a_token_of_vllm_only(vllm: bool, kind: str) -> None:
    for value in (_text("", "stop"), _chat({"content": ""}, "stop")):
        assert read_event(0, b"data: " + json.dumps(value).encode(), vllm=vllm).kind == kind


def test_comments_and_nonsense() -> None:
    assert read_event(0, b": keep-alive").kind == stream.COMMENT
    assert read_event(0, b"event: ping").kind == stream.COMMENT
    assert read_event(0, b"data: {half").kind == stream.ERROR
    assert read_event(0, b"data: [1]").kind == stream.ERROR
    assert read_event(0, b"data:[DONE]").kind == stream.DONE
    assert read_event(0, b'data: {"choices":\ndata: []}').kind == stream.OTHER  # data over two lines


def test_tokens_of_a_chunk_are_counted_where_it_says() -> None:
    assert read_event(0, b"data: " + json.dumps(_text("abc", token_ids=[1, 2, 3])).encode()).tokens == 3
    assert read_event(0, b"data: " + json.dumps(_text("abc")).encode()).tokens is None


def test_usage_in_every_chunk_is_kept() -> None:
    value = {**_text("a"), "usage": {"prompt_tokens": 3, "completion_tokens": 7}}
    event = read_event(0, b"data: " + json.dumps(value).encode())
    assert (event.kind, event.prompt_tokens, event.completion_tokens) == (stream.TOKEN, 3, 7)


@given(st.lists(st.integers(min_value=1, max_value=400), max_size=12), st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_cut_gives_the_same_events(cuts: list[int], newline: str) -> None:
    """Trap 9: reads may split lines, characters and line ends anywhere."""
    body = _sse(
        _chat({"role": "assistant", "content": ""}), _chat({"content": "Grüße 你好"}), _chat({"content": "!"}, "stop")
    )
    data = (b": comment\n\n" + body).replace(b"\n", newline.encode())
    edges = sorted({cut % len(data) for cut in cuts} | {0, len(data)})
    reads = [(index, data[a:b]) for index, (a, b) in enumerate(itertools.pairwise(edges))]
    kinds = [event.kind for event in read_stream(reads)]
    assert kinds == [stream.COMMENT, stream.ROLE, stream.TOKEN, stream.TOKEN, stream.DONE]


def test_an_event_has_the_time_of_the_read_that_completed_it() -> None:
    reads = [(1, b"data: 1\n"), (2, b"\ndata: 2\n\ndata:"), (3, b" 3\n\n")]
    assert list(split_events(reads)) == [(2, b"data: 1"), (2, b"data: 2"), (3, b"data: 3")]


def test_carriage_return_and_newline_in_separate_reads() -> None:
    reads = [(1, b"data: 1\r"), (2, b"\n"), (3, b"\r"), (4, b"\ndata: 2\r\n\r\n")]
    assert [raw for _, raw in split_events(reads)] == [b"data: 1", b"data: 2"]


def test_an_unfinished_event_is_not_an_event() -> None:
    assert list(split_events([(1, b"data: 1\n\ndata: 2\n")])) == [(1, b"data: 1")]
