"""The profile format: text to a frozen value and back.

Owns the top level of a profile file and its closed tables; `values.py` owns `[args]` and `[env]`. Touches no file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vq_console.core.errors import ProfileError
from vq_console.core.text import nearest, strip_control
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.values import check_args, check_env, check_name, check_prose, check_value, plain

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NAME = re.compile(NAME_PATTERN)

TOP_KEYS = ("name", "description", "model", "tags", "args", "env", "engine", "placement", "made_on", "schema")
ENGINE_KEYS = ("vllm",)
PLACEMENT_KEYS = ("gpu_count",)
MADE_ON_KEYS = (
    "gpu",
    "gpu_count",
    "sm",
    "vllm",
    "kernels",
    "revision",
    "driver",
    "cuda",
    "torch",
    "attention_backend",
    "kv_cache_dtype",
    "date",
    "scheme",
    "tool",
    "recipe",
    "source",
    "source_revision",
)
"""What `[made_on]` may say about the last good run; `kernels` is a list of class names or a table by kind of layer."""

PROVENANCE_KEYS = ("scheme", "tool", "recipe", "source", "source_revision")
"""Those that say how the checkpoint itself was made."""

_TOML_FIX = 'mend it there; a line is KEY = VALUE, and text stands in quotes: quantization = "fp8"'
_LOCAL = {
    "python": "which interpreter runs it is a local choice: `vq-console serve PROFILE --engine PYTHON`",
    "interpreter": "which interpreter runs it is a local choice: `vq-console serve PROFILE --engine PYTHON`",
    "gpus": "which GPUs run it is a local choice: `vq-console serve PROFILE --gpus 0,1`",
    "gpu": "which GPU runs it is a local choice: `vq-console serve PROFILE --gpus 0`",
    "port": "write port into [args], or leave it out: a free one is chosen",
    "host": "write host into [args], or leave it out: 127.0.0.1 is used",
    "quantization": "flags of vLLM belong into [args]",
}


def valid_name(name: str) -> bool:
    """Whether a profile or a server may be called so."""
    return bool(_NAME.fullmatch(name))


def parse_profile(text: str, path: Path | None = None) -> Profile:
    """The profile that `text` holds. A profile without a name takes that of its file.

    Raises ProfileError naming file and key for whatever is wrong, also for text that is no TOML at all.
    """
    where = str(path) if path is not None else "profile"
    return profile_from(parse_toml(text, where), path, where)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table that `text` holds; whatever tomllib raises becomes a ProfileError."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(where, "", f"not valid TOML: {strip_control(str(error))}", _TOML_FIX) from error
    except (ValueError, RecursionError, OverflowError) as error:
        # Python's own limits: digits of an integer, impossible dates, nesting.
        hint = "a number has at most 64 bits, a date exists, and tables lie a few levels deep"
        raise ProfileError(where, "", f"not readable as TOML: {strip_control(str(error))}", hint) from error


def profile_from(table: Mapping[str, Any], path: Path | None = None, where: str = "profile") -> Profile:
    """The profile of a parsed table; raises ProfileError as `parse_profile`."""
    _known(table, TOP_KEYS, where, "")
    _schema(table.get("schema", 1), where)
    engine = _table(table, "engine", ENGINE_KEYS, where)
    placement = _table(table, "placement", PLACEMENT_KEYS, where)
    made_on = _table(table, "made_on", MADE_ON_KEYS, where) if "made_on" in table else None
    if made_on is not None:
        made_on = {key: _made_on_value(value, where, key) for key, value in made_on.items()}
    return Profile(
        name=_name(table, path, where),
        model=_model(table, where),
        description=_text(table, "description", where),
        args=check_args(_table(table, "args", None, where), where),
        env=check_env(_table(table, "env", None, where), where),
        vllm=_specifier(engine.get("vllm"), where),
        gpu_count=_gpu_count(placement.get("gpu_count"), where),
        tags=_tags(table.get("tags", []), where),
        made_on=made_on,
        path=path,
    )


def profile_table(profile: Profile) -> dict[str, Any]:
    """The profile as a table of built-in values in the order in which a file is written."""
    table: dict[str, Any] = {"name": profile.name}
    if profile.description:
        table["description"] = profile.description
    table["model"] = profile.model
    if profile.tags:
        table["tags"] = list(profile.tags)
    if profile.args:
        table["args"] = {key: plain(value) for key, value in profile.args.items()}
    if profile.env:
        table["env"] = {
            key: {"from_env": value.from_env} if isinstance(value, EnvRef) else value
            for key, value in profile.env.items()
        }
    if profile.vllm is not None:
        table["engine"] = {"vllm": profile.vllm}
    if profile.gpu_count is not None:
        table["placement"] = {"gpu_count": profile.gpu_count}
    if profile.made_on:
        table["made_on"] = plain(profile.made_on)
    return table


def profile_toml(profile: Profile) -> str:
    """The text of a new profile file. Reading it back gives the same profile, apart from `path`."""
    import tomli_w

    return tomli_w.dumps(profile_table(profile))


def _known(table: Mapping[str, Any], known: Iterable[str], where: str, prefix: str) -> None:
    names = tuple(known)
    for key in table:
        if key in names:
            continue
        guess = nearest(key, names)
        hint = f"did you mean `{guess}`?" if guess else _LOCAL.get(key, f"known keys: {', '.join(names)}")
        raise ProfileError(where, f"{prefix}{strip_control(key)}", "unknown key", hint)


def _table(table: Mapping[str, Any], key: str, known: Iterable[str] | None, where: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise ProfileError(where, key, "must be a table", f"begin it with a line [{key}]")
    if known is not None:
        _known(value, known, where, f"{key}.")
    return value


def _schema(value: Any, where: str) -> None:
    if value != 1 or isinstance(value, bool):
        raise ProfileError(where, "schema", f"this console reads schema 1, not {value!r}", "use a newer vq-console")


def _name(table: Mapping[str, Any], path: Path | None, where: str) -> str:
    name = table.get("name", path.stem if path is not None else None)
    if name is None:
        raise ProfileError(where, "name", "is missing", 'such as name = "llama31-8b-fp8"')
    if not isinstance(name, str) or not valid_name(name):
        raise ProfileError(
            where,
            "name",
            f"{strip_control(repr(name))} is not a name",
            "letters, digits, dot, dash and underscore; a letter or digit first; at most 100",
        )
    return str(name)


def _model(table: Mapping[str, Any], where: str) -> str:
    if "model" not in table:
        raise ProfileError(where, "model", "is missing", "a hub id such as org/name, a path, or repo:quant for GGUF")
    model = _text(table, "model", where)
    check_name(model, where, "model")
    if not model.strip():
        raise ProfileError(where, "model", "is empty", "a hub id such as org/name, a path, or repo:quant for GGUF")
    if model != model.strip() or any(ord(char) < 32 for char in model):
        raise ProfileError(
            where, "model", "must be a hub id or a path without blanks around it", 'such as model = "org/name"'
        )
    if model.startswith("-"):
        raise ProfileError(where, "model", "begins with a dash and would be taken for a flag", "a path begins with ./")
    return model


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise ProfileError(where, key, "must be text", f'put it into quotes: {key} = "…"')
    check_prose(value, where, key)
    return str(value)


def _tags(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(tag, str) and tag.strip() for tag in value):
        raise ProfileError(where, "tags", "must be a list of words", 'such as tags = ["fp8"]')
    for tag in value:
        check_prose(tag, where, "tags")
    return tuple(str(tag) for tag in value)


def _specifier(value: Any, where: str) -> str | None:
    if value is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    hint = 'such as ">=0.27" or ">=0.27,<0.34"'
    if not isinstance(value, str) or not value.strip():
        raise ProfileError(where, "engine.vllm", "must be a version specifier", hint)
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ProfileError(where, "engine.vllm", f"{strip_control(value)!r} is no version specifier", hint) from error
    return str(value)


def _gpu_count(value: Any, where: str) -> int | None:
    if value is None:
        return None
    label = "placement.gpu_count"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(where, label, "must be a whole number of GPUs", "such as gpu_count = 1")
    if not 1 <= value <= 1024:
        raise ProfileError(where, label, f"{value} is not between 1 and 1024", "leave it out where no GPU is used")
    return int(value)


def _made_on_value(value: Any, where: str, key: str) -> Any:
    # TOML knows dates and people write them; the record keeps their text.
    if hasattr(value, "isoformat"):
        return value.isoformat()
    check_value(value, where, f"made_on.{key}")
    return plain(value)
