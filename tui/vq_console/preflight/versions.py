"""vLLM versions as comparable values, and ranges of them.

Owns parsing and comparing; must never guess a version that is unknown: an unknown version is in no range.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

Version: TypeAlias = tuple[int, int, int]

READ: tuple[Version, ...] = (
    (0, 20, 2),
    (0, 24, 0),
    (0, 27, 1),
    (0, 29, 0),
    (0, 30, 0),
    (0, 31, 0),
    (0, 32, 0),
    (0, 33, 0),
)
"""The releases whose source was read; what lies between two of them is known where both agree."""

_NUMBER = re.compile(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?(.*)", re.DOTALL)


def parse_version(text: object) -> Version | None:
    """`0.11.2.dev575+g1` as (0, 11, 2); None for what is no version.

    A pre-release of X counts as X: development builds carry the next number before it is published.
    """
    found = _NUMBER.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    return int(found[1]), int(found[2]), int(found[3] or 0)


def number_tuple(text: object) -> tuple[int, ...] | None:
    """The leading numbers of any dotted version (`535.161.08` is (535, 161, 8)); None where there are none."""
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", str(text)) if text is not None else None
    return tuple(int(part) for part in found[1].split(".")) if found else None


def version_text(version: Version | None) -> str:
    """`0.32.0`, or `unknown`."""
    return ".".join(str(part) for part in version) if version else "unknown"


def vllm_text(version: Version | None) -> str:
    """`vLLM 0.32.0`, or `vLLM` alone where the version is not known."""
    return f"vLLM {version_text(version)}" if version else "vLLM"


@dataclass(frozen=True, slots=True)
class Span:
    """A range of versions: from `since` (included) to `before` (not included); None leaves that end open."""

    since: Version | None = None
    before: Version | None = None

    def holds(self, version: Version | None) -> bool:
        """Whether `version` is known and inside. An open span holds every version, even an unknown one."""
        if self.since is None and self.before is None:
            return True
        if version is None:
            return False
        return (self.since is None or version >= self.since) and (self.before is None or version < self.before)

    def __str__(self) -> str:
        if self.since is None and self.before is None:
            return "any"
        if self.since is None:
            return f"<{version_text(self.before)}"
        if self.before is None:
            return f">={version_text(self.since)}"
        return f">={version_text(self.since)},<{version_text(self.before)}"


ALWAYS = Span()


def span(text: str = "") -> Span:
    """A span from its text: ``, `>=0.24`, `<0.21`, `>=0.24,<0.27`. Raises ValueError for anything else."""
    since = before = None
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        version = parse_version(part.lstrip("<>="))
        if version is None or part[0] not in "<>":
            raise ValueError(f"not a span of versions: {text!r}")
        if part.startswith(">="):
            since = version
        elif part.startswith("<") and not part.startswith("<="):
            before = version
        else:
            raise ValueError(f"only >= and < are used in spans: {text!r}")
    return Span(since, before)


def neighbours(version: Version) -> tuple[Version, ...]:
    """The releases that were read and that decide what is known of `version`: itself, or the two around it.

    Empty below the oldest one; the newest alone above it.
    """
    if version in READ:
        return (version,)
    below = [known for known in READ if known < version]
    above = [known for known in READ if known > version]
    if not below:
        return ()
    return (below[-1], above[0]) if above else (below[-1],)
