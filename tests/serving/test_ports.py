"""A port is the server's own or the start says why not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from serving.conftest import twenty_times
from vq_console.serving.control import wait_ready
from vq_console.serving.keeping import locks, procfs
from vq_console.serving.keeping.address import url_of, with_port
from vq_console.serving.launch import free_port
from vq_console.serving.model import ServerState
from vq_console.serving.registry import get_server


def listener(port: int, *, listen: bool = True, share: bool = False) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    if listen:
        made.listen(1)
    return made


@pytest.fixture
def taken(bench) -> Iterator[int]:
    port = free_port()
    with listener(port):
        yield port


def test_a_fixed_port_of_somebody_else_is_refused(bench, taken: int) -> None:
    bench.start(port=taken, port_fixed=True)
    ended = bench.until("tiny", "failed")
    assert f"port {taken} is taken by pid" in ended.reason
    assert ended.identity is None, "nothing was started"


@twenty_times
def test_a_chosen_port_that_was_taken_meanwhile_is_replaced(bench, taken: int, turn: int) -> None:
    record = bench.ready(port=taken)
    assert record.port != taken
    assert record.url == f"http://127.0.0.1:{record.port}"
    assert procfs.listeners(record.port) <= procfs.socket_inodes(record.identity.pid)


@twenty_times
def test_a_listener_that_shares_the_port_unseen_is_found(bench, turn: int) -> None:
    """vLLM binds with SO_REUSEPORT: a second program can listen beside it and take half of the requests."""
    port = free_port()
    bench.start("--load-s", "0.8", port=port)
    bench.until("tiny", "starting", where=lambda r: r.identity is not None)
    bench.wait(lambda: not locks.port_is_free("127.0.0.1", port))
    with listener(port, share=True):
        record = wait_ready("tiny", timeout_s=20)  # a start that goes on elsewhere never looks failed
        assert record.port != port


def test_a_fixed_port_that_is_shared_fails_with_the_reason(bench) -> None:
    port = free_port()
    bench.start("--load-s", "0.5", port=port, port_fixed=True)
    bench.until("tiny", "starting", where=lambda r: r.identity is not None)
    bench.wait(lambda: not locks.port_is_free("127.0.0.1", port))
    with listener(port, share=True):
        ended = bench.until("tiny", "failed")
        assert f"port {port} is taken" in ended.reason


def test_address_in_use_while_loading_is_tried_again_elsewhere(bench) -> None:
    text = "OSError: [Errno 98] Address already in use"
    bench.start("--die-loading", "--exit-code", "1", "--say", text, settings={"port_tries": 2})
    ended = bench.until("tiny", "failed", where=lambda r: r.ended_at is not None and "exited" in r.reason)
    bench.wait(lambda: procfs.matches(ended.keeper.pid, ended.keeper.start_ticks, ended.keeper.boot_id) is None)
    import json
    from pathlib import Path

    history = json.loads((Path(ended.folder) / "state.json").read_text())["history"]
    assert [item["state"] for item in history].count("starting") == 3, "the first try and two more"
    assert get_server("tiny").state is ServerState.FAILED


def test_a_bound_port_is_not_free_even_before_it_listens(bench) -> None:
    port = free_port()
    assert locks.port_is_free("127.0.0.1", port)
    with listener(port, listen=False, share=True):
        assert not locks.port_is_free("127.0.0.1", port)
    assert locks.port_is_free("127.0.0.1", port)


def test_closing_connections_do_not_hold_a_port(bench) -> None:
    port = free_port()
    with listener(port) as server, socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        accepted.close()  # this side closes first, so it goes to TIME_WAIT
        client.close()
    bench.wait(lambda: locks.port_is_free("127.0.0.1", port))


def test_two_keepers_never_claim_one_port(bench) -> None:
    first = locks.claim_port("127.0.0.1", None, {"name": "a"})
    assert first is not None
    import os

    try:
        assert locks.claim_port("127.0.0.1", first[0], {"name": "b"}) is None
        assert locks.holder_of(f"port-{first[0]}") == {"name": "a"}
    finally:
        os.close(first[1])
    again = locks.claim_port("127.0.0.1", first[0], {"name": "b"})
    assert again is not None
    os.close(again[1])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["m", "--port=1", "--x"], ["m", "--port=2", "--x"]),
        (["m", "--port", "1"], ["m", "--port", "2"]),
        (["m", "--port=11"], ["m", "--port=11"]),
    ],
)
def test_with_port(argv: list[str], expected: list[str]) -> None:
    assert with_port(argv, 1, 2) == expected


@pytest.mark.parametrize(
    ("host", "tls", "expected"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8"),
        ("0.0.0.0", True, "https://127.0.0.1:8"),
        ("::", False, "http://[::1]:8"),
        ("fe80::1", False, "http://[fe80::1]:8"),
        ("gpu.lan", False, "http://gpu.lan:8"),
    ],
)
def test_url_of(host: str, tls: bool, expected: str) -> None:
    assert url_of(host, 8, tls) == expected
