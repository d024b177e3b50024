"""From profile to verdict on the command line, with the stand-in engine: the whole way, without a download."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.vq import processes_of, vq, vq_json, write_profile
from vq_console.core.http import get

FP8 = {"script": "h200-fp8", "startup_s": 1.5, "tpot_factor": 10.0, "ttft_ms": 60.0}
INT4 = {"script": "h200-w4a16", "startup_s": 1.5, "tpot_factor": 10.0, "ttft_ms": 60.0, "kl": 0.2, "kl_seed": 3}


@pytest.fixture
def home(vq_home: Path) -> Iterator[Path]:
    """A console home whose servers are stopped at the end; nothing of it may live on."""
    vq_home.mkdir(parents=True)
    yield vq_home
    vq("stop", "--all", code=None)
    assert processes_of(vq_home) == []


def test_from_profile_to_verdict(home: Path, tmp_path: Path) -> None:
    fp8 = write_profile(tmp_path, "fp8", FP8, quantization="fp8_per_tensor")
    int4 = write_profile(tmp_path, "int4", INT4)
    served = vq_json("serve", str(fp8), "--engine", "simulator", "--wait")["servers"][0]
    assert served["state"] == "ready"
    assert served["facts"]["kernels"][0]["kernel"] == "CutlassFP8ScaledMMLinearKernel"
    assert served["facts"]["kv_cache_tokens"] > 0
    assert not any(row["alarm"] for row in served["asked_vs_runs"])
    assert "SIMULATED" in vq("ps").stdout
    assert "SIMULATED" in vq("logs", "fp8").stdout

    value = vq_json(
        "ab", "server:fp8", str(int4), "--engine", "simulator", "--latency-minutes", "0.4", "--quality-minutes", "0.4",
        timeout=240,
    )  # fmt: skip
    assert value["simulated"] is True
    assert {e["metric"] for e in value["latency"]["endpoints"]} >= {"ttft", "tpot", "throughput"}
    assert [e for e in value["latency"]["endpoints"] if e["primary"]]
    kld = value["quality"]["kld"]
    assert kld["ci"][0] < 0.2 < kld["ci"][1] * 1.2, "the planted divergence is 0.2 nats per token"
    assert kld["on_policy"] is True
    assert value["memory"]["B"]["weights_gib"] < value["memory"]["A"]["weights_gib"]
    assert all(value["verdict"][key] for key in ("speed", "quality", "memory"))
    assert {item["flag"] for item in value["validity"]} >= {"simulated"}
    assert Path(value["report"]).read_text().startswith("# fp8 against int4\n\n**SIMULATED**")

    # B was started for the comparison and is gone; A was there before and stays.
    states = {server["name"]: server["state"] for server in vq_json("ps")["servers"]}
    assert states == {"fp8": "ready", "int4": "stopped"}
    run = vq_json("history")["runs"][0]
    assert run["state"] == "finished"
    folder = Path(run["folder"])
    assert list((folder / "latency").glob("*.jsonl")), "raw records are kept"
    assert (folder / "arms" / "B" / "log.txt").exists()
    assert "<svg" in vq("report", "last", "--format", "html").stdout
    assert vq("diff", "last", "last", "--fail-on-regression").returncode == 0
    gate = vq("ab", "server:fp8", "server:fp8", "--fail-on", "nonsense", code=2)
    assert "no such gate" in gate.stderr


def test_a_check_that_is_stopped_at_once_did_not_fail(home: Path, tmp_path: Path) -> None:
    slow = write_profile(tmp_path, "slow", {**FP8, "ttft_ms": 4000.0})
    url = vq_json("serve", str(slow), "--engine", "simulator", "--wait")["servers"][0]["url"]
    words = [sys.executable, "-m", "vq_console", "ab", "server:slow", "server:slow", "--latency"]
    check = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not re.search(rb"num_requests_running\{.*\} 1", get(f"{url}/metrics").body):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    check.send_signal(signal.SIGINT)
    said = check.communicate(timeout=60)[1]
    assert check.returncode == 130, said
    (run,) = vq_json("history")["runs"]
    assert run["state"] == "partial"
    error = json.loads((Path(run["folder"]) / "run.json").read_text())["error"]
    assert error["message"] == "stopped before anything could be said"


def test_a_failed_start_is_explained_and_fixed_by_its_patch(home: Path, tmp_path: Path) -> None:
    spec = {"script": "fail-kv-too-small", "startup_s": 1.0, "faults": {"die_loading": True}}
    path = write_profile(tmp_path, "long", spec, max_model_len=131072)
    failed = vq("serve", str(path), "--engine", "simulator", "--wait", "--force", code=1)
    assert "kv-cache-too-small" in failed.stderr
    server = vq_json("ps")["servers"][0]
    assert (server["state"], server["diagnosis"]) == ("failed", "kv-cache-too-small")
    assert server["problem"]["root_line"] > 0
    assert any(fix["patch"] for fix in server["problem"]["fixes"])


def test_a_server_that_dies_at_its_first_token_is_never_ready(home: Path, tmp_path: Path) -> None:
    path = write_profile(tmp_path, "dies", {**FP8, "faults": {"die_first_token": True}})
    vq("serve", str(path), "--engine", "simulator", "--wait", code=1)
    server = vq_json("ps")["servers"][0]
    assert server["state"] == "failed"


def test_stop_ends_a_server_that_ignores_sigterm(home: Path, tmp_path: Path) -> None:
    path = write_profile(tmp_path, "stubborn", {**FP8, "faults": {"ignore_sigterm": True}})
    vq("serve", str(path), "--engine", "simulator", "--wait")
    vq("stop", "stubborn", "--timeout", "3", timeout=60)
    assert vq_json("ps")["servers"][0]["state"] == "stopped"
    assert processes_of(home) == []
