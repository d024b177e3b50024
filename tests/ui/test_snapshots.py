"""Every screen in its states as a picture: `pytest tests/ui/test_snapshots.py --snapshot-update` accepts a change.

Nothing of this machine is in them: the hub stands still, the plan is made for a described H200, runs and logs are
recorded ones.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, TabbedContent

from compare.summaries import summary
from ui.moments import LOGS, FrozenHub, busy, h200
from ui.test_screens import see, settle
from vq_console.checks.live import LiveAnswer, LiveToken, find_parting
from vq_console.compare.history import own_process
from vq_console.compare.run import write_outputs
from vq_console.core.errors import EngineError
from vq_console.core.files import append_jsonl, write_json
from vq_console.core.places import runs_dir
from vq_console.preflight import check
from vq_console.preflight.target import Target
from vq_console.profiles.model import Profile
from vq_console.profiles.store import save_profile
from vq_console.ui.app import VqConsole
from vq_console.ui.hub import Snapshot
from vq_console.ui.settings import UiSettings
from vq_console.ui.widgets.dialogs import Choose, Confirm
from vq_console.ui.widgets.live import LivePane

Steps = Callable[[Pilot[int]], Awaitable[object]]
WIDE, LOW, TINY = (112, 30), (80, 24), (60, 20)
RUN = Path(__file__).parents[1] / "data" / "ui" / "run"
RUN_NAME = (RUN / "name").read_text().strip()
H200 = {
    "vllm_version": "0.26.0", "gpu_sm": "9.0", "gpu_count": 1, "gpu_mem_gib": 139.8, "gpu_free_gib": 120.0,
    "device": "cuda",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """One picture: what the hub shows, how one gets there, what must be on the screen before it is taken."""

    steps: Steps
    size: tuple[int, int] = WIDE
    hub: Snapshot = field(default_factory=busy)
    prepare: Callable[[], None] = lambda: None
    settings: Mapping[str, Any] = field(default_factory=dict)


def keys(*pressed: str, until: tuple[str, ...] = ()) -> Steps:
    """Press keys one after the other, then wait for words."""

    async def steps(pilot: Pilot[int]) -> None:
        await settle(pilot)
        for key in pressed:
            await pilot.press(key)
            await settle(pilot)
        await see(pilot, *until)
        await settle(pilot)

    return steps


def recorded_run() -> None:
    """The recorded comparison as the only run."""
    shutil.copytree(RUN, runs_dir() / RUN_NAME)


def going_run(*events: Mapping[str, Any]) -> None:
    """A comparison that goes on, with these events behind it."""
    folder = runs_dir() / "20260101-000000-fp8-vs-int4-0001"
    head = {"state": "running", "process": own_process(), "arms": {"A": "fp8", "B": "int4"}, "created": 1.0}
    write_json(folder / "run.json", head)
    for event in events:
        append_jsonl(folder / "progress.jsonl", event)


def latency_going() -> None:
    endpoint = {
        "metric": "tpot", "concurrency": 1, "primary": True, "a": 0.0031, "b": 0.0034, "ratio": 1.1, "ci": None,
        "pairs": 3, "word": "continue", "values": [[1.0, 1.09], [1.0, 1.1], [1.0, 1.11]],
    }  # fmt: skip
    interim = {"endpoints": [endpoint]}
    event = {
        "stage": "pair",
        "message": "tpot at 1: B/A 1.100",
        "done": 3,
        "total": 12,
        "eta_s": 90,
        "interim": interim,
    }
    going_run(event)


def quality_going() -> None:
    kld = {"value": 0.021, "ci": [0.012, 0.03], "sequences": 9, "tokens": 860, "on_policy": True}
    event = {"stage": "score", "message": "scoring the text of fp8", "arm": "B", "done": 9, "total": 64, "eta_s": 41}
    going_run({**event, "interim": {"kld": kld, "of": "int4", "from": "fp8"}})


def alarm_run() -> None:
    folder = runs_dir() / "20260101-000000-fp8-vs-int4-0002"
    write_json(folder / "run.json", {"state": "finished", "created": 1.0, "arms": {"A": "fp8", "B": "int4"}})
    write_outputs(folder, summary())


def broken_run() -> None:
    folder = runs_dir() / "20260101-000000-fp8-vs-int4-0003"
    error = {"message": "int4: no server", "hint": "start it and name it as server:NAME"}
    head = {"state": "failed", "created": 1.0, "arms": {"A": "fp8", "B": "int4"}, "error": error}
    write_json(folder / "run.json", head)


def own_profiles() -> None:
    """One good profile and one file that is none, with names that would come first."""
    save_profile(Profile("a-qwen3-8b-fp8", "Qwen/Qwen3-8B", args={"quantization": "fp8_per_tensor"}))


async def see_run(pilot: Pilot[int], tab: str, *texts: str) -> None:
    """Open the newest run from History and show one of its views."""
    await settle(pilot)
    await pilot.press("5")
    await settle(pilot)
    await see(pilot, " | ")
    await pilot.press("enter")
    await settle(pilot, 0.4)
    pilot.app.screen.query_one("#views", TabbedContent).active = tab
    await see(pilot, *texts)
    await settle(pilot)


def a_run(tab: str, *texts: str) -> Steps:
    async def steps(pilot: Pilot[int]) -> None:
        await see_run(pilot, tab, *texts)

    return steps


async def a_root_line(pilot: Pilot[int]) -> None:
    await settle(pilot)
    await pilot.press("w", "enter")
    await see(pilot, "Context does not fit the KV cache", "paused (f follows)", "┄E")
    await settle(pilot)


async def a_search(pilot: Pilot[int]) -> None:
    await a_root_line(pilot)
    await pilot.press("slash", *"memory", "enter")
    await see(pilot, "matches of 'memory'")
    await pilot.press("v", "v")
    await settle(pilot)


async def a_search_for_nothing(pilot: Pilot[int]) -> None:
    await keys("2", until=("runs as",))(pilot)
    pilot.app.screen.query_one("#profile-search", Input).value = "zzz"
    await see(pilot, "No profile fits 'zzz'.")


async def a_parting(pilot: Pilot[int]) -> None:
    await keys("4", until=("Choose two arms that run",))(pilot)
    a = (LiveToken("The", -0.1), LiveToken(" sky\x1b[31m", -0.2), LiveToken(" is", -0.5, {" is": -0.5, " was": -1.0}))
    b = (LiveToken("The", -0.1), LiveToken(" sky\x1b[31m", -0.3), LiveToken(" was", -0.4, {" was": -0.4, " is": -1.3}))
    left = LiveAnswer("fp8", "The sky is", a, 0.041, 0.3, "stop", done=True)
    right = LiveAnswer("int4", "The sky was", b, 0.055, 0.4, "length", done=True)
    pilot.app.screen.query_one(LivePane).show(left, right, find_parting(a, b))
    await see(pilot, "part at token 3")


async def a_question(pilot: Pilot[int]) -> None:
    await settle(pilot)
    pilot.app.push_screen(Confirm("Stop fp8?", "Its requests end; its memory comes back."))
    await see(pilot, "Stop fp8?")


async def a_choice(pilot: Pilot[int]) -> None:
    await settle(pilot)
    options = [("fp8_per_tensor", "FP8 on load"), ("16-bit", "no quantization, the baseline")]
    pilot.app.push_screen(Choose("The same at …", options))
    await see(pilot, "the baseline")
    pilot.app.screen.query_one(Input).blur()
    await settle(pilot)


async def a_fallback(pilot: Pilot[int]) -> None:
    await settle(pilot)
    pilot.app.screen.query_one("#servers", DataTable).move_cursor(row=1)
    await see(pilot, "runs another kernel than expected")


FIRST = Snapshot(version=1, gpu_reason="no NVIDIA driver")
EIGHT = replace(busy(), gpus=tuple(h200(i) for i in range(8)))
WITH_LOG = replace(busy().servers[4], record=replace(busy().servers[4].record, log="vllm.log"))
BUSY_LOG = replace(busy(), servers=(*busy().servers[:4], WITH_LOG))
FAILED_LOG = LOGS / "cases" / "kv-cache-too-small-4090" / "log.txt"
SCENES = {
    "servers": Scene(keys(until=("w look",))),
    "servers-fallback": Scene(a_fallback),
    "servers-narrow": Scene(keys("w", until=("mla · problem",)), LOW),
    "servers-tiny": Scene(keys(until=("✖ mla failed",)), TINY),
    "servers-eight-gpus": Scene(keys(), LOW, EIGHT),
    "servers-first-run": Scene(keys(until=("Missing: a GPU", "a vLLM engine (i)")), LOW, FIRST),
    "servers-light": Scene(keys(until=("w look",)), LOW, settings={"theme": "textual-light"}),
    "servers-16-colours": Scene(keys(until=("w look",)), LOW, settings={"theme": "ansi-dark"}),
    "profiles": Scene(keys("2", until=("runs as", "a-qwen3-8b-fp8")), prepare=own_profiles),
    "profiles-narrow": Scene(keys("2", "t", until=("KV cache dtype",)), LOW, prepare=own_profiles),
    "profiles-none-fits": Scene(a_search_for_nothing, LOW),
    "logs": Scene(a_root_line, hub=BUSY_LOG),
    "logs-search": Scene(a_search, LOW, BUSY_LOG),
    "logs-empty": Scene(keys("3", until=("No log yet",)), LOW, FIRST),
    "ab-empty": Scene(keys("4", until=("Choose two arms",)), LOW, FIRST),
    "ab-live": Scene(a_parting, LOW),
    "ab-latency-going": Scene(a_run("latency", "not yet", "90 s left"), LOW, prepare=latency_going),
    "ab-quality-going": Scene(a_run("quality", "so far", "0.012 to 0.03"), LOW, prepare=quality_going),
    "ab-latency-low": Scene(a_run("latency", "B is"), LOW, prepare=recorded_run),
    "ab-latency": Scene(a_run("latency", "TTFT at 1 stream"), prepare=recorded_run),
    "ab-quality": Scene(a_run("quality", "noise floor"), prepare=recorded_run),
    "ab-verdict": Scene(a_run("verdict", "In short"), prepare=recorded_run),
    "ab-verdict-alarm": Scene(a_run("verdict", "expected Machete, runs Marlin"), LOW, prepare=alarm_run),
    "ab-failed": Scene(a_run("verdict", "no server"), LOW, prepare=broken_run),
    "history": Scene(keys("5", until=("In short",)), prepare=recorded_run),
    "history-empty": Scene(keys("5", until=("No run yet.",)), TINY),
    "matrix": Scene(keys("2", "m", until=("v next version",)), LOW),
    "help": Scene(keys("question_mark", until=("Esc closes",)), LOW),
    "question": Scene(a_question, LOW),
    "choice": Scene(a_choice, LOW),
}


@pytest.mark.parametrize("name", SCENES)
def test_picture(name: str, snap_compare: Any, vq_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine(*_: object, **__: object) -> None:
        raise EngineError("no engine here")

    real = check.plan_profile
    target = Target(H200, origin="an H200")
    monkeypatch.setattr("vq_console.engines.find.choose_engine", no_engine)
    monkeypatch.setattr("vq_console.engines.find.find_engines", lambda: ())
    monkeypatch.setattr(check, "plan_profile", lambda profile, **_: real(profile, target=target, port=8000))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    shutil.copyfile(FAILED_LOG, tmp_path / "vllm.log")
    monkeypatch.chdir(tmp_path)
    scene = SCENES[name]
    scene.prepare()
    app = VqConsole(settings=UiSettings(**scene.settings))
    app.hub = FrozenHub(scene.hub)
    app.animation_level = "none"
    assert snap_compare(app, terminal_size=scene.size, run_before=scene.steps)
