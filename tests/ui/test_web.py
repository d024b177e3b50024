"""The console in a browser: on loopback only, and for nobody who lacks the key or comes from another page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vq_console.preflight.target import free_port
from vq_console.ui.web import HOST, refusal


@pytest.mark.parametrize(
    ("host", "origin", "fits"),
    [
        ("127.0.0.1:8417", None, True),
        ("localhost:8417", "http://localhost:8417", True),
        ("127.0.0.1:8417", "http://127.0.0.1:8417", True),
        ("127.0.0.1:9999", None, False),
        ("evil.example:8417", None, False),
        ("127.0.0.1:8417", "https://evil.example", False),
        ("127.0.0.1:8417", "null", False),
        ("127.0.0.1:8417", "http://127.0.0.1:3000", False),
    ],
)
def test_only_own_pages_reach_it(host: str, origin: str | None, fits: bool) -> None:
    assert (refusal(host, origin, 8417) == "") is fits


@pytest.fixture
def address(vq_home: Path) -> Iterator[tuple[str, int]]:
    """Address with its key, and pid, of a real `vq-console web`."""
    port = free_port()
    argv = [sys.executable, "-m", "vq_console", "web", "--json", "--port", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while "}" not in text:
            line = process.stdout.readline()
            assert line, f"it ended with {process.wait()}"
            text += line
        yield json.loads(text)["address"], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def status_of(url: str, **headers: str) -> int:
    """HTTP status, waiting a moment for the port to open."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("the port never opened")


def test_it_listens_on_loopback_only_and_wants_its_key(address: tuple[str, int]) -> None:
    url, pid = address
    plain = url.partition("?")[0]
    assert status_of(url) == 200
    assert status_of(plain) == 403
    assert status_of(f"{plain}ws") == 403
    assert status_of(url, Host="evil.example") == 403
    assert status_of(url, Origin="https://evil.example") == 403
    listening = [c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == [HOST]


@pytest.mark.soak
async def test_a_browser_gets_the_console(address: tuple[str, int]) -> None:
    import aiohttp

    url, _ = address
    plain = url.partition("?")[0]
    assert status_of(url) == 200
    seen = ""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(url) as page:
            assert f"ws://{HOST}" in await page.text()
        async with session.ws_connect(f"{plain}ws?width=100&height=30", headers={"Origin": plain.rstrip("/")}) as ws:
            async for message in ws:
                if message.type is aiohttp.WSMsgType.BINARY:
                    seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", message.data.decode("utf-8", "replace"))
                if "1 Servers" in seen and "No server yet." in seen:
                    break
    assert "1 Servers" in seen
