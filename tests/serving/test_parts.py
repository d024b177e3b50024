"""The keeper's small parts: identity, wire, log file, files, vitals, environment, limits."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vq_console.core.errors import MissingError
from vq_console.serving.environment import server_environment
from vq_console.serving.keeping import files, gpu, procfs
from vq_console.serving.keeping.child import HELPERS, Helper, StartError, collect_helpers, start
from vq_console.serving.keeping.incident import kernel_messages, oom_kills
from vq_console.serving.keeping.logfile import LogFile
from vq_console.serving.keeping.procfs import Proc, members
from vq_console.serving.keeping.vitals import Vitals, how_busy, pick_metrics
from vq_console.serving.keeping.wire import Exchange
from vq_console.serving.limits import filesystem_of, startup_limit_s


def proc(pid: int, ppid: int, *, pgrp: int = 0, session: int = 0, ticks: int = 100, state: str = "S") -> Proc:
    return Proc(pid, f"p{pid}", state, ppid, pgrp or pid, session or pid, 0, ticks)


def table(*rows: Proc) -> dict[int, Proc]:
    return {row.pid: row for row in rows}


SERVER = table(
    proc(1, 0),
    proc(50, 1),
    proc(100, 50, pgrp=100, session=100),
    proc(101, 100, pgrp=100, session=100),
    proc(102, 101, pgrp=102, session=102),
    proc(300, 1),
)


@pytest.mark.parametrize(
    ("procs", "known", "above", "helpers", "expected"),
    [
        (SERVER, {}, None, [], {100, 101, 102}),
        # An orphan in another session came to the subreaper.
        (SERVER | table(proc(103, 50, pgrp=103, session=103)), {}, 50, [], {100, 101, 102, 103}),
        # A helper of the keeper is no member.
        (SERVER | table(proc(104, 50)), {}, 50, [104], {100, 101, 102}),
        # The main process is gone and unreaped members are known: the group is still its group.
        (
            table(proc(1, 0), proc(101, 1, pgrp=100, session=100), proc(105, 1, pgrp=100, session=100)),
            {101: 100},
            None,
            [],
            {101, 105},
        ),
        # The number went to another process: its group is not ours.
        (
            table(proc(1, 0), proc(100, 1, pgrp=100, session=100, ticks=999), proc(106, 100, pgrp=100, session=100)),
            {},
            None,
            [],
            set(),
        ),
        # A known number that is another process now.
        (table(proc(1, 0), proc(101, 1, ticks=500)), {101: 100}, None, [], set()),
        # A zombie is gone, but still vouches for its group.
        (
            table(proc(100, 50, pgrp=100, session=100, state="Z"), proc(101, 1, pgrp=100, session=100), proc(50, 1)),
            {},
            None,
            [],
            {101},
        ),
        # Somebody else's group with the dead leader's number, and nobody known: not believed.
        (table(proc(1, 0), proc(107, 1, pgrp=100, session=100)), {}, None, [], set()),
    ],
)
def test_members(
    procs: dict[int, Proc], known: dict[int, int], above: int | None, helpers: list[int], expected: set[int]
) -> None:
    assert set(members(procs, main=100, main_ticks=100, known=known, above=above, helpers=helpers)) == expected


def test_identity_and_signals() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = procfs.read_proc(child.pid)
        assert found is not None
        boot = procfs.boot_id()
        assert procfs.matches(child.pid, found.start_ticks, boot)
        assert procfs.matches(child.pid, found.start_ticks + 1, boot) is None
        assert procfs.matches(child.pid, found.start_ticks, "other") is None
        assert not procfs.send_signal(child.pid, found.start_ticks + 1, signal.SIGKILL)
        assert child.poll() is None
        assert procfs.send_signal(child.pid, found.start_ticks, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while (now := procfs.read_proc(child.pid)) is not None and not now.gone and time.monotonic() < deadline:
            time.sleep(0.01)
        assert procfs.read_proc(child.pid).gone, "not collected yet"
        assert procfs.matches(child.pid, found.start_ticks, boot) is None, "a zombie counts as gone"
        assert not procfs.send_signal(child.pid, found.start_ticks, signal.SIGTERM)
    finally:
        child.kill()
        child.wait()
    assert not procfs.send_signal(os.getpid(), procfs.read_proc(os.getpid()).start_ticks, 0), "never itself"
    assert not procfs.send_signal(1, procfs.read_proc(1).start_ticks, 0), "never init"


def test_a_name_with_spaces_and_parentheses() -> None:
    code = (
        "import ctypes,time; ctypes.CDLL(None).prctl(15, b'a) S (b 1 2', 0,0,0); print('x', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        found = procfs.read_proc(child.pid)
        assert (found.comm, found.ppid) == ("a) S (b 1 2", os.getpid())
    finally:
        child.kill()
        child.wait()


def test_sockets_are_told_here() -> None:
    assert procfs.can_tell_sockets()


def test_segments_are_known_by_inode_even_under_another_name() -> None:
    first = Path("/dev/shm/vq-test-first")
    code = (
        "import mmap, os, sys\n"
        "f = open('/dev/shm/vq-test-first', 'w+b'); f.truncate(4096)\n"
        "m = mmap.mmap(f.fileno(), 4096); f.close()\n"
        "os.rename('/dev/shm/vq-test-first', '/dev/shm/vq-test-final')\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    final = Path("/dev/shm/vq-test-final")
    try:
        assert child.stdout is not None
        child.stdout.readline()
        inodes = procfs.shm_inodes(child.pid)
        assert final.stat().st_ino in inodes
        assert procfs.unused_segments(inodes) == {}, "in use"
        child.kill()
        child.wait()
        assert procfs.unused_segments(inodes) == {final.stat().st_ino: str(final)}
    finally:
        child.kill()
        child.wait()
        first.unlink(missing_ok=True)
        final.unlink(missing_ok=True)


ANSWERS = {
    "length": b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}',
    "chunked": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\n\r\n',
    "until closed": b'HTTP/1.0 200 OK\r\n\r\n{"a":1}',
}


def exchange_with(pieces: list[bytes], *, timeout_s: float = 3.0, close: bool = True) -> Exchange:
    """An exchange with a server that sends these pieces one by one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.01)
            if not close:
                done.wait(5)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        made = Exchange(
            "127.0.0.1", listener.getsockname()[1], "/x", now=time.monotonic(), timeout_s=timeout_s, body={"q": 1}
        )
        while not made.done:
            made.step(time.monotonic())
            time.sleep(0.002)
        done.set()
        thread.join(5)
        return made


@pytest.mark.parametrize("kind", ANSWERS)
def test_wire_reads_every_kind_of_answer_in_any_pieces(kind: str) -> None:
    raw = ANSWERS[kind]
    for size in (len(raw), 5):
        made = exchange_with([raw[i : i + size] for i in range(0, len(raw), size)])
        assert (made.status, made.json(), made.error) == (200, {"a": 1}, "")


def test_wire_gives_up() -> None:
    assert exchange_with([b"HTTP/1.1 200 OK\r\n"], timeout_s=0.2, close=False).error == "timed out"
    assert exchange_with([b"SSH-2.0-x\r\n\r\n"]).status == 0
    assert "closed" in exchange_with([b""]).error
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    made = Exchange("127.0.0.1", port, "/", now=0.0, timeout_s=9)
    while not made.done:
        made.step(0.0)
    assert (made.status, made.error) == (0, "Connection refused")
    assert Exchange("no.such.host.invalid", 9, "/", now=0.0, timeout_s=9).done, "a name that leads nowhere"


def test_log_file_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path), cap_bytes=20_000, head_bytes=2_000)
    writer = log.open_for_child()
    for number in range(3000):
        os.write(writer, f"line {number}\n".encode())
        if number % 500 == 0:
            log.look()
    log.look()
    lines = path.read_text().split("\n")
    assert lines[0] == "line 0"
    assert lines[-2] == "line 2999"
    assert path.stat().st_size <= 20_000
    assert any("left out here" in line for line in lines)
    assert all(line.startswith(("line ", "[vq-console] ")) for line in lines[:-1]), "no torn line"
    os.write(writer, b"after\n")
    assert path.read_text().endswith("line 2999\nafter\n")
    assert log.tail(100)[-2] == "after"
    os.close(writer)
    log.close()


def test_log_file_comes_back_when_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path), cap_bytes=10**6, head_bytes=1000)
    writer = log.open_for_child()
    os.write(writer, b"one\n")
    path.unlink()
    os.write(writer, b"two\n")
    log.look()
    os.write(writer, b"three\n")
    log.look()
    log.look()
    assert path.read_text() == "one\ntwo\nthree\n"
    os.close(writer)
    log.close()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    assert files.write_json(str(path), {"a": 1})
    assert files.read_json(str(path)) == {"schema": 1, "a": 1}
    assert files.read_json(str(tmp_path / "none")) is None
    path.write_text("{")
    assert files.read_json(str(path)) is None
    assert not files.write_json(str(tmp_path / "no" / "x.json"), {}), "an impossible write is told, not raised"
    lines = tmp_path / "x.jsonl"
    for number in range(4):
        assert files.append_line(str(lines), {"n": number}, cap_bytes=20)
    assert json.loads(lines.read_text().splitlines()[-1]) == {"n": 3}
    assert (tmp_path / "x.jsonl.1").exists()


def test_start_says_why_not(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as output:
        with pytest.raises(StartError, match="No such file"):
            start(["/nowhere/x"], os.environ, cwd="/", output=output.fileno())
        with pytest.raises(StartError, match="Permission denied"):
            start([str(tmp_path / "out")], os.environ, cwd="/", output=output.fileno())
        with pytest.raises(StartError, match="No such file"):
            start([sys.executable], os.environ, cwd="/nowhere", output=output.fileno())


def test_helpers_are_polled_and_ended() -> None:
    def run(code: str, timeout_s: float) -> Helper:
        helper = Helper([sys.executable, "-S", "-c", code], now=time.monotonic(), timeout_s=timeout_s)
        while not helper.poll(time.monotonic()):
            time.sleep(0.01)
        return helper

    assert run("print('x' * 100000)", 10).output == "x" * 100_000 + "\n"
    assert run("raise SystemExit(3)", 10).output is None
    late = run("import time; time.sleep(60)", 0.2)
    assert late.output is None
    assert late.pid in HELPERS, "given up, but still no member of any server"
    deadline = time.monotonic() + 5
    while late.pid in HELPERS and time.monotonic() < deadline:
        collect_helpers()
        time.sleep(0.01)
    assert procfs.read_proc(late.pid) is None
    missing = Helper(["/nowhere/tool"], now=0, timeout_s=1)
    assert missing.poll(0)
    assert missing.output is None


def test_gpu_rows() -> None:
    text = "GPU-1, 83, 96700, 143771, 612.11, 61, 1980, 0x0000000000000004\nGPU-2, [N/A], 1, 2, [N/A], 30, 100, 0x0\n"
    first, second = gpu.read_gpus(text)
    assert (first["used_mib"], first["power_w"], first["throttle"]) == (96700, 612.11, "0x0000000000000004")
    assert "util_pct" not in second
    assert gpu.read_holders("7741, 6100\n[N/A], 1\n88, 10\n") == {7741, 88}
    assert gpu.read_gpus("GPU-1, 83, 1, 2, 3.5, 61, 1980")[0]["sm_clock_mhz"] == 1980, (
        "an older driver lacks the last field"
    )
    assert gpu.read_gpus(None) == []
    assert gpu.read_holders(None) == set()
    assert gpu.available_ram_gib() > 0.1


def test_pick_metrics() -> None:
    text = "\n".join(
        [
            "# HELP vllm:num_requests_running x",
            'vllm:num_requests_running{engine="0",model_name="a } b"} 2.0',
            'vllm:num_requests_running{engine="1",model_name="a"} 3.0',
            'vllm:kv_cache_usage_perc{engine="0"} 0.5',
            'vllm:kv_cache_usage_perc{engine="1"} 0.25',
            'vllm:time_to_first_token_seconds_count{engine="0"} NaN',
            "vllm:prompt_tokens_total 7",
            "vllm:broken",
            'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0',
            'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0',
            "python_info 1",
        ]
    )
    assert pick_metrics(text) == {"running": 5.0, "kv_usage": 0.5, "prompt_tokens": 7.0, "awake": 0.0}


def test_vitals_leave_a_busy_or_quiet_server_alone() -> None:
    every = dict.fromkeys(("health_s", "record_s", "token_s"), 5.0) | dict.fromkeys(
        ("probe_s", "retry_s", "health_timeout_s", "token_timeout_s", "first_token_timeout_s", "silent_s", "stuck_s"),
        1.0,
    )
    vitals = Vitals("127.0.0.1", 9, model="m", api_key=None, tls=False, every=every)
    vitals.quiet_until = 100.0
    vitals.step_running(50.0)
    assert vitals.exchange is None, "quiet"
    vitals._next = {"health": 999.0, "metrics": 999.0, "token": 0.0}
    vitals.metrics = {"running": 2.0}
    vitals.step_running(200.0)
    assert vitals.exchange is None, "busy"
    vitals.metrics = {"running": 0.0, "awake": 0.0}
    vitals.step_running(201.0)
    assert vitals.exchange is None, "asleep"
    vitals.metrics = {"running": 0.0}
    vitals.step_running(202.0)
    assert vitals.exchange is not None
    vitals.drop()


def test_kernel_messages_and_memory_kills_are_optional() -> None:
    lines, missing = kernel_messages()
    assert isinstance(lines, list)
    assert missing == "" or missing.startswith("/dev/kmsg")
    assert kernel_messages(since_s=1e9)[0] == [], "only what came since the server began"
    assert oom_kills() is None or oom_kills() >= 0


def test_environment() -> None:
    given = {"PATH": "/bin", "FORCE_COLOR": "1", "HF_TOKEN": "s3cret", "KEEP": "1", "VLLM_LOGGING_COLOR": "1"}
    given["PYTHONDONTWRITEBYTECODE"] = "1"
    env = server_environment(
        {"VLLM_USE_DEEP_GEMM": "0"}, {"VLLM_API_KEY": "HF_TOKEN"}, python="/e/bin/python", given=given
    )
    assert env["PATH"] == "/e/bin:/bin"
    assert (env["NO_COLOR"], env["VLLM_LOGGING_COLOR"], env["KEEP"]) == ("1", "0", "1")
    assert (env["VLLM_USE_DEEP_GEMM"], env["VLLM_API_KEY"]) == ("0", "s3cret")
    assert "FORCE_COLOR" not in env
    assert "PYTHONDONTWRITEBYTECODE" not in env, "each of the engine's processes would compile vLLM anew"
    asked = server_environment({"PYTHONDONTWRITEBYTECODE": "1"}, {}, python=None, given={})
    assert asked["PYTHONDONTWRITEBYTECODE"] == "1"
    with pytest.raises(MissingError, match="NOT_SET is not set"):
        server_environment({}, {"X": "NOT_SET"}, python=None, given=given)


@pytest.mark.parametrize(
    ("cpu_pct", "gpus", "said"),
    [
        (None, [], ""),
        (100.4, [], "spinning: CPU 100 %"),
        (100.0, [{"util_pct": 0}], "spinning: CPU 100 %, GPU 0 %"),
        (1.2, [{"util_pct": 3}, {"power_w": 60}], "waiting: CPU 1 %, GPU 3 %"),
        (30.0, [{"util_pct": 3}, {"util_pct": 99}], "at work: CPU 30 %, GPU 99 %"),
        (30.0, [], "partly at work: CPU 30 %"),
    ],
)
def test_what_a_silent_server_does(cpu_pct: float | None, gpus: list[dict[str, float]], said: str) -> None:
    assert how_busy(cpu_pct, gpus) == said


def test_limits_know_slow_disks() -> None:
    mounts = "\n".join(
        [
            "22 1 254:0 / / rw - ext4 /dev/vda rw",
            "30 22 0:44 / /models rw,relatime - nfs4 server:/models rw",
            "31 22 0:45 / /models/local\\040disk rw - xfs /dev/vdb rw",
            "broken line",
        ]
    )
    assert filesystem_of("/models/llama", mounts) == "nfs4"
    assert filesystem_of("/models/local disk/llama", mounts) == "xfs"
    assert filesystem_of("/modelsx", mounts) == "ext4"
    fast = startup_limit_s(16, local=True, network=False)
    slow = startup_limit_s(16, local=True, network=True)
    assert fast < slow < startup_limit_s(16, local=False, network=False)
    assert startup_limit_s(None, local=True, network=False) >= 600
