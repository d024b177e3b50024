"""Profiles from commands that people write: shells, containers, abbreviations, secrets."""

from __future__ import annotations

from typing import Any

import pytest

from vq_console.core.errors import UsageError
from vq_console.engines.catalogue import snapshot
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.command import read_command, read_words, typed
from vq_console.profiles.draft import suggested_name
from vq_console.profiles.model import EnvRef

FLAGS = snapshot("0.33.0").flags

COMMANDS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("vllm serve org/m", "org/m", {}, {}),
    ("vllm serve org/m -tp 2 -q fp8", "org/m", {"tensor_parallel_size": 2, "quantization": "fp8"}, {}),
    ("vllm serve org/m --max-model-len=8k --seed 0", "org/m", {"max_model_len": "8k", "seed": 0}, {}),
    ("vllm serve --enforce-eager org/m", "org/m", {"enforce_eager": True}, {}),
    ("vllm serve org/m --no-enable-prefix-caching", "org/m", {"enable_prefix_caching": False}, {}),
    ("vllm serve org/m --max-model-len -1", "org/m", {"max_model_len": -1}, {}),
    ("vllm serve org/m --served-model-name a b --seed 1", "org/m", {"served_model_name": ["a", "b"], "seed": 1}, {}),
    ("vllm serve org/m -O3", "org/m", {"optimization_level": "3"}, {}),
    ("vllm serve org/m --tensor-parallel 4", "org/m", {"tensor_parallel_size": 4}, {}),
    ("vllm serve org/m --gpu_memory_utilization 0.9", "org/m", {"gpu_memory_utilization": 0.9}, {}),
    ("vllm serve org/m --revision 123456", "org/m", {"revision": "123456"}, {}),
    (
        """vllm serve org/m --quantization-config '{"linear": "mxfp8", "ignore": ["lm_head"]}'""",
        "org/m",
        {"quantization_config": {"linear": "mxfp8", "ignore": ["lm_head"]}},
        {},
    ),
    (
        "vllm serve org/m --kernel-config.linear_backend triton --kernel-config.a.b 3",
        "org/m",
        {"kernel_config": {"linear_backend": "triton", "a": {"b": 3}}},
        {},
    ),
    (
        "vllm serve org/m --quantization-config.ignore+ a,b --quantization-config.ignore+ c",
        "org/m",
        {"quantization_config": {"ignore": ["a", "b", "c"]}},
        {},
    ),
    ("python -m vllm.entrypoints.openai.api_server --model org/m --port 8001", "org/m", {"port": 8001}, {}),
    ("/opt/x/bin/python3 -m vllm.entrypoints.cli.main serve org/m --seed 3", "org/m", {"seed": 3}, {}),
    ("python /x/vllm/entrypoints/openai/api_server.py --model org/m", "org/m", {}, {}),
    (
        "export VLLM_LOGGING_LEVEL=DEBUG; cd /tmp && HF_HUB_OFFLINE=1 nohup vllm serve org/m --seed 1 > log.txt 2>&1 &",
        "org/m",
        {"seed": 1},
        {"VLLM_LOGGING_LEVEL": "DEBUG", "HF_HUB_OFFLINE": "1"},
    ),
    ("vllm serve org/m \\\n  --seed 1 \\\n  --dtype half | tee log", "org/m", {"seed": 1, "dtype": "half"}, {}),
    ("uv run vllm serve org/m --port 8000 2>err", "org/m", {"port": 8000}, {}),
    (
        "docker run --rm -it --gpus all -v ~/.cache:/root/.cache -p 8000:8000 --ipc=host --env HF_TOKEN=$HF_TOKEN"
        " -e VLLM_USE_DEEP_GEMM=0 vllm/vllm-openai:v0.27.1 --model org/m --max-model-len 4096",
        "org/m",
        {"max_model_len": 4096},
        {"HF_TOKEN": EnvRef("HF_TOKEN"), "VLLM_USE_DEEP_GEMM": "0"},
    ),
    (
        "podman run -d --name x --device nvidia.com/gpu=all --entrypoint vllm vllm/vllm-openai:latest org/m -q fp8",
        "org/m",
        {"quantization": "fp8"},
        {},
    ),
]


@pytest.mark.parametrize(("text", "model", "args", "env"), COMMANDS)
def test_commands(text: str, model: str, args: dict[str, Any], env: dict[str, Any]) -> None:
    draft = read_command(text, FLAGS)
    assert (draft.model, draft.args, draft.env) == (model, args, env)
    # What was read is a profile, and says the same again.
    again = read_words(["vllm", "serve", model, *serve_arguments(draft.profile("x").args, FLAGS)], FLAGS)
    assert again.args == args


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/m --api-key sk-verysecret1 sk-verysecret2 --seed 1",
        "vllm serve org/m --api-key=sk-verysecret1 --seed 1",
        "vllm serve org/m --hf-token hf_verysecret --seed 1",
        "VLLM_API_KEY=sk-verysecret HF_TOKEN=hf_verysecret vllm serve org/m --seed 1",
        "docker run -e HF_TOKEN=hf_verysecret -eVLLM_API_KEY=sk-verysecret vllm/vllm-openai --model org/m --seed 1",
    ],
)
def test_keys_become_references(text: str) -> None:
    draft = read_command(text, FLAGS)
    profile = draft.profile("x")
    assert draft.args == {"seed": 1}
    assert profile.env
    assert all(isinstance(value, EnvRef) for value in profile.env.values())
    assert "verysecret" not in repr((profile, draft.notes))
    assert draft.notes


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A=1 vllm serve x && rm y", ["rm y"]),
        ("cd /tmp; vllm serve x > log 2>&1 | tee out", ["cd /tmp", "tee out", "> log", "2>&1"]),
        ("B=2 other; vllm serve x & vllm serve z", ["B=… other", "vllm serve z"]),
        ("vllm serve x || curl -H 'Authorization: Bearer abcdefghijklmnop' u", ["curl -H Authorization: *** u"]),
        ("export A=1; vllm serve x", []),
    ],
)
def test_what_of_the_line_is_left_out_is_said(text: str, left: list[str]) -> None:
    draft = read_command(text, FLAGS)
    assert draft.model == "x"
    said = [note.rpartition(": left out")[2] for note in draft.notes]
    assert [note.split(": ", 1)[1] for note in said] == left
    assert set(draft.env) <= {"A"}


@pytest.mark.parametrize(
    "text", ["vllm serve $(cat m)", 'vllm serve x --seed "$(date)"', "vllm serve `id`", 'vllm serve x --y "it\'s `id`"']
)
def test_a_value_that_a_command_would_give_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="runs another one"):
        read_command(text, FLAGS)


def test_backticks_in_single_quotes_are_text() -> None:
    assert read_command("vllm serve x --chat-template 'a `b` $(c)'", FLAGS).args == {"chat_template": "a `b` $(c)"}


def test_a_key_under_a_harmless_name_becomes_a_reference() -> None:
    draft = read_command("ODD=hf_abcdefghijklmnop vllm serve x --seed 1", FLAGS)
    assert draft.env == {"ODD": EnvRef("ODD")}
    draft = read_command("vllm serve x --otlp-traces-endpoint https://me:geheim@host/", FLAGS)
    assert draft.profile("p").args == {}
    assert "geheim" not in repr(draft.notes)


def test_other_variables_stay_references() -> None:
    assert read_command("X_ID=$MY_ID vllm serve m", FLAGS).env == {"X_ID": EnvRef("MY_ID")}
    assert read_command('T="${MY_T:?set it}" vllm serve m', FLAGS).env == {"T": EnvRef("MY_T")}


def test_gpus_are_a_local_choice() -> None:
    draft = read_command("CUDA_VISIBLE_DEVICES=2,3 vllm serve org/m", FLAGS)
    assert draft.profile("x").gpu_count == 2
    assert "CUDA_VISIBLE_DEVICES" not in draft.env
    assert read_command("vllm serve m -tp 2 -pp 2", FLAGS).profile("x").gpu_count == 4
    container = read_command("docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.30.0 m", FLAGS)
    assert (container.gpu_count, container.vllm) == (2, ">=0.30")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls -l", "no `vllm serve`"),
        ("", "no `vllm serve`"),
        ("vllm bench latency", "no `vllm serve`"),
        ("vllm serve 'org/m", "quotes"),
        ("vllm serve org/m other", "belongs to"),
        ("docker run", "no `vllm serve`"),
        ("vllm serve $MODEL", "variable of that shell"),
    ],
)
def test_what_is_no_server(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_command(text, FLAGS)


def test_without_a_model() -> None:
    with pytest.raises(UsageError, match="no model"):
        read_command("vllm serve --seed 1", FLAGS).profile()


def test_without_a_catalogue() -> None:
    draft = read_command("vllm serve org/m --enforce-eager --new-flag 3 --other x --disable-log-stats", None)
    assert draft.args == {"enforce_eager": True, "new_flag": 3, "other": "x", "disable_log_stats": True}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("x", "12", 12),
        ("x", "012", "012"),
        ("x", "1e-5", 1e-5),
        ("x", "0.5", 0.5),
        ("x", "99999999999999999999", "99999999999999999999"),
        ("x", "{broken", "{broken"),
        ("hf_overrides", '{"a": 1}', {"a": 1}),
        ("hf_overrides", "3", "3"),
    ],
)
def test_types(key: str, text: str, value: Any) -> None:
    assert typed(key, text, None) == value


@pytest.mark.parametrize(
    ("model", "args", "name"),
    [
        ("Qwen/Qwen3-8B", {}, "qwen3-8b"),
        (
            "/models/My Model/",
            {"quantization": "fp8_per_block", "kv_cache_dtype": "fp8"},
            "my-model-fp8-per-block-fp8kv",
        ),
        ("Qwen/Qwen3-8B-GGUF:Q4_K_M", {}, "qwen3-8b-gguf-q4-k-m"),
        ("ü", {}, "profile"),
    ],
)
def test_names(model: str, args: dict[str, Any], name: str) -> None:
    assert suggested_name(model, args) == name
