"""The console in a real terminal on the real engine, by keys alone: two servers, Live, and a verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.parting import TOKENS, Parted, first_clear_parting
from e2e.terminal import Terminal
from e2e.vq import cpu_args, vq_json
from vq_console.demo.pair import CPU_ENV
from vq_console.profiles.model import Profile
from vq_console.profiles.store import save_profile

if TYPE_CHECKING:
    from conftest import Prepared

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(3600)]

NAMES = ("real-bf16", "real-int8")
PROMPTS = (
    "Why is the sky blue?",
    "Name three rivers and the seas that they flow into.",
    "Write two sentences about winter.",
    "How does a bicycle stay upright?",
    "Explain what a prime number is to a child.",
    "What should I cook with rice and tomatoes?",
    "Tell me a short story about a lighthouse.",
    "Why do leaves change their colour?",
)
PARTING = re.compile(
    r"part at token (?P<at>\d+): A says (?P<a>.+?) \((?P<a_of_a>.+?) in A, (?P<b_of_a>.+?) in B\), "
    r"B says (?P<b>.+?) \((?P<a_of_b>.+?) in A, (?P<b_of_b>.+?) in B\)"
)
"""What Live says below both answers; `x_of_y` is what arm X gave to the token of arm Y."""


def launch(terminal: Terminal, name: str) -> None:
    """From any screen: find the profile, launch it, wait until one token came out."""
    terminal.press("2")
    terminal.see("profiles", "l Launch")
    if "/ name, model, tag" not in terminal.screen():
        # Escape and a key right after it could be read as one: the search must be empty first.
        terminal.press("escape")
        terminal.see("/ name, model, tag")
    terminal.press("/", *name, "enter")
    terminal.see(f"─ {name} ", "runs as")
    terminal.press("l")
    terminal.see(f"{name} is starting", seconds=60)
    terminal.find(rf"{name} +● ready ", seconds=600)


def live_parting(terminal: Terminal, parted: Parted) -> None:
    """Type the prompt in Live and find the mark where plain HTTP found it."""
    terminal.press("l", *parted.prompt, "enter")
    screen = terminal.see("part at token", seconds=600)
    said = " ".join(screen.split())
    terminal.find(r"B +TTFT .+ (ended by itself|cut at the limit)", seconds=600)
    found = PARTING.search(" ".join(screen.split()))
    assert found is not None, screen
    assert int(found["at"]) == parted.index + 1
    assert (found["a"], found["b"]) == tuple(map(repr, parted.tokens))
    for side, shown in (("A", (found["a_of_a"], found["a_of_b"])), ("B", (found["b_of_a"], found["b_of_b"]))):
        for said, expected in zip(shown, parted.chances[side], strict=True):
            if expected is None:
                assert said == "<top 5"
            else:
                assert float(said.removesuffix(" %")) == pytest.approx(expected * 100, abs=1), (side, screen)


def asked_parting(parted: Parted) -> None:
    """The same by the command line, in full precision, over the same stream."""
    arms = [f"server:{name}" for name in NAMES]
    value = vq_json("ask", *arms, parted.prompt, "--max-tokens", str(TOKENS), timeout=600)["parting"]
    assert (value["index"], value["a_token"], value["b_token"]) == (parted.index, *parted.tokens)
    for side in "AB":
        expected = dict(zip("AB", parted.chances[side], strict=True))
        assert value[f"p_{side.lower()}"] == pytest.approx(expected, abs=0.01), side


def served() -> Sequence[str]:
    """URLs of the two servers, in the order of NAMES."""
    servers = {server["name"]: server for server in vq_json("ps")["servers"]}
    return [str(servers[name]["url"]) for name in NAMES]


def test_launch_live_and_verdict_by_keys_alone(clean_home: Path, prepared: Prepared, tmp_path: Path) -> None:
    for name, scheme in zip(NAMES, ("bf16", "w8a8"), strict=True):
        save_profile(Profile(name, prepared.models[scheme], args=cpu_args(), env=dict(CPU_ENV)))
    engines = Path(prepared.engine).parents[2]
    env = {"VQ_CONSOLE_HOME": str(clean_home), "VQ_ENGINES_DIR": str(engines), "PWD": str(tmp_path)}
    terminal = Terminal(size=(120, 36), env=env)
    try:
        terminal.see("No server yet.")
        for name in NAMES:
            launch(terminal, name)
        terminal.press("1")
        terminal.see("servers", *NAMES)
        terminal.press("up", "up", "b")
        terminal.see(f"● {NAMES[0]} (running)")
        terminal.press("1", "down", "b")
        terminal.see(*(f"● {name} (running)" for name in NAMES))

        parted = first_clear_parting(served(), NAMES, PROMPTS)
        assert parted is not None, "an INT8 checkpoint answers one of these prompts otherwise than its source"
        live_parting(terminal, parted)
        asked_parting(parted)

        terminal.press("escape")
        terminal.see("g Quick")
        terminal.press("g")
        terminal.see("c cancel", seconds=60)
        terminal.press("1")
        terminal.see("The verdict is there", seconds=1800)
        terminal.press("4")
        screen = terminal.see("In short", "Speed", "Quality", "Memory", *NAMES, "e export")
        assert "SIMULATED" not in screen
        assert "failed" not in screen
        terminal.press("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    (run,) = vq_json("history", "list")["runs"]
    assert run["state"] == "finished"
