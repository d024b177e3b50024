"""Signs of a broken model in its answers, counted on both arms over the same prompts.

Pure. Each sign is a fault seen or not in one answer; the pair is compared, so that a baseline which loops itself does
not blame the other. Refusals are compared for change only: this is no evaluation of safety.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.statistics import holm, mcnemar_harm_p
from vq_console.checks.tasks.checkers import final_text, find_json

LOOP_PERIODS = 64
LOOP_MINIMUM = 64


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last max(64, 4·P) tokens repeat with a period P of at most 64 tokens."""
    n = len(tokens)
    for period in range(1, LOOP_PERIODS + 1):
        span = max(LOOP_MINIMUM, 4 * period)
        if span > n:
            return False
        tail = tokens[n - span :]
        if all(tail[i] == tail[i - period] for i in range(period, span)):
            return True
    return False


_SCRIPTS = ("LATIN", "CYRILLIC", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "ARABIC", "HEBREW", "DEVANAGARI", "THAI",
            "GREEK", "BENGALI", "TAMIL", "GEORGIAN", "ARMENIAN")  # fmt: skip


def scripts(text: str) -> dict[str, int]:
    """Letters of each writing system; Japanese kana count with Chinese characters."""
    counts: dict[str, int] = {}
    for character in text:
        if not character.isalpha():
            continue
        name = unicodedata.name(character, "")
        script = next((known for known in _SCRIPTS if name.startswith(known)), "OTHER")
        if script in {"HIRAGANA", "KATAKANA"}:
            script = "CJK"
        counts[script] = counts.get(script, 0) + 1
    return counts


def wrong_script(prompt: str, answer: str) -> bool:
    """Whether a fifth of the answer's letters are of a writing system that the prompt does not use, or unreadable.

    Latin letters are at home anywhere: names, code and numbers bring them into any language.
    """
    broken = answer.count("�")
    found = scripts(answer)
    total = sum(found.values()) + broken
    if total == 0:
        return False
    home = {script for script, count in scripts(prompt).items() if count >= 2} | {"LATIN"}
    strange = broken + sum(count for script, count in found.items() if script not in home)
    return strange >= 3 and strange / total >= 0.2


_REFUSALS = re.compile(
    r"\b(I(?:'m| am) (?:sorry|unable|not able)|I (?:can(?:'|no)t|won't|will not) (?:help|assist|provide|comply|answer)|"
    r"as an AI|against my (?:guidelines|programming)|es tut mir leid|ich kann (?:dir|ihnen)? ?(?:dabei )?nicht|"
    r"je suis désolé|je ne peux pas|lo siento|no puedo ayudar)|我无法|抱歉|не могу помочь|申し訳",
    re.IGNORECASE,
)


def refuses(text: str) -> bool:
    """Whether the answer begins like a refusal."""
    return _REFUSALS.search(final_text(text)[:200]) is not None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer with what is needed to judge it."""

    prompt: str
    text: str
    tokens: tuple[int, ...] = ()
    looped: bool | None = None
    """Decided when the tokens were there; None says to look at `tokens`."""
    finish: str | None = None
    expects_json: bool = False
    error: bool = False


@dataclass(frozen=True, slots=True)
class HealthResult:
    """One sign over `n` pairs: how many answers of A and of B show it."""

    name: str
    n: int
    a: int
    b: int
    only_a: int
    only_b: int
    p: float
    """One-sided mid-p that B shows it more often."""
    excess: bool = False
    """Significant over all signs (Holm)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "n": self.n,
            "a": self.a,
            "b": self.b,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "p": self.p,
            "excess": self.excess,
        }


def _loop(reply: Reply) -> bool:
    return loops(reply.tokens) if reply.looped is None else reply.looped


SIGNS: Mapping[str, tuple[Callable[[Reply], bool], Callable[[Reply], bool]]] = {
    "loop": (lambda r: r.looped is not None or len(r.tokens) >= LOOP_MINIMUM, _loop),
    "wrong script": (lambda r: True, lambda r: wrong_script(r.prompt, r.text)),
    "empty": (lambda r: True, lambda r: not final_text(r.text)),
    "invalid JSON": (lambda r: r.expects_json, lambda r: find_json(r.text, strict=True) is None),
    "refusal": (lambda r: True, lambda r: refuses(r.text)),
    "truncated": (lambda r: r.finish is not None, lambda r: r.finish == "length"),
}
"""Name → (does it apply to this answer, does the answer show it). Truncation applies where the limit is the item's."""


def compare_replies(pairs: Sequence[tuple[Reply, Reply]], signs: Sequence[str] = tuple(SIGNS)) -> list[HealthResult]:
    """Each sign over the pairs; a sign that applies to no pair is left out. Loops need one side long enough."""
    results: list[HealthResult] = []
    good = [(a, b) for a, b in pairs if not (a.error or b.error)]
    for name in signs:
        applies, shows = SIGNS[name]
        judged = [(shows(a), shows(b)) for a, b in good if applies(a) or applies(b)]
        if judged:
            results.append(count_sign(name, judged))
    return results


def count_sign(name: str, judged: Sequence[tuple[bool, bool]]) -> HealthResult:
    """One sign from (A shows it, B shows it) pairs."""
    only_a = sum(a and not b for a, b in judged)
    only_b = sum(b and not a for a, b in judged)
    return HealthResult(
        name, len(judged), sum(a for a, _ in judged), sum(b for _, b in judged), only_a, only_b,
        mcnemar_harm_p(only_b, only_a),
    )  # fmt: skip


def mark_excess(results: Sequence[HealthResult], alpha: float) -> list[HealthResult]:
    """The results with `excess` set where B is worse beyond chance, all signs taken together (Holm)."""
    adjusted = holm([result.p for result in results])
    return [
        HealthResult(r.name, r.n, r.a, r.b, r.only_a, r.only_b, r.p, p <= alpha and r.only_b > r.only_a)
        for r, p in zip(results, adjusted, strict=True)
    ]
