"""Plain text from outside made safe to show and to export: control sequences and secrets removed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SECRET = re.compile(
    r"(?P<name>(?:api[-_]?key|hf[-_]?token|token|secret|password|authorization)['\"]?\s*[=: ]\s*['\"\[]*)"
    r"(?:Bearer\s+)?(?P<value>[^\s'\",\]}]{6,})",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|Bearer\s+[A-Za-z0-9._-]{12,})"
)


def strip_control(text: str) -> str:
    """Remove terminal control sequences, other control characters (tab and newline stay) and bidi overrides."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def redact(text: str) -> str:
    """Replace what looks like a key, token or password by ***; meant for anything shown or exported."""
    return _TOKEN.sub("***", _SECRET.sub(lambda found: found["name"] + "***", text))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely was meant to be, or None."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def seconds_text(seconds: float | None) -> str:
    """A duration as a person says it: `34 s`, `1m38`, `1h04`; a dash where unknown."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}"
    return f"{minutes // 60}h{minutes % 60:02d}"
