"""Finding vLLM on this machine and saying how to start it, from files alone: nothing is imported and nothing run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vq_console.core import places
from vq_console.core.errors import EngineError
from vq_console.engines.inspection import built_for, inspect_environment, vllm_package
from vq_console.engines.interpreters import (
    Interpreter,
    interpreters,
    package_folders,
    path_pythons,
    python_version,
    which_python,
)
from vq_console.engines.model import Engine

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

SIMULATOR = "simulator"


def find_engines(environment: Mapping[str, str] | None = None) -> tuple[Engine, ...]:
    """Every vLLM on this machine, most deliberate place first, in well under a second.

    Looks in this environment, finished engines of the console, VIRTUAL_ENV, CONDA_PREFIX, PATH, uv and pipx tools,
    conda, the usual places of virtual environments, and PYTHONPATH. Broken ones are listed with their problem.
    """
    env = os.environ if environment is None else environment
    home = Path(env.get("HOME") or "~").expanduser()
    first = _python_path(env)
    found: list[Engine] = []
    sites: set[tuple[str, str]] = set()
    for interpreter in interpreters(env, home, _here()):
        engine = _own_engine(interpreter, first, home)
        if engine is not None and (engine.python, engine.site or "") not in sites:
            sites.add((engine.python, engine.site or ""))
            found.append(engine)
    shared = _python_path_engine(first, env, home)
    if shared is not None and not any(engine.site == shared.site and engine.problem is None for engine in found):
        found.append(shared)
    return tuple(found)


def engine_at(python: str) -> Engine:
    """The engine of one interpreter (or of an environment's folder, or of an engine the console made, by name).

    What PYTHONPATH adds counts, as it will when the engine is started. Raises EngineError when there is no such
    interpreter or no vLLM in it. `simulator` is the console's own stand-in.
    """
    if python == SIMULATOR:
        return simulated_engine()
    home = Path("~").expanduser()
    path = _interpreter_path(python)
    first = _python_path(os.environ)
    engine = inspect_environment(path, "given", (*first, *_folders(path, home)))
    if engine is None:
        raise EngineError(
            f"{path}: no vLLM in this environment",
            "install vLLM there, or let the console make an engine: vq-console engines install cuda (or cpu)",
        )
    return engine


def choose_engine(spec: str | None = None, *, python: str | None = None, device: str | None = None) -> Engine:
    """The engine to use: `python` when given, else the newest that satisfies `spec` (as `>=0.27`) and `device`.

    Among those, one that can run on this machine (a CUDA build where an NVIDIA driver is, a CPU build elsewhere)
    goes before one that cannot. Raises EngineError and says what was found and why it does not fit.
    """
    if python is not None:
        engine = engine_at(python)
        if engine.problem is not None:
            raise EngineError(
                f"{engine.python}: {engine.problem}", "repair it, or choose another: vq-console engines list"
            )
        return engine
    wanted = _specifier(spec)
    found = find_engines()
    fitting = [
        engine
        for engine in found
        if engine.problem is None
        and (device is None or engine.device == device)
        and (wanted is None or wanted.contains(_version(engine.vllm_version), prereleases=True))
    ]
    if not fitting:
        raise _none_fits(found, spec, device)
    here = native_device()
    return max(
        fitting, key=lambda engine: (engine.device == here, _version(engine.vllm_version), engine.origin == "current")
    )


def native_device() -> str:
    """What kind of vLLM build this machine can run best, by its device files: `cuda`, `rocm`, `xpu` or `cpu`."""
    if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")):
        return "cuda"
    if os.path.exists("/dev/kfd"):
        return "rocm"
    return "cpu"


def simulated_engine() -> Engine:
    """The console's own stand-in for vLLM; needs neither GPU nor vLLM."""
    from vq_console.engines.snapshot import newest_version

    return Engine(
        python=SIMULATOR,
        vllm_version=newest_version(),
        device=None,
        origin=SIMULATOR,
        launch=(sys.executable, "-m", "vq_console.simulator", "serve"),
        simulated=True,
    )


def torch_cuda(engine: Engine) -> str | None:
    """The CUDA version that this engine's torch was built for, as `13.0`; None for other builds."""
    found = re.search(r"\+cu(\d+)(\d)$", engine.installed.get("torch", ""))
    return f"{found[1]}.{found[2]}" if found else None


def _interpreter_path(python: str) -> str:
    made = places.engines_dir() / python / "bin/python"
    path = Path(python).expanduser()
    if os.sep not in python:
        if made.is_file():
            return str(made)
        command = which_python(python)
        if command is None and not path.exists():
            raise EngineError(f"{python}: no such interpreter", "vq-console engines list shows what is here")
        path = Path(command) if command else path
    if path.is_dir():
        path = path / "bin/python"
    if not path.is_file():
        raise EngineError(f"{path}: no such interpreter", "vq-console engines list shows what is here")
    if not os.access(path, os.X_OK):
        raise EngineError(f"{path}: is no executable file", "name the environment's bin/python")
    # made absolute but not resolved: a virtual environment is known by the link in its own bin folder
    return os.path.abspath(path)


def _folders(python: str, home: Path) -> tuple[Path, ...]:
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        skip = {os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
        return tuple(Path(item) for item in sys.path if os.path.isdir(item) and os.path.abspath(item) not in skip)
    return package_folders(python, home)


def _own_engine(interpreter: Interpreter, first: Sequence[Path], home: Path) -> Engine | None:
    folders = _folders(interpreter.python, home)
    engine = inspect_environment(interpreter.python, interpreter.origin, folders)
    if engine is None:
        return None
    shadow = next((folder for folder in first if vllm_package(folder) is not None), None)
    if shadow is None or engine.problem is not None:
        return engine
    from dataclasses import replace

    return replace(engine, problem=f"PYTHONPATH puts the vLLM of {shadow} before its own")


def _python_path_engine(first: Sequence[Path], env: Mapping[str, str], home: Path) -> Engine | None:
    """The vLLM of a PYTHONPATH folder (an offline bundle), with the interpreter that can use it: one that has torch
    and the Python version that the bundle's packages were built for."""
    folder = next((folder for folder in first if vllm_package(folder) is not None), None)
    if folder is None:
        return None
    needed = built_for(folder)
    choices: list[tuple[bool, bool, Engine]] = []
    for python in dict.fromkeys((sys.executable, *path_pythons(env, home))):
        origin = "current" if python == sys.executable else "pythonpath"
        engine = inspect_environment(python, origin, (*first, *_folders(python, home)))
        if engine is not None:
            fits = needed is None or python_version(python) in (None, needed)
            choices.append((fits, engine.problem is None, engine))
    if not choices:
        return None
    # max keeps the first of equals, and `current` comes first
    return max(choices, key=lambda choice: (choice[0] and choice[1], choice[1], choice[0]))[2]


def _python_path(env: Mapping[str, str]) -> tuple[Path, ...]:
    parts = (Path(part) for part in env.get("PYTHONPATH", "").split(os.pathsep) if part)
    return tuple(part for part in parts if part.is_dir())


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def _specifier(spec: str | None) -> SpecifierSet | None:
    if not spec:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(spec)
    except InvalidSpecifier as error:
        raise EngineError(f"engine.vllm: {spec!r} is no version range", "write it as >=0.27 or ==0.32.*") from error


def _version(text: str | None) -> Version:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text or "0")
    except InvalidVersion:
        return Version("0")


def _none_fits(found: Sequence[Engine], spec: str | None, device: str | None) -> EngineError:
    wanted = " ".join(part for part in (f"vLLM {spec}" if spec else "vLLM", f"for {device}" if device else "") if part)
    kind = device if device in ("cpu", "cuda") else native_device()
    hint = f"make one: vq-console engines install {kind if kind == 'cpu' else 'cuda'}; or name one: --engine PYTHON"
    if not found:
        return EngineError("no vLLM was found on this machine", hint)
    lines = [
        f"{engine.python}: {engine.problem or f'vLLM {engine.vllm_version} for {engine.device}'}"
        for engine in found[:6]
    ]
    return EngineError(f"no engine fits {wanted}; found:\n  " + "\n  ".join(lines), hint)
