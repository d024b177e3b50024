"""The few counters of `/metrics` that say whether a block was clean, and what changed between two looks.

Names as vLLM 0.20 to 0.33 has them (v1/metrics/loggers.py). A server without them gives None, and nothing is
concluded from that. Never called while a block runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from vq_console.checks.endpoint import Endpoint

_NAMES: Mapping[str, str] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "process_start_time_seconds": "process_start",
}
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([-+.\deE]+|NaN|[+-]?Inf)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over engines at one moment; None where the server does not export the metric."""

    running: float | None = None
    waiting: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    draft_tokens: float | None = None
    process_start: float | None = None

    @property
    def known(self) -> bool:
        return self.running is not None

    @property
    def idle(self) -> bool:
        """Nothing runs or waits; also when the server does not say."""
        return not (self.running or 0) and not (self.waiting or 0)

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


def parse_counters(text: str) -> Counters:
    """The counters in a Prometheus page."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        field = _NAMES.get(name)
        if field is not None:
            found[field] = found.get(field, 0.0) + float(value)
    return Counters(**found)


def counters_from_json(value: Mapping[str, Any]) -> Counters:
    """Counters of a recorded block."""
    known = {field.name for field in fields(Counters)}
    return Counters(**{key: item for key, item in value.items() if key in known})


def read_counters(endpoint: Endpoint) -> Counters:
    """Ask the server; all None when it has no `/metrics`."""
    answer = endpoint.get("/metrics", timeout=10.0)
    return parse_counters(answer.body.decode("utf-8", "replace")) if answer.ok else Counters()


def change(before: Counters, after: Counters, name: str) -> float | None:
    """How much a counter grew; None where unknown."""
    first, last = getattr(before, name), getattr(after, name)
    return None if first is None or last is None else last - first
