"""Does this text answer that item? Pure functions from a check (a small mapping with `type`) and a text.

Owns the check types of generated items and of the user's own files: exact, contains, regex, number, json_schema,
json_equals, tool_call, constraints. Never runs code that an answer contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from vq_console.checks.tasks.model import Answer, Item, Outcome
from vq_console.checks.tasks.rules import follows
from vq_console.core.errors import CheckError

_THINK = re.compile(r"^.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[-−]?\$?\d{1,3}(?:[,  ]\d{3})+(?:\.\d+)?(?!\d)|[-−]?\$?\d+(?:\.\d+)?")
_MARKER = re.compile(r"(?:answer|antwort|réponse|respuesta|ответ|答案)\s*(?:is|:|：|=)?", re.IGNORECASE)
_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)

TYPES = ("exact", "contains", "regex", "number", "json_schema", "json_equals", "tool_call", "constraints")


def final_text(text: str) -> str:
    """The answer without the thinking before it."""
    return _THINK.sub("", text, count=1).strip()


def find_number(text: str) -> Decimal | None:
    """The number that a text gives as its answer: the first after the last answer marker, else the last one."""

    def value(found: str) -> Decimal | None:
        plain = re.sub(r"[,$\s ]", "", found).replace("−", "-")
        try:
            return Decimal(plain)
        except InvalidOperation:
            return None

    markers = list(_MARKER.finditer(text))
    if markers:
        after = _NUMBER.search(text, markers[-1].end())
        if after:
            return value(after[0])
    numbers = _NUMBER.findall(text)
    return value(numbers[-1]) if numbers else None


def _balanced(text: str) -> Iterator[str]:
    """The spans of `text` that look like whole JSON objects or arrays, from the left."""
    decoder = json.JSONDecoder()
    index = 0
    while index < len(text):
        if text[index] in "{[":
            try:
                _, end = decoder.raw_decode(text, index)
            except (json.JSONDecodeError, RecursionError):
                index += 1
                continue
            yield text[index:end]
            index = end
        else:
            index += 1


def find_json(text: str, *, strict: bool = False) -> Any:
    """The JSON value in an answer, or None. `strict` allows nothing around it but a code fence."""
    text = final_text(text)
    fenced = _FENCE.search(text)
    for candidate in ([fenced[1]] if fenced else []) + [text]:
        try:
            value = json.loads(candidate)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return value
    if strict:
        return None
    spans = list(_balanced(text))
    return json.loads(spans[0]) if spans else None


def _same(a: Any, b: Any) -> bool:
    """Equality that forgives 12 for 12.0 and spaces or case around words, and nothing else."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) < 1e-9
    if isinstance(a, str) and isinstance(b, str):
        return a.strip().casefold() == b.strip().casefold()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _tool_call(value: Any) -> tuple[str, Any] | None:
    """Name and arguments of a call in any of the usual spellings."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("tool_calls"), list):
        return _tool_call(value["tool_calls"])
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("tool"))
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return None
    return (name, arguments) if isinstance(name, str) else None


def passes(check: Mapping[str, Any], text: str) -> bool:
    """Whether `text` satisfies `check`. Raises CheckError for a check that cannot be understood."""
    kind = check.get("type")
    answer = final_text(text)
    try:
        if kind == "exact":
            want = check["value"]
            wanted = want if isinstance(want, list) else [want]
            plain = answer.strip().strip(".。!\"'").casefold()
            return any(plain == str(one).strip().casefold() for one in wanted)
        if kind == "contains":
            want = check["value"]
            wanted = want if isinstance(want, list) else [want]
            found = [str(one).casefold() in answer.casefold() for one in wanted]
            return any(found) if check.get("any") else all(found)
        if kind == "regex":
            return re.search(check["pattern"], answer, re.DOTALL if check.get("dotall") else 0) is not None
        if kind == "number":
            number = find_number(answer)
            tolerance = Decimal(str(check.get("tolerance", 0)))
            return number is not None and abs(number - Decimal(str(check["value"]))) <= tolerance
        if kind == "json_schema":
            return _valid(find_json(text), check["schema"])
        if kind == "json_equals":
            value = find_json(text)
            return _valid(value, check.get("schema", {})) and _same(value, check["value"])
        if kind == "tool_call":
            call = _tool_call(find_json(text))
            return call is not None and call[0] == check["name"] and _same(call[1], check["arguments"])
        if kind == "constraints":
            return all(follows(rule, answer) for rule in check["rules"])
    except (KeyError, TypeError, InvalidOperation, re.error) as error:
        raise CheckError(f"check {dict(check)!r}: {error}", "See the check types: " + ", ".join(TYPES)) from error
    raise CheckError(f"unknown check type {kind!r}", "Known types: " + ", ".join(TYPES))


def _valid(value: Any, schema: Mapping[str, Any]) -> bool:
    import jsonschema

    if value is None:
        return False
    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError:
        return False
    except jsonschema.SchemaError as error:
        raise CheckError(f"the JSON schema of a check is wrong: {error.message}") from error
    return True


def outcome(item: Item, answer: Answer) -> Outcome:
    """RIGHT, WRONG, TRUNCATED or ERROR; an answer cut off at the limit is never counted as wrong."""
    if answer.error is not None or not answer.texts:
        return Outcome.ERROR
    if passes(item.check, answer.text):
        return Outcome.RIGHT
    return Outcome.TRUNCATED if answer.finish == "length" else Outcome.WRONG
