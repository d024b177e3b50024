"""First divergences and signs of ill health."""

from __future__ import annotations

import numpy as np
import pytest

from checks_quality.scored import text
from vq_console.checks.divergence import first_difference, hazard, partings, repeated_pairs
from vq_console.checks.health import Reply, compare_replies, loops, mark_excess, refuses, scripts, wrong_script
from vq_console.checks.quality_data import Generated


@pytest.mark.parametrize(
    ("a", "b", "index"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [], None), ([1], [2], 0)],
)
def test_first_difference(a: list[int], b: list[int], index: int | None) -> None:
    assert first_difference(a, b) == index


def test_hazard_counts_exposure_up_to_the_parting() -> None:
    pairs = [
        (text(0, [1, 2, 3, 4]), text(0, [1, 2, 3, 4])),
        (text(1, [1, 2, 3, 5]), text(1, [1, 9, 9, 9])),
        (text(2, [1, 2]), Generated(2, (), np.empty(0, np.float32), error="HTTP 500")),
    ]
    found = hazard(pairs)
    assert found is not None
    assert (found.divergences, found.tokens, found.sequences) == (1, 6, 2)
    assert found.interval[0] < found.value < found.interval[1]
    assert hazard([]) is None


def test_answers_that_are_alike_are_one_observation() -> None:
    same = [(text(i, [1, 2, 3]), text(i, [1, 7, 3 + i])) for i in range(10)]
    found = hazard(same)
    assert found is not None
    assert (found.divergences, found.sequences) == (1, 1)


def test_parting_has_both_probabilities() -> None:
    a = Generated(
        0, (1, 2), np.log(np.array([0.9, 0.6], np.float32)), top=({1: -0.1}, {2: np.log(0.6), 5: np.log(0.3)})
    )
    b = Generated(0, (1, 5), np.log(np.array([0.9, 0.7], np.float32)), top=({1: -0.1}, {5: np.log(0.7)}))
    (found,) = partings([(a, b)])
    assert (found.index, found.a_token, found.b_token) == (1, 2, 5)
    assert found.a_of_a == pytest.approx(0.6)
    assert found.a_of_b == pytest.approx(0.3)
    assert found.b_of_b == pytest.approx(0.7)
    assert found.b_of_a is None


def test_one_side_that_ends_has_no_token_there() -> None:
    (found,) = partings([(text(0, [1, 2]), text(0, [1, 2, 3]))])
    assert found.a_token is None
    assert found.b_token == 3
    greedy = [text(0, [1])]
    assert len(repeated_pairs(greedy, {0: text(0, [1]), 5: text(5, [2])})) == 1


@pytest.mark.parametrize(
    ("tokens", "looping"),
    [
        ([1] * 64, True),
        ([1] * 63, False),
        (list(range(40)) + [7, 8, 9] * 22, True),
        (list(range(64)) * 2, False),
        (list(range(64)) * 4, True),
        (list(range(16)) * 4, True),
        (list(range(200)), False),
        ([5] * 63 + [6], False),
        ([], False),
    ],
)
def test_loop(tokens: list[int], looping: bool) -> None:
    assert loops(tokens) is looping


@pytest.mark.parametrize(
    ("prompt", "answer", "wrong"),
    [
        ("Why is the sky blue?", "Because light is scattered.", False),
        ("Why is the sky blue?", "因为天空散射了蓝色的光线", True),
        ("为什么天空是蓝色的？", "因为天空散射了蓝色的光线", False),
        ("为什么天空是蓝色的？", "Because of scattering.", False),
        ("Расскажи о зиме", "Зима холодная", False),
        ("Расскажи о зиме", "冬天很冷很冷", True),
        ("Hello", "�� )) the the ((" * 3, True),
        ("Hello", "���� a b", True),
        ("Hello", "12345 !!", False),
        ("Name a Greek letter", "Alpha is written α.", False),
    ],
)
def test_wrong_script(prompt: str, answer: str, wrong: bool) -> None:
    assert wrong_script(prompt, answer) is wrong


def test_scripts_are_counted() -> None:
    assert scripts("abc 你好 привет かな") == {"LATIN": 3, "CJK": 4, "CYRILLIC": 6}


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        ("I'm sorry, but I cannot help with that.", True),
        ("As an AI language model, I …", True),
        ("Es tut mir leid, das geht nicht.", True),
        ("Sure! Here is the recipe.", False),
        ("<think>I can't provide that? I can.</think>Here it is.", False),
        ("", False),
    ],
)
def test_refusals(answer: str, refusal: bool) -> None:
    assert refuses(answer) is refusal


def reply(words: str = "fine", **more: object) -> Reply:
    return Reply("Say it.", words, **more)  # type: ignore[arg-type]


def test_only_an_excess_of_b_counts() -> None:
    broken, fine = reply("", finish="stop"), reply(finish="stop")
    worse = mark_excess(compare_replies([(fine, broken)] * 12 + [(fine, fine)] * 30), 0.02)
    better = mark_excess(compare_replies([(broken, fine)] * 12 + [(fine, fine)] * 30), 0.02)
    equal = mark_excess(compare_replies([(broken, broken)] * 42), 0.02)
    by_name = {result.name: result for result in worse}
    assert by_name["empty"].excess
    assert (by_name["empty"].a, by_name["empty"].b, by_name["empty"].n) == (0, 12, 42)
    assert not any(result.excess for result in (*better, *equal))


def test_signs_apply_only_where_they_can() -> None:
    pairs = [(reply(expects_json=True), reply('{"a": 1}', expects_json=True)), (reply(), reply())]
    results = {result.name: result for result in compare_replies(pairs)}
    assert results["invalid JSON"].n == 1
    assert (results["invalid JSON"].a, results["invalid JSON"].b) == (1, 0)
    assert "truncated" not in results
    assert "loop" not in results


def test_failed_requests_are_not_judged() -> None:
    results = compare_replies([(reply(error=True), reply("")), (reply(), reply())])
    assert {result.n for result in results} == {1}


def test_truncation_is_its_own_sign() -> None:
    cut, whole = reply(finish="length"), reply(finish="stop")
    results = {r.name: r for r in mark_excess(compare_replies([(whole, cut)] * 14), 0.02)}
    assert results["truncated"].excess
