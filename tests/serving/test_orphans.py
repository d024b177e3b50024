"""What dead servers leave behind is found, shown with its owner, and only what is ours is removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vq_console.core.places import servers_dir
from vq_console.hardware.model import Gpu, GpuProcess, Host, Machine
from vq_console.serving import orphans
from vq_console.serving.keeping import procfs
from vq_console.serving.keeping.procfs import Proc
from vq_console.serving.orphans import Orphan, find_orphans, orphaned, reap


def proc(pid: int, ppid: int, comm: str, *, session: int = 100, pgrp: int = 100, state: str = "S") -> Proc:
    return Proc(pid, comm, state, ppid, pgrp, session, 0, 1)


def one(comm: str) -> Proc:
    return proc(1, 0, comm, session=1, pgrp=1)


INIT = one("systemd")
API = ["python", "/x/bin/vllm", "serve", "m"]


CORE, WORKER = "VLLM::EngineCor", "VLLM::Worker"


@pytest.mark.parametrize(
    ("rows", "kept", "commands", "expected"),
    [
        # A healthy server of somebody else.
        ([INIT, proc(100, 1, "vllm"), proc(101, 100, CORE), proc(102, 101, WORKER)], set(), {100: API}, set()),
        # Its API server is gone: the engine hangs on init, its worker and the tracker with it.
        ([INIT, proc(101, 1, CORE), proc(102, 101, WORKER), proc(103, 1, "python")], set(), {}, {101, 102, 103}),
        # The same, but a keeper has it.
        ([INIT, proc(101, 1, CORE), proc(102, 101, WORKER)], {101, 102}, {}, set()),
        # Offline use: a script is the parent.
        ([INIT, proc(90, 1, "python"), proc(101, 90, CORE)], set(), {90: ["python", "bench.py"]}, set()),
        # In a container the API server is process 1.
        ([one("python"), proc(101, 1, CORE, session=1, pgrp=1)], set(), {1: API}, set()),
        # In a container whose process 1 is a shell.
        ([one("bash"), proc(101, 1, CORE, session=1, pgrp=1)], set(), {}, {101}),
        # A dead one does not count, and neither does one of several API servers.
        ([INIT, proc(101, 1, CORE, state="Z"), proc(104, 1, "VLLM::APIServer")], set(), {}, set()),
    ],
)
def test_orphaned(rows: list[Proc], kept: set[int], commands: dict[int, list[str]], expected: set[int]) -> None:
    assert set(orphaned({row.pid: row for row in rows}, kept, commands)) == expected


ENGINE = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(15, b"VLLM::EngineCore", 0, 0, 0)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(120)
"""


def lost_engine(where: Path) -> int:
    """A process named like an engine whose parent is gone."""
    starter = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {ENGINE!r}, {str(where)!r}], start_new_session=True)"
    )
    subprocess.run([sys.executable, "-c", starter], check=True, start_new_session=True)
    while not where.exists() or not where.read_text():
        pass
    return int(where.read_text())


def test_a_lost_engine_is_found_and_ended(bench, tmp_path: Path) -> None:
    pid = lost_engine(tmp_path / "pid")
    found = next(item for item in find_orphans() if item.pid == pid)
    assert (found.kind, found.name, found.touchable) == ("process", "VLLM::EngineCor", True)
    assert found.age_s is not None
    assert found.user
    wrong = Orphan(**{**{f: getattr(found, f) for f in Orphan.__slots__}, "start_ticks": (found.start_ticks or 0) + 1})
    assert reap(wrong) == "already gone"
    assert procfs.read_proc(pid) is not None, "another identity is not touched"
    assert reap(found) == "stopped"
    assert bench.gone(pid)
    assert reap(found) == "already gone"


def test_members_of_a_kept_server_are_no_orphans(bench) -> None:
    bench.ready("--grandchild=orphan")
    mine = set(bench.members(bench.until("tiny", "ready")))
    assert not mine & {item.pid for item in find_orphans()}


def test_segments_of_dead_servers_are_known_from_records_only(bench) -> None:
    ours, others = Path("/dev/shm/vq-test-ours"), Path("/dev/shm/psm_vqtest00")
    ours.write_bytes(b"x" * 2**20)
    others.write_bytes(b"x")
    try:
        folder = servers_dir() / "old"
        folder.mkdir(parents=True)
        dead = {"pid": 2**22 - 1, "start_ticks": 1, "boot_id": procfs.boot_id()}
        members = {"boot_id": procfs.boot_id(), "main": [1, 1], "members": [], "segments": [ours.stat().st_ino]}
        (folder / "members.json").write_text(json.dumps(members))
        (folder / "state.json").write_text(json.dumps({"state": "failed", "server": dead, "keeper": dead}))
        (folder / "server.json").write_text(json.dumps({"name": "old"}))
        (found,) = [item for item in find_orphans() if item.kind == "segment"]
        assert (found.path, found.memory_mib) == (str(ours), 1)
        with open(ours, "rb"):
            assert reap(found).startswith("already gone, or in use")
        assert reap(found) == "removed"
        assert not ours.exists()
        assert others.exists()
        me = procfs.read_proc(os.getpid())
        alive = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": procfs.boot_id()}
        members["segments"] = [others.stat().st_ino]
        (folder / "members.json").write_text(json.dumps(members))
        (folder / "state.json").write_text(json.dumps({"state": "ready", "server": alive, "keeper": alive}))
        assert orphans.stale_segments(folder) == [], "its server lives"
        (folder / "state.json").unlink()
    finally:
        ours.unlink(missing_ok=True)
        others.unlink(missing_ok=True)


def test_who_else_holds_gpu_memory(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    server = bench.ready()
    held = {os.getpid(): 6100, server.identity.pid: 900, 2**22 - 1: 300}
    gpu = Gpu(0, processes=tuple(GpuProcess(pid, used_mib=used) for pid, used in held.items()))
    monkeypatch.setattr("vq_console.hardware.probe.read_machine", lambda **_: Machine(Host("here"), (gpu,)))
    (stranger,) = orphans.gpu_strangers()
    assert (stranger.pid, stranger.memory_mib, stranger.gpus, stranger.touchable) == (os.getpid(), 6100, (0,), False)
    assert reap(stranger).startswith("left alone")
    (dead,) = [item for item in find_orphans() if item.kind == "gpu-memory"]
    assert (dead.pid, dead.memory_mib, dead.touchable) == (2**22 - 1, 300, False)


def test_what_may_not_be_touched_is_left() -> None:
    assert reap(Orphan("gpu-memory", "process 1", "dead", pid=1)).startswith("left alone")
    assert reap(Orphan("process", "x", "y", pid=1, start_ticks=1)).startswith("left alone")
