"""Instruction constraints that a program can verify: what they ask, and whether a text follows them.

A rule is a small mapping {rule, …}. Owns the fifteen rules, their wording and which of them exclude each other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vq_console.core.errors import CheckError


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text)


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def _bullets(text: str) -> int:
    return sum(1 for line in text.splitlines() if re.match(r"\s*[-*•]\s+\S", line))


def _paragraphs(text: str) -> int:
    return len([part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()])


def _places(names: str) -> frozenset[str]:
    return frozenset(names.split())


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of constraint: how it is drawn, said and verified. Two rules that share a place exclude each other."""

    draw: Callable[[random.Random], dict[str, Any]]
    say: Callable[[Mapping[str, Any]], str]
    holds: Callable[[Mapping[str, Any], str], bool]
    places: frozenset[str]


_KEYWORDS = ("river", "lantern", "winter", "copper", "market", "violin", "harbour", "bread", "mountain", "engine")
_ENDINGS = ("More tomorrow.", "Goodbye for now.", "See you soon.")
_STARTS = ("At first", "In short", "To begin with", "Today")
_LETTERS = "jkqvxz"

RULES: Mapping[str, Rule] = {
    "max_words": Rule(
        lambda r: {"n": r.choice([20, 30, 40, 60])},
        lambda v: f"Use at most {v['n']} words.",
        lambda v, t: 0 < len(_words(t)) <= v["n"],
        _places("length"),
    ),
    "min_words": Rule(
        lambda r: {"n": r.choice([20, 30, 40])},
        lambda v: f"Use at least {v['n']} words.",
        lambda v, t: len(_words(t)) >= v["n"],
        _places("length"),
    ),
    "sentences": Rule(
        lambda r: {"n": r.choice([1, 2, 3, 4])},
        lambda v: f"Write exactly {v['n']} sentence{'s' if v['n'] > 1 else ''}.",
        lambda v, t: len(_sentences(t)) == v["n"],
        _places("shape"),
    ),
    "bullets": Rule(
        lambda r: {"n": r.choice([2, 3, 4, 5])},
        lambda v: f"Answer as a list of exactly {v['n']} bullet points, each line starting with '- '.",
        lambda v, t: _bullets(t) == v["n"],
        _places("shape"),
    ),
    "paragraphs": Rule(
        lambda r: {"n": r.choice([2, 3])},
        lambda v: f"Write exactly {v['n']} paragraphs separated by an empty line.",
        lambda v, t: _paragraphs(t) == v["n"],
        _places("shape"),
    ),
    "no_comma": Rule(
        lambda r: {}, lambda v: "Do not use any commas.", lambda v, t: bool(t) and "," not in t, _places("comma")
    ),
    "lowercase": Rule(
        lambda r: {},
        lambda v: "Write everything in lower case, without any capital letter.",
        lambda v, t: bool(_words(t)) and t == t.lower(),
        _places("case"),
    ),
    "uppercase": Rule(
        lambda r: {},
        lambda v: "Write everything in CAPITAL LETTERS.",
        lambda v, t: bool(_words(t)) and t == t.upper(),
        _places("case"),
    ),
    "keyword": Rule(
        lambda r: {"word": r.choice(_KEYWORDS), "n": r.choice([1, 2])},
        lambda v: f"Use the word '{v['word']}' at least {'once' if v['n'] == 1 else 'twice'}.",
        lambda v, t: [w.lower() for w in _words(t)].count(v["word"]) >= v["n"],
        _places("keyword"),
    ),
    "forbidden": Rule(
        lambda r: {"word": r.choice(["the", "and", "is", "very", "of"])},
        lambda v: f"Do not use the word '{v['word']}'.",
        lambda v, t: bool(_words(t)) and v["word"] not in [w.lower() for w in _words(t)],
        _places("forbidden"),
    ),
    "starts": Rule(
        lambda r: {"text": r.choice(_STARTS)},
        lambda v: f'Start your answer with the exact words "{v["text"]}"',
        lambda v, t: t.lstrip().startswith(v["text"]),
        _places("case open"),
    ),
    "ends": Rule(
        lambda r: {"text": r.choice(_ENDINGS)},
        lambda v: f'End your answer with the exact sentence "{v["text"]}"',
        lambda v, t: t.rstrip().endswith(v["text"]),
        _places("case shape close"),
    ),
    "title": Rule(
        lambda r: {},
        lambda v: "Put a title in double angle brackets, like <<title>>, before the text.",
        lambda v, t: re.match(r"\s*<<[^<>\n]+>>", t) is not None,
        _places("open shape"),
    ),
    "quoted": Rule(
        lambda r: {},
        lambda v: "Wrap your whole answer in double quotation marks.",
        lambda v, t: len(t.strip()) > 2 and t.strip()[0] in '"“' and t.strip()[-1] in '"”',
        _places("open close shape"),
    ),
    "no_letter": Rule(
        lambda r: {"letter": r.choice(_LETTERS)},
        lambda v: f"Do not use the letter '{v['letter']}' anywhere.",
        lambda v, t: bool(_words(t)) and v["letter"] not in t.lower(),
        _places("letter"),
    ),
}


def follows(rule: Mapping[str, Any], text: str) -> bool:
    """Whether `text` follows one rule. Raises CheckError for an unknown rule."""
    known = RULES.get(str(rule.get("rule")))
    if known is None:
        raise CheckError(f"unknown rule {rule.get('rule')!r}", "Known rules: " + ", ".join(RULES))
    return known.holds(rule, text)


def draw_rules(random_: random.Random, count: int) -> list[dict[str, Any]]:
    """`count` rules that can all be followed at once (fewer when no more fit together)."""
    names = list(RULES)
    random_.shuffle(names)
    chosen: list[dict[str, Any]] = []
    taken: set[str] = set()
    for name in names:
        if len(chosen) == count:
            break
        if RULES[name].places & taken:
            continue
        values = RULES[name].draw(random_)
        words = [str(rule["word"]) for rule in chosen if rule["rule"] == "keyword"]
        letters = [str(rule["letter"]) for rule in chosen if rule["rule"] == "no_letter"]
        words += [values["word"]] if name == "keyword" else []
        letters += [values["letter"]] if name == "no_letter" else []
        if any(letter in word for letter in letters for word in words):
            continue
        taken |= RULES[name].places
        chosen.append({"rule": name, **values})
    return chosen


def say_rule(rule: Mapping[str, Any]) -> str:
    """The rule as an instruction to the model."""
    return RULES[rule["rule"]].say(rule)
