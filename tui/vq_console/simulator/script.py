"""Recorded vLLM logs as scripts: what to print, when, and what it means. Reads package data only.

A script is text: `# key value` lines at the top, then `seconds<TAB>line` in recorded order. `@ready` is where the
server begins to answer, `@first-token` starts what is printed when the first request kills the engine, `@exit N` ends
the process. Words in «guillemets» are filled in when the line is printed, with
thousands separators where a comma stands inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources

from vq_console.core.errors import UsageError

_HOLE = re.compile(r"«([a-z_]+,?)»")


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """One line of the log at `at_s` seconds after its section began; the text may hold carriage returns."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Script:
    """A start-up, and what follows. `exit_code` is set where the start fails."""

    name: str
    vllm_version: str
    start: tuple[ScriptLine, ...]
    first_token: tuple[ScriptLine, ...] = ()
    exit_code: int | None = None
    kv_tokens: int = 107072
    max_model_len: int = 8192
    about: str = ""
    prefixed: bool = field(default=True)
    """Whether every line of the process carries its name (vLLM up to 0.30)."""

    @property
    def seconds(self) -> float:
        """Recorded time until ready, or until the end of a start that fails."""
        return max((line.at_s for line in self.start), default=0.0)


def script_names() -> tuple[str, ...]:
    """The scripts that ship with the console."""
    folder = resources.files("vq_console.simulator") / "scripts"
    return tuple(
        sorted(item.name.removesuffix(".script") for item in folder.iterdir() if item.name.endswith(".script"))
    )


def load_script(name: str) -> Script:
    """A script by name. Raises UsageError with the names that exist."""
    source = resources.files("vq_console.simulator") / "scripts" / f"{name}.script"
    try:
        text = source.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"no log script is called {name!r}", f"There are: {', '.join(script_names())}") from error
    return parse_script(name, text)


def parse_script(name: str, text: str) -> Script:
    """The script in `text`; see the module for its form."""
    head: dict[str, str] = {}
    about = ""
    sections: dict[str, list[ScriptLine]] = {"start": [], "first-token": []}
    section = "start"
    exit_code = None
    for raw in text.split("\n"):
        if raw.startswith("# "):
            key, _, value = raw[2:].partition(" ")
            if key in {"vllm", "kv_tokens", "max_model_len"}:
                head[key] = value
            else:
                about = raw[2:]
        elif raw == "@first-token":
            section = "first-token"
        elif raw.startswith("@exit "):
            exit_code = int(raw[6:])
        elif raw and raw != "@ready":
            at, _, line = raw.partition("\t")
            sections[section].append(ScriptLine(float(at), line))
    version = head.get("vllm", "0.32.0")
    return Script(
        name=name,
        vllm_version=version,
        start=tuple(sections["start"]),
        first_token=tuple(sections["first-token"]),
        exit_code=exit_code,
        kv_tokens=int(head.get("kv_tokens", 107072)),
        max_model_len=int(head.get("max_model_len", 8192)),
        about=about,
        prefixed=tuple(int(part) for part in version.split(".")[:2]) <= (0, 30),
    )


def fill(text: str, values: Mapping[str, str | Callable[[], str]], kernels: Mapping[str, str]) -> str:
    """A script line with its holes filled and recorded kernel classes replaced."""

    def value(found: re.Match[str]) -> str:
        known = values.get(found[1], found[0])
        return known if isinstance(known, str) else known()

    line = _HOLE.sub(value, text)
    for recorded, shown in kernels.items():
        line = line.replace(recorded, shown)
    return line
