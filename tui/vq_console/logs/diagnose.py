"""Choosing the diagnosis of a run from its kept lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vq_console.logs.model import Diagnosis

if TYPE_CHECKING:
    from vq_console.logs.reader import Run


def warning_slugs(run: Run) -> tuple[str, ...]:
    """Slugs of what the run warns about without having failed."""
    return ()


def diagnose(run: Run) -> Diagnosis:
    """The diagnosis of a run."""
    return Diagnosis("healthy", "Running normally", "ok")
