"""All rules asked about one situation, in order of weight.

Pure. A rule that fails is a defect of the console, not of the profile: it propagates.
"""

from __future__ import annotations

from collections.abc import Sequence

from vq_console.preflight.method import Resolution
from vq_console.preflight.model import Finding, Fit, LayerExpectation
from vq_console.preflight.situation import Situation


def findings(
    situation: Situation, resolution: Resolution, layers: Sequence[LayerExpectation], fit: Fit
) -> tuple[Finding, ...]:
    """The findings, errors first."""
    return ()
