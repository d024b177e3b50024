"""A base Python of these tests' own, whose environments have a pip that does what a script says."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FAKE = '''#!{python}
"""Stands for a base interpreter, an environment's interpreter and its pip."""
import json, os, shutil, sys, time
from pathlib import Path

plan_file = Path({plan!r})
arguments = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
plan = json.loads(plan_file.read_text())


def rule(kind):
    found = plan.get(kind) or []
    if not found:
        return None
    first = found.pop(0)
    plan_file.write_text(json.dumps(plan))
    return first


def act(what):
    if not what:
        return
    print(what.get("say", ""), flush=True)
    if what.get("kill_parent"):
        os.kill(os.getppid(), 9)
    if what.get("sleep"):
        time.sleep(what["sleep"])
    if what.get("exit"):
        sys.exit(what["exit"])


if arguments[:1] == ["-c"]:
    code = arguments[1]
    if "ensurepip" in code:
        print("{version} cpython")
        sys.exit(0)
    act(rule("proof"))
    print("imported 1.0")
    sys.exit(0)
if arguments[:2] == ["-m", "venv"]:
    act(rule("venv"))
    folder = Path(arguments[2])
    (folder / "bin").mkdir(parents=True)
    shutil.copy(__file__, folder / "bin/python")
    (folder / "pyvenv.cfg").write_text("home = x\\nversion = {version}.0\\n")
    site = folder / "lib/python{version}/site-packages"
    site.mkdir(parents=True)
    sys.exit(0)
assert arguments[:2] == ["-m", "pip"], arguments
words = [word for word in arguments[2:] if not word.startswith("--no-") and not word.startswith("--disable")]
pins = [word for word in words if "==" in word]
if words[0] == "download":
    act(rule("download"))
    wheels = Path(words[words.index("--dest") + 1])
    for pin in pins:
        name, _, version = pin.partition("==")
        print(f"Downloading {{name}}-{{version}}-py3-none-any.whl (25.0 MB)", flush=True)
        (wheels / f"{{name.replace('-', '_')}}-{{version}}-py3-none-any.whl").write_bytes(b"wheel")
elif words[0] == "install" and "--find-links" in words:
    act(rule("install"))
    wheels = Path(words[words.index("--find-links") + 1])
    site = next(Path(__file__).parent.parent.glob("lib/python3*/site-packages"))
    for pin in pins:
        name, _, version = pin.partition("==")
        if not list(wheels.glob(f"{{name.replace('-', '_')}}-{{version}}-*")):
            print(f"ERROR: No matching distribution found for {{pin}}")
            sys.exit(1)
        info = site / f"{{name.replace('-', '_')}}-{{version}}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
elif words[0] == "install" and not pins[0].startswith("pip=="):
    act(rule("resolve"))
    site = next(Path(__file__).parent.parent.glob("lib/python3*/site-packages"))
    for pin in pins:
        name, _, version = pin.partition("==")
        print(f"Downloading {{name}}-{{version}}-py3-none-any.whl (530.2 MB)", flush=True)
        info = site / f"{{name.replace('-', '_')}}-{{version}}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
elif words[:2] == ["index", "versions"]:
    act(rule("index"))
    print("vllm (0.40.1)\\nAvailable versions: 0.40.1, 0.39.0")
'''


@dataclass(slots=True)
class FakePip:
    """What happened, and what is to happen: `plan` lists by stage what the next calls do instead of succeeding."""

    folder: Path
    said: list[str] = field(default_factory=list)

    def plan(self, **stages: list[dict[str, Any] | None]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(stages))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().split("\n") if line]

    def downloads(self) -> list[list[str]]:
        return [[word for word in call if "==" in word] for call in self.calls() if "download" in call]

    def say(self, words: str) -> None:
        self.said.append(words)


LOCK = "a==1.0\nb-c==2.0\ntorch==9.9+cpu\nllmcompressor==0.5\n"


@pytest.fixture
def fake_pip(tmp_path: Path, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """Engines of four small packages, made by a fake pip in a home of their own."""
    from vq_console.engines import bases, install, pins

    folder = tmp_path / "fake"
    folder.mkdir()
    fake = FakePip(folder)
    fake.plan()
    (folder / "calls.jsonl").touch()
    (folder / "lock.txt").write_text(LOCK)
    python = folder / "python3.11"
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python.write_text(
        FAKE.format(
            python=sys.executable, version=own, plan=str(folder / "plan.json"), calls=str(folder / "calls.jsonl")
        )
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.delenv("VQ_ENGINES_DIR", raising=False)
    monkeypatch.setattr(pins, "lock_path", lambda kind: folder / "lock.txt")
    chosen: Callable[[Any], tuple[str, str]] = lambda supported: (str(python), own)  # noqa: E731
    monkeypatch.setattr(bases, "base_python", chosen)
    monkeypatch.setattr(install, "base_python", chosen)
    return fake
