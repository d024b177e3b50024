"""What a rule is: a piece of text that names a cause, where it may stand, and how to answer it.

Rules are small declared objects; they see one line and its context and never read files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from vq_console.logs.blocks import Spot
from vq_console.logs.model import Fix, LogLine
from vq_console.preflight.model import Patch

Scope: TypeAlias = Literal["trouble", "warning", "info"]
"""trouble: ERROR and CRITICAL records, exceptions and bare lines; warning: WARNING records; info: INFO records."""


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the run beside one line."""

    facts: Mapping[str, Any]
    lines: tuple[LogLine, ...] = ()
    fact_lines: Mapping[str, int] = field(default_factory=dict)
    ready_line: int | None = None

    @property
    def requested(self) -> Mapping[str, Any]:
        value = self.facts.get("requested")
        return value if isinstance(value, Mapping) else {}

    def asked(self, *names: str) -> Any:
        """The first of these settings that was asked for, None when none was (or the log does not say)."""
        for name in names:
            value = self.requested.get(name)
            if value not in (None, "", "auto"):
                return value
        return None

    @property
    def version(self) -> tuple[int, ...] | None:
        """vLLM's version as numbers, `0.11.2.dev575` → (0, 11, 2)."""
        found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", str(self.facts.get("vllm_version") or ""))
        return tuple(int(part or 0) for part in found.groups()) if found else None

    def older_than(self, *version: int) -> bool:
        """Whether the log names a version below this one; False when it names none."""
        known = self.version
        return known is not None and known < version


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that matched: its line, the match and the run around it."""

    rule: Rule
    match: re.Match[str]
    spot: Spot
    context: Context

    @property
    def line(self) -> LogLine:
        return self.spot.line

    @property
    def frames(self) -> str:
        """The frames of the traceback that this line ends, as text; empty without one."""
        return self.spot.trace.text() if self.spot.trace is not None else ""

    def group(self, name: str) -> str | None:
        return self.match.groupdict().get(name)

    def number(self, name: str) -> float | None:
        text = self.group(name)
        try:
            return float(text.replace(",", "")) if text else None
        except ValueError:
            return None

    @property
    def before_ready(self) -> bool:
        ready = self.context.ready_line
        return ready is None or self.line.number < ready


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause: `needle` is text that must stand in the line (cheap), `pattern` refines it and takes values out.

    Of several causes in one log the highest `rank` wins, of equal ones the first line. `serving`: it is an error of
    requests that a running server survives. `soft`: a warning that complete, healthy logs carry too.
    """

    slug: str
    needle: str
    pattern: re.Pattern[str]
    rank: int = 50
    scope: Scope = "trouble"
    when: Callable[[Hit], bool] | None = None
    fixes: Callable[[Hit], tuple[Fix, ...]] | None = None
    explain: Callable[[Hit], str] | None = None
    serving: bool = False
    soft: bool = False


def rule(
    slug: str,
    needle: str,
    rank: int = 50,
    *,
    pattern: str | None = None,
    scope: Scope = "trouble",
    when: Callable[[Hit], bool] | None = None,
    fixes: Callable[[Hit], tuple[Fix, ...]] | None = None,
    explain: Callable[[Hit], str] | None = None,
    serving: bool = False,
    soft: bool = False,
) -> Rule:
    """A rule whose pattern is the needle itself unless given."""
    compiled = re.compile(pattern if pattern is not None else re.escape(needle))
    return Rule(slug, needle, compiled, rank, scope, when, fixes, explain, serving, soft)


def set_args(text: str, **values: Any) -> Fix:
    """A fix that sets arguments of the profile."""
    return Fix(text, Patch(set_args=values))


def remove_args(text: str, *names: str) -> Fix:
    """A fix that removes arguments of the profile."""
    return Fix(text, Patch(remove_args=names))


def set_env(text: str, **values: str) -> Fix:
    """A fix that sets environment variables of the profile."""
    return Fix(text, Patch(set_env=values))


def say(text: str) -> Fix:
    """A step that the profile cannot hold."""
    return Fix(text)
