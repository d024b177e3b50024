"""What is said of a server that is over and whose log names no cause."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from serving.conftest import QUICK
from serving.test_ports import listener
from vq_console.logs.model import Diagnosis
from vq_console.serving.control import launch_error
from vq_console.serving.ended import settle
from vq_console.serving.fix import choose_fix
from vq_console.serving.keeping import procfs
from vq_console.serving.keeping.incident import death_words
from vq_console.serving.launch import Settings, free_port, start
from vq_console.serving.model import ServerRecord, ServerState
from vq_console.serving.registry import get_server
from vq_console.serving.view import server_json

HEALTHY = Diagnosis("healthy", "Running normally", "ok")
WRAPPER = Diagnosis("root-cause-not-in-log", "Cause is not in this excerpt", "unknown", 7, evidence="See root cause")
OOM = "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB"


def failed(exit_code: int | None, **more: Any) -> ServerRecord:
    known = {"log": "/a/server.log", "incident": "/a/incident-1.json", **more}
    return ServerRecord("a", ServerState.FAILED, exit_code=exit_code, reason="the server ended", **known)


@pytest.mark.parametrize(
    ("exit_code", "found", "incident", "slug", "said"),
    [
        (-9, HEALTHY, {"kernel_messages": [], "oom_kills": 0}, "root-cause-not-in-log", "a person or another program"),
        (-9, HEALTHY, {"kernel_messages_missing": "/dev/kmsg: denied"}, "root-cause-not-in-log", "cannot be told"),
        (-9, HEALTHY, {"kernel_messages": [OOM]}, "host-oom-killed", OOM),
        (-9, HEALTHY, {"kernel_messages": [], "oom_kills": 2}, "host-oom-killed", "2 processes"),
        (-15, HEALTHY, None, "root-cause-not-in-log", "SIGTERM"),
        (-11, HEALTHY, None, "worker-died", "native code"),
        (-4, HEALTHY, None, "cpu-illegal-instruction", "native code"),
        (-40, HEALTHY, None, "root-cause-not-in-log", "signal 40"),
        (1, HEALTHY, None, "root-cause-not-in-log", "no error"),
        (None, None, None, "root-cause-not-in-log", "no error"),
        (0, WRAPPER, {"kernel_messages": [OOM]}, "host-oom-killed", OOM),
        # Somebody else's process was killed that day: it explains no exit of this one.
        (0, WRAPPER, {"kernel_messages": [OOM.replace("VLLM::EngineCor", "firefox")]}, WRAPPER.slug, ""),
    ],
)
def test_how_it_ended(
    exit_code: int | None, found: Diagnosis | None, incident: dict[str, Any] | None, slug: str, said: str
) -> None:
    settled = settle(failed(exit_code), found, incident)
    assert settled is not None
    assert settled.slug == slug
    assert settled.severity != "ok"
    assert said in settled.explanation


def test_what_the_log_knows_wins() -> None:
    known = Diagnosis("cuda-oom-runtime", "Out of GPU memory", "error", 3)
    assert settle(failed(-9), known, {"kernel_messages": [OOM]}) is known
    assert settle(replace(failed(-9), state=ServerState.STOPPED), HEALTHY) is HEALTHY
    assert settle(replace(failed(None), state=ServerState.READY), HEALTHY) is HEALTHY


def test_what_the_keeper_ended_itself_was_not_killed_from_outside() -> None:
    record = replace(failed(-15, incident=None), reason="no token within 1200 s (loading)")
    settled = settle(record, HEALTHY)
    assert settled is not None
    assert settled.title == "No token within 1200 s (loading)"
    assert "outside" not in settled.explanation


def test_what_could_not_be_started_is_said_although_there_is_a_line() -> None:
    nothing = Diagnosis("root-cause-not-in-log", "No log of vLLM", "unknown")
    settled = settle(replace(failed(None, incident=None), reason="/nowhere/python: No such file or directory"), nothing)
    assert settled is not None
    assert settled.title == "/nowhere/python: No such file or directory"


def test_a_broken_record_has_no_log_to_speak_of() -> None:
    assert settle(replace(failed(None), log=None, reason="broken record: x"), None) is None


def test_a_port_of_somebody_else_is_mended_by_leaving_the_choice() -> None:
    record = failed(None, cause="port-in-use", plan={"args": {"port": 8000}})
    settled = settle(record, None)
    assert settled is not None
    assert settled.slug == "port-in-use"
    assert settled.fixes[0].patch is not None
    assert settled.fixes[0].patch.remove_args == ("port",)
    chosen_by_us = settle(replace(record, plan={}), None)
    assert chosen_by_us is not None
    assert all(fix.patch is None for fix in chosen_by_us.fixes)


def test_a_server_that_is_killed_is_not_called_healthy(bench) -> None:
    record = bench.ready()
    assert server_json(record)["diagnosis"] == "healthy"
    assert procfs.send_signal(record.identity.pid, record.identity.start_ticks, signal.SIGKILL)
    bench.until("tiny", "failed", where=lambda r: r.ended_at is not None)
    shown = server_json(get_server("tiny"))
    assert shown["diagnosis"] == "root-cause-not-in-log"
    assert shown["problem"]["title"] == "Killed from outside (SIGKILL)"
    assert "killed by signal 9 while ready" in shown["problem"]["explanation"]


def test_a_taken_port_is_a_diagnosis_although_nothing_was_logged(bench) -> None:
    port = free_port()
    with listener(port):
        start(
            bench.plan(port=port),
            port_fixed=True,
            stored_plan={"args": {"port": port}},
            profile_path="/x/tiny.toml",
            settings=Settings(keeper=QUICK),
        )
        ended = bench.until("tiny", "failed")
    assert server_json(ended)["diagnosis"] == "port-in-use"
    assert choose_fix("tiny").patch.remove_args == ("port",)
    assert "`vq-console fix tiny` does it" in str(launch_error(ended))


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        ("ready", None, "the server ended while ready; how is unknown"),
        ("starting", 1, "the server exited with code 1 while loading"),
        ("unresponsive", -9, "the server was killed by signal 9 while unresponsive"),
    ],
)
def test_how_it_went_is_a_sentence(before: str, code: int | None, said: str) -> None:
    assert death_words(before, code) == said
