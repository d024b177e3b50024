"""Changes of a profile's text that keep its comments and its order.

Pure: text in, text out. Every result has been read back as a profile, so an edit never leaves a broken file.
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vq_console.core.errors import ProfileError
from vq_console.profiles.format import parse_profile, parse_toml, profile_table
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.values import argument_key

_TABLES = ("args", "env", "engine", "placement", "made_on")


def patched_text(text: str, patch: Mapping[str, Any], path: Path | None = None) -> str:
    """`text` with a patch applied; all its parts are optional.

    `set_args`, `remove_args`, `set_env`, `remove_env`, `set_model`, and `set_description`, `set_vllm`,
    `set_gpu_count`. Raises ProfileError when the text is no profile, or the patch would make it none.
    """
    profile = parse_profile(text, path)
    table = profile_table(profile)
    args, env = table.setdefault("args", {}), table.setdefault("env", {})
    args.update({argument_key(key): value for key, value in (patch.get("set_args") or {}).items()})
    env.update(patch.get("set_env") or {})
    for key in patch.get("remove_args") or ():
        args.pop(argument_key(key), None)
    for key in patch.get("remove_env") or ():
        env.pop(key, None)
    for key in ("model", "description"):
        if patch.get(f"set_{key}") is not None:
            table[key] = patch[f"set_{key}"]
    if patch.get("set_vllm") is not None:
        table["engine"] = {"vllm": patch["set_vllm"]}
    if patch.get("set_gpu_count") is not None:
        table["placement"] = {"gpu_count": patch["set_gpu_count"]}
    return _merged(text, table, path)


def toml_value(text: str) -> Any:
    """The value that a person means by `text` after `KEY=`: TOML where it is, a JSON object, else the text itself."""
    try:
        parsed = tomllib.loads(f"x = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    value = parsed.get("x") if set(parsed) == {"x"} else None
    if isinstance(value, bool | int | str | list | dict) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    return text


def replaced_text(text: str, profile: Profile, path: Path | None = None) -> str:
    """`text` changed into `profile` where the two differ; what is the same stays as it was written."""
    parse_profile(text, path)
    return _merged(text, profile_table(profile), path)


def _merged(text: str, table: Mapping[str, Any], path: Path | None) -> str:
    """`text` changed to mean `table`, by the gentlest way that really does so.

    In place; else with the changed tables written anew; else all anew below the comment at the top. TOML can be
    written in ways that tomlkit cannot change in place (dotted keys, torn tables), so each result is read back.
    """
    text = text.removeprefix("\ufeff")
    fresh = _anew(table)
    wanted = profile_table(parse_profile(fresh, path))
    if path is not None and table.get("name") == path.stem and "name" not in parse_toml(text, str(path)):
        # A profile without a name goes by that of its file; that is no change to make.
        table = {key: value for key, value in table.items() if key != "name"}
    for whole in (False, True):
        try:
            merged = _in_place(text, table, whole=whole)
            if profile_table(parse_profile(merged, path)) == wanted:
                return merged
        except (ProfileError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
            # tomlkit has no common error for what it cannot do; the next way is taken.
            continue
    head = itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), text.splitlines(keepends=True))
    return "".join(head) + fresh


def _in_place(text: str, table: Mapping[str, Any], *, whole: bool) -> str:
    """With `whole`, a table that changes is replaced by a new one at the end; else entry by entry."""
    import tomlkit

    document = tomlkit.parse(text)
    for key in [key for key in document if key not in _TABLES and key not in table and key != "schema"]:
        document.remove(key)
    for key, value in table.items():
        if key not in _TABLES:
            _put(document, key, value)
    for key in _TABLES:
        wanted = table.get(key) or {}
        if key in document:
            if not whole:
                _merge_table(document[key], wanted, dashes=key == "args")
                continue
            if _plain(document[key]) == _plain(wanted):
                continue
            document.remove(key)
        if wanted:
            written = tomlkit.table()
            for inner, value in wanted.items():
                written.add(inner, _item(value))
            document.add(key, written)
    return tomlkit.dumps(document)


def _anew(table: Mapping[str, Any]) -> str:
    import tomli_w

    filled = {key: value for key, value in table.items() if key not in _TABLES or value}
    return tomli_w.dumps({key: _references_as_tables(value) for key, value in filled.items()})


def _references_as_tables(value: Any) -> Any:
    if isinstance(value, EnvRef):
        return {"from_env": value.from_env}
    if isinstance(value, Mapping):
        return {key: _references_as_tables(inner) for key, inner in value.items()}
    return value


def _merge_table(item: Any, wanted: Mapping[str, Any], *, dashes: bool) -> None:
    spelled = {argument_key(key) if dashes else key: key for key in item}
    for key, written in spelled.items():
        if key not in wanted:
            item.remove(written)
    for key, value in wanted.items():
        _put(item, spelled.get(key, key), value)


def _put(container: Any, key: str, value: Any) -> None:
    if key in container:
        old = container[key]
        if _plain(old) == _plain(value) and type(_plain(old)) is type(_plain(value)):
            return
        container[key] = _item(value, old=old)
    else:
        container[key] = _item(value)


def _plain(value: Any) -> Any:
    if isinstance(value, EnvRef):
        return {"from_env": value.from_env}
    return value.unwrap() if hasattr(value, "unwrap") else value


def _item(value: Any, old: Any = None) -> Any:
    """A tomlkit item on one line; tables inside a table become inline ones, so that they stay where they stand."""
    import tomlkit

    value = _plain(value)
    if isinstance(value, Mapping):
        item: Any = tomlkit.inline_table()
        for key, inner in value.items():
            item.append(key, _item(inner))
    elif isinstance(value, list | tuple):
        item = tomlkit.array()
        for inner in value:
            item.append(_item(inner))
    else:
        item = tomlkit.item(value)
    comment = old.trivia.comment if hasattr(old, "trivia") else ""
    if comment:
        item.comment(comment.lstrip("# "))
    return item
