"""Stored records against reality: planted, broken, of another boot, of another host."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from serving.conftest import twenty_times
from vq_console.core.errors import UsageError
from vq_console.core.places import servers_dir
from vq_console.serving.control import stop_server
from vq_console.serving.keeping import procfs
from vq_console.serving.model import Identity, ServerRecord, ServerState
from vq_console.serving.registry import Reality, forget_server, get_server, list_servers, reconcile
from vq_console.serving.view import LogView, judge, model_name, server_json, uptime_s

DEAD = Reality(keeper_alive=False, server_alive=False, same_boot=True)
BOTH = Reality(keeper_alive=True, server_alive=True, same_boot=True)
ORPHAN = Reality(keeper_alive=False, server_alive=True, same_boot=True)
REBOOTED = Reality(keeper_alive=False, server_alive=False, same_boot=False)
LAUNCHING = Reality(keeper_alive=False, server_alive=False, same_boot=True, launching=True)
WHO = Identity(7, 7, "boot")


@pytest.mark.parametrize(
    ("state", "identity", "reality", "expected", "reason"),
    [
        ("ready", WHO, BOTH, "ready", ""),
        ("ready", WHO, ORPHAN, "ready", "its keeper was killed"),
        ("ready", WHO, DEAD, "failed", "how is unknown"),
        ("unresponsive", WHO, DEAD, "failed", "how is unknown"),
        ("starting", WHO, REBOOTED, "failed", "the machine was restarted"),
        ("stopping", WHO, DEAD, "stopped", "how it ended is unknown"),
        ("queued", None, DEAD, "failed", "before the server began"),
        ("queued", None, LAUNCHING, "queued", ""),
        ("stopped", WHO, REBOOTED, "stopped", ""),
        ("failed", WHO, DEAD, "failed", ""),
    ],
)
def test_reconcile(state: str, identity: Identity | None, reality: Reality, expected: str, reason: str) -> None:
    found = reconcile(ServerRecord("x", ServerState(state), identity=identity), reality)
    assert found.state.value == expected
    assert reason in found.reason


def plant(name: str, state: dict[str, Any], **given: Any) -> Path:
    folder = servers_dir() / name
    folder.mkdir(parents=True)
    full = {"schema": 1, "name": name, "argv": ["x"], "log": str(folder / "server.log"), "created": 1.0, **given}
    (folder / "server.json").write_text(json.dumps(full))
    (folder / "state.json").write_text(json.dumps({"schema": 1, **state}))
    return folder


@twenty_times
def test_a_reused_pid_is_never_signalled(bench, turn: int) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        proc = bench.wait(lambda: procfs.read_proc(innocent.pid))
        wrong = {"pid": innocent.pid, "start_ticks": proc.start_ticks - 5, "boot_id": procfs.boot_id()}
        folder = plant("tiny", {"state": "ready", "server": wrong, "keeper": wrong, "port": 1})
        members = {"boot_id": procfs.boot_id(), "main": [innocent.pid, wrong["start_ticks"]], "segments": []}
        (folder / "members.json").write_text(json.dumps({**members, "members": [[innocent.pid, wrong["start_ticks"]]]}))
        assert get_server("tiny").state is ServerState.FAILED
        stop_server("tiny", timeout_s=0.2)
        keeper = bench.wait(lambda: get_server("tiny").state is ServerState.FAILED and get_server("tiny").keeper)
        assert keeper.pid != innocent.pid, "a new keeper looked after it"
        assert innocent.poll() is None, "another process has that number now, and was left alone"
    finally:
        innocent.kill()
        innocent.wait()


def test_another_boot_is_never_touched(bench) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        proc = bench.wait(lambda: procfs.read_proc(innocent.pid))
        who = {"pid": innocent.pid, "start_ticks": proc.start_ticks, "boot_id": "another-boot"}
        plant("tiny", {"state": "ready", "server": who, "keeper": who})
        assert "restarted" in get_server("tiny").reason
        assert stop_server("tiny").state is ServerState.FAILED
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


@pytest.mark.parametrize(
    ("server", "state"),
    [("{", "{}"), ("[]", "{}"), ("{}", "{"), ("{}", '{"state": "dancing"}'), ('{"gpus": "x"}', '{"state": "ready"}')],
)
def test_broken_records_are_shown_and_kept(vq_home: Path, server: str, state: str) -> None:
    folder = servers_dir() / "odd"
    folder.mkdir(parents=True)
    (folder / "server.json").write_text(server)
    (folder / "state.json").write_text(state)
    (record,) = list_servers()
    assert (record.name, record.state) == ("odd", ServerState.FAILED)
    assert "broken record" in record.reason
    assert server_json(record)["state"] == "failed"
    assert (folder / "server.json").read_text() == server


def test_a_broken_record_keeps_its_name_and_its_files(bench) -> None:
    folder = servers_dir() / "tiny"
    folder.mkdir(parents=True)
    (folder / "server.json").write_text("{")
    assert bench.ready().name == "tiny-2"
    assert (folder / "server.json").read_text() == "{"


def test_other_hosts_are_shown_and_not_touched(vq_home: Path) -> None:
    who = {"pid": 1, "start_ticks": 1, "boot_id": procfs.boot_id()}
    folder = plant("far", {"state": "ready", "server": who, "keeper": who})
    other = folder.parent.with_name("gpu9-0000")
    folder.parent.rename(other)
    (record,) = list_servers()
    assert (record.name, record.host_id, record.state) == ("far", "gpu9-0000", ServerState.READY)
    with pytest.raises(UsageError):
        stop_server("far")


@twenty_times
def test_a_clock_that_was_set_back(bench, turn: int) -> None:
    record = bench.ready()
    folder = Path(record.folder)
    for name in ("server.json", "state.json"):
        value = json.loads((folder / name).read_text())
        for key in ("created", "started_at", "ready_at"):
            if key in value:
                value[key] = time.time() + 1e6
        (folder / name).write_text(json.dumps(value))
    again = get_server("tiny")
    assert again.state is ServerState.READY
    up = uptime_s(again)
    assert up is not None
    assert 0 <= up < 60
    assert stop_server("tiny").state is ServerState.STOPPED


def test_unknown_names_get_the_nearest(bench) -> None:
    bench.start()
    with pytest.raises(UsageError, match="did you mean 'tiny'"):
        get_server("tinny")
    for bad in ("", "..", "a/b", "."):
        with pytest.raises(UsageError):
            get_server(bad)


def test_forget(bench) -> None:
    record = bench.ready()
    with pytest.raises(UsageError, match="is ready"):
        forget_server("tiny")
    stop_server("tiny")
    forget_server("tiny")
    assert not Path(record.folder).exists()
    assert list_servers() == ()


def view(severity: str, lost: bool = False) -> LogView:
    from vq_console.logs.model import Diagnosis

    return LogView(Diagnosis("x", "x", severity), {}, (), "ready", lost)


@pytest.mark.parametrize(
    ("exit_code", "ready_at", "seen", "expected"),
    [
        (0, 1.0, view("ok"), "stopped"),
        (-15, 1.0, view("warning"), "stopped"),
        (0, 1.0, view("ok", lost=True), "failed"),
        (0, 1.0, view("error"), "failed"),
        (0, 1.0, view("unknown"), "failed"),
        (1, 1.0, view("ok"), "failed"),
        (-9, 1.0, view("ok"), "failed"),
        (None, 1.0, view("ok"), "failed"),
        (0, None, view("ok"), "failed"),
        (0, 1.0, None, "failed"),
    ],
)
def test_judge(exit_code: int | None, ready_at: float | None, seen: LogView | None, expected: str) -> None:
    record = ServerRecord("x", ServerState.FAILED, exit_code=exit_code, ready_at=ready_at)
    assert judge(record, seen).state.value == expected


@pytest.mark.parametrize(
    ("argv", "facts", "name"),
    [
        (["vllm", "serve", "org/m-8B", "--port=1"], {}, "m-8B"),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m-8B/", "--port=1"], {}, "m-8B"),
        (["vllm", "serve", "org/m-8B"], {"model": "org/other"}, "other"),
        ([], {}, "served"),
        (["vllm", "serve"], {}, "served"),
    ],
)
def test_a_server_is_listed_by_its_model(argv: list[str], facts: dict[str, str], name: str) -> None:
    assert model_name(ServerRecord("x", ServerState.READY, model="served", plan={"argv": argv}), facts) == name


def test_a_server_without_a_model_has_no_name_for_it() -> None:
    assert model_name(ServerRecord("x", ServerState.READY), {}) is None
