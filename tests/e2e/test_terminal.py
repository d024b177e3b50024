"""The console in a real terminal, by keys alone: from a machine with nothing to a verdict, and in ASCII."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.terminal import Terminal
from e2e.vq import processes_of, vq


@pytest.fixture
def home(vq_home: Path) -> Iterator[Path]:
    """A console home of which no process may live on."""
    vq_home.mkdir(parents=True)
    tour = vq_home / "cache" / "simulated-tour"
    yield vq_home
    left = processes_of(vq_home) + processes_of(tour)
    vq("stop", "--all", code=None, env={"VQ_CONSOLE_HOME": str(tour)})
    assert left == []


@pytest.mark.timeout(240)
def test_from_first_run_to_verdict_by_keys_alone(home: Path, tmp_path: Path) -> None:
    terminal = Terminal(size=(120, 36), env={"VQ_CONSOLE_HOME": str(home), "PWD": str(tmp_path)})
    try:
        terminal.see("No server yet.", "d  simulated tour", "Missing:")
        terminal.press("?")
        terminal.see("Esc closes")
        terminal.press("escape")
        terminal.press("d")
        screen = terminal.see("SIMULATED", "tour-fp8", "tour-int4", "✖ 1 failed", seconds=60)
        assert "CutlassFP8" in screen
        assert "Machete" in screen
        terminal.press("w")
        terminal.see("tour-too-long · facts", "max_model_len = 8192", "[p] apply")
        # Each ready server becomes an arm.
        terminal.press("up", "up", "b")
        terminal.see("tour-fp8 (running)")
        terminal.press("1", "down", "b")
        terminal.see("tour-fp8 (running)", "tour-int4 (running)")
        terminal.press("g")
        terminal.see("pair", "left", "c cancel", seconds=40)
        terminal.press("5", "1")
        screen = terminal.see("The verdict is there", seconds=120)
        terminal.press("4")
        screen = terminal.see("Speed", "Quality", "Memory", "tour-int4", "e export")
        assert "SIMULATED" in screen
        terminal.press("q")
        terminal.see("No server yet.", seconds=40)
        terminal.press("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_ascii_terminal_gets_ascii_only(home: Path) -> None:
    env = {"VQ_CONSOLE_HOME": str(home), "VQ_CONSOLE_ASCII": "1", "NO_COLOR": "1"}
    terminal = Terminal(size=(80, 24), env=env)
    try:
        screen = terminal.see("No server yet.", "1 Servers")
        assert [char for char in screen if ord(char) > 126] == []
        terminal.press("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_a_console_that_ignores_the_hangup_ends_with_its_terminal(home: Path) -> None:
    terminal = Terminal(size=(80, 24), env={"VQ_CONSOLE_HOME": str(home)}, nohup=True)
    try:
        terminal.see("No server yet.")
        terminal.tear()
        terminal.process.wait(timeout=20)
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
