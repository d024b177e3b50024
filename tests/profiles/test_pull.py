"""Fetching models from a hub of this test's own: sizes, pins, resumption, and every way in which a hub says no."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from profiles.checkpoints import LLAMA, safetensors_bytes, write_model
from vq_console.core.errors import ExitCode, MissingError, UsageError, VqError
from vq_console.engines import starter
from vq_console.profiles import hub, pull_resume
from vq_console.profiles.checkpoint import read_checkpoint
from vq_console.profiles.pull import pull_model, wanted_files

COMMIT = "c" * 40
FILES = {
    "config.json": json.dumps(LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}}).encode(),
    "model.safetensors": safetensors_bytes({"a.weight": ("BF16", [64, 64])}),
    "pytorch_model.bin": b"x" * 100,
    "original/consolidated.pth": b"x" * 100,
}
HASH = hashlib.sha256(FILES["model.safetensors"]).hexdigest()


@dataclass
class Hub:
    url: str = ""
    status: int = 200
    code: str = ""
    served: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    pause_s: float = 0.0


def handler(state: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for start in range(0, 0 if self.command == "HEAD" else len(body), 500):
                self.wfile.write(body[start : start + 500])
                time.sleep(state.pause_s if len(body) > 2000 else 0)

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            state.served.append(f"{self.command} {path}")
            if state.status != 200:
                headers = {"X_Error_Code": state.code} if state.code else {}
                self.answer(state.status, b'{"error": "no"}', Content_Type="application/json", **headers)
            elif path.startswith("/api/models/org/m"):
                entries = [{"rfilename": name, "size": len(raw)} for name, raw in FILES.items()]
                tree = [
                    {"type": "file", "path": name, "size": len(raw), "oid": "0" * 40} for name, raw in FILES.items()
                ]
                info: Any = {"id": "org/m", "sha": COMMIT, "siblings": entries, "private": False, "tags": []}
                body = json.dumps(tree if "/tree/" in path else info).encode()
                self.answer(200, body, Content_Type="application/json")
            elif path.startswith("/org/m/resolve/"):
                raw = FILES[path.split("/", 5)[5]]
                common = {"ETag": f'"{hashlib.sha256(raw).hexdigest()}"', "X_Repo_Commit": COMMIT}
                asked = self.headers.get("Range")
                if asked and self.command == "GET":
                    state.ranges.append(asked)
                    start = int(asked.removeprefix("bytes=").split("-")[0])
                    part = raw[start:]
                    self.answer(206, part, Content_Range=f"bytes {start}-{len(raw) - 1}/{len(raw)}", **common)
                else:
                    self.answer(200, raw, Accept_Ranges="bytes", **common)
            else:
                self.answer(404, b"{}", Content_Type="application/json", X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Keeps the test's output clean."""

    return Handler


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    state = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", state.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "has_token", lambda: False)
    yield state
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)


def silent(_: str) -> None:
    """Says nothing."""


def test_a_model_is_fetched_pinned_and_read(fake: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    planned = pull_model("org/m", dry_run=True, say=said.append)
    assert planned.path is None
    assert planned.fetched_bytes == len(FILES["config.json"]) + len(FILES["model.safetensors"])
    assert "2 files" in said[0]
    pulled = pull_model("org/m", say=said.append)
    assert pulled.revision == COMMIT
    assert pulled.path is not None
    folder = Path(pulled.path)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    found = read_checkpoint("org/m")
    assert (found.revision, found.problems, found.facts["quant_method"]) == (COMMIT, (), "gptq")
    again = pull_model("org/m", say=said.append)
    assert again.fetched_bytes == 0
    elsewhere = pull_model("org/m", folder=tmp_path / "here", say=silent)
    assert (tmp_path / "here" / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert elsewhere.to_json()["files"] == 2


def test_a_broken_download_goes_on(fake: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_resume, "FROM_BYTES", 1000)
    whole = FILES["model.safetensors"]
    blobs = tmp_path / "hf" / "hub" / "models--org--m" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{HASH}.vq-part").write_bytes(whole[:5000])
    pulled = pull_model("org/m", say=silent)
    assert pulled.path is not None
    assert (Path(pulled.path) / "model.safetensors").read_bytes() == whole
    assert fake.ranges == ["bytes=5000-"]
    assert not list(blobs.glob("*.vq-part"))


def test_an_interruption_ends_soon_and_keeps_the_part(fake: Hub, tmp_path: Path) -> None:
    """The server sends slowly; the person interrupts; the next attempt goes on."""
    fake.pause_s = 0.2
    code = (
        "import sys, pathlib; from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 500; "
        "from vq_console.profiles import pull_resume; "
        f"pull_resume.fetch_large('org/m', '{COMMIT}', ['model.safetensors'], pathlib.Path({str(tmp_path)!r}), "
        f"{fake.url!r}, 5)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    part = tmp_path / "models--org--m" / "blobs" / f"{HASH}.vq-part"
    deadline = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) != 0
    assert 0 < part.stat().st_size < len(FILES["model.safetensors"])
    fake.pause_s = 0.0
    pull_resume.fetch_large("org/m", COMMIT, ["model.safetensors"], tmp_path, fake.url, 5)
    assert part.with_name(HASH).read_bytes() == FILES["model.safetensors"]


def test_a_damaged_part_is_not_taken(fake: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_resume, "FROM_BYTES", 1000)
    blobs = tmp_path / "hf" / "hub" / "models--org--m" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{HASH}.vq-part").write_bytes(b"x" * 5000)
    with pytest.raises(VqError, match="right hash"):
        pull_model("org/m", say=silent)
    assert pull_model("org/m", say=silent).path is not None
    (blobs / f"{HASH}.vq-part").write_bytes(b"x")
    assert pull_model("org/m", say=silent).fetched_bytes == 0


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "", "not logged in"),
        (401, "GatedRepo", "not logged in"),
        (403, "GatedRepo", "licence is not accepted"),
        (403, "", "licence is not accepted"),
        (404, "RepoNotFound", "not found"),
        (401, "RepoNotFound", "not found at the hub, or private and you are not logged in"),
        (404, "RevisionNotFound", "no such revision"),
        (500, "", "could not be asked"),
    ],
)
def test_why_the_hub_says_no(fake: Hub, status: int, code: str, words: str) -> None:
    fake.status, fake.code = status, code
    with pytest.raises(VqError, match=words) as raised:
        pull_model("org/m", say=silent)
    assert raised.value.hint
    assert raised.value.exit_code == ExitCode.NO
    looked = read_checkpoint("org/absent-here", online=True)
    assert words in looked.problems[0]


def test_facts_from_the_hub_leave_the_cache_alone(fake: Hub, tmp_path: Path) -> None:
    found = read_checkpoint("org/m", online=True)
    assert found.origin == "hub"
    assert found.facts["quant_method"] == "gptq"
    assert found.facts["hidden_size"] == 576
    assert read_checkpoint("org/m").facts == {}
    assert not any("safetensors" in path for path in fake.served)


def test_space_is_checked_first(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(MissingError, match="are free"):
        pull_model("org/m", say=silent)
    assert not any("GET /org/m/resolve" in path for path in fake.served)


@pytest.mark.alone
def test_offline_is_said_within_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    for url, words in (
        (f"http://127.0.0.1:{listener.getsockname()[1]}", "cannot be reached"),
        ("http://name.invalid", "name.invalid"),
    ):
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        started = time.monotonic()
        with pytest.raises(MissingError, match=words) as raised:
            pull_model("org/m", say=silent)
        assert time.monotonic() - started < 3.5
        assert raised.value.exit_code == ExitCode.MISSING
    listener.close()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingError, match="HF_HUB_OFFLINE is set"):
        pull_model("org/m", say=silent)


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingError, match="huggingface_hub is not installed") as raised:
        pull_model("org/m", say=silent)
    assert raised.value.exit_code == ExitCode.MISSING
    assert "vq-console[hub]" in raised.value.hint
    assert "not installed" in read_checkpoint("org/absent", online=True).problems[0]


def test_no_hub_ids() -> None:
    for odd in ("m", "./m", "a/b/c", "../x/y", "org/na me"):
        with pytest.raises(UsageError, match="no hub id"):
            pull_model(odd, say=silent)


@pytest.mark.parametrize(
    ("names", "quant", "weights"),
    [
        (["a.safetensors", "b.bin", "config.json"], "", ["a.safetensors"]),
        (["model-1.safetensors", "consolidated.safetensors"], "", ["model-1.safetensors"]),
        (["consolidated.safetensors"], "", ["consolidated.safetensors"]),
        (["pytorch_model.bin", "original/x.pth"], "", ["pytorch_model.bin"]),
        (["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "q4_k_m", ["m-Q4_K_M.gguf"]),
    ],
)
def test_which_files(names: list[str], quant: str, weights: list[str]) -> None:
    assert [name for name in wanted_files(names, quant) if name in names] == weights
    assert "*.json" in wanted_files(names, quant)


def test_gguf_needs_a_name() -> None:
    with pytest.raises(UsageError, match="GGUF files only"):
        wanted_files(["m-Q4_K_M.gguf"])
    with pytest.raises(UsageError, match="no GGUF file is called Q2"):
        wanted_files(["m-Q4_K_M.gguf"], "Q2")


def test_the_starter_model_is_made_not_fetched(vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = pull_model("smollm2", dry_run=True, say=silent)
    assert planned.path is None
    monkeypatch.setattr(starter, "ensure_starter_model", lambda say: write_model(vq_home / "made"))
    made = pull_model("smollm2", say=silent)
    assert made.path == str(vq_home / "made")
    assert (made.files, made.revision) == (2, None)
