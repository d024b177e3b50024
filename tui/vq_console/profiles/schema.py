"""The JSON Schema of a profile file, for editors and for checks outside of the console.

Pure. What JSON Schema cannot say (both spellings of a key, version specifiers) only `format.py` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vq_console.engines.model import Flag
from vq_console.profiles.format import ENGINE_KEYS, MADE_ON_KEYS, NAME_PATTERN, PLACEMENT_KEYS
from vq_console.profiles.values import RESERVED

_TYPES: Mapping[str, list[str]] = {
    "bool": ["boolean"],
    "int": ["integer", "string"],
    "float": ["number", "string"],
}


def profile_schema(flags: Mapping[str, Flag] | None = None) -> dict[str, Any]:
    """The schema (draft 2020-12). `flags` of a catalogue adds names, kinds and help to `[args]`; unknown flags stay
    allowed, for the format must not lag behind vLLM."""
    argument: dict[str, Any] = {"type": ["string", "integer", "number", "boolean", "array", "object"]}
    known: dict[str, Any] = {}
    for key, flag in sorted((flags or {}).items()):
        if key in RESERVED:
            continue
        known[key] = _flag_schema(flag)
    reserved = "|".join(name.replace("_", "[-_]") for name in RESERVED)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vq-console profile",
        "description": "How to serve one model with vLLM",
        "type": "object",
        "additionalProperties": False,
        "required": ["model"],
        "properties": {
            "schema": {"const": 1},
            "name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
            "description": {"type": "string"},
            "model": {
                "type": "string",
                "minLength": 1,
                "pattern": "^[^-\\s]",
                "description": "hub id, path, or repo:quant for GGUF; a relative path is relative to the file",
            },
            "tags": {"type": "array", "items": {"type": "string", "minLength": 1}},
            "args": {
                "type": "object",
                "description": "vLLM's own serve flags by their own names, with underscores",
                "propertyNames": {"not": {"pattern": f"^({reserved})$"}},
                "properties": known,
                "additionalProperties": argument,
            },
            "env": {
                "type": "object",
                "description": "environment variables; a secret is only ever a reference",
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                "patternProperties": {
                    "(^|_)(KEY|TOKEN|SECRET|key|token|secret)$|PASSWORD|password": {"$ref": "#/$defs/reference"}
                },
                "additionalProperties": {"anyOf": [{"type": ["string", "number"]}, {"$ref": "#/$defs/reference"}]},
            },
            "engine": _closed(ENGINE_KEYS, {"vllm": {"type": "string", "description": "version specifier, >=0.27"}}),
            "placement": _closed(PLACEMENT_KEYS, {"gpu_count": {"type": "integer", "minimum": 1, "maximum": 1024}}),
            "made_on": {
                **_closed(MADE_ON_KEYS, {}),
                "description": "what the last good run was: GPU, SM, vLLM, kernels, revision",
            },
        },
        "$defs": {
            "reference": {
                "type": "object",
                "additionalProperties": False,
                "required": ["from_env"],
                "properties": {"from_env": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}},
            }
        },
    }


def _closed(keys: tuple[str, ...], properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: properties.get(key, {}) for key in keys},
    }


def _flag_schema(flag: Flag) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if flag.help:
        schema["description"] = flag.help
    kinds = _TYPES.get(flag.kind or "")
    if kinds is not None:
        schema["type"] = [*kinds, "array"] if flag.many else list(kinds)
    elif flag.kind == "choice" and flag.choices and not flag.many:
        schema["enum"] = list(flag.choices)
    return schema
