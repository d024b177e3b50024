"""GPUs as the keeper sees them, with a stand-in for nvidia-smi: samples, waiting for memory, memory given back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.conftest import QUICK, Bench
from vq_console.hardware.model import Gpu, Host, Machine
from vq_console.preflight.model import Plan
from vq_console.serving.control import stop_server
from vq_console.serving.keeping import locks
from vq_console.serving.launch import Settings, start
from vq_console.serving.model import ServerState
from vq_console.serving.registry import get_server

SMI = """#!/bin/sh
case "$*" in
  *--query-gpu=*) cat "{folder}/gpus" ;;
  *--query-compute-apps=*) cat "{folder}/apps" 2>/dev/null ;;
esac
"""
ROW = "GPU-abc, 83, {used}, 143771, 612.11, 61, 1980, 0x0000000000000000\n"


@pytest.fixture
def card(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One GPU; write `gpus` and `apps` in the returned folder to say what nvidia-smi prints."""
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "gpus").write_text(ROW.format(used=1000))
    tool = folder / "nvidia-smi"
    tool.write_text(SMI.format(folder=folder))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    machine = Machine(Host("here"), (Gpu(0, name="H200", uuid="GPU-abc", sm="9.0"),))
    monkeypatch.setattr("vq_console.hardware.probe.read_machine", lambda **_: machine)
    return folder


def on_gpu(bench: Bench, *flags: str, name: str = "tiny", **settings: float) -> None:
    plan = bench.plan(*flags, name=name)
    plan = Plan(plan.profile, plan.argv, {}, gpus=(0,), port=plan.port, served_model="tiny")
    start(plan, settings=Settings(keeper={**QUICK, "gpu_s": 0.2}, **settings))


def test_samples_are_recorded(bench: Bench, card: Path) -> None:
    on_gpu(bench)
    record = bench.until("tiny", "ready")
    path = Path(record.folder or "") / "metrics.jsonl"

    def gpus() -> list[dict[str, object]]:
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return next((row["gpus"] for row in rows if row.get("gpus")), [])

    (sample,) = bench.wait(gpus)
    assert (sample["uuid"], sample["util_pct"], sample["used_mib"]) == ("GPU-abc", 83, 1000)


def test_starts_queue_per_gpu_and_not_with_the_cpu(bench: Bench, card: Path) -> None:
    on_gpu(bench, "--load-s", "1.5", name="first")
    bench.until("first", "starting")
    on_gpu(bench, name="second")
    queued = bench.until("second", "queued", where=lambda r: "first" in r.phase)
    assert queued.phase == "waiting for first to start on GPU 0"
    assert locks.holder_of("gpu-GPU-abc")["name"] == "first"
    bench.ready(name="cpu-only")
    assert get_server("second").state is ServerState.QUEUED, "the CPU is another queue"
    bench.until("second", "ready", timeout_s=20)


def test_starts_come_in_the_order_in_which_they_were_asked_for(bench: Bench, card: Path) -> None:
    names = ["first", "second", "third", "fourth"]
    for name in names:
        on_gpu(bench, "--load-s", "0.6", name=name)
        if name == "first":
            bench.until(name, "starting")
        else:
            bench.until(name, "queued", where=lambda r: "to start" in r.phase)
    began = {name: bench.until(name, "ready", timeout_s=30).ready_at or 0.0 for name in names}
    assert sorted(began, key=began.__getitem__) == names


def test_it_starts_when_memory_is_free(bench: Bench, card: Path) -> None:
    (card / "gpus").write_text(ROW.format(used=143000))
    on_gpu(bench, min_free_gib=20.0)
    waiting = bench.until("tiny", "queued", where=lambda r: "now" in r.phase)
    assert waiting.phase == "waiting for 20 GiB free (0.8 now)"
    (card / "gpus").write_text(ROW.format(used=1000))
    bench.until("tiny", "ready", timeout_s=20)


def test_a_stop_waits_until_the_memory_is_back(bench: Bench, card: Path) -> None:
    on_gpu(bench)
    record = bench.until("tiny", "ready")
    assert record.identity is not None
    apps = card / "apps"
    apps.write_text(f"{record.identity.pid}, 6100\n")
    phases = []

    def watch(now) -> None:
        phases.append(now.phase)
        if now.phase == "waiting for the GPU's memory":
            apps.write_text("99, 6100\n")

    ended = stop_server("tiny", on_progress=watch)
    assert ended.state is ServerState.STOPPED
    assert "waiting for the GPU's memory" in phases
