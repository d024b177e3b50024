"""The order for one block of load, as it goes to the generator, and the body of each of its requests. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vq_console.checks.endpoint import Capabilities
from vq_console.checks.prompts import PromptPool, pool_from_json, text_prompt, token_prompt

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

# Every field that a model's generation_config could change is said (trap 18). Greedy: a per-request seed would take
# vLLM's slow sampling path, and the text does not matter where the length is forced.
PLAIN_SAMPLING: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
}
VLLM_SAMPLING: Mapping[str, Any] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """What the generator shall do. Times in seconds.

    `requests_per_stream` ends each stream after so many; else `ramp_s + window_s` ends the block, what is in flight
    gets at most `drain_s` to reach its first token, and is cut. `arrivals_s` makes it an open loop over `concurrency`
    connections. `requests` are bodies of the user's own, used in turn.
    """

    block: str
    server: str
    model: str
    records: str
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    prompt_seed: int
    prompt_key: str
    pool: PromptPool
    chat: bool = False
    requests_per_stream: int | None = None
    stagger_s: float = 0.0
    ramp_s: float = 0.0
    window_s: float | None = None
    drain_s: float = 10.0
    timeout_s: float = 300.0
    arrivals_s: tuple[float, ...] = ()
    fresh: bool = False
    """A new connection for every request; its handshake is in no figure. For the keep-alive probe only."""
    requests: tuple[Mapping[str, Any], ...] = ()
    vllm: bool = False
    exact_length: bool = False
    extra_sampling: bool = False
    cache_salt: bool = False
    stream_usage: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS

    def to_json(self) -> dict[str, Any]:
        """The command as JSON."""
        return {"command": "block", **asdict(self), "pool": self.pool.to_json()}


def order_from_json(value: Mapping[str, Any]) -> BlockOrder:
    """The order in a command."""
    fields = {key: item for key, item in value.items() if key != "command"}
    fields["pool"] = pool_from_json(value["pool"])
    fields["arrivals_s"] = tuple(value.get("arrivals_s") or ())
    fields["requests"] = tuple(value.get("requests") or ())
    return BlockOrder(**fields)


def can_do(capabilities: Capabilities) -> dict[str, Any]:
    """The fields of an order that say what a server was seen to know."""
    return {
        "vllm": capabilities.vllm,
        "exact_length": capabilities.exact_length,
        "extra_sampling": capabilities.extra_sampling,
        "cache_salt": capabilities.cache_salt,
        "stream_usage": capabilities.stream_usage,
    }


def request_body(order: BlockOrder, stream: int, number: int) -> bytes:
    """The JSON of one request. The prompt depends on seed, key, stream and number alone; the cache salt is fresh."""
    key = f"{order.prompt_key}/{stream}/{number}"
    body: dict[str, Any] = {"model": order.model, "stream": True, "max_tokens": order.output_tokens}
    if order.requests:
        own = order.requests[(stream + number * order.concurrency) % len(order.requests)]
        body.update({name: item for name, item in own.items() if name in {"messages", "prompt", "tools"}})
    elif order.chat:
        text = text_prompt(order.pool, order.prompt_tokens, order.prompt_seed, key)
        body["messages"] = [{"role": "user", "content": text}]
    elif order.pool.exact:
        body["prompt"] = token_prompt(order.pool, order.prompt_tokens, order.prompt_seed, key)
    else:
        body["prompt"] = text_prompt(order.pool, order.prompt_tokens, order.prompt_seed, key)
    body.update(PLAIN_SAMPLING)
    if order.extra_sampling:
        body.update(VLLM_SAMPLING)
    if order.exact_length:
        body.update(ignore_eos=True, min_tokens=order.output_tokens)
    if order.cache_salt:
        body["cache_salt"] = uuid.uuid4().hex
    if order.stream_usage:
        body["stream_options"] = {"include_usage": True}
    body.update(order.extra)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
