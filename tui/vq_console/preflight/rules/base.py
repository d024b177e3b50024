"""What a rule is, and the registry that the modules of this package fill.

Owns no knowledge of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vq_console.preflight.method import Resolution
from vq_console.preflight.model import Finding, Fit, LayerExpectation, Patch, Severity
from vq_console.preflight.shapes import Anatomy, anatomy
from vq_console.preflight.situation import Situation
from vq_console.preflight.versions import Span, span


@dataclass(frozen=True)
class Context:
    """What rules look at: the situation (`s`) and what was worked out from it."""

    s: Situation
    resolution: Resolution
    layers: Sequence[LayerExpectation]
    fit: Fit

    @property
    def shape(self) -> Anatomy | None:
        return anatomy(self.s.facts)

    def rows(self, *kinds: str) -> list[LayerExpectation]:
        """The expected layers of these kinds."""
        return [row for row in self.layers if row.kind in kinds]

    def families(self) -> frozenset[str]:
        """The scheme families of linear layers and experts, as far as they are known."""
        return frozenset(scheme.family for scheme in self.resolution.schemes)


@dataclass(frozen=True, slots=True)
class Hit:
    """One time that a rule fires; what is None is taken from the rule."""

    message: str
    evidence: str = ""
    fix: str | None = None
    patch: Patch | None = None
    severity: Severity | None = None


Check: TypeAlias = Callable[[Context], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `versions` is where it holds: a rule for one range is silent in every other, and where the version is
    unknown. `source` says how we know: a file of vLLM, a public issue, a measurement."""

    slug: str
    severity: Severity
    check: Check
    versions: Span
    source: str
    fix: str
    name: str

    def findings(self, context: Context) -> Iterator[Finding]:
        """The findings of this rule in one context."""
        if not self.versions.holds(context.s.version):
            return
        for hit in self.check(context):
            yield Finding(
                rule=self.slug,
                severity=hit.severity or self.severity,
                message=hit.message,
                fix=self.fix if hit.fix is None else hit.fix,
                evidence=hit.evidence,
                source=self.source,
                patch=hit.patch,
            )


RULES: list[Rule] = []


def rule(slug: str, severity: Severity, *, versions: str = "", source: str, fix: str = "") -> Callable[[Check], Check]:
    """Declare a rule whose check is the decorated function."""

    def register(check: Check) -> Check:
        name = getattr(check, "__name__", slug)
        RULES.append(Rule(slug, severity, check, span(versions), source, fix, name))
        return check

    return register


def drop(*names: str) -> Patch:
    """A patch that removes arguments."""
    return Patch(remove_args=names)


def put(**values: object) -> Patch:
    """A patch that sets arguments."""
    return Patch(set_args=values)
