"""One server as the checks see it, and what it was seen to be able to do.

Owns the probe. Never assumes that a server is vLLM: a vLLM-only field is sent in measured load only after a request
with it was answered as vLLM answers it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vq_console.core.errors import CheckError
from vq_console.core.http import Answer, get, key_from_environment, post

_MAX_LOGPROBS = re.compile(r"greater than max allowed: (\d+)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server. `url` has no trailing slash and no `/v1`; `model` is the served name.

    `device` is `cuda`, `cpu` or None where unknown; `pid` is the API server's process when it runs on this machine.
    """

    label: str
    url: str
    model: str
    api_key_env: str | None = None
    device: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    pid: int | None = None
    simulated: bool = False

    @property
    def api_key(self) -> str | None:
        """The key from the environment; it is named in the value, never stored in it."""
        return key_from_environment(self.api_key_env)

    def get(self, path: str, *, timeout: float = 5.0) -> Answer:
        """GET a path of this server."""
        return get(self.url + path, timeout=timeout, api_key=self.api_key)

    def post(self, path: str, body: Mapping[str, Any], *, timeout: float = 60.0) -> Answer:
        """POST JSON to a path of this server; `timeout` in seconds per socket operation."""
        return post(self.url + path, body, timeout=timeout, api_key=self.api_key)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a probe saw. False means "not seen to work", and such a field is then never sent under load."""

    vllm: bool = False
    """Answers as vLLM does: `/version` and `owned_by` or `vllm:` metrics."""
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    metrics: bool = False
    tokenize: bool = False
    token_prompts: bool = False
    """`/v1/completions` takes token IDs as prompt."""
    exact_length: bool = False
    """`ignore_eos` and `min_tokens` give exactly `max_tokens`."""
    extra_sampling: bool = False
    """`top_k`, `min_p` and `repetition_penalty` are accepted."""
    cache_salt: bool = False
    return_token_ids: bool = False
    prompt_logprobs: bool = False
    max_logprobs: int | None = None
    stream_usage: bool = False
    chat: bool = False
    notes: tuple[str, ...] = field(default=())
    """What could not be known, in words."""


def _answer_problem(endpoint: Endpoint, what: str, answer: Answer) -> CheckError:
    body = answer.body[:200].decode("utf-8", "replace")
    said = answer.error or f"HTTP {answer.status} {body}"
    return CheckError(
        f"{endpoint.label}: {endpoint.url}{what} does not answer as expected ({said})",
        "Check that the server is ready, that the URL has no /v1 at its end, and that the API key variable is set.",
    )


def served_models(endpoint: Endpoint) -> tuple[tuple[str, ...], str | None, int | None]:
    """The served names, the owner of the first, and the context length of the one in use.

    Raises CheckError when `/v1/models` does not answer.
    """
    answer = endpoint.get("/v1/models", timeout=15.0)
    value = answer.json()
    data = value.get("data") if isinstance(value, dict) else None
    if not answer.ok or not isinstance(data, list):
        raise _answer_problem(endpoint, "/v1/models", answer)
    rows = [row for row in data if isinstance(row, dict) and isinstance(row.get("id"), str)]
    owner = next((str(row["owned_by"]) for row in rows if row.get("owned_by")), None)
    length = next((row.get("max_model_len") for row in rows if row["id"] == endpoint.model), None)
    return tuple(row["id"] for row in rows), owner, length if isinstance(length, int) else None


def _completion(endpoint: Endpoint, body: Mapping[str, Any], *, timeout: float) -> dict[str, Any] | None:
    answer = endpoint.post("/v1/completions", {"model": endpoint.model, "temperature": 0, **body}, timeout=timeout)
    value = answer.json()
    return value if answer.ok and isinstance(value, dict) and value.get("choices") else None


def _completion_tokens(value: Mapping[str, Any] | None) -> int | None:
    usage = value.get("usage") if value else None
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def tokenize(endpoint: Endpoint, text: str, *, special: bool = False, timeout: float = 30.0) -> tuple[int, ...] | None:
    """Token IDs of `text` by the server's own `/tokenize`, or None where it has none."""
    body = {"model": endpoint.model, "prompt": text, "add_special_tokens": special}
    answer = endpoint.post("/tokenize", body, timeout=timeout)
    value = answer.json()
    tokens = value.get("tokens") if answer.ok and isinstance(value, dict) else None
    return tuple(int(token) for token in tokens) if isinstance(tokens, list) else None


def _prove_it_answers(endpoint: Endpoint, timeout: float) -> None:
    """One token, whatever else the server can do: a hung one must not cost a time-out for every later question."""
    body = {"model": endpoint.model, "prompt": "The", "max_tokens": 1, "temperature": 0}
    answer = endpoint.post("/v1/completions", body, timeout=timeout)
    if answer.status == 0 or answer.status >= 500:
        said = answer.error or f"HTTP {answer.status}"
        raise CheckError(
            f"{endpoint.label}: the server answers, but the probe request gave no token ({said})",
            "Ready is not proven until one token came out; see the server's log.",
        )


def same_chat(a: Endpoint, b: Endpoint) -> bool:
    """Whether the same messages become the same token IDs on both servers; True where a server cannot say."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, how are you?"}]
    found = []
    for endpoint in (a, b):
        answer = endpoint.post("/tokenize", {"model": endpoint.model, "messages": messages}, timeout=30.0)
        value = answer.json()
        found.append(value.get("tokens") if answer.ok and isinstance(value, dict) else None)
    return None in found or found[0] == found[1]


def probe(endpoint: Endpoint, *, timeout: float = 120.0) -> Capabilities:
    """Ask a server what it can do, with at most eight tiny requests; the first may compile for minutes.

    Raises CheckError when it does not answer at all or does not serve `endpoint.model`.
    """
    models, owner, max_model_len = served_models(endpoint)
    if endpoint.model not in models:
        raise CheckError(
            f"{endpoint.label}: the server does not serve {endpoint.model!r}",
            f"It serves {', '.join(models) or 'nothing'}; name one of these.",
        )
    notes: list[str] = []
    version_answer = endpoint.get("/version")
    version_value = version_answer.json() if version_answer.ok else None
    version = version_value.get("version") if isinstance(version_value, dict) else None
    metrics_answer = endpoint.get("/metrics", timeout=15.0)
    metrics = metrics_answer.ok and b"vllm:" in metrics_answer.body
    vllm = metrics or (version is not None and owner == "vllm")
    ids = tokenize(endpoint, "The quick brown fox")
    _prove_it_answers(endpoint, timeout)
    token_prompts = False
    if ids:
        token_prompts = _completion(endpoint, {"prompt": list(ids), "max_tokens": 1}, timeout=timeout) is not None
    prompt: Any = list(ids) if ids and token_prompts else "The quick brown fox"
    plain = {"prompt": prompt, "max_tokens": 3}
    if not token_prompts and _completion(endpoint, plain, timeout=timeout) is None:
        notes.append("/v1/completions does not answer")
    forced = _completion(endpoint, {**plain, "min_tokens": 3, "ignore_eos": True}, timeout=timeout)
    extra = {**plain, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True}
    extended = _completion(endpoint, {**extra, "cache_salt": "vq-console-probe"}, timeout=timeout) if vllm else None
    choice = extended["choices"][0] if extended else {}
    scored, max_logprobs = _probe_logprobs(endpoint, prompt, timeout) if vllm else (False, None)
    return Capabilities(
        vllm=vllm,
        version=str(version) if version is not None else None,
        models=models,
        max_model_len=max_model_len,
        metrics=metrics,
        tokenize=ids is not None,
        token_prompts=token_prompts,
        exact_length=_completion_tokens(forced) == 3,
        extra_sampling=extended is not None,
        cache_salt=extended is not None,
        return_token_ids=isinstance(choice.get("token_ids"), list),
        prompt_logprobs=scored,
        max_logprobs=max_logprobs,
        stream_usage=vllm or _streams_usage(endpoint, prompt, timeout),
        chat=_chats(endpoint, timeout),
        notes=tuple(notes),
    )


def _probe_logprobs(endpoint: Endpoint, prompt: Any, timeout: float) -> tuple[bool, int | None]:
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = endpoint.post("/v1/completions", {**body, "prompt_logprobs": 20}, timeout=timeout)
    if answer.ok:
        value = answer.json()
        rows = value["choices"][0].get("prompt_logprobs") if isinstance(value, dict) and value.get("choices") else None
        return isinstance(rows, list), 20
    found = _MAX_LOGPROBS.search(answer.body.decode("utf-8", "replace"))
    return found is not None, int(found[1]) if found else None


def _streams_usage(endpoint: Endpoint, prompt: Any, timeout: float) -> bool:
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": 1, "stream": True}
    answer = endpoint.post("/v1/completions", {**body, "stream_options": {"include_usage": True}}, timeout=timeout)
    return answer.ok and b'"usage"' in answer.body and b'"completion_tokens"' in answer.body


def _chats(endpoint: Endpoint, timeout: float) -> bool:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    return endpoint.post("/v1/chat/completions", body, timeout=timeout).ok
