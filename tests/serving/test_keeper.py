"""The keeper with real processes: a full life, and every way in which somebody dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from serving.conftest import QUICK, twenty_times
from vq_console.core.errors import LaunchError, MissingError, UsageError
from vq_console.preflight.model import Plan
from vq_console.serving.control import restart_server, stop_server, wait_ready
from vq_console.serving.keeping import procfs
from vq_console.serving.keeping.settings import DEFAULTS
from vq_console.serving.launch import Settings, start
from vq_console.serving.model import TRANSITIONS, Identity, ServerRecord, ServerState
from vq_console.serving.registry import get_server, is_alive, list_servers
from vq_console.serving.view import judge, read_log, server_json


def kill(identity: Identity | None, number: int = signal.SIGKILL) -> None:
    assert identity is not None
    assert procfs.send_signal(identity.pid, identity.start_ticks, number)


def history_of(record: ServerRecord) -> list[str]:
    assert record.folder is not None
    state = json.loads((Path(record.folder) / "state.json").read_text())
    return [str(item["state"]) for item in state["history"]]


def test_a_whole_life(bench) -> None:
    record = bench.ready()
    assert record.url is not None
    assert record.port == int(record.url.rpartition(":")[2])
    living = bench.members(record)
    shown = server_json(record)
    assert (shown["state"], shown["pid"], shown["facts"]["ready"]) == ("ready", record.identity.pid, True)
    assert 0 <= shown["uptime_s"] < 60
    status = Path(f"/proc/{record.keeper.pid}/status").read_text()
    rss_mib = int(status.split("VmRSS:")[1].split()[0]) / 1024
    assert rss_mib < 15, "the keeper has a memory budget"
    keeper = procfs.read_proc(record.keeper.pid)
    assert keeper is not None
    assert keeper.ppid != os.getpid(), "the keeper is nobody's child to wait for"
    assert keeper.session == keeper.pid
    server = procfs.read_proc(record.identity.pid)
    assert (server.session, server.pgrp) == (server.pid, server.pid)

    ended = stop_server("tiny")
    assert (ended.state, ended.exit_code, ended.reason) == (ServerState.STOPPED, 0, "stopped")
    assert bench.gone(*living, record.keeper.pid)
    history = [ServerState(item) for item in history_of(ended)]
    assert history == [ServerState(s) for s in ("queued", "starting", "ready", "stopping", "stopped")]
    assert all(after in TRANSITIONS[before] for before, after in pairwise(history))
    assert stop_server("tiny").state is ServerState.STOPPED, "stopping twice is no error"


def test_states_and_settings_are_those_of_the_model() -> None:
    source = "".join(p.read_text() for p in (Path(__file__).parents[2] / "tui/vq_console/serving/keeping").glob("*.py"))
    for state in ServerState:
        assert f'"{state.value}"' in source, f"the keeper knows no state {state}"
    for heavy in ("dataclasses", "subprocess", "typing", "http.client", "pathlib"):
        code = f"import sys, vq_console.serving.keeper\nsys.exit({heavy!r} in sys.modules)"
        done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": _root()}, check=False)
        assert done.returncode == 0, f"the keeper imports {heavy}"
    assert DEFAULTS["stop_timeout_s"] == 30.0


def _root() -> str:
    return str(Path(__file__).parents[2] / "tui")


CONSOLE = """
import os, signal, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from serving.conftest import Bench
from vq_console.serving import launch
from vq_console.serving.registry import get_server
phase = {phase!r}
if phase == "claimed":
    launch.spawn_keeper = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
bench = Bench()
bench.start("--load-s", "0.6")
while get_server("tiny").state.value != phase:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("phase", ["claimed", "starting", "ready"])
@twenty_times
def test_the_console_is_killed(bench, turn: int, phase: str) -> None:
    code = textwrap.dedent(CONSOLE).format(tests=str(Path(__file__).parents[1]), root=_root(), phase=phase)
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    if phase == "claimed":
        record = get_server("tiny")
        assert (record.state, record.identity) == (ServerState.FAILED, None)
        assert "before the server began" in record.reason
    record = bench.ready() if phase == "claimed" else bench.until("tiny", "ready")
    assert record.name == "tiny", "the name of a start that never was is free again"
    assert stop_server("tiny").state is ServerState.STOPPED


def test_the_terminal_hangs_up(bench) -> None:
    record = bench.ready()
    kill(record.keeper, signal.SIGHUP)
    kill(record.keeper, signal.SIGINT)
    time.sleep(0.2)
    assert is_alive(record.keeper)
    assert bench.until("tiny", "ready").identity == record.identity


@twenty_times
def test_the_keeper_is_killed_and_the_next_console_adopts(bench, turn: int) -> None:
    record = bench.ready("--grandchild=session")
    living = bench.members(record)
    assert len(living) == 2
    kill(record.keeper)
    assert bench.gone(record.keeper.pid)
    assert is_alive(record.identity), "the server lives on"
    adopted = bench.until("tiny", "ready", where=lambda r: r.keeper != record.keeper and is_alive(r.keeper))
    assert adopted.identity == record.identity
    ended = stop_server("tiny")
    assert (ended.state, ended.exit_code) == (ServerState.STOPPED, None), "an adopted server's exit is unknown"
    assert bench.gone(*living), "what the first keeper had seen is gone too"


@twenty_times
def test_the_keeper_is_killed_while_the_server_loads(bench, turn: int) -> None:
    record = bench.start("--load-s", "1.0")
    record = bench.until("tiny", "starting", where=lambda r: r.identity is not None)
    kill(record.keeper)
    ready = bench.until("tiny", "ready", where=lambda r: is_alive(r.keeper))
    assert ready.identity == record.identity


@twenty_times
def test_the_keeper_and_then_the_server_are_killed(bench, turn: int) -> None:
    record = bench.ready("--shm", "--grandchild=orphan")
    living = bench.members(record)
    kill(record.keeper)
    kill(record.identity)
    ended = bench.until("tiny", "failed", where=lambda r: not is_alive(r.keeper) and "unknown" in r.reason)
    assert ended.exit_code is None
    assert bench.gone(*living), "the new keeper cleaned up after both"


@twenty_times
def test_the_server_is_killed(bench, turn: int) -> None:
    record = bench.ready("--grandchild=group")
    living = bench.members(record)
    assert len(living) == 2
    kill(record.identity)
    ended = bench.until("tiny", "failed")
    assert ended.exit_code == -signal.SIGKILL
    assert "killed by signal 9" in ended.reason
    assert bench.gone(*living), "its engine did not stay behind"
    incident = json.loads((Path(ended.folder) / "incident-1.json").read_text())
    assert any("Application startup complete" in line for line in incident["log_tail"])
    assert any("/v1/completions" in line for line in incident["last_requests"]) or incident["last_requests"] == []
    assert [item["name"] for item in incident["survivors"]], "the survivors are named"
    assert incident["kernel_messages"] or incident["kernel_messages_missing"] or incident["kernel_messages"] == []


@twenty_times
def test_the_whole_group_is_killed_and_its_segments_go(bench, turn: int) -> None:
    record = bench.ready("--shm", "--grandchild=orphan")
    name = next(line.split()[-1] for line in Path(record.log).read_text().splitlines() if "segment psm_" in line)
    assert os.path.exists(f"/dev/shm/{name}")
    kept = Path("/dev/shm/vq-test-of-somebody-else")
    kept.write_bytes(b"x")
    try:
        living = bench.members(record)
        os.killpg(record.identity.pid, signal.SIGKILL)
        bench.until("tiny", "failed")
        assert not os.path.exists(f"/dev/shm/{name}")
        assert kept.exists(), "only the server's own segments are removed"
        assert bench.gone(*living)
    finally:
        kept.unlink()


@twenty_times
def test_a_server_that_ignores_sigterm(bench, turn: int) -> None:
    record = bench.ready("--ignore-term", "--grandchild=orphan", "--grandchild-ignores-term")
    living = bench.members(record)
    assert len(living) == 2
    began = time.monotonic()
    states: list[str] = []
    ended = stop_server("tiny", timeout_s=0.5, on_progress=lambda r: states.append(f"{r.state.value} {r.phase}"))
    assert 0.5 <= time.monotonic() - began < 4
    assert (ended.state, ended.exit_code) == (ServerState.STOPPED, -signal.SIGKILL)
    assert bench.gone(*living)
    assert "stopping asked to stop" in states


@pytest.mark.parametrize("kind", ["group", "session", "orphan"])
@twenty_times
def test_grandchildren_do_not_outlive_a_stop(bench, turn: int, kind: str) -> None:
    record = bench.ready(f"--grandchild={kind}", "--grandchild-ignores-term")
    living = bench.members(record)
    assert len(living) == 2, "the grandchild is known, wherever it went"
    assert stop_server("tiny").state is ServerState.STOPPED
    assert bench.gone(*living)


def test_stop_while_loading_and_while_queued(bench) -> None:
    bench.start("--load-s", "30", name="slow")
    bench.until("slow", "starting", where=lambda r: r.identity is not None)
    queued = bench.start(name="second")
    queued = bench.until("second", "queued", where=lambda r: "waiting for slow" in r.phase)
    assert "the CPU" in queued.phase
    assert stop_server("second").reason == "cancelled before it began"
    assert stop_server("slow").state is ServerState.STOPPED


def test_one_start_at_a_time(bench) -> None:
    bench.start("--load-s", "0.7", name="first")
    bench.start(name="second")
    bench.until("second", "queued", where=lambda r: "first" in r.phase)
    assert get_server("first").state is not ServerState.READY
    second = bench.until("second", "ready")
    first = get_server("first")
    begun = json.loads((Path(second.folder) / "state.json").read_text())["started_at"]
    assert first.ready_at is not None
    assert begun >= first.ready_at


def test_launches_at_the_same_moment_get_names_of_their_own(bench) -> None:
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda _: bench.start(), range(4)))
    assert sorted(record.name for record in records) == ["tiny", "tiny-2", "tiny-3", "tiny-4"]
    ready = [bench.until(record.name, "ready", timeout_s=30) for record in records]
    assert len({record.port for record in ready}) == 4


def test_the_queue_moves_on_when_the_first_dies(bench) -> None:
    bench.start("--load-s", "0.3", "--die-loading", "--exit-code", "1", name="first")
    bench.start(name="second")
    assert bench.until("second", "ready").state is ServerState.READY
    assert get_server("first").state is ServerState.FAILED


def test_a_start_that_takes_too_long(bench) -> None:
    bench.start("--load-s", "30", settings={"startup_timeout_s": 0.5})
    ended = bench.until("tiny", "failed")
    assert "no token within" in ended.reason
    assert bench.gone(ended.identity.pid)


def test_failure_while_loading_tells_the_diagnosis(bench) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    bench.start("--load-s", "0.1", "--die-loading", "--exit-code", "1", "--say", text)
    with pytest.raises(LaunchError, match="exited with code 1 while loading") as caught:
        wait_ready("tiny")
    assert "out of memory" in caught.value.log_tail


def test_exit_code_zero_is_not_believed(bench) -> None:
    line = "[core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
    said = f"(APIServer pid=27336) WARNING 11-30 10:26:49 {line}"
    bench.start("--die-after-s", "0.3", "--exit-code", "0", "--say", said)
    ended = bench.until("tiny", "failed")
    assert ended.exit_code == 0
    seen = read_log(ended)
    assert seen is not None
    assert judge(ended, seen).state is ServerState.FAILED


def test_stopped_from_outside_is_no_failure(bench) -> None:
    record = bench.ready()
    kill(record.identity, signal.SIGTERM)
    ended = bench.until("tiny", "failed")
    assert server_json(ended)["state"] == "stopped"
    assert server_json(ended)["reason"] == "stopped from outside the console"


def test_restart_on_failure_has_a_limit(bench) -> None:
    record = bench.ready(restart_limit=1)
    kill(record.identity)
    again = bench.until("tiny", "ready", where=lambda r: r.identity != record.identity)
    kill(again.identity)
    ended = bench.until("tiny", "failed", where=lambda r: not is_alive(r.keeper))
    assert history_of(ended).count("ready") == 2


def test_a_death_while_loading_is_not_repeated(bench) -> None:
    bench.start("--load-s", "0.1", "--die-loading", "--exit-code", "1", restart_limit=3)
    ended = bench.until("tiny", "failed", where=lambda r: not is_alive(r.keeper))
    assert history_of(ended).count("starting") == 1


def test_unresponsive_and_back(bench, tmp_path: Path) -> None:
    silent, sick = tmp_path / "silent", tmp_path / "sick"
    bench.ready("--no-token-file", str(silent), "--sick-file", str(sick))
    silent.touch()
    stuck = bench.until("tiny", "unresponsive", where=lambda r: "gives no token" in r.reason)
    assert bench.wait(lambda: _cpu(stuck) is not None), "its CPU use stands beside it"
    bench.until("tiny", "unresponsive", where=lambda r: "waiting: CPU" in r.reason)
    silent.unlink()
    bench.until("tiny", "ready")
    sick.touch()
    assert "503" in bench.until("tiny", "unresponsive").reason
    sick.unlink()
    bench.until("tiny", "ready")


def _cpu(record: ServerRecord) -> object:
    return json.loads((Path(record.folder) / "state.json").read_text()).get("cpu_pct")


def test_ready_only_after_a_token(bench, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.touch()
    bench.start("--no-token-file", str(silent))
    record = bench.until("tiny", "starting", where=lambda r: "first token" in r.phase)
    assert read_log(record).facts["ready"] is True, "the log claims it, the keeper does not"
    time.sleep(0.5)
    assert get_server("tiny").state is ServerState.STARTING
    silent.unlink()
    bench.until("tiny", "ready")


def test_a_sandbox_that_does_not_tell_sockets(bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There the token must do; nothing may wait for a proof that cannot come."""
    package = tmp_path / "site" / "sitecustomize.py"
    package.parent.mkdir()
    package.write_text(
        "import sys\n"
        "if 'vq_console.serving.keeper' in sys.orig_argv:\n"
        "    from vq_console.serving.keeping import procfs\n"
        f"    procfs._all_sockets = lambda: open({str(tmp_path / 'asked')!r}, 'w').close() or []\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{_root()}")
    assert bench.ready().state is ServerState.READY
    assert (tmp_path / "asked").exists()


def test_a_pooling_model_is_ready_by_its_own_route(bench) -> None:
    assert bench.ready("--no-completions").state is ServerState.READY


def test_metrics_are_recorded_without_a_console(bench) -> None:
    record = bench.ready()
    path = Path(record.folder) / "metrics.jsonl"
    rows = bench.wait(lambda: path.exists() and [json.loads(x) for x in path.read_text().splitlines()][1:])
    assert rows[-1]["running"] == 0
    assert rows[-1]["kv_usage"] == 0.25
    assert rows[-1]["generation_tokens"] >= 1


def test_nothing_that_can_be_executed(bench) -> None:
    start(Plan("tiny", ("/nowhere/python", "--port=1"), {}, served_model="tiny"))
    ended = bench.until("tiny", "failed")
    assert "/nowhere/python: No such file or directory" in ended.reason


def test_a_key_is_named_and_never_written(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(bench.plan(), secret_env={"VLLM_API_KEY": "MY_KEY"})
    with pytest.raises(MissingError, match="MY_KEY is not set"):
        start(plan)
    monkeypatch.setenv("MY_KEY", "s3cret-value")
    start(plan, settings=Settings(keeper=QUICK, restart_limit=1))
    record = bench.until("tiny", "ready")
    assert record.api_key_env == "MY_KEY", "a client takes it from the same variable"
    folder = Path(record.folder)
    written = "".join(path.read_text(errors="replace") for path in folder.iterdir() if path.is_file())
    shown = "".join(Path(f"/proc/{i.pid}/cmdline").read_text() for i in (record.keeper, record.identity))
    assert "s3cret-value" not in written + shown
    kill(record.keeper)
    monkeypatch.delenv("MY_KEY")
    adopted = bench.until("tiny", "ready", where=lambda r: is_alive(r.keeper) and r.keeper != record.keeper)
    time.sleep(0.6)
    assert get_server("tiny").state is ServerState.READY, "without the key, /health must do"
    assert adopted.identity == record.identity
    kill(adopted.identity)
    ended = bench.until("tiny", "failed", where=lambda r: r.ended_at is not None)
    assert "not started again: VLLM_API_KEY of its first launch is not known any more" in ended.reason


def test_a_command_of_the_user_runs_when_it_dies(bench, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f'echo "$VQ_SERVER|$VQ_REASON|$VQ_INCIDENT" > {told}; sleep 0.3; echo late >> {told}'
    record = bench.ready(on_death=["/bin/sh", "-c", script])
    kill(record.identity)
    bench.until("tiny", "failed", where=lambda r: r.ended_at is not None)
    bench.wait(lambda: told.exists() and "late" in told.read_text())
    name, reason, incident = told.read_text().splitlines()[0].split("|")
    assert (name, "killed by signal 9" in reason) == ("tiny", True)
    assert json.loads(Path(incident).read_text())["exit_code"] == -signal.SIGKILL


def test_a_command_that_cannot_run_is_said(bench) -> None:
    record = bench.ready(on_death=["/nowhere/notify"])
    kill(record.identity)
    ended = bench.until("tiny", "failed", where=lambda r: r.ended_at is not None)
    assert "could not run: /nowhere/notify: No such file or directory" in ended.reason


def test_a_restart_that_would_lack_a_secret_stops_nothing(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret-value")
    path = Path(os.environ["VQ_CONSOLE_HOME"]) / "tiny.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text('name = "tiny"\nmodel = "org/tiny"\n[env]\nVLLM_API_KEY = { from_env = "MY_KEY" }\n')
    plan = replace(bench.plan(), secret_env={"VLLM_API_KEY": "MY_KEY"})
    start(plan, profile_path=str(path), settings=Settings(keeper=QUICK))
    bench.until("tiny", "ready")
    monkeypatch.delenv("MY_KEY")
    monkeypatch.setattr("vq_console.engines.find.choose_engine", lambda *_, **__: None)
    with pytest.raises(MissingError, match="MY_KEY"):
        restart_server("tiny")
    assert get_server("tiny").state is ServerState.READY


def test_a_profile_cannot_reach_into_the_keeper(bench, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('imported')")
    env = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "LD_PRELOAD": "/nowhere.so"}
    start(replace(bench.plan(), env=env), settings=Settings(keeper=QUICK))
    ended = bench.until("tiny", "failed")
    assert "exited with code 1" in ended.reason, "the server itself got them, and cannot live with them"
    assert "/nowhere" in Path(ended.log).read_text(), "and says so"
    seen = b"".join(Path(p).read_bytes() for p in Path(ended.folder).glob("keeper.log"))
    assert b"imported" not in seen


def test_names(bench) -> None:
    assert bench.ready().name == "tiny"
    assert bench.ready().name == "tiny-2"
    with pytest.raises(UsageError, match="tiny-2"):
        stop_server("tiny-22")
    stop_server("tiny")
    assert bench.ready().name == "tiny", "a name that is over is free"
    assert [record.name for record in list_servers()] == ["tiny-2", "tiny"]
    folder = Path(get_server("tiny").folder)
    assert (folder / "server.log.1").exists(), "the log before is kept"


@twenty_times
def test_the_log_is_deleted_truncated_and_capped(bench, turn: int) -> None:
    record = bench.ready("--flood", "3000", settings={"log_cap_bytes": 200_000, "log_head_bytes": 4000})
    log = Path(record.log)
    bench.wait(lambda: "left out here" in log.read_text() and "flood 2999" in log.read_text())
    text = log.read_text()
    assert len(text) < 300_000
    assert text.startswith("(APIServer pid=")
    assert "Application startup complete." in text, "the beginning holds the facts"

    log.unlink()
    bench.wait(lambda: log.exists() and "flood 2999" in log.read_text())
    before = len(log.read_text())
    _ask(record)
    bench.wait(lambda: len(log.read_text()) > before)
    assert get_server("tiny").state is ServerState.READY

    os.truncate(log, 0)
    assert get_server("tiny").state is ServerState.READY
    assert stop_server("tiny").state is ServerState.STOPPED


def test_truncated_log_goes_on(bench) -> None:
    record = bench.ready()
    os.truncate(record.log, 0)
    _ask(record)
    bench.wait(lambda: "POST /v1/completions" in Path(record.log).read_text())
    assert "\0" not in Path(record.log).read_text(), "no hole: the server appends"


FULL_DISK = """
import os, sys
from pathlib import Path
from serving.conftest import Bench
from vq_console.serving.control import stop_server
from vq_console.serving.registry import get_server
from vq_console.serving.view import server_json

bench = Bench()
record = bench.ready()
living = bench.members(record)
ballast = os.open(os.environ["VQ_CONSOLE_HOME"] + "/ballast", os.O_WRONLY | os.O_CREAT)
for size in (65536, 4096, 1):
    try:
        while True:
            os.write(ballast, bytes(size))
    except OSError:
        pass
assert server_json(get_server("tiny"))["state"] == "ready"
from serving.test_keeper import _ask
_ask(record)
ended = stop_server("tiny", timeout_s=5)
assert ended.state.value == "stopped", ended
assert bench.gone(*living)
print("stopped on a full disk")
"""


@twenty_times
def test_the_disk_is_full(vq_home: Path, tmp_path: Path, turn: int) -> None:
    """A small disk of its own: a mount that only this process and its children see."""
    vq_home.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {vq_home}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this kernel lets nobody mount in a namespace of their own")
    script = f'{mount} && exec "$0" -c "$1"'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "VQ_CONSOLE_LOCKS": str(tmp_path)}
    words = ["unshare", "-rm", "sh", "-c", script, sys.executable, FULL_DISK]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout == "stopped on a full disk\n", done.stderr[-3000:]


def _ask(record: ServerRecord) -> None:
    from vq_console.core import http

    with contextlib.suppress(Exception):
        http.post(f"{record.url}/v1/completions", {"model": "tiny", "prompt": "x"}, timeout=5)
