"""Where Python interpreters are on this machine, and which package folders each one sees.

Looks at files only: starts no interpreter and knows nothing of vLLM.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vq_console.core import places

MARKER = "engine.json"
"""What makes a folder of `engines_dir()` a finished engine."""

_GUESS_BUDGET_S = 0.3
_MAX_ENTRIES = 400


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One interpreter and how it was found; `origin` as in `Engine`."""

    python: str
    origin: str


def interpreters(environment: Mapping[str, str], home: Path, here: Path) -> Iterator[Interpreter]:
    """Every interpreter worth looking at, most deliberate first, each environment once.

    The guesses of the last part (environments one level below home, the working folder and /opt) stop after 0.3 s,
    so that a slow network home cannot hold the console up.
    """
    seen: set[str] = set()
    for interpreter in _all(environment, home, here):
        key = _environment_key(interpreter.python)
        if key is not None and key not in seen:
            seen.add(key)
            yield interpreter


def _all(environment: Mapping[str, str], home: Path, here: Path) -> Iterator[Interpreter]:
    yield Interpreter(sys.executable, "current")
    for folder in console_engines():
        yield Interpreter(str(folder / "bin/python"), "console")
    for name, origin in (("VIRTUAL_ENV", "venv"), ("CONDA_PREFIX", "conda")):
        if environment.get(name):
            yield Interpreter(str(Path(environment[name]) / "bin/python"), origin)
    yield from _on_path(environment, home)
    for folder in _uv_tools(environment, home):
        yield Interpreter(str(folder / "bin/python"), "uv")
    for folder in _conda(environment, home):
        yield Interpreter(str(folder / "bin/python"), "conda")
    for folder in _virtual_environments(environment, home, here):
        yield Interpreter(str(folder / "bin/python"), "venv")


def console_engines() -> tuple[Path, ...]:
    """Folders of engines that the console made and finished."""
    return tuple(folder for folder in _children(places.engines_dir()) if (folder / MARKER).is_file())


def path_pythons(environment: Mapping[str, str], home: Path) -> Iterator[str]:
    """`python3` and `python` of every folder on PATH, pyenv's shims resolved to what they would start."""
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        for name in ("python3", "python"):
            path = os.path.join(folder or ".", name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                resolved = _unshim(path, environment, home)
                if resolved is not None:
                    yield resolved


def script_python(script: str) -> str | None:
    """The interpreter in the first lines of an installed script, the `exec` form for long paths included."""
    try:
        with open(script, "rb") as file:
            lines = file.read(1024).decode(errors="replace").split("\n")
    except OSError:
        return None
    if not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and os.path.basename(words[0]).startswith("python"):
        return words[0]
    found = re.match(r"""'''exec' "?(?P<python>/[^"]+?/python[\d.]*)"? """, lines[1]) if len(lines) > 1 else None
    return found["python"] if found else None


def package_folders(python: str, home: Path) -> tuple[Path, ...]:
    """The package folders that this interpreter sees without PYTHONPATH, in its order of search."""
    prefix = Path(python).parent.parent
    settings = _pyvenv(prefix)
    if settings is not None:
        own = _lib_folders(prefix, None)
        if settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home"):
            own += package_folders(os.path.join(settings["home"], "python3"), home)
        return own
    real = Path(os.path.realpath(python))
    version = python_version(python)
    user = home / f".local/lib/python{version}/site-packages"
    folders = [user] if version and user.is_dir() else []
    folders += _lib_folders(real.parent.parent, version)
    for extra in (Path("/usr/local"),) if real.parent.parent == Path("/usr") else ():
        folders += _lib_folders(extra, version)
    return tuple(dict.fromkeys(folders))


def python_version(python: str) -> str | None:
    """`3.11` from the interpreter's own file name, its pyvenv.cfg or its library folder; None where none tells."""
    prefix = Path(python).parent.parent
    settings = _pyvenv(prefix) or {}
    for text in (os.path.basename(os.path.realpath(python)), settings.get("version_info") or settings.get("version")):
        found = re.search(r"(3\.\d+)", text or "")
        if found:
            return found[1]
    libraries = [folder.name for folder in _children(prefix / "lib") if re.fullmatch(r"python3\.\d+", folder.name)]
    return libraries[0].removeprefix("python") if len(libraries) == 1 else None


def _lib_folders(prefix: Path, version: str | None) -> tuple[Path, ...]:
    names = [f"python{version}", "python3"] if version else None
    found: list[Path] = []
    for library in ("local/lib", "lib", "lib64"):
        base = prefix / library
        if names is None:
            inner = [folder for folder in _children(base) if re.fullmatch(r"python3\.\d+", folder.name)]
        else:
            inner = [base / name for name in names]
        for folder in inner:
            for packages in (folder / "site-packages", folder / "dist-packages"):
                if packages.is_dir() and not any(os.path.samefile(packages, other) for other in found):
                    found.append(packages)
    return tuple(found)


def _pyvenv(prefix: Path) -> dict[str, str] | None:
    try:
        text = (prefix / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return None
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _environment_key(python: str) -> str | None:
    """The same for every name of one environment's interpreter; None when the file is not there."""
    if not os.access(python, os.X_OK) or os.path.isdir(python):
        return None
    prefix = Path(python).parent.parent
    if (prefix / "pyvenv.cfg").is_file():
        return os.path.realpath(prefix)
    return os.path.realpath(python)


def _on_path(environment: Mapping[str, str], home: Path) -> Iterator[Interpreter]:
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        script = os.path.join(folder or ".", "vllm")
        if os.access(script, os.X_OK):
            python = script_python(os.path.realpath(script))
            if python is not None:
                yield Interpreter(python, "path")
    for python in path_pythons(environment, home):
        yield Interpreter(python, "path")


def _unshim(path: str, environment: Mapping[str, str], home: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return path
    except OSError:
        return None
    root = Path(environment.get("PYENV_ROOT") or home / ".pyenv")
    if os.path.dirname(path) != str(root / "shims"):
        return None
    try:
        chosen = environment.get("PYENV_VERSION") or (root / "version").read_text().split()[0]
    except (OSError, IndexError):
        return None
    python = root / "versions" / chosen.split(":")[0] / "bin/python3"
    return str(python) if python.is_file() else None


def _uv_tools(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    yield from _children(Path(environment.get("UV_TOOL_DIR") or data / "uv/tools"))
    for pipx in (data / "pipx/venvs", home / ".local/pipx/venvs"):
        yield from _children(pipx)


def _conda(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    roots = [Path(environment[name]) for name in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if environment.get(name)]
    if environment.get("CONDA_EXE"):
        roots.append(Path(environment["CONDA_EXE"]).parent.parent)
    names = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")
    roots += [home / name for name in names] + [Path("/opt/conda"), Path("/opt/miniconda3")]
    for root in dict.fromkeys(roots):
        yield root
        yield from _children(root / "envs")
    try:
        lines = (home / ".conda/environments.txt").read_text(errors="replace").split("\n")
    except OSError:
        return
    for line in lines:
        if line.strip():
            yield Path(line.strip())


def _virtual_environments(environment: Mapping[str, str], home: Path, here: Path) -> Iterator[Path]:
    parents = [home / name for name in ("venvs", ".venvs", "envs", ".virtualenvs", ".local/share/virtualenvs")]
    if environment.get("WORKON_HOME"):
        parents.insert(0, Path(environment["WORKON_HOME"]))
    parents += [home / ".pyenv/versions", home / ".cache/pypoetry/virtualenvs"]
    for parent in parents:
        yield from _children(parent)
    deadline = time.monotonic() + _GUESS_BUDGET_S
    for base in dict.fromkeys((here, home, Path("/opt"), Path("/workspace"))):
        for child in _children(base, hidden_environments=True):
            if time.monotonic() > deadline:
                return
            yield child
            if not child.name.startswith("."):
                yield child / ".venv"
                yield child / "venv"


def _children(folder: Path, *, hidden_environments: bool = False) -> list[Path]:
    """Folders directly inside, in order; hidden ones only where they look like `.venv…`."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [
        folder / name
        for name in sorted(names)
        if not name.startswith(".") or (hidden_environments and name.startswith((".venv", ".env")))
    ]


def which_python(name: str) -> str | None:
    """The file that a bare command name stands for."""
    return shutil.which(name)
