"""The last minute of a server's metrics: rates, percentiles of what was observed in it, present gauges.

Counters that went back (the server was restarted) count from zero again. Nothing observed is None, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from vq_console.metrics.scrape import Scrape

HISTOGRAMS: Mapping[str, str] = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
}
RATES: Mapping[str, str] = {
    "generation_tokens_per_s": "vllm:generation_tokens",
    "prompt_tokens_per_s": "vllm:prompt_tokens",
    "requests_per_s": "vllm:request_success",
}


class Window:
    """Keeps the scrapes of the last `seconds` and one before them. Feed it with `add`, read `values`."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self._scrapes: deque[Scrape] = deque()

    def add(self, sample: Scrape) -> None:
        """Take the next scrape; one that is not younger than the last is ignored."""
        if self._scrapes and sample.at <= self._scrapes[-1].at:
            return
        self._scrapes.append(sample)
        while len(self._scrapes) > 2 and sample.at - self._scrapes[1].at >= self.seconds:
            self._scrapes.popleft()

    def increase(self, name: str) -> float | None:
        """How much a counter grew within the window, across restarts; None when it cannot be told."""
        if len(self._scrapes) < 2:
            return None
        grown = 0.0
        told = False
        for before, after in self._pairs():
            old, new = before.total(name), after.total(name)
            if new is None:
                continue
            told = True
            grown += new if old is None or new < old or _restarted(before, after) else new - old
        return grown if told else None

    def increase_by(self, name: str, label: str) -> dict[str, float]:
        """`increase` by the value of one label; empty when it cannot be told."""
        grown: dict[str, float] = {}
        for before, after in self._pairs():
            old = {} if _restarted(before, after) else before.by_label(name, label)
            for key, new in after.by_label(name, label).items():
                past = old.get(key, 0.0)
                grown[key] = grown.get(key, 0.0) + (new - past if new >= past else new)
        return grown

    def rate(self, name: str) -> float | None:
        """`increase` per second."""
        grown = self.increase(name)
        length = self.length_s
        return None if grown is None or not length else grown / length

    def percentile(self, name: str, share: float) -> float | None:
        """The `share` quantile (0 to 1) of what a histogram observed within the window, in its own unit; else None."""
        return bucket_percentile(self._bucket_increase(name), share)

    def _bucket_increase(self, name: str) -> dict[float, float]:
        grown: dict[float, float] = {}
        for before, after in self._pairs():
            old, new = before.buckets(name), after.buckets(name)
            # One bucket that went back means that all of them began again.
            fresh = _restarted(before, after) or any(count < old.get(bound, 0.0) for bound, count in new.items())
            for bound, count in new.items():
                grown[bound] = grown.get(bound, 0.0) + (count if fresh else count - old.get(bound, 0.0))
        return grown

    def _pairs(self) -> list[tuple[Scrape, Scrape]]:
        return list(pairwise(self._scrapes))

    @property
    def length_s(self) -> float:
        """Seconds between the first and the last scrape that count."""
        return self._scrapes[-1].at - self._scrapes[0].at if len(self._scrapes) > 1 else 0.0

    def values(self) -> dict[str, Any]:
        """Everything known, by names that carry their unit (`ttft_p95_ms`, `kv_usage_pct`, …); absent is None.

        Gauges are those of the last scrape; `preemptions`, `failed_requests`, `aborted_requests` count within the
        window; `prefix_caching` is whether the server has it on.
        """
        if not self._scrapes:
            return {}
        last = self._scrapes[-1]
        kv = last.peak("vllm:kv_cache_usage_perc")
        finished = self.increase_by("vllm:request_success", "finished_reason")
        told = bool(finished)
        values: dict[str, Any] = {
            "window_s": round(self.length_s, 1),
            "running": last.total("vllm:num_requests_running"),
            "waiting": last.total("vllm:num_requests_waiting"),
            "waiting_for_capacity": last.by_label("vllm:num_requests_waiting_by_reason", "reason").get("capacity"),
            "kv_usage_pct": None if kv is None else kv * 100,
            "preemptions": self.increase("vllm:num_preemptions"),
            "failed_requests": finished.get("error", 0.0) if told else None,
            "aborted_requests": finished.get("abort", 0.0) if told else None,
            "corrupted_requests": self.increase("vllm:corrupted_requests"),
            "prefix_hit_pct": _share(
                self.increase("vllm:prefix_cache_hits"), self.increase("vllm:prefix_cache_queries")
            ),
            "prefix_caching": {"True": True, "False": False}.get(
                last.info("vllm:cache_config_info").get("enable_prefix_caching", "")
            ),
            "kv_cache_dtype": last.info("vllm:cache_config_info").get("cache_dtype"),
            "asleep": bool(last.by_label("vllm:engine_sleep_state", "sleep_state").get("awake", 1.0) == 0.0),
        }
        values |= {key: self.rate(name) for key, name in RATES.items()}
        for key, name in HISTOGRAMS.items():
            grown = self._bucket_increase(name)
            for share in (50, 95, 99):
                found = bucket_percentile(grown, share / 100)
                values[f"{key}_p{share}_ms"] = None if found is None else found * 1000
        return values | self._speculation()

    def _speculation(self) -> dict[str, Any]:
        """How well drafts are accepted: share of drafted tokens, and tokens per step with the one that is always."""
        drafts = self.increase("vllm:spec_decode_num_drafts")
        drafted = self.increase("vllm:spec_decode_num_draft_tokens")
        accepted = self.increase("vllm:spec_decode_num_accepted_tokens")
        return {
            "spec_acceptance_pct": _share(accepted, drafted),
            "spec_tokens_per_step": None if not drafts or accepted is None else 1 + accepted / drafts,
        }


def bucket_percentile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile from cumulative counts by upper bound, linear within a bucket as PromQL's histogram_quantile. Pure.

    Beyond the last finite bound it is that bound (the truth is higher). None without observations.
    """
    bounds = sorted(buckets)
    total = max(buckets.values(), default=0.0)
    if not bounds or total <= 0:
        return None
    wanted = share * total
    below, below_count = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted and count > below_count:
            if bound == float("inf"):
                return below
            return below + (bound - below) * max(0.0, wanted - below_count) / (count - below_count)
        if bound != float("inf"):
            below, below_count = bound, max(count, below_count)
    return below


def _restarted(before: Scrape, after: Scrape) -> bool:
    old, new = before.peak("process_start_time_seconds"), after.peak("process_start_time_seconds")
    return old is not None and new is not None and new != old


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole * 100
