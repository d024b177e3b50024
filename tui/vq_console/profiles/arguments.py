"""Values of `[args]` as arguments of `vllm serve`, the way vLLM's own `--config` file turns them into some.

Pure. Source: vLLM 0.32 `utils/argparse_utils.py` (`load_config_file`, `parse_args`) and `entrypoints/launchers/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vq_console.core.errors import ProfileError
from vq_console.engines.model import Flag
from vq_console.profiles.values import argument_key

SHORT_FORMS: Mapping[str, str] = {
    "ac": "attention_config",
    "asc": "api_server_count",
    "cc": "compilation_config",
    "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size",
    "dp": "data_parallel_size",
    "dpa": "data_parallel_address",
    "dpb": "data_parallel_backend",
    "dpe": "data_parallel_external_lb",
    "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local",
    "dpm": "data_parallel_multi_port_external_lb",
    "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port",
    "dpr": "data_parallel_start_rank",
    "ep": "enable_expert_parallel",
    "n": "nnodes",
    "pcp": "prefill_context_parallel_size",
    "pp": "pipeline_parallel_size",
    "q": "quantization",
    "r": "node_rank",
    "sc": "speculative_config",
    "tp": "tensor_parallel_size",
}
"""vLLM's one-dash forms; with two dashes argparse does not know them."""

_JSON = frozenset(
    {
        "additional_config",
        "allowed_headers",
        "allowed_methods",
        "allowed_origins",
        "default_chat_template_kwargs",
        "default_mm_loras",
        "hf_overrides",
        "ir_op_priority",
        "limit_mm_per_prompt",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "model_class_overrides",
        "offload_params",
        "override_generation_config",
        "reasoning_effort_map",
    }
)
"""Flags that take JSON, for versions whose catalogue does not say; names in `_config` and `_extra_config` do too."""

_ONE_EACH = frozenset({"middleware"})
"""Flags of argparse's `append` kind: repeated with one value each."""


def serve_arguments(args: Mapping[str, Any], flags: Mapping[str, Flag] | None = None) -> tuple[str, ...]:
    """The arguments that follow the model, in the order of `args`.

    An array repeats values (JSON for flags that take JSON), a table is JSON, `true` a bare flag, `false` its `--no-`
    form where that exists and nothing otherwise, anything else `--flag=value`. JSON in a string is written as the same
    table would be. `flags` is that of the catalogue, or None where it is unknown. Raises ProfileError for a list value
    that argparse would take for a flag.
    """
    known = _by_any_name(flags)
    arguments: list[str] = []
    for key, value in args.items():
        head, dot, rest = argument_key(key).partition(".")
        flag = known.get(head)
        name = flag.name if flag is not None else SHORT_FORMS.get(head, head)
        option = "--" + argument_key(name).replace("_", "-") + dot + rest
        takes_json = bool(dot) or takes_json_value(argument_key(name), flag)
        if isinstance(value, bool):
            if value:
                arguments.append(option)
            elif flag is not None and flag.negatable and not dot:
                arguments.append("--no-" + option[2:])
        elif isinstance(value, Mapping) or (isinstance(value, list | tuple) and takes_json):
            arguments.append(f"{option}={json_text(value)}")
        elif isinstance(value, list | tuple):
            one_each = name in _ONE_EACH or (flag is not None and flag.repeat)
            arguments.extend(_repeated(option, value, one_each))
        else:
            arguments.append(f"{option}={_scalar(value, flag, takes_json)}")
    return tuple(arguments)


def takes_json_value(name: str, flag: Flag | None = None) -> bool:
    """Whether a flag (underscored name) takes JSON, by the catalogue or, where that is silent, by its name."""
    if flag is not None and flag.kind is not None:
        return flag.kind == "json"
    return name in _JSON or name.endswith("_config")


def json_text(value: Any) -> str:
    """JSON as vLLM's own `--config` writes it, with letters of all alphabets kept."""
    return json.dumps(value, ensure_ascii=False)


def _by_any_name(flags: Mapping[str, Flag] | None) -> dict[str, Flag]:
    known: dict[str, Flag] = {}
    for key, flag in (flags or {}).items():
        for alias in flag.aliases:
            known.setdefault(argument_key(alias), flag)
        known[argument_key(key)] = flag
    return known


def _scalar(value: Any, flag: Flag | None, takes_json: bool) -> str:
    if (
        isinstance(value, str)
        and (takes_json or flag is None or flag.kind is None)
        and value.lstrip()[:1] in ("{", "[")
    ):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        if isinstance(parsed, dict) or takes_json:
            return json_text(parsed)
    return str(value)


def _repeated(option: str, values: list[Any] | tuple[Any, ...], one_each: bool) -> list[str]:
    texts = [json_text(item) if isinstance(item, Mapping | list | tuple) else str(item) for item in values]
    if not texts:
        return []
    if one_each:
        return [f"{option}={text}" for text in texts]
    if len(texts) == 1 and texts[0].startswith("-"):
        return [f"{option}={texts[0]}"]
    for text in texts:
        if text.startswith("-") and not text[1:].isdigit():
            raise ProfileError("profile", f"args{option.replace('--', '.')}", f"{text!r} would be taken for a flag")
    return [option, *texts]
