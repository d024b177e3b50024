"""The keeper with a real vLLM: stop when ready, API server killed, engine killed, stop while loading."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from vq_console.engines.model import Engine
from vq_console.preflight.model import Plan
from vq_console.serving.control import stop_server, wait_ready
from vq_console.serving.keeping import procfs
from vq_console.serving.launch import free_port, start
from vq_console.serving.model import ServerRecord, ServerState
from vq_console.serving.registry import get_server
from vq_console.serving.view import server_json

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


class RealBench:
    """Starts the real engine with the starter model."""

    def __init__(self, python: str, model: str) -> None:
        self.engine = Engine(python, None, "cpu", "given")
        self.model = model

    def start(self) -> ServerRecord:
        port = free_port()
        argv = (
            self.engine.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model,
            "--served-model-name=tiny", "--host=127.0.0.1", f"--port={port}", "--enforce-eager", "--dtype=float32",
            "--max-model-len=256", "--max-num-seqs=4", "--gpu-memory-utilization=0.2",
        )  # fmt: skip
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return start(Plan("tiny", argv, env, port=port, served_model="tiny"), engine=self.engine)


@pytest.fixture
def real(bench, engine_python: str, starter_model: str) -> Iterator[RealBench]:
    yield RealBench(engine_python, starter_model)
    bench.stop_all()
    left = procfs.unused_segments(bench.segments)
    assert not left, f"segments stayed: {left}"


@pytest.mark.soak
def test_ready_then_stopped(bench, real: RealBench) -> None:
    real.start()
    record = wait_ready("tiny", timeout_s=400)
    shown = server_json(record)
    assert shown["facts"]["ready"] is True
    assert shown["facts"]["vllm_version"]
    assert shown["problem"]["severity"] in ("ok", "warning")
    living = bench.members(record)
    names = sorted(proc.comm for proc in living.values())
    assert any(name.startswith("VLLM::EngineCor") for name in names), names
    ended = stop_server("tiny")
    assert (ended.state, ended.exit_code) == (ServerState.STOPPED, 0)
    assert bench.gone(*living)
    assert server_json(ended)["problem"]["severity"] in ("ok", "warning"), server_json(ended)["problem"]


def test_the_engine_dies_and_then_the_api_server(bench, real: RealBench) -> None:
    real.start()
    record = wait_ready("tiny", timeout_s=400)
    living = bench.members(record)
    core = next(proc for proc in living.values() if proc.comm.startswith("VLLM::EngineCor"))
    assert procfs.send_signal(core.pid, core.start_ticks, signal.SIGKILL)
    ended = bench.until("tiny", "failed", timeout_s=60)
    assert ended.exit_code == 0, "this is why an exit code alone is not believed"
    assert server_json(ended)["state"] == "failed"
    assert bench.gone(*living)

    real.start()
    record = wait_ready("tiny", timeout_s=400)
    living = bench.members(record)
    assert procfs.send_signal(record.identity.pid, record.identity.start_ticks, signal.SIGKILL)
    ended = bench.until("tiny", "failed", timeout_s=60)
    assert ended.exit_code == -signal.SIGKILL
    assert bench.gone(*living), "the engine that the API server left behind is gone"
    assert (Path(ended.folder) / "incident-1.json").exists()


def test_stopped_while_loading(bench, real: RealBench) -> None:
    real.start()
    bench.until("tiny", "starting", timeout_s=200, where=lambda r: _loads(r))
    living = bench.members(get_server("tiny"))
    ended = stop_server("tiny")
    assert ended.state is ServerState.STOPPED
    assert bench.gone(*living)


def _loads(record: ServerRecord) -> bool:
    return record.log is not None and "EngineCore" in Path(record.log).read_text(errors="replace")
