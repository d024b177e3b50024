"""Checks of the two open tables of a profile, `[args]` and `[env]`.

Owns which keys and values may stand there; knows no flag of any vLLM version (that is preflight's) and touches no file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from vq_console.core.errors import ProfileError
from vq_console.core.text import has_hidden, holds_secret
from vq_console.profiles.model import EnvRef

RESERVED: Mapping[str, str] = {
    "model": 'the model stands at the top of the profile: model = "…"',
    "config": "write the values of that file into [args]; `profiles new --from-yaml` does it",
    "api_key": 'keys travel by environment: [env] VLLM_API_KEY = { from_env = "VLLM_API_KEY" }',
    "hf_token": 'tokens travel by environment: [env] HF_TOKEN = { from_env = "HF_TOKEN" }',
}
"""Flags that a profile may not hold, and where their content belongs."""

_ARG_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*(?:\.[A-Za-z0-9_+-]+)*")
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_NAME = 'letters, digits and underscore, no digit first: HF_TOKEN = { from_env = "HF_TOKEN" }'
_SECRET_KEY = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET)$|PASSWORD", re.IGNORECASE)
_SPECIAL_TOKEN = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")
"""`<|im_end|>`, `[PAD]`: a token of a tokenizer, not one that opens a door."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MAX_DEPTH = 32


def argument_key(key: str) -> str:
    """The key as profiles write it: underscores up to the first dot, no dashes in front."""
    head, dot, rest = key.lstrip("-").partition(".")
    return head.replace("-", "_") + dot + rest


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: `*_KEY`, `*_TOKEN`, `*_SECRET`, `*PASSWORD*`."""
    return bool(_SECRET_KEY.search(name))


def looks_secret(label: str, value: str) -> bool:
    """Whether a literal value is a key, a token or a login, by the name it stands under or by its own shape.

    `label` is where it stands, such as `env.HF_TOKEN` or `args.hf_overrides.api_key`.
    """
    name = label.rpartition(".")[2].partition("[")[0]
    named = is_secret_name(name) and bool(value) and not _SPECIAL_TOKEN.fullmatch(value)
    return named or holds_secret(value)


def check_args(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`[args]` with keys as profiles write them.

    Raises ProfileError naming the key for a reserved or malformed key, a key under both spellings, and a value that
    cannot become an argument (a date, an endless number, a NUL).
    """
    checked: dict[str, Any] = {}
    for written, value in table.items():
        key = argument_key(written)
        label = f"args.{written}"
        if not _ARG_KEY.fullmatch(key):
            raise ProfileError(where, label, "not the name of a flag", "flags go by vLLM's own names: max_model_len")
        # argparse takes abbreviations, so `api_ke` would reach `--api-key`.
        head = key.partition(".")[0]
        meant = next((name for name in RESERVED if head == name or (len(head) > 3 and name.startswith(head))), None)
        if meant is not None:
            raise ProfileError(where, label, f"`{meant}` may not stand in [args]", RESERVED[meant])
        if key in checked:
            raise ProfileError(where, label, f"stands twice, as `{key}` with dashes and with underscores", "keep one")
        check_value(value, where, label)
        checked[key] = plain(value)
    return checked


def check_value(value: Any, where: str, label: str, depth: int = 0) -> None:
    """Raise ProfileError unless `value` is text, a number, a boolean, or a list or table of those."""
    if depth > _MAX_DEPTH:
        raise ProfileError(where, label, "is nested too deeply", f"at most {_MAX_DEPTH} levels; text may hold JSON")
    if isinstance(value, bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ProfileError(where, label, f"{value} is not a finite number", "write a number, or leave the key out")
    elif isinstance(value, str):
        check_text(value, where, label)
        if looks_secret(label, value):
            raise ProfileError(where, label, _SECRET_HERE, _SECRET_FIX)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            check_name(str(key), where, label)
            check_value(inner, where, f"{label}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            check_value(inner, where, f"{label}[{number}]", depth + 1)
    else:
        raise ProfileError(where, label, f"a {type(value).__name__} cannot become an argument", "write it as text")


_SECRET_HERE = "its value looks like a secret, and none may be written into a profile"
_SECRET_FIX = 'take it out; secrets travel by environment: [env] NAME = { from_env = "NAME" }'


def check_text(text: str, where: str, label: str) -> None:
    """Raise ProfileError for text that no argument list can carry or no terminal should get; tab and newline may be."""
    found = _CONTROL.search(text)
    if found:
        raise ProfileError(
            where, label, f"holds the control character U+{ord(found[0]):04X}", "only tab and newline may stand in text"
        )
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ProfileError(where, label, "holds half of a character (a lone surrogate)", "type it anew")


def check_name(text: str, where: str, label: str) -> None:
    """As `check_text`, for what names something: characters that nobody sees would make it another one."""
    check_text(text, where, label)
    if has_hidden(text):
        raise ProfileError(
            where, label, "holds characters that are not seen or turn the direction of text", "type it anew"
        )


def check_prose(text: str, where: str, label: str) -> None:
    """As `check_text`, for words about the profile, which hold no secret either."""
    check_text(text, where, label)
    if holds_secret(text):
        raise ProfileError(where, label, _SECRET_HERE, _SECRET_FIX)


def plain(value: Any) -> Any:
    """The same value of built-in types only: no tomlkit items, lists instead of tuples."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    return value


def check_env(table: Mapping[str, Any], where: str) -> dict[str, str | EnvRef]:
    """`[env]` with numbers as text and references as `EnvRef`.

    Raises ProfileError naming the key for a literal secret, a malformed name, and any other kind of value.
    """
    checked: dict[str, str | EnvRef] = {}
    for key, value in table.items():
        label = f"env.{key}"
        if not _ENV_KEY.fullmatch(key):
            raise ProfileError(where, label, "not the name of an environment variable", _ENV_NAME)
        if isinstance(value, EnvRef):
            value = {"from_env": value.from_env}
        if isinstance(value, Mapping):
            checked[key] = EnvRef(_reference(value, where, label))
        elif is_secret_name(key) and value != "":  # an empty one is no secret: it unsets the variable
            raise ProfileError(
                where, label, "a secret may not be written into a profile", f'use {key} = {{ from_env = "{key}" }}'
            )
        elif isinstance(value, bool):
            raise ProfileError(where, label, "an environment variable is text", f'use "{int(value)}"')
        elif isinstance(value, int | float):
            checked[key] = str(plain(value))
        elif isinstance(value, str):
            check_text(value, where, label)
            if holds_secret(value):
                raise ProfileError(where, label, _SECRET_HERE, f'use {key} = {{ from_env = "{key}" }}')
            checked[key] = str(value)
        else:
            raise ProfileError(
                where, label, "must be text, a number or a reference", f'such as {{ from_env = "{key}" }}'
            )
    return checked


def _reference(value: Mapping[str, Any], where: str, label: str) -> str:
    if set(value) != {"from_env"}:
        raise ProfileError(where, label, "a table here has the one key `from_env`", '{ from_env = "NAME" }')
    source = value["from_env"]
    if not isinstance(source, str) or not _ENV_KEY.fullmatch(source):
        raise ProfileError(where, f"{label}.from_env", "must be the name of an environment variable", _ENV_NAME)
    return str(source)
