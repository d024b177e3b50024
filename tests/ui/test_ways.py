"""Ways through the screens: one pane where it is narrow, notices anywhere, the palette, jobs, answers that differ."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import DataTable, Select

from ui.moments import busy, server
from ui.test_screens import SIZES, see, settle, shown
from vq_console.core.errors import MissingError
from vq_console.core.places import runs_dir
from vq_console.profiles.model import Profile
from vq_console.profiles.store import save_profile
from vq_console.serving.model import ServerState
from vq_console.ui.app import VqConsole, own_actions, run_console
from vq_console.ui.hub import Snapshot
from vq_console.ui.screens.ab import AbScreen
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.screens.logs import LogsScreen
from vq_console.ui.settings import UiSettings, load_settings, save_settings
from vq_console.ui.terminal import can_open, terminal_stream
from vq_console.ui.widgets.dialogs import Choose, Confirm
from vq_console.ui.widgets.job import JobScreen
from vq_console.ui.widgets.keybar import ALWAYS, key_line
from vq_console.ui.widgets.titles import entitle

Make = Callable[..., VqConsole]
RUN = Path(__file__).parents[1] / "data" / "ui" / "run"


@pytest.mark.parametrize("size", SIZES)
async def test_no_screen_is_larger_than_the_terminal(console: Make, size: tuple[int, int]) -> None:
    app = console(busy())
    async with app.run_test(size=size) as pilot:
        for key in "12345":
            await pilot.press(key)
            await settle(pilot)
            assert app.screen.max_scroll_y == 0
            assert app.screen.max_scroll_x == 0
            assert "^p palette" in shown(app)


async def test_narrow_home_shows_the_problem_then_the_rest_by_a_key(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("w")
        await see(pilot, "mla · problem", "[p] apply and start again")
        await pilot.press("t")
        await see(pilot, "mla · facts")
        await pilot.press("t")
        await see(pilot, "mla · start-up", "compilation")


async def test_narrow_profiles_show_form_or_plan(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await see(pilot, "t form", "runs as")
        await pilot.press("t")
        await see(pilot, "KV cache dtype")
        await pilot.press("escape")
        await see(pilot, "runs as")


async def test_a_failure_is_told_on_another_screen(console: Make) -> None:
    app = console(Snapshot(version=1, servers=(server("fp8", ServerState.READY),)))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await pilot.press("5")
        await settle(pilot)
        app.hub.snapshot = replace(app.hub.snapshot, version=2, servers=(server("fp8", ServerState.FAILED),))
        await see(pilot, "fp8 failed")


async def test_the_palette_offers_every_action_of_the_screen(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(160, 48)) as pilot:
        for key in "12345":
            await pilot.press(key)
            await settle(pilot)
            screen = app.screen
            assert isinstance(screen, ConsoleScreen)
            offered = {command.title for command in app.get_system_commands(screen)}
            assert {title for title, _ in own_actions(screen)} <= offered
            for _, action in own_actions(screen):
                name = action.partition("(")[0]
                assert getattr(screen, f"action_{name}", None) is not None, f"{action} does nothing on {key}"


async def test_a_job_shows_its_words_and_can_be_cancelled(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(120, 36)) as pilot:
        code = "import time; print('step [bold]one[/bold]', flush=True); time.sleep(60)"
        app.push_screen(JobScreen("a job", (sys.executable, "-c", code)))
        await see(pilot, "step [bold]one[/bold]", "c cancel")
        await pilot.press("escape")
        await see(pilot, "c cancel")
        await pilot.press("c")
        await see(pilot, "ended with exit code")
        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(app.screen, JobScreen)


async def test_a_recorded_run_shows_plots_and_the_answers_that_differ(console: Make) -> None:
    folder = runs_dir() / (RUN / "name").read_text().strip()
    shutil.copytree(RUN, folder)
    app = console(busy(), open_run=folder)
    async with app.run_test(size=(160, 48)) as pilot:
        await see(pilot, "Speed", "is 11 % slower than tour-fp8 per token", "B/A of the primary endpoints")
        await pilot.press("escape", "t", "t")
        await see(pilot, "throughput *", "TTFT at 16 streams", "B/A by endpoint")
        await pilot.press("d")
        await see(pilot, "answers differ", "parting", "token 2")
        assert app.screen.query_one(DataTable).row_count > 0
        await pilot.press("escape")


async def test_a_url_becomes_an_arm(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("4")
        await settle(pilot)
        screen = app.screen
        assert isinstance(screen, AbScreen)
        screen.add_url("baseline", "http://127.0.0.1:9")
        assert screen.query_one("#arm-baseline", Select).value == "http://127.0.0.1:9"
        assert screen.arms() is None


async def test_one_key_compares_a_checkpoint_with_its_source(console: Make) -> None:
    save_profile(Profile(name="a-smol-w4", model="/models/smol-w4", made_on={"source": "acme/smol"}))
    app = console(busy())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("2")
        await see(pilot, "a-smol-w4", "/models/smol-w4")
        await pilot.press("o")
        await see(pilot, "a-smol-w4-source (profile)", "a-smol-w4 (profile)")
        screen = app.screen
        assert isinstance(screen, AbScreen)
        assert screen.arms() == ("profile:a-smol-w4-source", "profile:a-smol-w4")


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
async def test_no_text_has_the_colour_of_its_ground(console: Make, theme: str) -> None:
    app = console(busy())
    app.settings = replace(app.settings, theme=theme)
    async with app.run_test(size=(112, 30)) as pilot:
        for key in "12345":
            await pilot.press(key)
            await settle(pilot)
            for strip in app.screen._compositor.render_strips():
                for segment in strip:
                    style = segment.style
                    if segment.text.strip() and style is not None and style.color is not None:
                        hidden = style.color == style.bgcolor and not style.color.is_default
                        assert not hidden, f"{segment.text!r} cannot be seen on screen {key}"


async def test_a_screen_that_is_not_shown_looks_at_nothing(console: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    app = console(busy())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await settle(pilot)
        logs = app.screen
        assert isinstance(logs, LogsScreen)
        monkeypatch.setattr(type(logs), "show_snapshot", lambda screen, snapshot: looked.append(screen.MODE))
        await pilot.press("1")
        await settle(pilot)
        app.hub.snapshot = replace(app.hub.snapshot, version=2)
        await pilot.pause(0.5)
        assert looked == []
        await pilot.press("3")
        await settle(pilot)
        assert looked == ["logs"]


async def test_keys_before_the_body_of_a_screen_do_nothing(console: Make) -> None:
    app = console(busy())
    async with app.run_test(size=(80, 24)) as pilot:
        app.action_show("logs")
        assert app.screen.check_action("search", ()) is False
        await pilot.press("slash")
        await settle(pilot)
        assert app.screen.check_action("search", ()) is True


@pytest.mark.parametrize(("width", "cut"), [(40, True), (60, True), (80, True), (160, False)])
def test_keys_at_the_foot_are_whole_and_the_way_to_all_others_stays(width: int, cut: bool) -> None:
    keys = [("l", "Launch", "l"), ("s", "Stop", "s"), ("enter", "Log", "enter"), ("p", "Apply the fix", "p")] * 2
    text, spans = key_line(keys, width, "bold")
    assert text.cell_len <= width
    assert text.plain.rstrip().endswith("? Help  ^p palette")
    assert ("…" in text.plain) is cut
    for start, end, key in spans:
        words = text.plain[start:end]
        assert words in {f"{shown} {word}" for shown, word, _ in (*keys, *ALWAYS)}, key


def test_the_console_draws_on_the_terminal_wherever_stderr_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, terminal = os.openpty()
    try:
        with open(terminal, "w", closefd=False) as screen, open(tmp_path / "err", "w") as err:
            monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
            monkeypatch.setattr(sys, "__stdin__", screen)
            monkeypatch.setattr(sys, "__stdout__", screen)
            monkeypatch.setattr(sys, "__stderr__", err)
            assert terminal_stream() is screen
            assert can_open()
            monkeypatch.setattr(sys, "__stdout__", err)
            assert terminal_stream() is None
            assert not can_open()
            with pytest.raises(MissingError, match="needs a terminal"):
                run_console()
    finally:
        os.close(controller)
        os.close(terminal)


def test_ascii_of_one_terminal_is_not_saved_for_all(vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQ_CONSOLE_ASCII", "1")
    settings = load_settings()
    assert settings.ascii
    save_settings(settings.with_theme("nord"))
    monkeypatch.delenv("VQ_CONSOLE_ASCII")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert load_settings() == UiSettings(theme="nord")


async def test_words_from_elsewhere_are_plain_wherever_they_are_shown(console: Make) -> None:
    evil = "[bold]x[/] [/nothing] \u202efdp.exe \x1b[31mred"
    app = console(busy())
    async with app.run_test(size=(112, 30), notifications=True) as pilot:
        await settle(pilot)
        app.screen.notify(evil, title=evil)
        app.push_screen(Choose(evil, [(evil, evil)]))
        text = await see(pilot, "[bold]x[/] [/nothing] fdp.exe red")
        assert "\u202e" not in text
        assert "\x1b" not in text
        await pilot.press("escape")
        entitle(app.screen.query_one("#servers"), evil)
        app.push_screen(Confirm(evil, evil))
        await see(pilot, "[bold]x[/] [/nothing] fdp.exe red")
