"""Each screen answers its question at 160×48 and 80×24, empty and busy; nothing from outside is taken as markup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Select, Static, TabbedContent

from compare.summaries import summary
from ui.moments import busy, server
from vq_console.checks.live import LiveAnswer, LiveToken, find_parting
from vq_console.compare.run import write_outputs
from vq_console.core.files import append_jsonl, write_json
from vq_console.core.places import runs_dir
from vq_console.profiles.model import Profile
from vq_console.profiles.store import save_profile
from vq_console.serving.model import ServerState
from vq_console.ui import views
from vq_console.ui.app import VqConsole
from vq_console.ui.hub import Snapshot
from vq_console.ui.screens.logs import LogsScreen
from vq_console.ui.widgets.live import LivePane
from vq_console.ui.widgets.logview import LogView

SIZES = [(160, 48), (80, 24), (60, 20)]
Make = Callable[..., VqConsole]


def shown(app: VqConsole) -> str:
    """The text on the screen, as a person reads it."""
    width, height = app.size
    strips = app.screen._compositor.render_strips() if hasattr(app.screen, "_compositor") else []
    return "\n".join(strip.text[:width] for strip in strips[:height])


async def see(pilot: Pilot[int], *texts: str, seconds: float = 10) -> str:
    """Wait until all texts are on the screen; the screen's text."""
    for _ in range(int(seconds / 0.05)):
        await pilot.pause(0.05)
        if all(text in shown(pilot.app) for text in texts):  # type: ignore[arg-type]
            break
    text = shown(pilot.app)  # type: ignore[arg-type]
    assert [missing for missing in texts if missing not in text] == [], text
    return text


async def settle(pilot: Pilot[int], seconds: float = 0.1) -> None:
    await pilot.pause(seconds)
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES)
async def test_home_tells_kernels_problems_and_keys(console: Make, size: tuple[int, int]) -> None:
    app = console(busy())
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        text = shown(app)
        assert "fp8_per_tensor → CutlassFP8" in text or size[0] == 60
        assert "✖ mla failed: Context does not fit" in text
        assert "w look  p fix" in text
        assert "✖ 1" in text
        if size[0] >= 160:
            assert "▲ expected CutlassFP8" in text
            assert "SM 9.0" in text
            assert "31 / 41 ms" in text
            assert "loading weights" in text
            assert "queued (gpu 0)" in text
            assert "bf16 0" not in text


@pytest.mark.parametrize("size", SIZES)
async def test_first_run_says_what_to_do(console: Make, size: tuple[int, int]) -> None:
    app = console(Snapshot(version=1, gpu_reason="no NVIDIA driver"))
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        text = shown(app)
        assert "No server yet." in text
        assert "simulated tour" in text
        assert "no GPU: no NVIDIA driver" in text


async def test_failed_server_shows_root_line_fix_and_its_key(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot)
        app.screen.query_one("#servers", DataTable).move_cursor(row=4)
        await settle(pilot)
        problem = str(app.screen.query_one("#problem", Static).content)
        assert "log line 84 (enter): To serve at least one request [with brackets]" in problem
        assert "Lower --max-model-len to 52,144.  [p] apply" in problem


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", list("12345"))
async def test_every_screen_has_help_and_survives_resizing(console: Make, size: tuple[int, int], key: str) -> None:
    app = console(busy())
    async with app.run_test(size=size) as pilot:
        await pilot.press(key)
        await settle(pilot)
        await pilot.resize_terminal(60, 20)
        await pilot.resize_terminal(160, 48)
        await pilot.press("question_mark")
        await see(pilot, "Esc closes")
        await pilot.press("escape")
        await settle(pilot, 0.3)
        assert "Esc closes" not in shown(app)


async def test_simulated_is_on_every_screen(console: Make) -> None:
    app = console(busy(), simulated=True)
    async with app.run_test(size=(80, 24)) as pilot:
        for key in "12345":
            await pilot.press(key)
            await see(pilot, "SIMULATED")


async def test_log_opens_at_its_end_with_root_cause_search_and_filter(console: Make, tmp_path: Path) -> None:
    lines = [f"(EngineCore pid=2) INFO 11-03 09:00:{i % 60:02d} [core.py:1] line {i} [red]x[/red]" for i in range(300)]
    lines.insert(40, "(EngineCore pid=2) ERROR 11-03 09:00:40 [core.py:1] ValueError: needle one")
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n")
    app = console(Snapshot(version=1, servers=(server("fp8", ServerState.READY, log=str(path)),)))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("3")
        await see(pilot, "line 299 [red]x[/red]")
        view = app.screen.query_one(LogView)
        assert view.following
        await pilot.press("slash", *"needle", "enter")
        await see(pilot, "1 match of")
        assert view.buffer is not None
        assert view.position is not None
        assert view.buffer.number(view.position) == 41
        await pilot.press("escape", "v", "v")
        await settle(pilot)
        assert len(view.buffer.shown) == 1
        with path.open("a") as file:
            file.write("(APIServer pid=1) ERROR 11-03 09:01:00 [x.py:1] late trou")
            file.flush()
            await settle(pilot, 0.3)
            assert len(view.buffer.shown) == 1, "half a line is not shown"
            file.write("ble\n")
        await see(pilot, "late trouble")


async def test_verdict_of_a_finished_run_is_shown(console: Make) -> None:
    folder = runs_dir() / "20260101-000000-fp8-vs-int4-abcd"
    write_json(folder / "run.json", {"state": "finished", "created": 1.0, "arms": {"A": "fp8", "B": "int4"}})
    write_outputs(folder, summary())
    app = console(busy(), open_run=folder)
    async with app.run_test(size=(160, 48)) as pilot:
        await see(pilot, "Validity")
        assert app.screen.query_one("#views", TabbedContent).active == "verdict"
        await see(pilot, "▲ linear: expected Machete, runs Marlin")
        await pilot.press("5")
        await see(pilot, "fp8 | int4")


async def test_running_check_shows_progress_and_time_left(console: Make) -> None:
    from vq_console.compare.history import own_process

    folder = runs_dir() / "20260101-000000-a-vs-b-0001"
    write_json(folder / "run.json", {"state": "running", "process": own_process(), "arms": {}})
    append_jsonl(
        folder / "progress.jsonl", {"stage": "latency", "message": "pair 2", "done": 3, "total": 12, "eta_s": 90}
    )
    app = console(busy(), open_run=folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await see(pilot, "3/12", "90 s left")


async def test_a_check_that_an_earlier_console_began_is_followed(
    console: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vq_console.compare.history import own_process

    monkeypatch.setattr("vq_console.ui.app.WARM_AFTER_S", 0.05)
    for number, head in enumerate(
        (
            {"state": "running", "process": own_process(), "arms": {"A": "fp8", "B": "int4"}, "created": 5.0},
            {
                "state": "running",
                "process": {"pid": 1, "start_ticks": -1},
                "arms": {"A": "x", "B": "y"},
                "created": 9.0,
            },
            {"state": "running", "process": own_process(), "arms": {"A": "z"}, "kind": "check", "created": 8.0},
        )
    ):
        folder = runs_dir() / f"20260101-000000-run-{number}"
        write_json(folder / "run.json", head)
        append_jsonl(folder / "progress.jsonl", {"stage": "latency", "message": "pair", "done": number, "total": 12})
    app = console(busy())
    async with app.run_test(size=(120, 30)) as pilot:
        for _ in range(1200):  # the modules of all screens are loaded first, which a busy machine takes long for
            await pilot.pause(0.05)
            if app.running_check is not None:
                break
        assert [note.title for note in app._notifications] == ["A check goes on: fp8 against int4"]
        await pilot.press("4")
        await see(pilot, "0/12", "● fp8 (running)", "● int4 (running)")
        assert app.screen.query_one("#views", TabbedContent).active == "latency"


async def test_profile_form_plans_and_saves(console: Make) -> None:
    save_profile(Profile("mine", "Qwen/Qwen3-8B", args={"max_model_len": 4096}))
    app = console(busy())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("2")
        await settle(pilot, 0.6)
        table = app.screen.query_one("#profile-list", DataTable)
        app.screen.query_one("#profile-search", Input).value = "mine"
        await settle(pilot, 0.6)
        assert table.row_count == 1
        table.move_cursor(row=0)
        await settle(pilot, 0.6)
        app.screen.query_one("#field-quantization", Select).value = "fp8_per_tensor"
        await see(pilot, "not saved", "runs as    fp8_per_tensor", "--quantization=fp8_per_tensor")
        await pilot.press("ctrl+s")
        await settle(pilot, 0.3)
        from vq_console.profiles.store import load_profile

        assert load_profile("mine").args["quantization"] == "fp8_per_tensor"


def test_parting_is_at_the_very_token_with_both_probabilities() -> None:
    a = [LiveToken("The", -0.1), LiveToken(" capital", -0.2), LiveToken(" is", -0.5, {" is": -0.5, " was": -1.0})]
    b = [LiveToken("The", -0.1), LiveToken(" capital", -0.3), LiveToken(" was", -0.4, {" was": -0.4})]
    parting = find_parting(a, b)
    assert parting is not None
    assert parting.index == 2
    assert (parting.a_token, parting.b_token) == (" is", " was")
    assert parting.a_of_a == pytest.approx(0.6065, abs=1e-3)
    assert parting.a_of_b == pytest.approx(0.3679, abs=1e-3)
    assert parting.b_of_a is None
    assert find_parting(a, a) is None
    assert find_parting(a, a[:2]) is None


async def test_live_marks_the_token_in_both_columns(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("4")
        await settle(pilot)
        a = (LiveToken("same", -0.1), LiveToken(" one", -0.1))
        b = (LiveToken("same", -0.1), LiveToken(" two", -0.1))
        left = LiveAnswer("fp8", "same one", a, 0.1, 0.3, "stop", done=True)
        right = LiveAnswer("int4", "same two", b, 0.1, 0.3, "stop", done=True)
        app.screen.query_one(LivePane).show(left, right, find_parting(a, b))
        await settle(pilot)
        text = shown(app)
        assert "part at token 2" in text
        assert "5.0 tokens/s" in text


def test_columns_leave_by_rank() -> None:
    names = [[column.key for column in views.columns_for(width)] for width in (60, 80, 100, 160)]
    assert names[0] == ["name", "state", "runs"]
    assert names[1] == ["name", "state", "runs", "port", "tok"]
    assert "kv" in names[2]
    assert "prefix" in names[3]


async def test_logs_screen_says_when_a_file_is_missing(console: Make) -> None:
    app = console(Snapshot(version=1))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await settle(pilot)
        screen = app.screen
        assert isinstance(screen, LogsScreen)
        screen.open_log("/nowhere/at/all.log")
        await asyncio.sleep(0)
        await settle(pilot)
        assert any("No such file" in note.message for note in app._notifications)
