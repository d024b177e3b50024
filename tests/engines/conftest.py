"""Environments made of a few files: enough for the finder, which starts and imports nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

MakeEnvironment = Callable[..., Path]

_METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
_OWN_PLUGINS = "[vllm.general_plugins]\nlora_filesystem_resolver = vllm.plugins:register\n"


def add_distribution(site: Path, name: str, version: str, *, entry_points: str = "", record: str = "") -> Path:
    """The metadata folder of an installed distribution."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(_METADATA.format(name=name, version=version))
    (folder / "RECORD").write_text(record)
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
    if entry_points:
        (folder / "entry_points.txt").write_text(entry_points)
    return folder


def add_vllm(
    site: Path,
    version: str = "0.32.0",
    *,
    distribution: str | None = "vllm",
    torch: str | None = "2.13.0+cu130",
    libraries: tuple[str, ...] = ("_moe_C_stable_libtorch.abi3.so",),
) -> Path:
    """A vLLM as far as files tell: package, metadata, libraries, torch beside it."""
    package = site / "vllm"
    (package / "entrypoints/openai").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").touch()
    (package / "entrypoints/openai/api_server.py").touch()
    (package / "_version.py").write_text(f"version: str\n__version__ = version = '{version}'\n")
    for name in libraries:
        (package / name).touch()
    if distribution is not None:
        add_distribution(site, distribution, version, entry_points=_OWN_PLUGINS, record="vllm/__init__.py,sha256=x,1\n")
    if torch is not None:
        add_torch(site, torch)
    return package


def add_torch(site: Path, version: str) -> None:
    """torch as PyPI has it: the CUDA version stands in `torch/version.py` only."""
    add_distribution(site, "torch", version.partition("+")[0])
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")


def make_venv(folder: Path, python: str = "3.12") -> Path:
    """A virtual environment without any interpreter that could be started; gives its package folder."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{python}"):
        path = folder / "bin" / name
        path.write_text("#!/nonexistent\n")
        path.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {python}.4\ninclude-system-site-packages = false\n")
    site = folder / f"lib/python{python}/site-packages"
    site.mkdir(parents=True)
    os.symlink("lib", folder / "lib64")
    return site


@pytest.fixture
def machine(tmp_path: Path, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of its own and an environment without any Python in it."""
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    for name in list(os.environ):
        if name.startswith(("CONDA", "MAMBA", "PYENV", "XDG", "UV_", "VIRTUAL_ENV", "WORKON")) or name == "PYTHONPATH":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(home / "work")
    return home
