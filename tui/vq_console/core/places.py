"""Where the console keeps things, by platformdirs, or all under `$VQ_CONSOLE_HOME` when that is set.

Only names places; creates nothing.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

HOME_VARIABLE = "VQ_CONSOLE_HOME"
MEND = f"make the folder writable and see that its disk has room, or set ${HOME_VARIABLE} to another one"
"""What helps where the console cannot write its own files."""
ENGINES_VARIABLE = "VQ_ENGINES_DIR"
"""Engines and models are large and depend on nothing but their pins: these may lie elsewhere than the rest."""
MODELS_VARIABLE = "VQ_MODELS_DIR"


def _base(kind: str) -> Path:
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser().resolve() / kind
    import platformdirs

    make = {
        "config": platformdirs.user_config_path,
        "state": platformdirs.user_state_path,
        "data": platformdirs.user_data_path,
        "cache": platformdirs.user_cache_path,
    }[kind]
    return make("vq-console", appauthor=False)


def _elsewhere(variable: str) -> Path | None:
    folder = os.environ.get(variable)
    return Path(folder).expanduser().resolve() if folder else None


def config_dir() -> Path:
    """Settings and the user's own profiles."""
    return _base("config")


def profiles_dir() -> Path:
    """The user's own profiles, one TOML file each."""
    return config_dir() / "profiles"


def state_dir() -> Path:
    """Servers, jobs, runs, references and local choices."""
    return _base("state")


def servers_dir() -> Path:
    """One folder per server of this host; a home shared by several machines keeps them apart."""
    return state_dir() / "servers" / host_id()


def jobs_dir() -> Path:
    """One folder per long job (an install, a quantization) of this host."""
    return state_dir() / "jobs" / host_id()


def runs_dir() -> Path:
    """One folder per check or comparison."""
    return state_dir() / "runs"


def references_dir() -> Path:
    """Recorded baselines of the quality check."""
    return state_dir() / "references"


def data_dir() -> Path:
    """Large things that the console made: engines and models."""
    return _base("data")


def engines_dir() -> Path:
    """Environments that the console made, each complete or absent; `$VQ_ENGINES_DIR` where that is set."""
    return _elsewhere(ENGINES_VARIABLE) or data_dir() / "engines"


def models_dir() -> Path:
    """Models that the console made or fetched outside the Hugging Face cache; `$VQ_MODELS_DIR` where that is set."""
    return _elsewhere(MODELS_VARIABLE) or data_dir() / "models"


def cache_dir() -> Path:
    """What can be made again."""
    return _base("cache")


def host_id() -> str:
    """Short and stable per machine: the host name and a hash of its machine-id."""
    name = socket.gethostname().split(".")[0] or "host"
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return f"{name}-{hashlib.sha256((machine + name).encode()).hexdigest()[:8]}"
