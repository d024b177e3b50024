"""Whether the server answers: readiness by one token, health at a low rate, signs of a server that is stuck.

Asks one thing at a time and never waits for it. Must not disturb a measurement: tokens are only asked for when the
server's own metrics say that it is idle, and nothing is asked while somebody wants quiet.
"""

from __future__ import annotations

from vq_console.serving.keeping.wire import Exchange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COUNTS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:request_success_total": "requests",
    "vllm:time_to_first_token_seconds_sum": "ttft_s_sum",
    "vllm:time_to_first_token_seconds_count": "ttft_count",
}
PEAKS = {"vllm:kv_cache_usage_perc": "kv_usage", "vllm:engine_sleep_state": "awake"}


def pick_metrics(text: str) -> dict[str, float]:
    """The few numbers worth keeping from a Prometheus page: sums over engines, and the fullest KV cache."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        if line.startswith("vllm:engine_sleep_state") and 'sleep_state="awake"' not in line:
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        key = COUNTS.get(name) or PEAKS.get(name)
        if key is None:
            continue
        try:
            value = float(line.rsplit(" ", 1)[1])
        except (ValueError, IndexError):
            continue
        if value != value:
            continue
        found[key] = max(found.get(key, 0.0), value) if name in PEAKS else found.get(key, 0.0) + value
    return found


def token_asks(model: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Requests that prove work, tried in this order until one route exists for what the model does."""
    return (
        ("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}),
        (
            "/v1/chat/completions",
            {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0},
        ),
        ("/v1/embeddings", {"model": model, "input": "Hello"}),
        ("/classify", {"model": model, "input": "Hello"}),
    )


def gave_token(exchange: Exchange) -> bool:
    """True when the answer holds something that a forward pass made."""
    value = exchange.json() if exchange.status == 200 else None
    return isinstance(value, dict) and bool(value.get("choices") or value.get("data"))


def how_busy(cpu_pct: float | None, gpus: list[dict[str, Any]]) -> str:
    """What a server that does not answer is doing, by its CPU (percent of one core) and its busiest GPU. Pure.

    `gpus` are rows of `gpu.read_gpus`. Empty while nothing is known.
    """
    if cpu_pct is None:
        return ""
    used = [float(row["util_pct"]) for row in gpus if "util_pct" in row]
    if used and max(used) >= 50:
        word = "at work"
    else:
        word = "spinning" if cpu_pct >= 80 else "waiting" if cpu_pct < 10 else "partly at work"
    return f"{word}: CPU {cpu_pct:.0f} %" + (f", GPU {max(used):.0f} %" if used else "")


class Vitals:
    """What is known of the server's answers. `ready` once a token came; `trouble` says why it is unresponsive.

    `every` holds the intervals and time-outs in seconds (see `keeper.DEFAULTS`).
    """

    def __init__(
        self, host: str, port: int, *, model: str, api_key: str | None, tls: bool, every: dict[str, Any]
    ) -> None:
        self.host = host
        self.port = port
        self.api_key = api_key
        self.tls = tls
        self.every = every
        self.asks = token_asks(model)
        self.exchange: Exchange | None = None
        self.ready = False
        self.phase = ""
        self.trouble = ""
        self.metrics: dict[str, float] | None = None
        self.record: dict[str, float] | None = None
        """A fresh sample that the keeper has not written down yet."""
        self.quiet_until = 0.0
        self._ask = 0
        self._next = {"health": 0.0, "metrics": 0.0, "token": 0.0}
        self._health_failed_since: float | None = None
        self._stuck_since: float | None = None
        self._token_trouble = ""

    def _send(self, tag: str, path: str, now: float, timeout_s: float, body: dict[str, Any] | None = None) -> None:
        self.exchange = Exchange(
            self.host,
            self.port,
            path,
            now=now,
            timeout_s=timeout_s,
            body=body,
            api_key=self.api_key,
            tls=self.tls,
            tag=tag,
        )

    def _take(self, now: float) -> Exchange | None:
        """The exchange that just ended, if any."""
        exchange = self.exchange
        if exchange is None:
            return None
        exchange.step(now)
        if not exchange.done:
            return None
        self.exchange = None
        return exchange

    def drop(self) -> None:
        """Forget what is in flight."""
        if self.exchange is not None:
            self.exchange.close()
            self.exchange = None

    def step_start(self, now: float) -> None:
        """One step towards the first token; call it only while the server's own socket listens."""
        ended = self._take(now)
        if ended is not None:
            pause = self.every["probe_s"]
            if ended.tag == "health":
                if ended.status == 200:
                    self._next["token"] = 0.0
                    self.phase = "first token (compiling kernels)"
                    self._token(now)
                    return
                self.phase = f"/health says {ended.status}" if ended.status else "loading"
            elif gave_token(ended) or (ended.status in (401, 403) and not self.api_key):
                # Without its key (a keeper that adopted it) /health must do.
                self.ready = True
                self.phase = ""
                self._next = {"health": now, "metrics": now, "token": now + self.every["token_s"]}
                return
            elif 400 <= ended.status < 500 and ended.status not in (401, 403, 408, 429):
                self._ask = (self._ask + 1) % len(self.asks)
                if self._ask:
                    self._token(now)
                    return
                self.phase = f"no route gives a token (last answer {ended.status})"
            else:
                self.phase = f"first token: {ended.error or f'answer {ended.status}'}"
            self._next["health"] = now + pause
        elif self.exchange is None and now >= self._next["health"]:
            self._send("health", "/health", now, self.every["health_timeout_s"])

    def _token(self, now: float) -> None:
        path, body = self.asks[self._ask]
        self._send(
            "token", path, now, self.every["first_token_timeout_s"] if not self.ready else self._token_timeout, body
        )

    @property
    def _token_timeout(self) -> float:
        return float(self.every["token_timeout_s"])

    def step_running(self, now: float) -> None:
        """One step of watching a ready server; `trouble` is empty while all is well."""
        ended = self._take(now)
        if ended is not None:
            {"health": self._health, "metrics": self._metrics, "token": self._tokened}[ended.tag](ended, now)
        if self.exchange is not None or now < self.quiet_until:
            return
        if now >= self._next["health"]:
            self._next["health"] = now + self.every["health_s"]
            self._send("health", "/health", now, self.every["health_timeout_s"])
        elif now >= self._next["metrics"]:
            self._next["metrics"] = now + self.every["record_s"]
            self._send("metrics", "/metrics", now, self.every["health_timeout_s"])
        elif now >= self._next["token"] and (self.idle or self._token_trouble) and not self.asleep:
            self._next["token"] = now + self.every["token_s"]
            self._token(now)

    @property
    def idle(self) -> bool:
        """True when the last metrics show no request (or there are no metrics to go by)."""
        return not self.metrics or not (self.metrics.get("running") or self.metrics.get("waiting"))

    @property
    def asleep(self) -> bool:
        """True when the engine was put to sleep; a request could harm it then."""
        return (self.metrics or {}).get("awake") == 0.0

    def _health(self, ended: Exchange, now: float) -> None:
        if ended.status == 200:
            self._health_failed_since = None
        else:
            self._next["health"] = min(self._next["health"], now + self.every["retry_s"])
            if self._health_failed_since is None:
                self._health_failed_since = ended.started
        if self._health_failed_since is None:
            self._judge(now)
        elif ended.status == 503:
            self.trouble = "/health says 503: the engine is dead"
        elif now - self._health_failed_since >= self.every["silent_s"]:
            what = f"answers {ended.status}" if ended.status else f"does not answer ({ended.error})"
            self.trouble = f"/health {what} for {now - self._health_failed_since:.0f} s"

    def _metrics(self, ended: Exchange, now: float) -> None:
        if ended.status != 200:
            return
        before, self.metrics = self.metrics, pick_metrics(ended.body.decode("utf-8", "replace"))
        self.record = self.metrics
        counters = ("prompt_tokens", "generation_tokens", "requests")
        moved = before is None or any(before.get(key) != self.metrics.get(key) for key in counters)
        if moved or not self.metrics.get("running"):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        if moved:
            self._token_trouble = ""
        self._judge(now)

    def _tokened(self, ended: Exchange, now: float) -> None:
        if gave_token(ended):
            self._token_trouble = ""
        elif ended.status in (401, 403, 408, 429, 503):
            return  # refusing work is not the same as giving none
        else:
            waited = now - ended.started
            self._token_trouble = (
                f"answers /health but gives no token ({ended.error or ended.status} after {waited:.0f} s)"
            )
            self._next["token"] = now + self.every["retry_s"]
        self._judge(now)

    def _judge(self, now: float) -> None:
        if self._health_failed_since is not None:
            return
        stuck = self._stuck_since is not None and now - self._stuck_since >= self.every["stuck_s"]
        if stuck and self._stuck_since is not None:
            count = int((self.metrics or {}).get("running", 0))
            self.trouble = f"{count} running, no token for {now - self._stuck_since:.0f} s"
        else:
            self.trouble = self._token_trouble
