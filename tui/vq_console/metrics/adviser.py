"""What a minute of metrics advises. Pure rules: silent unless one fires, and then it names the flag.

Judges only what was measured; a value that is None never fires a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.core.text import counted
from vq_console.hardware.model import Gpu

MIN_WINDOW_S = 20.0
"""Below this, a burst looks like a state."""
KV_FULL_PCT = 95.0
QUEUE_MS = 500.0
IDLE_UTIL_PCT = 40
BUSY_REQUESTS = 4
POOR_ACCEPTANCE_PCT = 30.0
SLOWED = frozenset({"hardware slowdown", "software thermal limit", "hardware thermal limit", "power brake"})
"""Reasons of `Gpu.throttle` that mean trouble; a power cap under full load is how these cards run."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change: `text` says what was seen and what to do, `flag` is the flag that it is about, if any."""

    rule: str
    text: str
    flag: str

    def __str__(self) -> str:
        return self.text


Values = Mapping[str, Any]
Rule = Callable[[Values, Sequence[Gpu]], Advice | None]


def advise(values: Values, gpus: Sequence[Gpu] = ()) -> tuple[Advice, ...]:
    """Advice from `Window.values()` and, where given, the GPUs of that server now; most pressing first."""
    if not values or (values.get("window_s") or 0) < MIN_WINDOW_S:
        return ()
    return tuple(advice for rule in RULES if (advice := rule(values, gpus)) is not None)


def _above(values: Values, key: str, limit: float) -> float | None:
    value = values.get(key)
    return float(value) if value is not None and value > limit else None


def _corrupted(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    count = _above(values, "corrupted_requests", 0)
    if count is None:
        return None
    return Advice(
        "corrupted",
        f"{counted(count, 'answer', '.0f')} held NaN: do not trust this quantization; try --dtype bfloat16",
        "dtype",
    )


def _failed(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    count = _above(values, "failed_requests", 0)
    if count is None:
        return None
    return Advice("failed-requests", f"{counted(count, 'request', '.0f')} failed in the last minute: see the log", "")


def _preempted(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    count = _above(values, "preemptions", 0)
    if count is None:
        return None
    return Advice(
        "preemptions",
        f"{counted(count, 'preemption', '.0f')}: running requests lose their KV cache and compute it again; "
        "lower --max-num-seqs, or make room with --gpu-memory-utilization or --kv-cache-dtype fp8",
        "max_num_seqs",
    )


def _kv_full(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    usage = _above(values, "kv_usage_pct", KV_FULL_PCT)
    if usage is None or not _above(values, "waiting", 0):
        return None
    half = values.get("kv_cache_dtype") in (None, "auto", "bfloat16", "float16")
    more = ", --kv-cache-dtype fp8" if half else ""
    return Advice(
        "kv-full",
        f"KV cache {usage:.0f} % full and {counted(values['waiting'], 'request', '.0f')} waiting for it: "
        f"more --gpu-memory-utilization, less --max-model-len{more}",
        "gpu_memory_utilization",
    )


def _queueing(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    waited = _above(values, "queue_p95_ms", QUEUE_MS)
    usage = values.get("kv_usage_pct")
    if waited is None or usage is None or usage > KV_FULL_PCT or not _above(values, "waiting", 0):
        return None
    return Advice(
        "queueing",
        f"requests wait {waited / 1000:.1f} s (p95) while the KV cache is {usage:.0f} % full: raise --max-num-seqs "
        f"(running now: {values.get('running') or 0:.0f}) or --max-num-batched-tokens",
        "max_num_seqs",
    )


def _prefix_off(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    rate = _above(values, "prompt_tokens_per_s", 100)
    if values.get("prefix_caching") is not False or rate is None:
        return None
    return Advice(
        "prefix-cache-off",
        f"the prefix cache is off while {rate:.0f} prompt tokens/s are computed: --enable-prefix-caching, unless "
        "you measure without it on purpose",
        "enable_prefix_caching",
    )


def _idle_gpu(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    running = _above(values, "running", BUSY_REQUESTS - 1)
    used = [gpu.utilization_pct for gpu in gpus if gpu.utilization_pct is not None]
    if running is None or not used or max(used) >= IDLE_UTIL_PCT:
        return None
    return Advice(
        "idle-gpu",
        f"{running:.0f} requests run and the GPU is {max(used)} % busy: the host is the limit; take --enforce-eager "
        "away, try --async-scheduling or more --api-server-count",
        "enforce_eager",
    )


def _throttled(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    if not _above(values, "running", 0):
        return None
    for gpu in gpus:
        reasons = [reason for reason in gpu.throttle if reason in SLOWED]
        if reasons:
            return Advice(
                "throttling",
                f"GPU {gpu.index} is slowed down ({', '.join(reasons)}): measured numbers are not comparable; check "
                "cooling and the power limit",
                "",
            )
    return None


def _poor_drafts(values: Values, gpus: Sequence[Gpu]) -> Advice | None:
    accepted = values.get("spec_acceptance_pct")
    if accepted is None or accepted >= POOR_ACCEPTANCE_PCT:
        return None
    return Advice(
        "poor-drafts",
        f"only {accepted:.0f} % of drafted tokens are accepted: fewer num_speculative_tokens in --speculative-config, "
        "or another draft model",
        "speculative_config",
    )


RULES: tuple[Rule, ...] = (
    _corrupted,
    _failed,
    _preempted,
    _kv_full,
    _queueing,
    _throttled,
    _idle_gpu,
    _poor_drafts,
    _prefix_off,
)
