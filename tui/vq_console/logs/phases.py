"""The start-up of a server as a timeline: which lines end which part, and how long each part took.

Owns the marks and their order. Durations that vLLM states itself win over differences of its clock, which counts
whole seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vq_console.logs.model import Phase

if TYPE_CHECKING:
    from vq_console.logs.reader import Run


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that ends one part of the start-up. `latest`: of several ranks the last one counts."""

    name: str
    pattern: re.Pattern[str]
    latest: bool = False


MARKS: tuple[Mark, ...] = tuple(
    Mark(name, re.compile(pattern), latest)
    for name, pattern, latest in (
        ("engine", r"Initializing (?:a V[01] LLM|an LLM) engine", False),
        ("weights", r"Loading weights took", True),
        ("loaded", r"Model loading took|Loading model weights took", True),
        ("compiled", r"(?:\[[^\]]*\] )?torch\.compile (?:took|takes) .* in total", True),
        ("memory", r"Available KV cache memory|Initial free memory .* reserved|Explicitly set \(", True),
        ("kv", r"[\w+ ]{2,20}? KV cache size: |# (?:GPU|cuda|CPU) blocks", False),
        ("graphs", r"Graph capturing finished", True),
        ("init", r"init engine \(", True),
        ("server", r"Starting vLLM (?:API )?server", False),
        ("ready", r"Application startup complete", False),
    )
)


def timeline(run: Run) -> tuple[Phase, ...]:
    """The parts of the start-up that the log shows, in order; `()` when it shows none."""
    marks, facts = run.marks, run.sheet.values
    phases: list[Phase] = []
    at = 0.0

    def until(name: str, mark: str, stated: float | None = None) -> None:
        nonlocal at
        when = marks.get(mark)
        measured = when - at if when is not None else None
        if when is not None:
            at = max(at, when)
        seconds = stated if stated is not None else measured
        if seconds is not None and (seconds > 0 or stated is not None):
            phases.append(Phase(name, round(max(0.0, seconds), 3)))

    until("arguments and configuration", "engine")
    load_s = facts.get("model_load_s", facts.get("weights_load_s"))
    loaded = "loaded" if "loaded" in marks else "weights"
    if loaded in marks and "engine" in marks and isinstance(load_s, float):
        before = marks[loaded] - at - load_s
        if before >= 1.0:
            phases.append(Phase("engine process start", round(before, 3)))
    until("model loading", loaded, load_s)
    until("compilation", "compiled", facts.get("compile_s"))
    until("memory profiling and KV cache", "kv" if "kv" in marks else "memory")
    until("CUDA graph capture", "graphs", facts.get("graph_capture_s"))
    until("warm-up", "init")
    until("API server start", "ready" if "ready" in marks else "server")
    return tuple(phases)


def longest(phases: tuple[Phase, ...]) -> Phase | None:
    """The part that took longest, None when there is none."""
    return max(phases, key=lambda phase: phase.seconds, default=None)


_CURRENT = (
    ("ready", "ready"),
    ("server", "starting the API server"),
    ("init", "starting the API server"),
    ("graphs", "warming up"),
    ("kv", "capturing CUDA graphs"),
    ("memory", "capturing CUDA graphs"),
    ("compiled", "profiling memory"),
    ("loaded", "compiling and profiling memory"),
    ("weights", "finishing the weights"),
    ("engine", "loading weights"),
)


def current_phase(facts: Mapping[str, Any], marks: Mapping[str, float]) -> str:
    """What a server that has not failed is doing now."""
    if facts.get("stopped_by") or facts.get("stopping"):
        return "stopping"
    if facts.get("ready"):
        return "ready"
    for mark, name in _CURRENT:
        if mark in marks:
            return name
    return "starting"
