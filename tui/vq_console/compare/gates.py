"""Gates of `ab --fail-on`: which finished verdicts count as a no. Only decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.compare.regression import QUALITY_ORDER
from vq_console.core.errors import UsageError
from vq_console.core.text import nearest

GATES = (
    "slower",
    "faster",
    "inconclusive",
    "fallback",
    "invalid",
    *(word.lower() for word in QUALITY_ORDER),
    "unresolved",
)


def parse_gates(words: Sequence[str]) -> tuple[str, ...]:
    """Gates as given, comma-separated or repeated. Raises UsageError with the nearest spelling."""
    gates = tuple(part.strip().lower() for word in words for part in word.split(",") if part.strip())
    for gate in gates:
        if gate not in GATES:
            close = nearest(gate, GATES)
            raise UsageError(
                f"--fail-on {gate}: no such gate",
                (f"did you mean {close}? " if close else "") + f"one of {', '.join(GATES)}",
            )
    return gates


def failed_gates(summary: Mapping[str, Any], gates: Sequence[str]) -> list[str]:
    """The gates that this verdict fails, in words.

    A speed gate looks at primary endpoints. A quality word fails on itself or worse, and on UNRESOLVED, since
    what is not resolved cannot be promised.
    """
    failed: list[str] = []
    primary = [e for e in (summary.get("latency") or {}).get("endpoints") or () if e.get("primary")]
    for gate in gates:
        if gate in {"slower", "faster", "inconclusive"}:
            failed += [f"{gate}: {e['metric']} at {e['concurrency']}" for e in primary if e.get("word") == gate]
        elif gate == "fallback":
            for side, arm in (summary.get("arms") or {}).items():
                failed += [f"fallback: {side} {r['kind']}" for r in arm.get("asked_vs_runs") or () if r.get("alarm")]
        elif gate == "invalid":
            failed += [f"invalid: {v['flag']}" for v in summary.get("validity") or ()]
        else:
            failed += _failed_quality(summary.get("quality") or {}, gate)
    return failed


def _failed_quality(quality: Mapping[str, Any], gate: str) -> list[str]:
    """Against a named baseline both arms must pass; without one it is B against A."""
    against = quality.get("against_baseline") or {}
    words = {f"{arm} against the baseline": part.get("word") for arm, part in against.items()} or {
        "quality": quality.get("word")
    }
    failed = []
    for what, word in words.items():
        if word is None:
            failed.append(f"{gate}: {what} was not measured")
        elif word not in QUALITY_ORDER or (
            gate != "unresolved" and QUALITY_ORDER.index(word) >= QUALITY_ORDER.index(gate.upper())
        ):
            failed.append(f"{gate}: {what} is {word}")
    return failed
