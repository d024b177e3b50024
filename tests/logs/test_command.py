"""`vq-console explain`: JSON contract, exit codes, pipe, words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logs.cases import DATA

_CASES = DATA / "cases"
_PROGRAM = (
    "import argparse, sys\n"
    "from vq_console.commands import explain\n"
    "from vq_console.core.errors import VqError\n"
    "parser = argparse.ArgumentParser()\n"
    "explain.register(parser.add_subparsers())\n"
    "args = parser.parse_args()\n"
    "try:\n"
    "    raise SystemExit(int(args.handler(args)))\n"
    "except VqError as error:\n"
    "    print(error, file=sys.stderr)\n"
    "    raise SystemExit(int(error.exit_code))\n"
)


def _run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, "explain", *arguments],
        input=stdin,
        capture_output=True,
        env=environment,
        timeout=60,
    )


def test_the_contract() -> None:
    result = _run(str(_CASES / "kv-cache-too-small-4090" / "log.txt"), "--json")
    assert result.returncode == 1
    assert result.stderr == b""
    value = json.loads(result.stdout)
    assert value["schema"] == "vq-console/explain/1"
    assert {"diagnosis", "root_line", "evidence", "explanation", "fixes", "facts", "phases", "asked_vs_runs"} <= set(
        value
    )
    assert value["diagnosis"] == "kv-cache-too-small"
    assert value["root_line"] == 21
    assert "16.0 GiB KV cache is needed" in value["evidence"]
    assert value["fixes"][0]["patch"]["set_args"] == {"max_model_len": 37840}
    assert value["facts"]["model_load_gib"] == 14.99
    assert all(set(phase) == {"name", "seconds"} for phase in value["phases"])
    keys = {"kind", "expected", "selected", "grade", "alarm"}
    assert all(keys <= set(row) for row in value["asked_vs_runs"])


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("healthy-fp8-l40s-cutlass", 0),
        ("spawn-override-benign", 0),
        ("env-unknown-attention-backend", 0),
        ("port-in-use-serve", 1),
        ("root-cause-truncated-wrapper-only", 1),
        ("cli-swap-space-removed", 1),
    ],
)
def test_exit_codes(case: str, code: int) -> None:
    assert _run(str(_CASES / case / "log.txt")).returncode == code


def test_as_a_filter_in_a_pipe() -> None:
    log = (_CASES / "tricky-docker-compose-prefix" / "log.txt").read_bytes()
    result = _run("-", "--json", stdin=log)
    assert result.returncode == 1
    assert json.loads(result.stdout)["diagnosis"] == "kv-cache-no-memory"


def test_without_standard_input() -> None:
    program = f"import sys; sys.stdin = None; sys.argv = ['x', 'explain', '-']\n{_PROGRAM}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 3
    assert done.stderr.startswith("standard input is closed")


@pytest.mark.parametrize(
    ("text", "title"), [(b"", "The log is empty"), (b"Dear diary,\ntoday nothing happened.\n", "No log of vLLM")]
)
def test_what_is_no_log_is_not_called_cut_off(text: bytes, title: str) -> None:
    result = _run("-", stdin=text)
    words = result.stdout.decode()
    assert result.returncode == 1
    assert words.startswith(f"{title}  [root-cause-not-in-log]")
    assert "wrapper" not in words
    assert "Scroll up" not in words


def test_words_for_a_person() -> None:
    words = _run(str(_CASES / "free-memory-less-than-util-a6000" / "log.txt")).stdout.decode()
    assert words.startswith("GPU memory is used by something else  [gpu-memory-busy]")
    assert "Line 22 (EngineCore):" in words
    assert "31.44 of 47.38 GiB were free" in words
    assert "What to do:" in words
    assert "gpu_memory_utilization = 0.65" in words


def test_no_control_sequence_reaches_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b"(APIServer pid=1) INFO 11-03 09:00:00 [u.py:1] non-default args: {'model': 'evil\\x1b]0;title\\x07'}\n"
        b'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: \x1b[2J\x1b]0;owned\x07 boom\n'
    )
    for arguments in ((), ("--json",)):
        out = _run(str(log), *arguments).stdout
        assert b"\x1b" not in out
        assert b"\x07" not in out
        assert b"boom" in out


def test_a_log_that_cannot_be_read() -> None:
    result = _run("/nonexistent/log")
    assert result.returncode == 2
    assert b"/nonexistent/log" in result.stderr


def test_a_target_without_a_profile_is_wrong_use() -> None:
    result = _run(str(_CASES / "port-in-use-serve" / "log.txt"), "--target", "t.toml")
    assert result.returncode == 2


def test_expected_against_selected(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(
        'name = "p"\nmodel = "Qwen/Qwen3-8B"\n\n[args]\nquantization = "fp8_per_tensor"\nmax_model_len = 8192\n'
    )
    checkpoint = (
        '[checkpoint]\narchitectures = ["Qwen3ForCausalLM"]\nhidden_size = 4096\nintermediate_size = 12288\n'
        "num_hidden_layers = 36\nnum_attention_heads = 32\nnum_key_value_heads = 8\nhead_dim = 128\nvocab_size = "
        "151936\n"
        'dtype = "bfloat16"\n'
    )
    for sm, expected in ((86, "FP8 W8A8 per tensor"), (89, "ScaledMMLinearKernel")):
        target = tmp_path / f"{sm}.toml"
        target.write_text(f'vllm_version = "0.32.0"\ngpu_sm = {sm}\ngpu_count = 1\ngpu_mem_gib = 24\n{checkpoint}')
        log = str(_CASES / "healthy-fp8-per-tensor-a5000-marlin" / "log.txt")
        result = _run(log, "--profile", str(profile), "--target", str(target), "--json")
        assert result.returncode == 0, result.stderr
        rows = {row["kind"]: row for row in json.loads(result.stdout)["asked_vs_runs"]}
        assert rows["linear"]["selected"] == "MarlinFP8ScaledMMLinearKernel"
        assert rows["linear"]["alarm"] is True, "weights alone are not what FP8 asks for, foretold or not"
        assert expected in rows["linear"]["expected"]
        assert ("foretold" in rows["linear"]["detail"]) is (sm == 86)
