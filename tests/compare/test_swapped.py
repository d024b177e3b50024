"""A whole comparison on two GPUs that change places half-way, with stand-in engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.vq import write_profile
from vq_console.compare import run
from vq_console.compare.comparison import AbSettings
from vq_console.compare.placement import Placement
from vq_console.serving.registry import list_servers

SPEC = {"startup_s": 0.3, "tpot_ms": 10.0, "ttft_ms": 20.0}


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_both_halves_are_measured_and_joined(vq_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = write_profile(tmp_path, "slow", {**SPEC, "script": "h200-fp8"}, quantization="fp8_per_tensor")
    faster = write_profile(tmp_path, "fast", {**SPEC, "script": "h200-w4a16", "tpot_ms": 7.0})
    places = Placement("swapped-gpus", "as on two GPUs", {"A": (), "B": ()})
    monkeypatch.setattr(run, "place_arms", lambda *arms: places)
    said: list[str] = []
    settings = AbSettings(engine="simulator", quality=False, latency_budget_s=90, declared=("script",))
    outcome = run.run_ab(str(slower), str(faster), settings, said.append)
    latency = outcome.summary["latency"]
    assert latency["design"] == outcome.summary["design"]["name"] == "swapped-gpus"
    assert any("change GPUs" in line for line in said)
    halves = [json.loads((outcome.folder / "latency" / part / "latency.json").read_text()) for part in ("", "swapped")]
    assert [half["arms"]["A"]["label"] for half in halves] == ["slow", "slow"]
    assert halves[0]["arms"]["A"]["url"] != halves[1]["arms"]["A"]["url"], "each half has servers of its own"
    tpot = next(e for e in latency["endpoints"] if e["metric"] == "tpot" and e["concurrency"] == 1)
    assert tpot["word"] == "faster", tpot
    assert {flag["flag"] for flag in outcome.summary["validity"]} >= {"gpus-swapped", "simulated"}
    assert not any(flag["flag"] == "different-gpus" for flag in outcome.summary["validity"])
    assert [server.state.value for server in list_servers()] == ["stopped"] * len(list_servers())
