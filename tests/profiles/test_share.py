"""Profiles that travel: what is stripped, what comes in, from where."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vq_console.core.errors import ProfileError, UsageError, VqError
from vq_console.core.places import profiles_dir
from vq_console.profiles import share, store, trust
from vq_console.profiles.format import parse_profile
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.remember import last_run, remember_run, with_last_run


def test_secrets_and_local_choices_stay_here(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("x")
    profile = Profile(
        name="x",
        description=f"see {Path.home()}/notes and hf_abcdefghijklmnopqrst",
        model="org/m",
        args={
            "host": "10.0.0.1",
            "port": 8001,
            "device_ids": "2,3",
            "chat_template": str(tmp_path / "template.jinja"),
            "disable_access_log_for_endpoints": "/health,/metrics",
            "quantization": "fp8_per_tensor",
            "hf_overrides": {"api_key": "abcdef123456", "keep": 1},
        },
        env={
            "CUDA_VISIBLE_DEVICES": "0",
            "VLLM_CACHE_ROOT": "/data/cache",
            "HF_TOKEN": EnvRef("HF_TOKEN"),
            "ODD": "https://user:geheim@host/",
            "VLLM_USE_DEEP_GEMM": "0",
        },
        made_on={"gpu": "NVIDIA H200", "vllm": "0.33.0"},
    )
    shared, notes = share.shared_profile(profile)
    assert shared.args == {
        "chat_template": "./template.jinja",
        "disable_access_log_for_endpoints": "/health,/metrics",
        "quantization": "fp8_per_tensor",
        "hf_overrides": {"keep": 1},
    }
    assert shared.env == {"HF_TOKEN": EnvRef("HF_TOKEN"), "VLLM_USE_DEEP_GEMM": "0"}
    assert shared.made_on == {"gpu": "NVIDIA H200", "vllm": "0.33.0"}
    assert shared.description == "see ~/notes and ***"
    assert len(notes) == 8
    assert parse_profile(share.shared_toml(profile)) == shared


def test_model_paths_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "a" * 40
    cached = tmp_path / "hub" / "models--org--big-model" / "snapshots" / commit
    cached.mkdir(parents=True)
    shared, _ = share.shared_profile(Profile("x", str(cached)))
    assert (shared.model, shared.args["revision"]) == ("org/big-model", commit)
    shared, notes = share.shared_profile(Profile("x", str(tmp_path / "secret" / "my-model")))
    assert shared.model == "./my-model"
    assert any("./my-model" in note for note in notes)
    assert share.shared_profile(Profile("x", "org/m:Q4_K_M"))[0].model == "org/m:Q4_K_M"


GOOD = 'name = "good"\nmodel = "org/m"\n[args]\ntrust_remote_code = true\n'


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", {"/to/good": "/good.toml", "/to/file": "file:///etc/passwd"}[self.path])
            self.end_headers()
            return
        bodies = {
            "/good.toml": GOOD.encode(),
            "/named.toml?x=1": b'model = "org/m"',
            "/huge.toml": b"#" * (1024 * 1024 + 1),
            "/latin.toml": b'name = "\xff"',
            "/broken.toml": b"name = [",
        }
        body = bodies.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)


def test_from_an_address(web: str, vq_home: Path) -> None:
    for path in ("/good.toml", "/to/good"):
        (source,) = share.read_sources(web + path)
        assert source.text == GOOD
    profile = share.parse_import(share.Source(web + "/good.toml", GOOD))
    kept = share.keep_import(profile)
    assert kept == profiles_dir() / "good.toml"
    loaded = store.load_profile("good")
    assert not trust.is_trusted(loaded)
    trust.trust(loaded)
    assert trust.is_trusted(loaded)
    with pytest.raises(ProfileError, match="--name"):
        share.keep_import(profile)
    (named,) = share.read_sources(web + "/named.toml?x=1")
    assert share.parse_import(named).name == "named"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/absent.toml", "answered 404"),
        ("/huge.toml", "larger than 1 MiB"),
        ("/latin.toml", "not UTF-8"),
        ("/to/file", "no http"),
    ],
)
def test_addresses_that_give_nothing(web: str, path: str, words: str) -> None:
    with pytest.raises(VqError, match=words):
        list(share.read_sources(web + path))


def test_other_schemes() -> None:
    for url in ("file:///etc/passwd", "ftp://host/x"):
        with pytest.raises(UsageError, match="only http"):
            list(share.read_sources(url))
    with pytest.raises(VqError, match="cannot be fetched"):
        list(share.read_sources("http://127.0.0.1:9/x.toml"))


def test_a_broken_import_names_its_source(web: str) -> None:
    (source,) = share.read_sources(web + "/broken.toml")
    with pytest.raises(ProfileError, match=r"broken\.toml: not valid TOML"):
        share.parse_import(source)


def test_a_folder_with_a_broken_file(tmp_path: Path, vq_home: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_bytes(b"\xff")
    (tmp_path / "c.txt").write_text("no")
    sources = list(share.read_sources(str(tmp_path)))
    assert [source.error is None for source in sources] == [True, False]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \*\.toml"):
        list(share.read_sources(str(tmp_path / "empty")))


def test_relative_models_are_found_from_where_the_file_was(tmp_path: Path, vq_home: Path) -> None:
    (tmp_path / "p.toml").write_text('model = "./weights"')
    (source,) = share.read_sources(str(tmp_path / "p.toml"))
    assert share.parse_import(source).model == str(tmp_path / "weights")
    assert share.parse_import(source, name="q", model="org/here").model == "org/here"


def test_the_last_run_travels(vq_home: Path) -> None:
    assert last_run("x") is None
    remember_run("x", {"gpu": "NVIDIA H200", "sm": 90, "kernels": ["K"], "revision": None, "odd": 1})
    assert last_run("x") == {"gpu": "NVIDIA H200", "sm": 90, "kernels": ["K"]}
    assert with_last_run(Profile("x", "org/m")).made_on == {"gpu": "NVIDIA H200", "sm": 90, "kernels": ["K"]}
    (vq_home / "state" / "made_on" / "x.json").write_text("broken")
    assert with_last_run(Profile("x", "org/m", made_on={"sm": 80})).made_on == {"sm": 80}
