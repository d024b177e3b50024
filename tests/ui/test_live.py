"""Live, over two servers that answer from a script: the first differing token is marked where it was planted."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from aiohttp import web

from vq_console.checks.endpoint import Endpoint
from vq_console.checks.live import LiveAnswer, LiveToken, stream_pair
from vq_console.ui.widgets.live import answer_text, parting_words

WORDS = [" the", " sky", " is", "\n", " 天空", " [bold]", "\x1b[31mred", " \u202eevil", "!"]


def script(length: int = 24) -> list[str]:
    """Tokens of arm A: some with markup, control codes and wide characters in them."""
    return [WORDS[i % len(WORDS)] for i in range(length)]


async def served(tokens: Sequence[str], chances: Sequence[dict[str, float]]) -> tuple[web.AppRunner, Endpoint]:
    """A server on loopback that streams `tokens` with the log-probabilities of `chances`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for token, top in zip(tokens, chances, strict=True):
            content = {
                "token": token,
                "logprob": math.log(top[token]),
                "top_logprobs": [{"token": name, "logprob": math.log(p)} for name, p in top.items()],
            }
            choice = {"delta": {"content": token}, "logprobs": {"content": [content]}, "finish_reason": None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    return runner, Endpoint(label=f"s{port}", url=f"http://127.0.0.1:{port}", model="m")


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("k", [0, 1, 6, 7, 23])
async def test_the_planted_token_is_marked_with_all_four_probabilities(k: int, together: bool) -> None:
    left = script()
    right = [*left[:k], " other", *left[k + 1 :]]
    chances_a: list[dict[str, float]] = [{token: 0.9} for token in left]
    chances_b: list[dict[str, float]] = [{token: 0.8} for token in right]
    chances_a[k] = {left[k]: 0.6, " other": 0.3}
    chances_b[k] = {" other": 0.5, left[k]: 0.25}
    (runner_a, a), (runner_b, b) = await served(left, chances_a), await served(right, chances_b)
    try:
        async for shown in stream_pair(a, b, [{"role": "user", "content": "?"}], together=together):
            one, other, parting = shown
    finally:
        await runner_a.cleanup()
        await runner_b.cleanup()
    assert one.error is None
    assert other.error is None
    assert parting is not None
    assert parting.index == k
    assert (parting.a_of_a, parting.a_of_b) == (pytest.approx(0.6), pytest.approx(0.3))
    assert (parting.b_of_a, parting.b_of_b) == (pytest.approx(0.25), pytest.approx(0.5))
    words = parting_words(parting)
    assert words.startswith(f"part at token {k + 1}: A says ")
    assert "(60.0 % in A, 25.0 % in B)" in words
    assert "' other' (30.0 % in A, 50.0 % in B)" in words
    for answer, token in ((one, left[k]), (other, " other")):
        text = answer_text(answer, parting.index)
        marked = [text.plain[span.start : span.end] for span in text.spans if "reverse" in str(span.style)]
        assert marked == [token.replace("\x1b[31m", "").replace("\u202e", "")]
        assert "\x1b" not in text.plain
        assert "\u202e" not in text.plain
    assert "\x1b" not in words


def test_the_token_that_ends_an_answer_is_no_text_of_it() -> None:
    tokens = (LiveToken("The"), LiveToken(" sky"), LiveToken("<|im_end|>"))
    ended = LiveAnswer("a", "The sky", tokens, finish="stop", done=True)
    assert answer_text(ended, None).plain == answer_text(ended, 1).plain == "The sky"
    assert answer_text(ended, 2).plain == "The sky<|im_end|>"
    whole = LiveAnswer("a", "The sky", tokens[:2], finish="stop", done=True)
    assert answer_text(whole, 0).plain == "The sky"
