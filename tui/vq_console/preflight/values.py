"""Values of flags as vLLM reads them: human sizes, JSON, booleans, names with dashes, short forms.

Pure. Never raises for a bad value: the answer is then None or the text itself, and a rule says what is wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

SHORT = {
    "q": "quantization",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "sc": "speculative_config",
    "cc": "compilation_config",
    "asc": "api_server_count",
    "kv_cache_memory": "kv_cache_memory_bytes",
    "device_memory_utilization": "gpu_memory_utilization",
}
"""Short forms and aliases of `engine/arg_utils.py`, and the abbreviation that vLLM's own hint line prints."""

_HUMAN = re.compile(r"\s*(-?\d{1,18}(?:\.\d{1,18})?)([kKmMgGtT]?)\s*")
_DECIMAL = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def plain_names(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by vLLM's full names with underscores; a `no_` form becomes the flag set to False."""
    result: dict[str, Any] = {}
    for key, value in args.items():
        name = key.lstrip("-").replace("-", "_")
        name = SHORT.get(name, name)
        if name.startswith("no_") and value is True:
            name, value = name[3:], False
        result[name] = value
    return result


def whole(value: Any) -> int | None:
    """An integer as `human_readable_int` of vLLM reads it: `8k` is 8000, `8K` is 8192; None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    found = _HUMAN.fullmatch(str(value))
    if found is None:
        return None
    if found[2].islower():
        return int(float(found[1]) * _DECIMAL[found[2]])
    # A fraction of a binary unit is refused, and so is a fraction without one.
    return None if "." in found[1] else int(found[1]) * _BINARY[found[2]]


def real(value: Any) -> float | None:
    """A number, or None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def json_table(value: Any) -> dict[str, Any] | None:
    """A JSON object given as a table or as text; None where it is neither."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None
    return None


def truthy(value: Any) -> bool:
    """Whether a flag or an environment variable is on (`1`, `true`, `yes`, `on`)."""
    if isinstance(value, str):
        return value.strip().lower() in {"1", "true", "yes", "on"}
    return bool(value)


def as_list(value: Any) -> list[str]:
    """A value that may be one word, a comma list or an array, as a list of words."""
    if value is None:
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple | set | frozenset):
        return [str(part) for part in value]
    return [str(value)]


_SHAPE = {
    "num_hidden_layers": 4096,
    "hidden_size": 1 << 24,
    "num_attention_heads": 1 << 20,
    "num_key_value_heads": 1 << 20,
    "head_dim": 1 << 20,
    "intermediate_size": 1 << 28,
    "vocab_size": 1 << 28,
    "max_position_embeddings": 1 << 40,
}
_LARGEST = 1 << 53


def sound_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a checkpoint without numbers that nothing can be computed from: they count as not said.

    JSON as Python reads it may hold NaN, infinity and endless integers; a broken file may say zero layers.
    """
    return {key: _sound(value) for key, value in facts.items() if _is_sound(key, value)}


def _is_sound(key: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if key in _SHAPE:
        return 0 < value <= _SHAPE[key]
    # A group size of -1 is a whole row.
    return -1 <= value <= _LARGEST


def _sound(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sound_facts(value)
    if isinstance(value, list):
        return [_sound(entry) for entry in value if _is_sound("", entry)]
    return value
