"""The commands as a person or a script uses them, with the simulator as engine: JSON, exit codes, words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vq_console import cli
from vq_console.core.errors import UsageError
from vq_console.core.places import profiles_dir
from vq_console.serving.keeping import procfs
from vq_console.serving.launch import _check_gpus
from vq_console.serving.registry import get_server

Run = Callable[..., tuple[int, Any, str]]
PROFILE = """# my comment
name = "sim"
model = "meta-llama/Llama-3.1-8B-Instruct"

[args]
quantization = "fp8_per_tensor"
max_model_len = 8192

[env]
VQ_SIM_SPEC = '{"startup_s": 0.3}'
"""


@pytest.fixture
def run(bench, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command here: exit code, JSON (None without `--json`, text otherwise), words."""
    profiles_dir().mkdir(parents=True)
    (profiles_dir() / "sim.toml").write_text(PROFILE)

    def go(*words: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = cli.main(list(words))
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words else out, err

    return go


def test_serve_wait_ps_logs_stop(run: Run) -> None:
    code, told, words = run("serve", "sim", "--engine", "simulator", "--wait", "--json")
    assert code == 0
    assert told["schema"] == "vq-console/serve/1"
    assert told["simulated"] is True
    (server,) = told["servers"]
    wanted = {"name", "state", "pid", "url", "port", "gpus", "profile", "facts", "diagnosis"}
    assert wanted <= set(server)
    assert (server["name"], server["state"], server["profile"]) == ("sim", "ready", "sim")
    assert server["facts"]["ready"] is True
    assert server["facts"]["kernels"]
    assert "SIMULATED" in words
    assert "ready after" in words

    code, told, _ = run("ps", "--json")
    assert code == 0
    assert [item["name"] for item in told["servers"]] == ["sim"]
    code, text, _ = run("ps")
    assert "ready SIMULATED  Llama-3.1-8B-Instruct  " in text, "the model, not the name that it is served under"

    code, told, _ = run("logs", "sim", "--head", "3", "--json")
    assert len(told["lines"]) == 3
    code, text, _ = run("logs", "sim", "--tail", "2")
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text

    plan = get_server("sim").plan
    argv = json.loads((Path(get_server("sim").folder) / "state.json").read_text())["argv"]
    assert argv == list(plan["argv"]), "the plan's arguments are exactly what is executed"
    assert Path(f"/proc/{server['pid']}/cmdline").read_bytes().split(b"\0")[:-1] == [a.encode() for a in argv]

    code, told, _ = run("stop", "sim", "--json")
    assert (code, told["servers"][0]["state"]) == (0, "stopped")
    assert procfs.read_proc(server["pid"]) is None
    code, text, words = run("restart", "sim", "--wait")
    assert code == 0
    assert "address" in text
    assert "CutlassFP8ScaledMMLinearKernel" in text
    assert "KV cache" in text
    assert " s  " in words, "phases have seconds"
    assert (Path(get_server("sim").folder) / "server.log.1").exists()
    code, _, words = run("stop", "--all", "--forget")
    assert "sim: forgotten" in words
    assert run("ps", "--json")[1]["servers"] == []


def test_serve_without_wait_returns_at_once(run: Run) -> None:
    code, told, _ = run("serve", "sim", "--engine", "simulator", "--name", "mine", "--json")
    assert code == 0
    assert told["servers"][0]["name"] == "mine"
    assert told["servers"][0]["state"] in ("queued", "starting")


def test_a_failed_start_is_a_no_with_its_diagnosis(run: Run) -> None:
    path = profiles_dir() / "sim.toml"
    asked = PROFILE.replace("8192", "131072")
    path.write_text(asked.replace('"startup_s"', '"script": "fail-kv-too-small", "startup_s"'))
    code, told, words = run("serve", "sim", "--engine", "simulator", "--wait", "--json")
    assert code == 1
    assert {"message", "hint"} < set(told["error"])
    assert "kv" in words.lower()
    slug, problem = told["error"]["diagnosis"], told["error"]["problem"]
    assert slug == problem["slug"]
    assert slug in words
    code, told, _ = run("ps", "--json")
    assert (code, told["servers"][0]["state"]) == (0, "failed")
    assert told["servers"][0]["problem"]["fixes"]
    assert (told["servers"][0]["diagnosis"], told["servers"][0]["problem"]) == (slug, problem)

    code, told, _ = run("fix", "sim", "--choose", "9", "--json")
    assert code == 2
    assert problem["fixes"][0]["text"] in told["error"]["hint"]
    code, told, words = run("fix", "sim", "--dry-run", "--json")
    assert code == 0
    assert told["applied"] is False
    assert told["patch"]["set_args"] == {"max_model_len": 8192}
    code, text, words = run("fix", "sim", "--dry-run")
    assert (code, text) == (0, "args.max_model_len = 8192\n")
    assert slug in words
    assert "131072" in path.read_text()
    path.write_text(asked)  # the simulated machine now has room
    code, told, _ = run("fix", "sim", "--wait", "--json")
    assert (code, told["servers"][0]["state"]) == (0, "ready")
    assert path.read_text() == asked.replace("131072", "8192"), "the profile was changed, and nothing else in it"


def test_wrong_use_and_what_is_missing(run: Run) -> None:
    assert run("stop", "nobody")[0] == 2
    assert run("stop")[0] == 2
    assert run("logs", "nobody", "--json")[0] == 2
    code, told, _ = run("attach", "http://127.0.0.1:9", "--json")
    assert (code, "error" in told) == (3, True)
    assert run("attach", "http://x", "--pid", "1")[0] == 2
    assert run("serve", "sim", "--engine", "/nowhere/python")[0] == 3
    assert run("serve", "sim", "--engine", "simulator", "--gpus", "a")[0] == 2
    assert run("serve", "sim", "--engine", "simulator", "--gpus", "0,0")[0] == 2
    for words in (["serve", "sim", "--timeout", "-5"], ["logs", "sim", "--tail", "-1"], ["stop", "x", "--timeout=nan"]):
        with pytest.raises(SystemExit) as ended:
            run(*words)
        assert ended.value.code == 2
    assert run("stop", "--all", "--json")[1]["servers"] == []


def test_gpus_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="no GPU 99"):
        _check_gpus([99], simulated=False)
    _check_gpus([99], simulated=True)


def test_reap_shows_and_leaves(run: Run) -> None:
    code, told, _ = run("reap", "--json")
    assert code == 0
    assert told["reaped"] == [], "without --yes nothing is touched"
    assert isinstance(told["orphans"], list)


def test_attach_without_address_lists(run: Run) -> None:
    code, told, _ = run("attach", "--json")
    assert code == 0
    assert isinstance(told["found"], list)


def test_interrupting_the_wait_leaves_the_server(bench, run: Run) -> None:
    path = profiles_dir() / "sim.toml"
    path.write_text(PROFILE.replace("0.3", "1.5"))
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / 'tui')!r})\n"
        "from vq_console import cli\n"
        "sys.exit(cli.main(['serve', 'sim', '--engine', 'simulator', '--wait']))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    bench.wait(lambda: (profiles_dir().parents[1] / "state").exists() and _started())
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=10)
    assert child.returncode == 130
    assert "sim goes on starting: `vq-console logs sim -f` follows it" in said
    assert bench.until("sim", "ready", timeout_s=60).name == "sim"


def _started() -> bool:
    from vq_console.serving.registry import list_servers

    return any(record.identity is not None for record in list_servers())


def test_a_profile_from_elsewhere_is_asked_about_once(run: Run) -> None:
    path = profiles_dir() / "sim.toml"
    path.write_text(PROFILE.replace("[env]", "trust_remote_code = true\n\n[env]"))
    from vq_console.profiles.store import load_profile
    from vq_console.profiles.trust import mark_imported

    mark_imported(load_profile("sim"))
    code, _, words = run("serve", "sim", "--engine", "simulator")
    assert code == 2
    assert "trust_remote_code" in words
    assert run("ps", "--json")[1]["servers"] == []
    assert run("serve", "sim", "--engine", "simulator", "--trust")[0] == 0
    assert run("stop", "sim")[0] == 0
    assert run("serve", "sim", "--engine", "simulator")[0] == 0
