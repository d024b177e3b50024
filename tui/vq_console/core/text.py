"""Plain text from outside made safe to show and to export: control sequences and secrets removed."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_INVISIBLE = "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""Characters that show nothing or turn the direction of text; joiners (U+200C, U+200D) are part of words and stay."""
_HIDDEN = re.compile(f"[{_INVISIBLE}]")
_ESCAPED = re.compile(f"[\x7f-\x9f{_INVISIBLE}]")
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")
_SECRET = re.compile(
    r"(?P<name>(?:api[-_]?key|hf[-_]?token|token|secret|password|authorization)['\"]?\s*[=: ]\s*['\"\[]*)"
    r"(?:Bearer\s+)?(?P<value>[^\s'\",\]}]{6,})",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{12,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+|Bearer\s+[\w.-]{12,})"
)
_SECRET_WORDS = ("key", "token", "secret", "password", "authorization")
_NAMED = re.compile(r"(?:key|token|secret|password|authorization)['\"]?\s*[=: ]")
_TOKEN_STARTS = ("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "AKIA", "eyJ", "Bearer")
_LOGIN = re.compile(r"(?<![A-Za-z0-9+.-])[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


def strip_control(text: str) -> str:
    """Remove terminal control sequences, other control characters (tab and newline stay), and characters that show
    nothing or turn the direction of text."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def escape_hidden(json_text: str) -> str:
    """JSON with the characters that `strip_control` removes written as escapes: the same value, safe on a terminal."""
    return _ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], json_text)


def has_hidden(text: str) -> bool:
    """Whether text holds characters that show nothing or turn its direction, so that it reads as something else."""
    return bool(_HIDDEN.search(text))


def holds_secret(text: str) -> bool:
    """Whether text holds what by its own shape is a key, a token or a login (`https://name:password@…`)."""
    return bool(_TOKEN.search(text) or _LOGIN.search(text))


def redact(text: str) -> str:
    """Replace what looks like a key, token or password by ***; meant for anything shown or exported.

    Looks first for the words without which there is none: most lines of a log have no such word.
    """
    small = text.lower()
    if any(word in small for word in _SECRET_WORDS) and _NAMED.search(small):
        text = _SECRET.sub(lambda found: found["name"] + "***", text)
    if any(word in text for word in _TOKEN_STARTS):
        text = _TOKEN.sub("***", text)
    return text


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


def counted(count: float, thing: str, form: str = "") -> str:
    """A number with its noun as a person says it: `1 stream`, `12,345 tokens`; `form` is the format of the number.

    The noun takes an `s` unless the number that is shown is 1; its last word is the one that changes.
    """
    shown = format(count, form)
    return f"{shown} {thing}" + ("" if shown == "1" else "s")
