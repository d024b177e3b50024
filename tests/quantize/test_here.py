"""What this machine knows: ready checkpoints, room, and whether the result would run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantize.conftest import FakeTool
from vq_console.core import places
from vq_console.quantize.here import judged_here, predicted_facts, ready_notes, room_here, running_notes
from vq_console.quantize.model import Request
from vq_console.quantize.source import read_source


def test_ready_checkpoints_are_pointed_out(tiny: Path, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = vq_home / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    for name in (
        "models--acme--tiny-W4A16-g128",
        "models--acme--tiny",
        "models--acme--other-w4a16",
        "models--x--tiny-fp8",
    ):
        (cache / name).mkdir(parents=True)
    made = places.models_dir() / "mine"
    made.mkdir(parents=True)
    (made / "vq-console.json").write_text(json.dumps({"label": "W4A16-g64", "source": {"model": str(tiny)}}))
    broken = places.models_dir() / "broken"
    broken.mkdir()
    (broken / "vq-console.json").write_text("{")
    source = read_source(str(tiny))
    judged = judged_here(Request(str(tiny), "W4A16", tiny.parent / "out"), source)
    messages = [note.message for note in ready_notes(judged, source)]
    assert messages == [f"made already: {made}", "a ready one is in the cache: acme/tiny-W4A16-g128"]


def test_predicted_facts_are_those_of_the_result(tiny: Path, tool: FakeTool) -> None:
    from vq_console.profiles.checkpoint import read_checkpoint
    from vq_console.quantize.run import make, prepare

    request = Request(str(tiny), "W4A16", tiny.parent / "made/result", tool=tool.python, profile=False)
    prepared = prepare(request, plan=False)
    make(prepared, lambda words: None)
    predicted = predicted_facts(prepared.judged, prepared.source)
    found = read_checkpoint(str(request.out)).facts
    for key in ("quant_method", "format", "bits", "group_size", "hidden_size", "parameters"):
        assert predicted[key] == found[key], key
    assert predicted["size_gib"] == pytest.approx(found["size_gib"], abs=0.001)


def test_whether_it_runs_here_is_said_in_one_line(tiny: Path, vq_home: Path) -> None:
    source = read_source(str(tiny))
    judged = judged_here(Request(str(tiny), "W8A8", tiny.parent / "out"), source)
    notes = running_notes(judged, source)
    assert [note.rule for note in notes] in (["runs-here"], ["not-judged"])
    room = room_here(judged.request)
    assert room.disk_gib is not None
    assert room.memory_gib is not None
    assert 0 < room.memory_gib < 100_000
