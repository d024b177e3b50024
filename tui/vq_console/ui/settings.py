"""What the console remembers between sessions: theme and layout. A broken file means the defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace

from vq_console.core.files import read_json, write_json
from vq_console.core.places import config_dir


@dataclass(frozen=True, slots=True)
class UiSettings:
    """Choices of the user about the screen. `ascii` draws bars and symbols without Unicode blocks."""

    theme: str = "textual-dark"
    ascii: bool = False

    def with_theme(self, theme: str) -> UiSettings:
        return replace(self, theme=theme)


def load_settings() -> UiSettings:
    """The saved settings, or the defaults where the file is absent or broken."""
    try:
        value = read_json(config_dir() / "console.json")
    except (OSError, ValueError):
        return UiSettings()
    known = {field.name: type(getattr(UiSettings(), field.name)) for field in fields(UiSettings)}
    return UiSettings(**{k: v for k, v in value.items() if k in known and isinstance(v, known[k])})


def save_settings(settings: UiSettings) -> None:
    """Write the settings; a read-only home is not worth an error."""
    try:
        write_json(config_dir() / "console.json", asdict(settings))
    except OSError:
        return
