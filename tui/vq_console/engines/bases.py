"""Choosing the Python that an engine is made with. Starts interpreters only to ask what they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vq_console.core.errors import EngineError

_ASK = "import sys, venv, ensurepip; print('%d.%d %s' % (*sys.version_info[:2], sys.implementation.name))"


def base_python(supported: Sequence[str]) -> tuple[str, str]:
    """(interpreter, version such as `3.11`) that can make environments; the console's own where it fits.

    An interpreter that only pretends (a shim, or one without venv) is passed over. Raises EngineError.
    """
    passed_over: list[str] = []
    for python in _candidates(supported):
        version = ask(python)
        if version is not None and version in supported:
            return python, version
        passed_over.append(f"{python}: {version or 'cannot make environments'}")
    raise EngineError(
        f"no Python {' or '.join(supported)} with venv was found; looked at " + ", ".join(passed_over),
        f"install one (for example the packages python{supported[0]} and python{supported[0]}-venv) and try again",
    )


def ask(python: str) -> str | None:
    """Its version when it is CPython and can make environments, else None."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=20, check=False, env=env, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version, _, implementation = done.stdout.strip().partition(" ")
    return version if done.returncode == 0 and implementation == "cpython" else None


def _candidates(supported: Sequence[str]) -> Iterator[str]:
    # A virtual environment's interpreter would make environments that die with it; its base does not.
    own = getattr(sys, "_base_executable", None) or sys.executable
    seen = {own}
    yield own
    for version in supported:
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            found = shutil.which(f"python{version}", path=folder or ".")
            if found is not None and found not in seen:
                seen.add(found)
                yield found
        root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
        for path in sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True):
            if str(path) not in seen:
                seen.add(str(path))
                yield str(path)
