"""The console is killed while a real engine starts: the server goes on, and the next console has its whole story."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.terminal import Terminal
from e2e.vq import cpu_args, vq, vq_json
from vq_console.demo.pair import CPU_ENV
from vq_console.profiles.model import Profile
from vq_console.profiles.store import save_profile
from vq_console.serving.control import wait_ready
from vq_console.serving.keeping import procfs
from vq_console.serving.registry import get_server, list_servers

if TYPE_CHECKING:
    from conftest import Prepared

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_killed_while_it_starts(clean_home: Path, prepared: Prepared, tmp_path: Path) -> None:
    save_profile(Profile("real", prepared.models["bf16"], args=cpu_args(), env=dict(CPU_ENV)))
    words = [sys.executable, "-m", "vq_console", "serve", "real", "--engine", prepared.engine, "--wait"]
    waiting = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (found := list_servers(adopt=False)) or found[0].identity is None:
        assert time.monotonic() < deadline, "it did not begin"
        assert waiting.poll() is None
        time.sleep(0.05)
    screen = Terminal(size=(120, 36), env={"VQ_CONSOLE_HOME": str(clean_home), "PWD": str(tmp_path)})
    try:
        screen.see("real", "◐", seconds=60)
    finally:
        os.killpg(screen.process.pid, signal.SIGKILL)
        os.killpg(waiting.pid, signal.SIGKILL)
        screen.process.wait()
        waiting.wait()
        screen.close()

    began = time.monotonic()
    (record,) = list_servers()
    assert time.monotonic() - began < 1.0
    assert record.state.value == "starting"
    main = record.identity
    assert main is not None
    assert procfs.matches(main.pid, main.start_ticks, main.boot_id)
    assert [server["state"] for server in vq_json("ps")["servers"]] == ["starting"]

    ready = wait_ready("real", timeout_s=400)
    assert ready.identity == main, "the same process, never started twice"
    history = json.loads((Path(ready.folder or "") / "state.json").read_text())["history"]
    assert [entry["state"] for entry in history] == ["queued", "starting", "ready"]
    assert vq_json("ps")["servers"][0]["phases"], "the timeline of the start-up is whole"
    log = Path(ready.log or "").read_text(errors="replace")
    assert "/health" not in log.partition("Application startup complete")[2], "its own looks are no noise in the log"
    vq("stop", "real")
    ended = get_server("real")
    assert (ended.state.value, ended.exit_code) == ("stopped", 0)
    assert vq_json("ps")["servers"][0]["problem"]["severity"] in ("ok", "warning"), "the noise of a stop is no failure"
