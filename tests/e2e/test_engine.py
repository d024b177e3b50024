"""The main job on the real engine: two profiles, two vLLM servers, a verdict, and nothing left behind."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.vq import vq_json
from vq_console.demo.pair import demo_pairs
from vq_console.demo.prepare import save_demo_profile
from vq_console.hardware.probe import read_machine

if TYPE_CHECKING:
    from conftest import Prepared

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def test_two_real_servers_to_a_verdict(clean_home: Path, prepared: Prepared) -> None:
    pair = demo_pairs("cpu", None, read_machine(processes=False).host.cpu_isa)[0]
    assert pair.schemes == prepared.pair
    for arm in (pair.a, pair.b):
        save_demo_profile(arm, prepared.models[arm.scheme])
    a, b = (f"profile:{arm.name}" for arm in (pair.a, pair.b))
    value: dict[str, Any] = vq_json(
        "ab", a, b, "--engine", prepared.engine, "--latency-minutes", "1", "--quality-minutes", "0.8", timeout=840
    )  # fmt: skip
    assert value["simulated"] is False
    assert "SIMULATED" not in Path(value["report"]).read_text()
    for side in ("A", "B"):
        assert value["arms"][side]["facts"]["vllm_version"] == "0.32.0"
        log = Path(value["report"]).parent / "arms" / side / "log.txt"
        assert "Initializing a V1 LLM engine (v0.32.0)" in log.read_text()
    metrics = {(e["metric"], e["concurrency"]) for e in value["latency"]["endpoints"]}
    assert ("tpot", 1) in metrics
    assert any(metric == "throughput" and level > 1 for metric, level in metrics)
    assert value["quality"]["kld"]["value"] > 0.01, "a quantized checkpoint differs"
    assert value["quality"]["kld"]["on_policy"] is True
    assert all(value["verdict"].values())
    assert list((Path(value["report"]).parent / "latency").glob("*.jsonl"))
    for side in ("A", "B"):
        port = int(value["arms"][side]["url"].rpartition(":")[2])
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, "the port is free again"
