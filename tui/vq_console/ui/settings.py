"""What the console remembers between sessions: theme, layout, when it was last looked at. A broken file: defaults."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, fields, replace

from vq_console.core.files import read_json, write_json
from vq_console.core.places import config_dir, state_dir

ASCII_VARIABLES = ("VQ_CONSOLE_ASCII", "NO_UNICODE")


@dataclass(frozen=True, slots=True)
class UiSettings:
    """Choices of the user about the screen. `ascii` draws bars, lines and symbols without Unicode."""

    theme: str = "textual-dark"
    ascii: bool = False
    explanation: bool = True
    """The pane beside the log is open."""
    toml: bool = False
    """Profiles are edited as text rather than by the form."""

    def with_theme(self, theme: str) -> UiSettings:
        return replace(self, theme=theme)


def load_settings() -> UiSettings:
    """The saved settings, or the defaults where the file is absent or broken; the environment may ask for ASCII."""
    try:
        value = read_json(config_dir() / "console.json")
    except (OSError, ValueError):
        value = {}
    known = {field.name: type(getattr(UiSettings(), field.name)) for field in fields(UiSettings)}
    settings = UiSettings(**{k: v for k, v in value.items() if k in known and isinstance(v, known[k])})
    return replace(settings, ascii=True) if ascii_asked() else settings


def ascii_asked() -> bool:
    """True where the environment asks for ASCII or the terminal has nothing else, whatever was saved."""
    return any(os.environ.get(name) for name in ASCII_VARIABLES) or os.environ.get("TERM") == "linux"


def save_settings(settings: UiSettings) -> None:
    """Write the settings, without what only this terminal asked for; a read-only home is not worth an error."""
    path, values = config_dir() / "console.json", asdict(settings)
    try:
        if ascii_asked():
            values["ascii"] = path.exists() and read_json(path).get("ascii") is True
        write_json(path, values)
    except (OSError, ValueError):
        return


def last_looked() -> float | None:
    """Unix time at which the console was last closed; None before the first time."""
    try:
        at = read_json(state_dir() / "looked.json").get("at")
    except (OSError, ValueError):
        return None
    return float(at) if isinstance(at, int | float) else None


def save_looked() -> None:
    """Remember that somebody looks now."""
    try:
        write_json(state_dir() / "looked.json", {"at": time.time()})
    except OSError:
        return
