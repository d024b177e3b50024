"""The whole way with the stand-in engine: profile, plan, keeper, faults that vLLM has, judgement by the log."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from serving.conftest import QUICK, Bench, twenty_times
from vq_console.core import http
from vq_console.core.errors import LaunchError
from vq_console.engines.find import choose_engine
from vq_console.profiles.model import Profile
from vq_console.serving.control import keep_quiet, wait_ready
from vq_console.serving.keeping import procfs
from vq_console.serving.launch import Settings, launch
from vq_console.serving.model import ServerRecord
from vq_console.serving.view import server_json


def simulated(faults: dict[str, Any] | None = None, **spec: Any) -> ServerRecord:
    value = json.dumps({"startup_s": 0.3, "faults": faults or {}, **spec})
    profile = Profile(
        "sim",
        "meta-llama/Llama-3.1-8B-Instruct",
        args={"quantization": "fp8", "disable_access_log_for_endpoints": "/v1/models"},  # so that looks are seen
        env={"VQ_SIM_SPEC": value},
    )
    settings = Settings(keeper={**QUICK, "token_s": 999.0})
    return launch(profile, engine=choose_engine(None, python="simulator"), settings=settings)


def ask(record: ServerRecord) -> None:
    http.post(f"{record.url}/v1/completions", {"model": record.model, "prompt": "x", "max_tokens": 2}, timeout=10)


@twenty_times
def test_quiet_and_then_an_engine_that_dies_with_exit_code_zero(bench: Bench, turn: int) -> None:
    simulated({"exit_zero_after": 2})
    record = wait_ready("sim", timeout_s=30)
    living = bench.members(record)
    assert record.log is not None
    keep_quiet("sim", 60)
    bench.wait(lambda: not _growing(record.log))  # each look would be a line of its access log
    for _ in range(3):
        ask(record)
    ended = bench.until("sim", "failed", timeout_s=30)
    assert ended.exit_code == 0
    assert server_json(ended)["state"] == "failed", "the log knows better than the exit code"
    assert bench.gone(*living)


@twenty_times
def test_the_api_server_is_killed_and_its_engine_stays(bench: Bench, turn: int) -> None:
    simulated({"orphan_engine": True, "grandchild": True})
    record = wait_ready("sim", timeout_s=30)
    living = bench.members(record)
    names = {proc.comm for proc in living.values()}
    assert any(name.startswith("VLLM::EngineCor") for name in names), names
    assert record.identity is not None
    assert procfs.send_signal(record.identity.pid, record.identity.start_ticks, signal.SIGKILL)
    ended = bench.until("sim", "failed", timeout_s=30)
    assert ended.exit_code == -signal.SIGKILL
    assert bench.gone(*living), "engine, worker and the one in another session are gone"


@twenty_times
def test_the_engine_is_killed(bench: Bench, turn: int) -> None:
    simulated()
    record = wait_ready("sim", timeout_s=30)
    living = bench.members(record)
    core = next(proc for proc in living.values() if proc.comm.startswith("VLLM::EngineCor"))
    assert procfs.send_signal(core.pid, core.start_ticks, signal.SIGKILL)
    ended = bench.until("sim", "failed", timeout_s=30)
    assert server_json(ended)["problem"]["severity"] == "unknown", "why the engine went is not in the log"
    assert bench.gone(*living)


def test_ready_in_the_log_but_dead_at_the_first_token(bench: Bench) -> None:
    simulated({"die_first_token": True})
    with pytest.raises(LaunchError) as caught:
        wait_ready("sim", timeout_s=30)
    shown = server_json(bench.until("sim", "failed"))
    assert shown["facts"]["ready"] is True
    assert shown["state"] == "failed"
    assert shown["problem"]["severity"] == "error"
    assert shown["problem"]["slug"] in str(caught.value)


def _growing(log: str | None) -> bool:
    assert log is not None
    before = os.path.getsize(log)
    time.sleep(0.5)  # several times the interval at which /health is asked here
    return os.path.getsize(log) != before
