"""The counters of a simulated engine and their Prometheus text, with vLLM's names, labels and buckets.

Source: vLLM 0.32 v1/metrics/loggers.py. Holds numbers only.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Histogram:
    """Cumulative buckets with sum and count."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = tuple(float(value) for value in buckets)
        self.counts = [0] * (len(self.buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.buckets, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> list[str]:
        """The samples of this histogram."""
        out = []
        running = 0
        for edge, count in zip((*self.buckets, float("inf")), self.counts, strict=True):
            running += count
            mark = "+Inf" if edge == float("inf") else repr(edge)
            out.append(f'{name}_bucket{{{labels},le="{mark}"}} {float(running)}')
        out.append(f"{name}_count{{{labels}}} {float(running)}")
        out.append(f"{name}_sum{{{labels}}} {self.total}")
        return out


class EngineCounters:
    """Everything that `/metrics` shows, for one engine."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_used = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.finished: Counter[str] = Counter()
        self.ttft = Histogram(TTFT_BUCKETS)
        self.inter_token = Histogram(TOKEN_BUCKETS)
        self.per_token = Histogram(TOKEN_BUCKETS)
        self.e2e = Histogram(REQUEST_BUCKETS)
        self.queue = Histogram(REQUEST_BUCKETS)
        self.prefill = Histogram(REQUEST_BUCKETS)
        self.decode = Histogram(REQUEST_BUCKETS)
        self.request_prompt = Histogram(LENGTH_BUCKETS)
        self.request_generation = Histogram(LENGTH_BUCKETS)

    def text(self, *, model: str, kv_tokens: int, cache_dtype: str, utilization: str) -> str:
        """The whole page as Prometheus text."""
        labels = f'engine="0",model_name="{model}"'
        out: list[str] = ["# SIMULATED: no GPU work is done"]

        def plain(name: str, kind: str, help_text: str, value: float) -> None:
            shown = f"{name}_total" if kind == "counter" else name
            out.extend((f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{shown}{{{labels}}} {float(value)}"))

        def histogram(name: str, help_text: str, values: Histogram) -> None:
            out.extend((f"# HELP {name} {help_text}", f"# TYPE {name} histogram", *values.lines(name, labels)))

        plain("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", self.running)
        plain("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", self.waiting)
        used = min(1.0, self.kv_used / kv_tokens) if kv_tokens else 0.0
        plain("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", used)
        plain("vllm:prefix_cache_queries", "counter", "Prefix cache queries, in tokens.", self.prefix_queries)
        plain("vllm:prefix_cache_hits", "counter", "Prefix cache hits, in tokens.", self.prefix_hits)
        plain("vllm:num_preemptions", "counter", "Cumulative number of preemption from the engine.", self.preemptions)
        plain("vllm:prompt_tokens", "counter", "Number of prefill tokens processed.", self.prompt_tokens)
        plain("vllm:generation_tokens", "counter", "Number of generation tokens processed.", self.generation_tokens)
        out.extend(
            (
                "# HELP vllm:request_success Count of successfully processed requests.",
                "# TYPE vllm:request_success counter",
            )
        )
        for reason in ("stop", "length", "abort", "error", "repetition"):
            count = float(self.finished[reason])
            out.append(
                f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{model}"}} {count}'
            )
        out.extend(
            (
                "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
                "# TYPE vllm:cache_config_info gauge",
                f'vllm:cache_config_info{{block_size="16",cache_dtype="{cache_dtype}",engine="0",'
                f'gpu_memory_utilization="{utilization}",num_gpu_blocks="{kv_tokens // 16}"}} 1.0',
            )
        )
        histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", self.ttft)
        histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", self.inter_token)
        histogram(
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time per output token of requests.",
            self.per_token,
        )
        histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", self.e2e)
        histogram(
            "vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", self.queue
        )
        histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase.", self.prefill)
        histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase.", self.decode)
        histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", self.request_prompt)
        histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", self.request_generation)
        return "\n".join(out) + "\n"
