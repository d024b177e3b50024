"""Finding vLLM on this machine and saying how to start it, from files alone: nothing is imported and nothing run."""

from __future__ import annotations

import configparser
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from vq_console.core import places
from vq_console.core.errors import EngineError
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

PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)

DECIDING = (
    "torch",
    "triton",
    "transformers",
    "compressed-tensors",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "humming-kernels",
    "quack-kernels",
    "nvidia-cutlass-dsl",
    "deep-gemm",
    "deep-ep",
    "torchao",
    "llmcompressor",
    "bitsandbytes",
    "gguf",
    "amd-quark",
    "nvidia-modelopt",
    "huggingface-hub",
    "fastsafetensors",
    "runai-model-streamer",
    "lmcache",
    "ray",
    "xgrammar",
    "numpy",
)
"""Distributions whose versions decide what runs; the keys of `Engine.installed`."""


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
    engine = _inspect(path, "given", (*first, *_folders(path, home)))
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
        and (wanted is None or wanted.contains(engine.vllm_version or "0", prereleases=True))
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
    engine = _inspect(interpreter.python, interpreter.origin, folders)
    if engine is None:
        return None
    shadow = next((folder for folder in first if _package(folder) is not None), None)
    if shadow is None or engine.problem is not None:
        return engine
    from dataclasses import replace

    return replace(engine, problem=f"PYTHONPATH puts the vLLM of {shadow} before its own")


def _python_path_engine(first: Sequence[Path], env: Mapping[str, str], home: Path) -> Engine | None:
    """The vLLM of a PYTHONPATH folder (an offline bundle), with the interpreter that can use it: one that has torch
    and the Python version that the bundle's packages were built for."""
    folder = next((folder for folder in first if _package(folder) is not None), None)
    if folder is None:
        return None
    built_for = _built_for(folder)
    choices: list[tuple[bool, bool, Engine]] = []
    for python in dict.fromkeys((sys.executable, *path_pythons(env, home))):
        origin = "current" if python == sys.executable else "pythonpath"
        engine = _inspect(python, origin, (*first, *_folders(python, home)))
        if engine is not None:
            fits = built_for is None or python_version(python) in (None, built_for)
            choices.append((fits, engine.problem is None, engine))
    if not choices:
        return None
    # max keeps the first of equals, and `current` comes first
    return max(choices, key=lambda choice: (choice[0] and choice[1], choice[1], choice[0]))[2]


def _built_for(folder: Path) -> str | None:
    """The Python version that the compiled packages of a folder need, from their wheel tags (`cp312-cp312-…`)."""
    for name in _distributions(folder).values():
        try:
            text = (folder / name / "WHEEL").read_text(errors="replace")
        except OSError:
            continue
        found = re.search(r"^Tag: cp3(\d+)-cp3\1-", text, re.MULTILINE)
        if found:
            return f"3.{found[1]}"
    return None


def _inspect(python: str, origin: str, folders: Sequence[Path]) -> Engine | None:
    """The engine of an interpreter that sees `folders`, or None when no vLLM is in them."""
    listed = [(folder, _distributions(folder)) for folder in folders]
    package = next((found for folder, names in listed if (found := _package(folder, names)) is not None), None)
    if package is None:
        return None
    distribution, metadata_version = _vllm_distribution(listed)
    version = metadata_version or _source_version(package)
    installed = _installed(listed)
    problem = None
    if "torch" not in installed:
        problem = "no torch beside this vLLM"
    elif version is None:
        problem = "this vLLM does not say its version"
    elif not os.access(python, os.X_OK):
        problem = "the interpreter is gone or not executable"
    return Engine(
        python=python,
        vllm_version=version,
        device=device_of(version, distribution, package, installed.get("torch")),
        origin=origin,
        site=str(package),
        launch=launch_arguments(python, distribution, package),
        plugins=_plugins(listed, distribution),
        installed=installed,
        problem=problem,
        distribution=distribution,
    )


def launch_arguments(python: str, distribution: str | None, package: Path) -> tuple[str, ...]:
    """What comes before the model.

    `vllm serve` asks for the metadata of a distribution named `vllm` and dies without it, so a build under another
    name is started by its API server module. That one parses a positional model and then ignores it (it would serve
    its default), so the model goes by `--model` there. Source: vLLM 0.32 entrypoints/cli/main.py, cli/serve.py.
    """
    if distribution == "vllm":
        return (python, "-m", "vllm.entrypoints.cli.main", "serve")
    module = "vllm.entrypoints.openai.api_server"
    if not (package / "entrypoints/openai/api_server.py").is_file():
        module = "vllm.entrypoints.launchers.api_server.entry"
    return (python, "-m", module, "--model")


def device_of(version: str | None, distribution: str | None, package: Path, torch: str | None) -> str | None:
    """What a build runs on: by its local version, its distribution's name, its libraries, then its torch."""
    local = (version or "").partition("+")[2]
    for text in (local, (distribution or "").removeprefix("vllm-")):
        for start, device in (("cpu", "cpu"), ("cu", "cuda"), ("rocm", "rocm"), ("xpu", "xpu"), ("tpu", "tpu")):
            if text.startswith(start):
                return device
    names = _names(package)
    if any(name.startswith(("_C_AVX", "_C_cpu")) for name in names):
        return "cpu"
    if any(name.startswith("_rocm_C") for name in names):
        return "rocm"
    if any(name.startswith(("_moe_C", "_flashmla_C", "cumem_allocator")) for name in names):
        return "cuda"
    local = (torch or "").partition("+")[2]
    for start, device in (("cpu", "cpu"), ("cu", "cuda"), ("rocm", "rocm"), ("xpu", "xpu")):
        if local.startswith(start):
            return device
    return None


def _package(folder: Path, names: Mapping[str, str] | None = None) -> Path | None:
    """The `vllm` package that this folder provides, itself or as an editable install."""
    if (folder / "vllm/__init__.py").is_file():
        return folder / "vllm"
    for name, directory in (_distributions(folder) if names is None else names).items():
        if name != "vllm" and not name.startswith("vllm-"):
            continue
        try:
            origin = json.loads((folder / directory / "direct_url.json").read_text(errors="replace"))
            url = urlsplit(str(origin["url"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        source = Path(unquote(url.path)) / "vllm"
        if url.scheme == "file" and (source / "__init__.py").is_file() and (source / "version.py").is_file():
            return source
    return None


def _distributions(folder: Path) -> dict[str, str]:
    """The metadata folders of a package folder, by normalized distribution name."""
    found = {}
    for name in _names(folder):
        match = re.fullmatch(r"(.+?)-[^-]+\.dist-info", name)
        if match:
            found[re.sub(r"[-_.]+", "-", match[1]).lower()] = name
    return found


def _vllm_distribution(listed: Iterable[tuple[Path, Mapping[str, str]]]) -> tuple[str | None, str | None]:
    """Name and version of the distribution that vLLM came as; a plugin named `vllm-…` is not it."""
    others = []
    for folder, names in listed:
        if "vllm" in names:
            return "vllm", _version_of(names["vllm"])
        others += [(folder, name, directory) for name, directory in names.items() if name.startswith("vllm-")]
    for folder, name, directory in others:
        try:
            record = (folder / directory / "RECORD").read_bytes()
        except OSError:
            continue
        if b"\nvllm/__init__.py," in b"\n" + record:
            return name, _version_of(directory)
    return None, None


def _version_of(directory: str) -> str:
    return directory.removesuffix(".dist-info").rpartition("-")[2]


def _source_version(package: Path) -> str | None:
    try:
        text = (package / "_version.py").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"""^(?:__version__ = )?version\s*=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
    return found[1] if found else None


def _installed(listed: Iterable[tuple[Path, Mapping[str, str]]]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for folder, names in listed:
        for name in DECIDING:
            if name in names and name not in versions:
                versions[name] = _version_of(names[name])
                if name == "torch":
                    versions[name] = _torch_version(folder) or versions[name]
    return versions


def _torch_version(folder: Path) -> str | None:
    """torch's own version, which names the CUDA version where the metadata of the wheel does not."""
    try:
        text = (folder / "torch/version.py").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"""^__version__ = ['"]([^'"]+)['"]""", text, re.MULTILINE)
    if found is None:
        return None
    cuda = re.search(r"""^cuda\b[^=]*=\s*['"](\d+)\.(\d+)['"]""", text, re.MULTILINE)
    return f"{found[1]}+cu{cuda[1]}{cuda[2]}" if cuda and "+" not in found[1] else found[1]


def _plugins(listed: Iterable[tuple[Path, Mapping[str, str]]], own: str | None) -> tuple[str, ...]:
    plugins: list[str] = []
    for folder, names in listed:
        for name, directory in names.items():
            if name == own or name in plugins:
                continue
            try:
                text = (folder / directory / "entry_points.txt").read_text(errors="replace")
            except OSError:
                continue
            if "vllm." in text and _registers(text):
                plugins.append(name)
    return tuple(sorted(plugins))


def _registers(entry_points: str) -> bool:
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
    try:
        parser.read_string(entry_points)
    except configparser.Error:
        return False
    return any(parser.has_section(group) and parser.options(group) for group in PLUGIN_GROUPS)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


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
