"""Profiles from vLLM's YAML, from a running process and from a log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vq_console.core.errors import UsageError
from vq_console.engines.catalogue import snapshot
from vq_console.profiles import sources
from vq_console.profiles.model import EnvRef

FLAGS = snapshot("0.33.0").flags


def test_yaml(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "model: ./m\nport: 12323\ntensor-parallel-size: 4\nenforce-eager: true\nenable_prefix_caching: false\n"
        "served-model-name: [a, b]\nspeculative-config:\n  model: x/y\n  num_speculative_tokens: 3\n"
        "api-key: [k1]\nhf-token: hf_abc\nrevision: 2024-01-01\nseed: null\nhf-overrides: '{\"a\": 1}'\n"
    )
    draft = sources.from_yaml(path, FLAGS)
    profile = draft.profile("x")
    assert profile.model == str(tmp_path / "m")
    assert profile.args == {
        "port": 12323,
        "tensor_parallel_size": 4,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": ["a", "b"],
        "speculative_config": {"model": "x/y", "num_speculative_tokens": 3},
        "revision": "2024-01-01",
        "hf_overrides": {"a": 1},
    }
    assert profile.env == {"VLLM_API_KEY": EnvRef("VLLM_API_KEY"), "HF_TOKEN": EnvRef("HF_TOKEN")}
    assert "k1" not in repr(draft.notes)
    command = sources.from_command(f"vllm serve --config {path} --port 1 other/m", FLAGS)
    assert (command.model, command.args["port"], command.args["enforce_eager"]) == ("other/m", 1, True)


@pytest.mark.parametrize("text", ["- a\n", "a: [", "", "\t:", "!!python/object:os.system {}"])
def test_broken_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"c\.yaml") as raised:
        sources.from_yaml(path)
    assert "--config" in raised.value.hint
    with pytest.raises(UsageError, match="cannot be read") as raised:
        sources.from_yaml(tmp_path / "absent.yaml")
    assert raised.value.hint


LOG = """\
INFO 11-30 04:00:00 [api_utils.py:286] non-default args: {'model_tag': 'old', 'model': 'old'}
\x1b[0;36m(APIServer pid=41)\x1b[0;0m INFO 11-30 04:37:57 [api_utils.py:286]  ▄▄ version 0.32.0
(APIServer pid=41) INFO 11-30 04:37:57 [api_utils.py:286] non-default args: {'model_tag': './m', 'host': '127.0.0.1', \
'model': './m', 'max_model_len': 2048, 'api_key': '***', 'hf_token': 'hf_clear', 'enforce_eager': True, \
'quantization_config': {'ignore': ['re:.*[qkv]_proj'], 'targets': None}, 'kind': <Kind.A: 1>, \
'compilation_config': CompilationConfig(level=3), 'watermark_config': '***', 'served_model_name': ['a']}
"""


def test_log(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(LOG.encode() + b"\xff\xfe broken tail")
    draft = sources.from_log(path, FLAGS)
    profile = draft.profile("x")
    assert profile.model == "./m"
    assert profile.args == {
        "host": "127.0.0.1",
        "max_model_len": 2048,
        "enforce_eager": True,
        "quantization_config": {"ignore": ["re:.*[qkv]_proj"]},
        "served_model_name": ["a"],
    }
    assert profile.env == {"VLLM_API_KEY": EnvRef("VLLM_API_KEY"), "HF_TOKEN": EnvRef("HF_TOKEN")}
    assert draft.vllm == ">=0.32"
    assert "hf_clear" not in repr((draft, profile))
    assert any("compilation_config" in note for note in draft.notes)
    assert any("watermark_config" in note for note in draft.notes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing here",
        "non-default args: {'model_tag': 'x', 'mod",
        "non-default args: [1]",
        "non-default args: " + "(" * 9000,
    ],
)
def test_logs_that_do_not_say(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"log\.txt|non-default args"):
        sources.from_log(path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a server with a child that looks like its engine."""
    script = tmp_path / "vllm"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'EngineCore'])\n"
        "print(child.pid, flush=True)\n"
        "try:\n    time.sleep(60)\nfinally:\n    child.kill()\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_CACHE_ROOT": "/somewhere",
        "VLLM_API_KEY": "sk-verysecret",
        "HF_TOKEN": "hf_verysecret",
        "AWS_SECRET_ACCESS_KEY": "verysecret",
        "CUDA_VISIBLE_DEVICES": "1",
        "EDITOR": "vim",
    }
    process = subprocess.Popen(
        [sys.executable, str(script), "serve", "./m", "--max-model-len", "2048", "--api-key", "sk-verysecret"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
    )
    yield process
    process.terminate()
    process.wait(timeout=10)


def test_a_running_server_and_its_engine(server: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert server.stdout is not None
    child = int(server.stdout.readline())
    for pid in (server.pid, child):
        draft = sources.from_pid(pid, FLAGS)
        profile = draft.profile("x")
        assert profile.model == str(tmp_path / "m")
        assert profile.args == {"max_model_len": 2048}
        assert profile.gpu_count == 1
        assert profile.env == {
            "HF_TOKEN": EnvRef("HF_TOKEN"),
            "VLLM_API_KEY": EnvRef("VLLM_API_KEY"),
            "VLLM_LOGGING_LEVEL": "DEBUG",
        }
        assert "verysecret" not in repr((draft, profile))
    os.kill(child, 9)


def test_processes_that_are_no_server() -> None:
    with pytest.raises(UsageError, match="no vLLM server"):
        sources.from_pid(os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    time.sleep(0.05)
    with pytest.raises(UsageError, match="there is no process"):
        sources.from_pid(ended.pid)
