"""The API as vLLM has it, over real HTTP against a real process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.running import Running, served
from vq_console.checks.endpoint import Endpoint, probe, tokenize
from vq_console.core.errors import CheckError
from vq_console.core.http import get, post
from vq_console.simulator.language import LanguageModel, exact_kl


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("sim")
    answers = folder / "answers.jsonl"
    answers.write_text(json.dumps({"match": "capital of Sweden", "answer": "Stockholm", "wrong": "Oslo"}) + "\n")
    with served(folder, {"kl": 0.05, "answers": str(answers)}, "--api-key", "k1", "k2") as running:
        yield running


def _post(server: Running, path: str, **body: Any) -> Any:
    answer = post(server.url + path, {"model": server.model, **body}, api_key="k2")
    return answer.json() if answer.ok else (answer.status, answer.json())


def _events(server: Running, path: str, **body: Any) -> list[Any]:
    answer = post(server.url + path, {"model": server.model, "stream": True, **body}, api_key="k1")
    assert answer.ok
    parts = [part.removeprefix("data: ") for part in answer.body.decode().split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def test_it_says_simulated_everywhere(server: Running) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), timeout=5)
    connection.request("GET", "/version")
    response = connection.getresponse()
    assert "SIMULATED" in (response.getheader("Server") or "")
    assert "SIMULATED" in json.loads(response.read())["version"]
    connection.close()
    lines = server.text().splitlines()
    assert lines[0].startswith("SIMULATED")
    assert any("version 0.26.0" in line and "SIMULATED" in line for line in lines)


def test_keys_are_asked_for_under_v1_only(server: Running) -> None:
    assert get(server.url + "/v1/models").status == 401
    assert get(server.url + "/v1/models", api_key="k1").ok
    assert get(server.url + "/health").ok
    assert post(server.url + "/tokenize", {"prompt": "x"}).ok


def test_chat_stream_has_role_tokens_finish_usage(server: Running) -> None:
    events = _events(
        server,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=4,
        stream_options={"include_usage": True},
    )
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in events[1:-1]] == [None, None, None, "length"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_forced_length_is_exact(server: Running) -> None:
    value = _post(server, "/v1/completions", prompt=[300, 301], max_tokens=33, min_tokens=33, ignore_eos=True)
    assert value["usage"] == {
        "prompt_tokens": 2, "completion_tokens": 33, "total_tokens": 35, "prompt_tokens_details": None,
    }  # fmt: skip
    assert value["choices"][0]["finish_reason"] == "length"


def test_logprobs_are_the_models(server: Running) -> None:
    prompt = [300, 400, 500, 600]
    value = _post(
        server, "/v1/completions", prompt=prompt, max_tokens=3, temperature=0, logprobs=20, prompt_logprobs=5,
        return_token_ids=True,
    )  # fmt: skip
    choice = value["choices"][0]
    model = LanguageModel(0, kl=0.05)
    tokens = prompt + choice["token_ids"]
    rows = model.log_probabilities(tokens, 1)
    assert choice["prompt_logprobs"][0] is None
    for position, entry in enumerate(choice["prompt_logprobs"][1:], 1):
        seen = entry[str(prompt[position])]
        assert seen["logprob"] == pytest.approx(rows[position - 1][prompt[position]])
        assert len(entry) in (5, 6)
        assert min(item["rank"] for item in entry.values()) == 1
    for index, logprob in enumerate(choice["logprobs"]["token_logprobs"]):
        row = rows[len(prompt) - 1 + index]
        assert logprob == pytest.approx(row[tokens[len(prompt) + index]])
        assert tokens[len(prompt) + index] == int(row.argmax())  # greedy


def test_scores_over_http_give_the_exact_divergence(server: Running) -> None:
    base, noisy = LanguageModel(0), LanguageModel(0, kl=0.05)
    random = np.random.default_rng(0)
    tokens = [300]
    for _ in range(20):
        p = np.exp(base.next(tokens))
        tokens.append(int(random.choice(len(p), p=p / p.sum())))
    value = _post(server, "/v1/completions", prompt=tokens, max_tokens=1, prompt_logprobs=20)
    seen = [entry[str(token)]["logprob"] for entry, token in zip(
        value["choices"][0]["prompt_logprobs"][1:], tokens[1:], strict=True
    )]  # fmt: skip
    rows = noisy.log_probabilities(tokens, 1)[:-1]
    assert seen == pytest.approx([rows[i][token] for i, token in enumerate(tokens[1:])])
    assert exact_kl(base, noisy, tokens, 1).mean() > 0.005


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", {"prompt": "x", "logprobs": 21}, "greater than max allowed: 20"),
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": 21}, "greater than max allowed: 20"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 99999}, "maximum context length"),
        ("/v1/completions", {"prompt": [99999]}, "out of vocabulary"),
        ("/v1/completions", {"prompt": "x", "temperature": "hot"}, "temperature"),
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": 1, "stream": True}, "stream"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
    ],
)
def test_bad_requests_are_refused_in_vllms_words(server: Running, path: str, body: dict[str, Any], words: str) -> None:
    status, value = _post(server, path, **body)
    assert status == 400
    assert words in value["error"]["message"]


def test_an_unknown_model_is_404(server: Running) -> None:
    assert post(server.url + "/v1/completions", {"model": "other", "prompt": "x"}, api_key="k1").status == 404


def test_stop_strings_end_the_text(server: Running) -> None:
    whole = _post(server, "/v1/completions", prompt=[300, 301], max_tokens=12, temperature=0)["choices"][0]["text"]
    word = whole.split()[3]
    value = _post(server, "/v1/completions", prompt=[300, 301], max_tokens=12, temperature=0, stop=word)["choices"][0]
    assert value["finish_reason"] == "stop"
    assert word not in value["text"]
    assert whole.startswith(value["text"])


def test_seeds_repeat_and_differ(server: Running) -> None:
    def answer(seed: int) -> str:
        return str(_post(server, "/v1/completions", prompt=[300], max_tokens=12, seed=seed)["choices"][0]["text"])

    assert answer(1) == answer(1) != answer(2)


def test_scripted_answers(server: Running) -> None:
    messages = [{"role": "user", "content": "What is the capital of Sweden?"}]
    choice = _post(server, "/v1/chat/completions", messages=messages, temperature=0)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Stockholm", "stop")


def test_tokenize_and_detokenize(server: Running) -> None:
    value = post(server.url + "/tokenize", {"prompt": "the people said"}).json()
    assert value["count"] == len(value["tokens"])
    back = post(server.url + "/detokenize", {"tokens": value["tokens"]}).json()
    assert back["prompt"] == "the people said"


def test_metrics_count_tokens_and_prefix_hits(server: Running) -> None:
    def counter(name: str) -> float:
        text = get(server.url + "/metrics").body.decode()
        return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE))

    prompt = list(range(300, 364))
    before = [counter(f"vllm:{name}_total") for name in ("prompt_tokens", "generation_tokens", "prefix_cache_hits")]
    for salt in ("one", "one", "two"):
        _post(server, "/v1/completions", prompt=prompt, max_tokens=5, cache_salt=salt)
    after = [counter(f"vllm:{name}_total") for name in ("prompt_tokens", "generation_tokens", "prefix_cache_hits")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [3 * 64, 15, 48]
    assert counter("vllm:time_to_first_token_seconds_count") > 0
    assert counter("vllm:num_requests_running") == 0


def test_the_probe_sees_what_it_can(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "k1")
    endpoint = Endpoint("A", server.url, server.model, api_key_env="SIM_KEY")
    found = probe(endpoint)
    assert found.vllm
    assert found.exact_length
    assert found.cache_salt
    assert found.return_token_ids
    assert found.max_logprobs == 20
    assert found.max_model_len == 8192
    assert tokenize(endpoint, "the people") == tuple(LanguageModel(0).tokenizer.encode("the people"))
    with pytest.raises(CheckError, match="does not serve"):
        probe(Endpoint("A", server.url, "other", api_key_env="SIM_KEY"))


def test_a_server_that_is_not_vllm_is_probed_as_such(tmp_path: Path) -> None:
    with served(tmp_path, {"vllm_fields": False}) as running:
        found = probe(running.endpoint)
    assert not (found.vllm)
    assert not (found.exact_length)
    assert not (found.cache_salt)
    assert not (found.tokenize)
    assert not (found.metrics)
    assert found.stream_usage
    assert found.chat
