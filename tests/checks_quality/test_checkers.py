"""Does a text answer an item: each type of check, the ways models write, and the user's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vq_console.checks.tasks.checkers import final_text, find_json, find_number, passes
from vq_console.checks.tasks.rules import follows
from vq_console.checks.tasks.user_file import read_prompts
from vq_console.core.errors import CheckError, UsageError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"type": "tool_call", "name": "f", "arguments": {"x": 1, "y": "Oslo"}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So the answer is 1,234.", "1234"),
        ("3 + 4 = 7\nAnswer: 7", "7"),
        ("Answer: 7 because 3 of 9 are gone", "7"),
        ("First 5, then 12", "12"),
        ("It costs $12.50", "12.50"),
        ("minus: −4", "-4"),
        ("Antwort: 42 Äpfel", "42"),
        ("答案：88", "88"),
        ("none", None),
        ("", None),
        ("Answer: **56**", "56"),
        ("x = 1 000 000", "1000000"),
    ],
)
def test_find_number(text: str, number: str | None) -> None:
    found = find_number(text)
    assert (None if found is None else str(found)) == number


@pytest.mark.parametrize(
    ("text", "value", "strict"),
    [
        ('{"a": 1}', {"a": 1}, {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}, {"a": 1}),
        ('Here: {"a": 1} done', {"a": 1}, None),
        ("<think>{}</think>[1, 2]", [1, 2], [1, 2]),
        ("{broken", None, None),
        pytest.param("[" * 5000, None, None, id="deep"),
        ("12", None, None),
        ("", None, None),
    ],
)
def test_find_json(text: str, value: Any, strict: Any) -> None:
    assert find_json(text) == value
    assert find_json(text, strict=True) == strict


@pytest.mark.parametrize(
    ("check", "text", "right"),
    [
        ({"type": "exact", "value": "Paris"}, " paris. ", True),
        ({"type": "exact", "value": ["Paris", "Lyon"]}, "Lyon", True),
        ({"type": "exact", "value": "Paris"}, "It is Paris", False),
        ({"type": "contains", "value": ["a", "b"]}, "A and B", True),
        ({"type": "contains", "value": ["a", "z"]}, "A and B", False),
        ({"type": "contains", "value": ["a", "z"], "any": True}, "A and B", True),
        ({"type": "regex", "pattern": r"^\d{4}-\d\d$"}, "2027-03", True),
        ({"type": "regex", "pattern": r"a.b"}, "a\nb", False),
        ({"type": "regex", "pattern": r"a.b", "dotall": True}, "a\nb", True),
        ({"type": "number", "value": 3.14, "tolerance": 0.01}, "about 3.142", True),
        ({"type": "number", "value": 3}, "4", False),
        ({"type": "json_schema", "schema": SCHEMA}, '{"a": 1}', True),
        ({"type": "json_schema", "schema": SCHEMA}, '{"a": "1"}', False),
        ({"type": "json_equals", "value": {"a": 1, "b": "X"}}, '{"b": "x ", "a": 1.0}', True),
        ({"type": "json_equals", "value": {"a": 1}}, '{"a": 1, "b": 2}', False),
        ({"type": "json_equals", "value": {"a": True}}, '{"a": 1}', False),
        (CALL, '{"name": "f", "arguments": {"x": 1, "y": "oslo"}}', True),
        (CALL, '[{"name": "f", "parameters": {"x": 1, "y": "Oslo"}}]', True),
        (CALL, '{"function": {"name": "f", "arguments": "{\\"x\\": 1, \\"y\\": \\"Oslo\\"}"}}', True),
        (CALL, '{"name": "g", "arguments": {"x": 1, "y": "Oslo"}}', False),
        (CALL, "f(1, 'Oslo')", False),
        ({"type": "constraints", "rules": [{"rule": "lowercase"}, {"rule": "no_comma"}]}, "all small", True),
        ({"type": "constraints", "rules": [{"rule": "lowercase"}, {"rule": "no_comma"}]}, "all, small", False),
    ],
)
def test_passes(check: dict[str, Any], text: str, right: bool) -> None:
    assert passes(check, text) is right


@pytest.mark.parametrize(
    "check",
    [{"type": "magic"}, {}, {"type": "exact"}, {"type": "regex", "pattern": "("}, {"type": "number", "value": "x"}],
)
def test_unknown_checks_are_said(check: dict[str, Any]) -> None:
    with pytest.raises(CheckError):
        passes(check, "1")


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ({"rule": "max_words", "n": 3}, "one two three", "one two three four"),
        ({"rule": "min_words", "n": 3}, "one two three", "one two"),
        ({"rule": "sentences", "n": 2}, "Here. There!", "Here."),
        ({"rule": "bullets", "n": 2}, "- a\n- b", "- a"),
        ({"rule": "paragraphs", "n": 2}, "a\n\nb", "a\nb"),
        ({"rule": "no_comma"}, "a b", "a, b"),
        ({"rule": "lowercase"}, "abc", "Abc"),
        ({"rule": "uppercase"}, "ABC 1", "ABc"),
        ({"rule": "keyword", "word": "river", "n": 2}, "River and river", "river"),
        ({"rule": "forbidden", "word": "the"}, "a then", "The end"),
        ({"rule": "starts", "text": "In short"}, "In short yes", "Well, in short"),
        ({"rule": "ends", "text": "See you soon."}, "Bye. See you soon.", "See you soon. Bye."),
        ({"rule": "title"}, "<<A>>\ntext", "<A> text"),
        ({"rule": "quoted"}, '"words"', '"words'),
        ({"rule": "no_letter", "letter": "z"}, "abc", "a Zoo"),
    ],
)
def test_rules(rule: dict[str, Any], good: str, bad: str) -> None:
    assert follows(rule, good)
    assert not follows(rule, bad)
    assert not follows(rule, "") or rule["rule"] in {"paragraphs"}


def test_thinking_is_not_the_answer() -> None:
    assert final_text("<think>maybe 5</think>\n7") == "7"


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_own_prompts(tmp_path: Path) -> None:
    file = write(
        tmp_path / "my.jsonl",
        {"id": "a", "prompt": "Hi", "check": {"type": "contains", "value": "hello"}, "max_tokens": 20},
        "",
        {
            "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Why?"}],
            "tools": [{"name": "f"}],
        },
        {"question": "2+40?", "answer": "It is\n#### 42"},
    )
    items = read_prompts(file)
    assert [item.id for item in items] == ["a", "line-3", "gsm8k-4"]
    assert items[0].max_tokens == 20
    assert items[1].check == {}
    assert items[1].tools == ({"name": "f"},)
    assert passes(items[2].check, "Answer: 42")


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("{nope", "not JSON"),
        ("[1]", "object"),
        ({"id": 1}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "nothing to answer"),
        ({"prompt": "x", "check": {"type": "magic"}}, "unknown check"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
    ],
)
def test_bad_lines_name_file_and_line(tmp_path: Path, row: Any, word: str) -> None:
    file = write(tmp_path / "my.jsonl", {"prompt": "fine"}, row)
    with pytest.raises(UsageError, match=word) as caught:
        read_prompts(file)
    assert f"{file}:2" in caught.value.message


def test_twice_the_same_id_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        read_prompts(write(tmp_path / "a", {"id": "x", "prompt": "1"}, {"id": "x", "prompt": "2"}))
    with pytest.raises(UsageError, match="no prompts"):
        read_prompts(write(tmp_path / "b", ""))
    with pytest.raises(UsageError, match="No such file"):
        read_prompts(tmp_path / "none")
