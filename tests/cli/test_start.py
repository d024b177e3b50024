"""The command line starts light: no Textual, numpy or aiohttp before a command asks for them."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from vq_console.cli import build_parser, main
from vq_console.commands.names import COMMANDS

HEAVY = ("textual", "rich", "numpy", "scipy", "aiohttp", "psutil", "pynvml", "tomlkit", "platformdirs", "packaging")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, io, contextlib, json\nfrom vq_console import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    cli.main(['--help'])\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) & set(HEAVY) == set()


def test_help_costs_little() -> None:
    """At most 0.15 CPU seconds; the best of five, since a busy machine only ever adds."""

    def cost() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "vq_console", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cost() for _ in range(5)) <= 0.15


def test_commands_are_listed_alike_whichever_are_loaded() -> None:
    everything = build_parser()
    whole = everything.format_help()
    assert all(build_parser(words).format_help() == whole for words in (["--help"], ["ps"], ["--ascii", "ab", "x"]))
    action = next(a for a in everything._actions if isinstance(a, argparse._SubParsersAction))
    assert list(action.choices) == list(COMMANDS)
    for name, parser in action.choices.items():
        alone = next(a for a in build_parser([name])._actions if isinstance(a, argparse._SubParsersAction))
        assert alone.choices[name].format_help() == parser.format_help()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["lint", "no-such-profile"], 1),
        (["ab", "no-such-arm", "neither"], 2),
        (["ab", "x", "y", "--fail-on", "nonsense"], 2),
        (["report", "no-such-run"], 2),
        (["frobnicate"], 2),
        (["serve", "./nowhere.toml"], 2),
        (["explain", "./nowhere.log"], 2),
        (["lint", "llama31-8b-fp8kv", "--target", "./nowhere.toml"], 2),
        (["profiles", "import", "./nowhere.toml"], 2),
        (["ab", "ref:nowhere", "llama31-8b-fp8kv"], 2),
        (["ab", "http://127.0.0.1:9", "llama31-8b-fp8kv"], 3),
        (["ab", "x", "y", "--levels", "0,-1"], 2),
        (["history", "import", "./nowhere.tar.gz"], 2),
        (["stop", "no-such-server"], 2),
        (["suggest", ""], 2),
        (["suggest", " "], 2),
    ],
)
def test_wrong_use_is_one_clear_line_and_no_traceback(vq_home: Path, words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vq_console", *words], capture_output=True, text=True, env=os.environ.copy()
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    assert not (vq_home / "state" / "runs").exists()


def test_errors_are_json_where_json_was_asked_for(vq_home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vq_console", "ab", "no-such-arm", "neither", "--json"], capture_output=True, text=True
    )
    value = json.loads(done.stdout)
    assert value["schema"] == "vq-console/error/1"
    assert "no-such-arm" in value["error"]["message"]


@pytest.mark.parametrize(
    ("words", "command", "said"),
    [
        (["lint", "--frobnicate", "x"], "vq-console lint", "--frobnicate"),
        (["ab", "only-one"], "vq-console ab", "B"),
        (["serve", "x", "--timeout", "soon"], "vq-console serve", "--timeout"),
        (["profiles", "show"], "vq-console profiles show", "profile"),
        (["ask", "a", "b", "hello", "--max-tokens", "0"], "vq-console ask", "0 is below 1"),
        (["ask", "a", "b", "hello", "--max-tokens", "-1"], "vq-console ask", "--max-tokens"),
        (["frobnicate"], "vq-console", "frobnicate"),
    ],
)
def test_wrong_use_is_told_in_json_too(
    capsys: pytest.CaptureFixture[str], words: list[str], command: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    told = json.loads(out)["error"]
    assert told["message"].startswith(f"{command}: ")
    assert said in told["message"]
    assert told["message"].removeprefix(f"{command}: ") in err
    assert f"`{command} --help`" in told["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ["profiles", "new", "mine", "--model", "org/name"],
        ["profiles", "duplicate", "PROFILE", "mine"],
        ["serve", "PROFILE", "--engine", "simulator"],
        ["ab", "PROFILE", "PROFILE", "--engine", "simulator"],
    ],
)
def test_a_home_that_cannot_be_written_is_a_lack_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A file where the folder would be: nobody may write below it, not even root."""
    profile = tmp_path / "given.toml"
    profile.write_text('name = "given"\nmodel = "org/name-1B"\n')
    (tmp_path / "taken").touch()
    monkeypatch.setenv("VQ_CONSOLE_HOME", str(tmp_path / "taken" / "home"))
    code = main([str(profile) if word == "PROFILE" else word for word in words] + ["--json"])
    told = json.loads(capsys.readouterr().out)["error"]
    assert code == 3
    assert str(tmp_path / "taken") in told["message"]
    assert "$VQ_CONSOLE_HOME" in told["hint"]


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(
    vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where a folder would be, since root may write everywhere else."""
    (tmp_path / "taken").touch()
    made = main(["profiles", "new", "mine", "--model", "org/name"])
    assert made == 0
    capsys.readouterr()
    code = main(["profiles", "export", "mine", "--out", str(tmp_path / "taken" / "mine.toml"), "--json"])
    told = json.loads(capsys.readouterr().out)["error"]
    assert code != 0
    assert str(tmp_path / "taken") in told["message"]
    assert "a part of that path is a file" in told["hint"]


@pytest.mark.parametrize("much", [False, True])
def test_a_reader_that_leaves_does_not_change_the_answer(vq_home: Path, tmp_path: Path, much: bool) -> None:
    """`explain … | head -1` under `set -o pipefail`: the log is still a failed one."""
    log = tmp_path / "log"
    log.write_text("ValueError: boom\n" if not much else f"ValueError: {'boom ' * 40_000}\n")
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "vq_console", "explain", str(log), "--json"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
