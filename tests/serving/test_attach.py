"""Servers started elsewhere: attached by URL, pid and container; never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vq_console.core.errors import MissingError, UsageError
from vq_console.serving import attach, containers
from vq_console.serving.control import stop_server
from vq_console.serving.launch import free_port
from vq_console.serving.model import ServerState
from vq_console.serving.registry import forget_server, get_server, list_servers
from vq_console.serving.view import server_json

CHILD = Path(__file__).with_name("child.py")


@pytest.fixture
def elsewhere(bench, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server that the console did not start, its log in a file."""
    port = free_port()
    with open(tmp_path / "own.log", "wb") as output:
        child = subprocess.Popen([sys.executable, str(CHILD), "tiny", f"--port={port}"], stdout=output, stderr=output)
    try:
        from vq_console.core import http

        bench.wait(lambda: http.get(f"http://127.0.0.1:{port}/health").ok)
        yield child, port
    finally:
        child.kill()
        child.wait()


def test_by_url(bench, elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    child, port = elsewhere
    record = attach.attach_url(f"127.0.0.1:{port}/v1/")
    assert (record.url, record.model, record.attached, record.state) == (
        f"http://127.0.0.1:{port}",
        "tiny",
        True,
        ServerState.READY,
    )
    assert [item.name for item in list_servers()] == [f"127.0.0.1-{port}"]
    assert server_json(record)["attached"] is True
    with pytest.raises(UsageError, match="not started here"):
        stop_server(record.name)
    assert child.poll() is None
    monkeypatch.setattr(attach, "LOOK_EVERY_S", 0.0)
    child.kill()
    child.wait()
    assert get_server(record.name).state is ServerState.UNRESPONSIVE
    forget_server(record.name)
    assert list_servers() == ()


def test_by_pid(bench, elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child, port = elsewhere
    record = attach.attach_pid(child.pid, name="mine")
    assert (record.name, record.port, record.log) == ("mine", port, str(tmp_path / "own.log"))
    assert server_json(record)["facts"]["ready"] is True
    with pytest.raises(UsageError, match="runs already"):
        attach.attach_pid(child.pid, name="mine")
    monkeypatch.setattr(attach, "LOOK_EVERY_S", 0.0)
    child.kill()
    child.wait()
    assert (get_server("mine").state, get_server("mine").reason) == (ServerState.STOPPED, "its process is gone")


def test_by_container(
    bench, elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vq_console.commands.follow_start import print_log

    _, port = elsewhere
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    log = tmp_path / "own.log"
    running = {"State": {"Running": True}, "Args": ["serve", "m"], "HostConfig": {"NetworkMode": "bridge"}}
    ports = {"9000/tcp": [{"HostIp": "", "HostPort": "1"}], "8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(port)}]}
    for name, value in {
        "box": {**running, "NetworkSettings": {"Ports": ports}},
        "shut": {**running, "NetworkSettings": {"Ports": {"8000/tcp": None}}},
        "over": {"State": {"Running": False, "Status": "exited", "ExitCode": 1}},
    }.items():
        (tool.parent / name).write_text(json.dumps([value]))
    tool.write_text(
        "#!/bin/sh\n"
        f'case "$1 $2" in "inspect --type") [ -f "{tool.parent}/$4" ] && cat "{tool.parent}/$4" && exit;\n'
        'echo "No such container: $4"; exit 1;;\n'
        f'"logs --tail") cat "{log}";; "logs --follow") echo "a new line";; *) exit 2;; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    record = attach.attach_container("box")
    assert (record.name, record.port) == ("box", port)
    assert server_json(record)["facts"]["ready"] is True
    assert containers.container_of(record) == "box"
    with open(log, "a") as more:
        more.write("one more line\n")
    monkeypatch.setattr(containers, "FETCH_EVERY_S", 0.0)
    containers.refresh_log(record)
    assert Path(record.log).read_text().endswith("one more line\n")
    print_log(record, head=None, tail=1, follow=True)
    assert capsys.readouterr().out.splitlines() == ["one more line", "a new line"]
    with pytest.raises(MissingError, match="publishes no port"):
        attach.attach_container("shut")
    with pytest.raises(MissingError, match=r"'over' does not run \(exited, exit code 1\)"):
        attach.attach_container("over")
    with pytest.raises(MissingError, match="No such container"):
        attach.attach_container("none")
    assert containers.why_not_running("over") == "container 'over' does not run (exited, exit code 1)"
    assert containers.why_not_running("none") == "its container is gone"
    assert containers.why_not_running("box") == containers.why_not_running(None) == ""
    tool.write_text('#!/bin/sh\necho "Cannot connect to the Docker daemon" >&2\nexit 1\n')
    assert containers.why_not_running("box") == ""


def test_a_long_log_of_a_container_keeps_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\n[ "$2" = --tail ] && exec seq 91 100 || exec seq 1 100\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(containers, "LAST_LINES", 10)
    monkeypatch.setattr(containers, "FIRST_LINES", 3)
    lines = containers.fetch_log(tmp_path, "box").read_text().splitlines()
    assert lines == ["1", "2", "3", "[vq-console] lines in between are left out", *map(str, range(91, 101))]


@pytest.mark.parametrize(
    ("inspected", "expected"),
    [
        ({"HostConfig": {"NetworkMode": "host"}}, ("127.0.0.1:8000",)),
        ({"HostConfig": {"NetworkMode": "host"}, "Args": ["serve", "m", "--port", "8100"]}, ("127.0.0.1:8100",)),
        ({"HostConfig": {"NetworkMode": "host"}, "Config": {"Cmd": ["--port=8200"]}}, ("127.0.0.1:8200",)),
        ({"NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "10.0.0.2", "HostPort": "81"}]}}}, ("10.0.0.2:81",)),
        (
            {
                "NetworkSettings": {
                    "Ports": {"22/tcp": [{"HostPort": "22"}], "8000/tcp": [{"HostIp": "::", "HostPort": "81"}]}
                }
            },
            ("127.0.0.1:81", "127.0.0.1:22"),
        ),
        ({"NetworkSettings": {"Ports": {"8000/tcp": None, "53/udp": [{"HostPort": "53"}]}}}, ()),
        ({}, ()),
    ],
)
def test_where_a_container_serves(inspected: dict[str, object], expected: tuple[str, ...]) -> None:
    assert containers.addresses(inspected) == expected


@pytest.mark.parametrize(
    ("cgroups", "expected"),
    [
        (f"9:name=systemd:/docker/{'ab' * 32}\n8:pids:/docker/{'ab' * 32}\n", "abababababab"),
        (f"0::/system.slice/docker-{'cd' * 32}.scope\n", "cdcdcdcdcdcd"),
        (f"0::/machine.slice/libpod-{'01' * 32}.scope/container\n", "010101010101"),
        (f"0::/kubepods.slice/cri-containerd-{'ef' * 32}.scope\n", None),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
        ("", None),
    ],
)
def test_which_container_a_process_is_in(cgroups: str, expected: str | None) -> None:
    assert containers.container_id(cgroups) == expected


def test_what_cannot_be_attached(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="no OpenAI-compatible server answers"):
        attach.attach_url(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UsageError):
        attach.attach_url("ftp://x")
    with pytest.raises(UsageError, match="password"):
        attach.attach_url("http://me:secret@127.0.0.1:1")
    with pytest.raises(MissingError, match="NOT_SET_KEY"):
        attach.attach_url("http://127.0.0.1:1", api_key_env="NOT_SET_KEY")
    with pytest.raises(MissingError, match="listens on no port"):
        attach.attach_pid(os.getpid())
    with pytest.raises(MissingError, match="no process"):
        attach.attach_pid(2**22 - 1)
    assert list_servers() == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/e/bin/python", "/e/bin/vllm", "serve", "m"], True),
        (["vllm", "serve", "m"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], True),
        (["python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"], True),
        (["vllm", "bench", "serve"], False),
        (["grep", "vllm"], False),
        (["python3", "train.py", "--vllm", "serve"], False),
        ([], False),
    ],
)
def test_is_api_server(words: list[str], expected: bool) -> None:
    assert attach.is_api_server(words) is expected


def test_discovery_finds_what_was_not_started_here(bench, tmp_path: Path) -> None:
    fake = tmp_path / "vllm"
    fake.write_text("import socket, time\ns = socket.create_server(('127.0.0.1', 0))\ntime.sleep(60)\n")
    child = subprocess.Popen([sys.executable, str(fake), "serve", "m"])
    try:
        found = bench.wait(lambda: next((f for f in attach.discover() if f.pid == child.pid and f.port), None))
        assert found.url == f"http://127.0.0.1:{found.port}"
        assert "serve m" in found.command
        assert child.pid not in {f.pid for f in attach.discover(frozenset({child.pid}))}
    finally:
        child.kill()
        child.wait()


def test_a_server_that_was_started_here_needs_no_attaching(bench) -> None:
    record = bench.ready()
    with pytest.raises(UsageError, match=f"{record.name}, which was started here"):
        attach.attach_url(f"http://localhost:{record.port}")
    assert [item.name for item in list_servers()] == [record.name]
