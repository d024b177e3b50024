"""Generated items: the same from the same seed, answerable, and judged rightly."""

from __future__ import annotations

import random

import pytest

from vq_console.checks.tasks import context
from vq_console.checks.tasks.answer_key import last_question, right_answer, wrong_answer
from vq_console.checks.tasks.checkers import outcome, passes
from vq_console.checks.tasks.model import Answer, Item, Outcome, conversation, item_from_json
from vq_console.checks.tasks.registry import GENERATORS, best_level, generator, make_items, next_level
from vq_console.checks.tasks.rules import RULES, draw_rules
from vq_console.core.errors import UsageError

EVERY = [(name, level) for name, kind in GENERATORS.items() for level in range(1, kind.levels + 1)]


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_right_answers_pass_and_wrong_ones_fail(name: str, level: int) -> None:
    for item in make_items(name, seed=3, level=level, count=40):
        assert passes(item.check, right_answer(item)), (item, right_answer(item))
        assert not passes(item.check, wrong_answer(item)), (item, wrong_answer(item))
        assert item_from_json(item.to_json()) == item


@pytest.mark.parametrize("name", list(GENERATORS))
def test_items_depend_on_seed_and_part_only(name: str) -> None:
    assert make_items(name, seed=1, level=2, count=6) == make_items(name, seed=1, level=2, count=12)[:6]
    questions = {item.messages[0]["content"] for item in make_items(name, seed=1, level=2, count=30)}
    pilot = {item.messages[0]["content"] for item in make_items(name, seed=1, level=2, count=30, pilot=True)}
    other = {item.messages[0]["content"] for item in make_items(name, seed=2, level=2, count=30)}
    assert len(questions) > 20
    assert len(questions & pilot) < 10
    assert questions != other


def test_last_questions_are_unique_in_a_run() -> None:
    for name in GENERATORS:
        items = make_items(name, seed=5, level=2, count=40)
        assert len({last_question(item) for item in items}) >= 38, name


def test_fifteen_rules_and_no_impossible_mix() -> None:
    assert len(RULES) == 15
    seen: set[str] = set()
    for seed in range(300):
        rules = draw_rules(random.Random(seed), 5)
        seen |= {rule["rule"] for rule in rules}
        names = [rule["rule"] for rule in rules]
        assert len(set(names)) == len(names) >= 3
    assert seen == set(RULES)


def test_word_problem_values_stay_positive() -> None:
    for level in range(1, 6):
        for item in make_items("words", seed=9, level=level, count=200):
            assert int(item.check["value"]) > 0


@pytest.mark.parametrize("depth", context.DEPTHS)
def test_needle_lies_where_it_should(depth: float) -> None:
    item = context.needle(random.Random(1), 0, tokens=2000, depth=depth, characters_per_token=4.0)
    text = str(item.messages[0]["content"])
    place = text.index(str(item.check["value"])) / len(text)
    assert abs(place - depth) < 0.1
    assert 6500 < len(text) < 8800
    assert passes(item.check, f"It is {item.check['value']}.")


def test_needles_have_five_depths_twice() -> None:
    items = context.needles(1, 1000, characters_per_token=4.0)
    assert len(items) == 10
    assert len({item.id for item in items}) == 10
    assert {item.facts["depth"] for item in items} == set(context.DEPTHS)


def test_recall_goes_on_with_the_models_own_words() -> None:
    item = make_items("recall", seed=1, level=1, count=1)[0]
    messages = conversation(item, ["OK", "green"])
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[3]["content"] == "green"


def test_truncated_is_its_own_class() -> None:
    item = Item("i", "t", (), {"type": "number", "value": 7})
    assert outcome(item, Answer("i", ("thinking about 5",), finish="length")) is Outcome.TRUNCATED
    assert outcome(item, Answer("i", ("thinking about 5",), finish="stop")) is Outcome.WRONG
    assert outcome(item, Answer("i", ("Answer: 7, because",), finish="length")) is Outcome.RIGHT
    assert outcome(item, Answer("i", (), error="HTTP 500")) is Outcome.ERROR


def test_levels_are_searched_from_the_middle() -> None:
    assert next_level({}, 5) == 3
    assert next_level({3: 0.95}, 5) == 4
    assert next_level({3: 0.95, 4: 0.2}, 5) is None
    assert next_level({3: 0.2}, 5) == 2
    assert next_level({3: 0.7}, 5) is None
    assert next_level({2: 0.1, 1: 0.0}, 4) is None
    assert best_level({3: 0.95, 4: 0.6}) == 4
    assert best_level({2: 0.0, 1: 0.0}) == 1


def test_unknown_generator_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="tool") as caught:
        generator("tool")
    assert "'tools'" in caught.value.hint
