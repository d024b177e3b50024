"""A right and a wrong answer to every generated item: what a stand-in server answers from, and what tests check with.

Owns model answers only. Nothing of it is ever shown to a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vq_console.checks.tasks.checkers import passes
from vq_console.checks.tasks.model import Item
from vq_console.core.files import write_atomic

_WORDS = (
    "people",
    "walk",
    "home",
    "slowly",
    "under",
    "grey",
    "clouds",
    "they",
    "hold",
    "warm",
    "hands",
    "near",
    "doors",
)
"""Without the letters and words that rules forbid."""
_BROKEN = (
    "Well, it is hard to say: the Quick fox, Jack and a Zebra live very far away. Kim asks why. Vex.",
    "- Yes, and the\n- No, of it",
    "word " * 70,
)
"""Each breaks some rules; together they break every mix."""


def right_answer(item: Item) -> str:
    """An answer that passes the item's check. Raises ValueError for a check without one (a schema alone, a pattern)."""
    check = item.check
    kind = check.get("type")
    if kind in {"exact", "contains"}:
        value = check["value"]
        return str(value[0] if isinstance(value, list) else value)
    if kind == "number":
        return f"Answer: {check['value']}"
    if kind == "json_equals":
        return json.dumps(check["value"])
    if kind == "tool_call":
        return json.dumps({"name": check["name"], "arguments": check["arguments"]})
    if kind == "constraints":
        return following_text(check["rules"])
    if kind == "regex":
        plain = str(check["pattern"]).removeprefix(r"(?<!\d)").removesuffix(r"(?!\d)")
        if plain.replace("-", "").isalnum():
            return plain
    raise ValueError(f"no model answer for a check of type {kind!r}")


def wrong_answer(item: Item) -> str:
    """A plausible answer that fails; JSON stays valid, so that only the content is wrong."""
    kind = item.check.get("type")
    if kind == "number":
        return f"Answer: {int(item.check['value']) + 7}"
    if kind == "tool_call":
        return json.dumps({"name": "nothing", "arguments": {}})
    if kind == "json_equals":
        return json.dumps({"customer": "nobody"})
    if kind == "constraints":
        return next(text for text in _BROKEN if not passes(item.check, text))
    return "I do not know."


def following_text(rules: Sequence[Mapping[str, Any]]) -> str:
    """A text that follows all of these rules at once."""
    by_name = {rule["rule"]: rule for rule in rules}
    wanted = [str(by_name["keyword"]["word"])] * int(by_name["keyword"]["n"]) if "keyword" in by_name else []
    count = 16 if "max_words" in by_name else 48
    letter = by_name.get("no_letter", {}).get("letter", "")
    words = wanted + [word for word in _WORDS * 8 if not letter or letter not in word]
    words = words[: max(count, len(wanted))]
    shape = next((name for name in ("bullets", "sentences", "paragraphs") if name in by_name), None)
    n = int(by_name[shape]["n"]) if shape else 1
    size = max(1, len(words) // n)
    rows = [" ".join(words[i * size : (i + 1) * size if i < n - 1 else None]) for i in range(n)]
    if shape == "bullets":
        text = "\n".join(f"- {row}" for row in rows)
    else:
        text = ("\n\n" if shape == "paragraphs" else " ").join(f"{row.capitalize()}." for row in rows)
    if "starts" in by_name:
        start = str(by_name["starts"]["text"])
        text = f"{start}\n{text}" if shape == "bullets" else f"{start} {text[0].lower()}{text[1:]}"
    if "ends" in by_name:
        text = f"{text} {by_name['ends']['text']}"
    if "title" in by_name:
        text = f"<<{words[0]}>>\n{text}"
    if "quoted" in by_name:
        text = f'"{text}"'
    if "lowercase" in by_name:
        text = text.lower()
    if "uppercase" in by_name:
        text = text.upper()
    return text


def last_question(item: Item) -> str:
    """The user turn that the counted answer follows."""
    return item.follow_ups[-1] if item.follow_ups else str(item.messages[-1].get("content") or "")


def write_key(items: Iterable[Item], path: Path) -> int:
    """Write the answers as JSON lines `{match, answer, wrong}` for a stand-in server; returns how many."""
    rows = [{"match": last_question(item), "answer": right_answer(item), "wrong": wrong_answer(item)} for item in items]
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(rows)
