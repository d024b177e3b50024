"""Profiles from a vLLM YAML config, from a running process and from a log.

Touches files and /proc, and only reads. Keys and tokens found there are never taken over (`draft.py`).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.core.text import strip_control
from vq_console.engines.model import Flag
from vq_console.profiles.command import read_command, read_words, typed
from vq_console.profiles.draft import Draft
from vq_console.profiles.store import resolve_model

_ARGS_LINE = "non-default args: "
_YAML = "it is what vLLM's --config takes: a line for each flag, such as max-model-len: 8192"
_LOG = "take another log, or the command that made it: --from-command"
_VERSION = re.compile(r"version (\d+\.\d+)[\d.]*\b")


def from_command(text: str, flags: Mapping[str, Flag] | None = None) -> Draft:
    """The draft of a shell command; a `--config` file that it names is read as vLLM would, below its other flags."""
    draft = read_command(text, flags)
    found = re.search(r"--config[= ]\s*([^\s'\"]+\.ya?ml)", text)
    if found:
        below = from_yaml(Path(found[1]).expanduser(), flags)
        draft.model = draft.model or below.model
        draft.args = {**below.args, **draft.args}
        draft.env = {**below.env, **draft.env}
        draft.notes.extend(below.notes)
    return draft


def from_yaml(path: Path, flags: Mapping[str, Flag] | None = None) -> Draft:
    """The draft of a file for vLLM's `--config`; raises UsageError when it is none."""
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror or error}", "name a file that you may read"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid YAML: {strip_control(str(error))}", _YAML) from error
    if not isinstance(table, dict):
        raise UsageError(f"{path}: a table of flags was expected", _YAML)
    draft = Draft()
    _take_table(table, draft, flags)
    if draft.model:
        draft.model = resolve_model(draft.model, path.parent)
    return draft


def from_pid(pid: int, flags: Mapping[str, Flag] | None = None) -> Draft:
    """The draft of a running server: its command line, its folder, and what of its environment concerns vLLM.

    A worker or engine core leads to the server above it. Raises UsageError when the process is gone, belongs to
    somebody else, or is no vLLM server.
    """
    seen: set[int] = set()
    current = pid
    while current > 1 and current not in seen:
        seen.add(current)
        words = _proc_strings(current, "cmdline")
        if words and not words[0].startswith("VLLM::") and any("vllm" in word for word in words):
            draft = read_words(words, flags)
            draft.take_environment(_environment(current))
            try:
                base: Path | None = Path(os.readlink(f"/proc/{current}/cwd"))
            except OSError:
                base = None
            if draft.model and base is not None:
                draft.model = resolve_model(draft.model, base)
            return draft
        current = _parent(current)
    raise UsageError(f"process {pid} is no vLLM server", "`vq-console ps` lists the servers known here")


def from_log(path: Path, flags: Mapping[str, Flag] | None = None) -> Draft:
    """The draft of the last start in a log, by its line `non-default args: {…}`.

    Values that cannot be read back (objects, redacted keys) are left out with a note. Raises UsageError without such
    a line.
    """
    found: str | None = None
    version: str | None = None
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for raw in file:
                line = strip_control(raw)
                if _ARGS_LINE in line:
                    found = line.split(_ARGS_LINE, 1)[1].strip()
                elif " version " in line and (match := _VERSION.search(line)):
                    version = match[1]
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror or error}", "name a file that you may read"
        ) from error
    if found is None:
        raise UsageError(f"{path}: no line `non-default args: …`", "vLLM prints it at the start of its log")
    draft = Draft()
    _take_table(_literal_table(found, draft), draft, flags)
    if version:
        draft.vllm = f">={version}"
    return draft


def _take_table(table: Mapping[Any, Any], draft: Draft, flags: Mapping[str, Flag] | None) -> None:
    tag = table.get("model_tag")
    if isinstance(tag, str):
        draft.model = tag
    for key, value in table.items():
        name = str(key).replace("-", "_")
        flag = (flags or {}).get(name)
        if value is None or value == "***":
            if value == "***":
                draft.set_arg(name, value) if name in {"api_key", "hf_token"} else draft.notes.append(
                    f"{name} was redacted and is left out"
                )
            continue
        if name == "model" and draft.model:
            continue
        if isinstance(value, str) and flag is not None and flag.kind == "json":
            value = typed(name, value, flag)
        draft.set_arg(name, _without_none(value))


def _without_none(value: Any) -> Any:
    """Values as TOML has them: it has no null, so members without a value go to their defaults; dates are text."""
    if isinstance(value, dict):
        return {str(key): _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value if inner is not None]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _literal_table(text: str, draft: Draft) -> dict[str, Any]:
    """The dict that `text` prints; members that are no literals are left out one by one."""
    # Enums and objects print as <Name.X: 1>, which is no Python; as None they drop out alone.
    readable = re.sub(r"<[^<>]*>", "None", text)
    try:
        tree = ast.parse(readable, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError("the line `non-default args: …` of the log is cut off or damaged", _LOG) from error
    if not isinstance(tree, ast.Dict):
        raise UsageError("the line `non-default args: …` of the log holds no table", _LOG)
    table: dict[str, Any] = {}
    for key, value in zip(tree.keys, tree.values, strict=True):
        if not isinstance(key, ast.Constant):
            continue
        try:
            table[str(key.value)] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            draft.notes.append(f"{key.value!s} cannot be read from the log and is left out")
    return table


def _proc_strings(pid: int, name: str) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/{name}").read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no process {pid}", "`vq-console attach` lists the servers that run") from error
    except (PermissionError, ProcessLookupError) as error:
        raise UsageError(f"process {pid} cannot be read: {error.strerror}", "it belongs to another user") from error
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw else []


def _environment(pid: int) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in _proc_strings(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
