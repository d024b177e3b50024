"""The user's own prompts: JSON lines, one prompt each, with or without a check.

`{"id": …, "messages": […] | "prompt": "…", "check": {"type": …}, "max_tokens": …, "tools": […]}`. Lines of the GSM8K
form `{"question": …, "answer": "… #### 42"}` are understood too. Everything in the file is data: nothing of it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vq_console.checks.tasks.arithmetic import ASK
from vq_console.checks.tasks.checkers import TYPES, passes
from vq_console.checks.tasks.model import Item, user
from vq_console.core.errors import UsageError

_ROLES = ("system", "user", "assistant", "tool", "developer")
_GSM8K = re.compile(r"####\s*([-−]?[\d,]+(?:\.\d+)?)\s*$")


def _line_error(path: Path, number: int, message: str, hint: str = "") -> UsageError:
    return UsageError(f"{path}:{number}: {message}", hint or 'A line is {"id": …, "prompt" or "messages": …}.')


def _messages(value: Mapping[str, Any], path: Path, number: int) -> tuple[Mapping[str, Any], ...]:
    if isinstance(value.get("prompt"), str):
        return (user(value["prompt"]),)
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _line_error(path, number, "neither 'prompt' (text) nor 'messages' (a list) is there")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise _line_error(path, number, "a message needs 'role' (" + ", ".join(_ROLES) + ") and 'content'")
    if messages[-1]["role"] == "assistant":
        raise _line_error(path, number, "the last message is the assistant's: there is nothing to answer")
    return tuple(messages)


def read_prompts(path: Path) -> list[Item]:
    """The items of a file in order; those without a check have an empty one and are compared without labels.

    Raises UsageError naming file and line for what cannot be read, for an unknown check and for an id used twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text (byte {error.start})", "Give a JSON-lines file.") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "Give a JSON-lines file.") from error
    items: list[Item] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise _line_error(path, number, f"not JSON ({error})") from error
        if not isinstance(value, dict):
            raise _line_error(path, number, "a JSON object was expected")
        item = _gsm8k(value, number) or _own(value, path, number)
        if item.id in seen:
            raise _line_error(path, number, f"the id {item.id!r} is used twice")
        seen.add(item.id)
        items.append(item)
    if not items:
        raise UsageError(f"{path}: no prompts in it", 'A line is {"id": …, "prompt" or "messages": …}.')
    return items


def _own(value: Mapping[str, Any], path: Path, number: int) -> Item:
    check = value.get("check") or {}
    if check:
        if not isinstance(check, dict) or check.get("type") not in TYPES:
            raise _line_error(path, number, f"unknown check {check!r}", "Check types: " + ", ".join(TYPES))
        passes(check, "")
    limit = value.get("max_tokens", 256)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise _line_error(path, number, f"max_tokens must be a positive integer, not {limit!r}")
    return Item(
        id=str(value.get("id", f"line-{number}")),
        task=str(value.get("task", "own prompts")),
        messages=_messages(value, path, number),
        check=check,
        max_tokens=limit,
        tools=tuple(value.get("tools") or ()),
        expects_json=check.get("type", "") in {"json_schema", "json_equals", "tool_call"},
    )


def _gsm8k(value: Mapping[str, Any], number: int) -> Item | None:
    if not (isinstance(value.get("question"), str) and isinstance(value.get("answer"), str)):
        return None
    found = _GSM8K.search(value["answer"])
    if not found:
        return None
    return Item(
        id=str(value.get("id", f"gsm8k-{number}")),
        task="GSM8K",
        messages=(user(f"{value['question']} {ASK}"),),
        check={"type": "number", "value": found[1].replace(",", "").replace("−", "-")},
        max_tokens=320,
    )
