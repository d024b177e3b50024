"""Causes in what was asked for: flags, values, JSON, context length, parallel sizes, dtype, parsers.

Texts: argparse, pydantic, vLLM 0.6 to 0.33 (config/*.py, engine/arg_utils.py, entrypoints/*/cli_args.py).
"""

from __future__ import annotations

import re

from vq_console.core.text import nearest
from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, remove_args, rule, say, set_args
from vq_console.preflight.model import Patch

_REPLACED = {
    "calculate_kv_scales": "use a checkpoint with KV scales, or kv_cache_dtype = fp8_per_token_head",
    "quantization_config_file": "give the JSON itself: quantization_config = { … }",
    "disable_log_requests": "requests are not logged by default any more (enable_log_requests turns it on)",
    "swap_space": "there is no swap space any more; cpu_offload_gb and kv_offloading_size are what exists",
    "device": "the device follows from the installed vLLM",
    "task": "runner and convert replaced it",
    "use_v2_block_manager": "it is always on",
    "num_scheduler_steps": "asynchronous scheduling replaced it",
    "override_attention_dtype": "attention follows dtype and kv_cache_dtype",
}
_SPOKEN = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "e4m3": "fp8_e4m3",
    "e5m2": "fp8_e5m2",
}


def flag_names(text: str) -> tuple[str, ...]:
    """The argument names in a piece of command line: `--swap-space 4 -tp=2` → swap_space, tp."""
    return tuple(
        name.lstrip("-").replace("-", "_") for name in re.findall(r"(?:^|\s)(--?[A-Za-z][\w-]*)(?=[=\s]|$)", text)
    )


def _unrecognized(hit: Hit) -> tuple[Fix, ...]:
    names = flag_names(hit.match["flags"])
    if not names:
        return (say("Remove what the message names from the command line."),)
    notes = [f"{name}: {_REPLACED[name]}" for name in names if name in _REPLACED]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    fixes = [remove_args(f"Remove {flags}: this vLLM does not have it.", *names)]
    return (*fixes, *(say(f"Instead of {note}.") for note in notes))


def _choices(text: str) -> list[str]:
    return re.findall(r"'([^']+)'", text) or [part.strip() for part in text.split(",") if part.strip()]


def _invalid_choice(hit: Hit) -> tuple[Fix, ...]:
    flag = (hit.group("flag") or "").split("/")[0].lstrip("-").replace("-", "_")
    choices = _choices(hit.group("choices") or "")
    value = hit.group("value") or ""
    better = _SPOKEN.get(value.lower())
    if better not in choices:
        better = nearest(value, choices)
    fixes: list[Fix] = []
    if flag and better:
        fixes.append(set_args(f"Use {flag} = {better!r} instead of {value!r}.", **{flag: better}))
    if flag:
        fixes.append(remove_args(f"Remove {flag}; vLLM then chooses itself.", flag))
    return tuple(fixes)


def _fraction(hit: Hit) -> tuple[Fix, ...]:
    value = hit.number("value")
    if value is not None and 1 < value <= 100:
        share = round(value / 100, 4)
        return (set_args(f"It is a fraction: gpu_memory_utilization = {share}.", gpu_memory_utilization=share),)
    return (set_args("Use a fraction between 0 and 1.", gpu_memory_utilization=0.9),)


def _pydantic_value(hit: Hit) -> tuple[Fix, ...]:
    """`Input should be … [type=…, input_value=…]`; the field's name stands one line above."""
    before = [line.message for line in hit.context.lines if hit.line.number - 3 < line.number < hit.line.number]
    field = next((text.strip() for text in reversed(before) if re.fullmatch(r"[\w.\[\]]+", text.strip())), "")
    if field == "gpu_memory_utilization" or "gpu_memory_utilization" in before:
        return _fraction(hit)
    choices = re.findall(r"'([^']+)'", hit.line.message.partition("[type=")[0])
    value = (hit.group("value") or "").strip("'")
    better = nearest(value, choices) if choices else None
    if better:
        return (say(f"Write {better!r} instead of {value!r}" + (f" for {field}." if field else ".")),)
    return (say("Use a value as the message says" + (f", for {field}." if field else ".")),)


def _batched_tokens(hit: Hit) -> tuple[Fix, ...]:
    length = hit.number("length")
    fixes: list[Fix] = []
    if length:
        fixes.append(
            set_args(f"Raise max_num_batched_tokens to {length:.0f}.", max_num_batched_tokens=int(length)),
        )
    if tokens := hit.number("tokens"):
        fixes.append(set_args(f"Or lower max_model_len to {tokens:.0f}.", max_model_len=int(tokens)))
    return tuple(fixes)


def _too_long(hit: Hit) -> tuple[Fix, ...]:
    derived = hit.number("derived")
    if derived is None:
        return (remove_args("Remove max_model_len; vLLM takes the model's own.", "max_model_len"),)
    return (
        set_args(f"Lower max_model_len to {derived:.0f}, what the model supports.", max_model_len=int(derived)),
        say("Or extend it with RoPE scaling, if the model was made for that (hf_overrides)."),
    )


def _tensor_parallel(hit: Hit) -> tuple[Fix, ...]:
    heads, size = hit.number("heads"), hit.number("tp")
    if heads and size:
        fitting = max((n for n in range(1, int(size)) if int(heads) % n == 0), default=1)
        return (
            set_args(f"tensor_parallel_size = {fitting}: it divides {heads:.0f}.", tensor_parallel_size=fitting),
            set_args(
                f"Or keep {size:.0f} GPUs with pipeline parallelism.",
                tensor_parallel_size=1,
                pipeline_parallel_size=int(size),
            ),
        )
    return (say("Choose a tensor_parallel_size that divides the number of attention heads."),)


def _world_size(hit: Hit) -> tuple[Fix, ...]:
    there = hit.number("gpus")
    if there:
        return (
            set_args(f"tensor_parallel_size = {there:.0f}: so many GPUs are visible.", tensor_parallel_size=int(there)),
        )
    return ()


def _half(_hit: Hit) -> tuple[Fix, ...]:
    return (set_args("dtype = 'half' (float16).", dtype="half"),)


def _supported_dtype(hit: Hit) -> tuple[Fix, ...]:
    if "float16" in hit.line.message.partition("Supported dtypes")[2].replace("bfloat16", ""):
        return _half(hit)
    return (set_args("dtype = 'bfloat16'.", dtype="bfloat16"),)


def _parser(hit: Hit) -> tuple[Fix, ...]:
    name, kind = hit.group("name") or "", hit.group("kind") or "tool"
    key = "reasoning_parser" if kind.lower().startswith("reason") else "tool_call_parser"
    listed = [part.strip(" '{}[]") for part in re.split(r"[,{}]", hit.group("known") or "") if part.strip(" '{}[]")]
    better = nearest(name, listed)
    if better:
        return (set_args(f"{key} = {better!r} (of those listed).", **{key: better}),)
    return (say(f"Use a listed {key}."), remove_args(f"Or remove {key}.", key))


def _json_value(hit: Hit) -> tuple[Fix, ...]:
    flag = (hit.group("flag") or "").split("/")[0]
    return (
        say(
            f"Put the JSON of {flag or 'this flag'} into single quotes on the command line; test it with `python "
            f"-m json.tool`."
        ),
        say("In a profile write it as a TOML table; the quoting is then not yours."),
    )


_FLAG = r"argument (?P<flag>-[\w/.-]+)"

RULES = (
    rule(
        "cli-invalid-json",
        "cannot be converted to <function loads",
        97,
        pattern=rf"(?:{_FLAG}: )?Value (?P<value>.*) cannot be converted to <function loads",
        fixes=_json_value,
    ),
    rule(
        "cli-invalid-json",
        "error: argument",
        96,
        pattern=(
            rf"error: {_FLAG}: .*(?:[Ii]nvalid (?:JSON|loads value)|not (?:a )?valid JSON|JSONDecodeError|Expecting "
            rf"(?:value|property name))"
        ),
        fixes=_json_value,
    ),
    rule("cli-invalid-json", "json_invalid", 94, pattern=r"Invalid JSON: .*type=json_invalid", fixes=_json_value),
    rule("cli-invalid-json", "must be valid JSON", 93, fixes=_json_value),
    rule(
        "cli-unrecognized-argument",
        "unrecognized arguments:",
        95,
        pattern=r"unrecognized arguments: (?P<flags>.*)",
        fixes=_unrecognized,
    ),
    rule("cli-unrecognized-argument", "ambiguous option:", 95, pattern=r"ambiguous option: (?P<flags>\S+)"),
    rule(
        "cli-unrecognized-argument",
        "got an unexpected keyword argument",
        40,
        pattern=r"(?:EngineArgs|Args)\.__init__\(\) got an unexpected keyword argument '(?P<flags>\w+)'",
    ),
    rule(
        "quant-method-unknown",
        "invalid choice:",
        96,
        pattern=r"argument --quantization\S*: invalid choice: '(?P<method>(?!gguf|bitsandbytes)[^']*)'",
    ),
    rule(
        "cli-invalid-choice",
        "invalid choice:",
        95,
        pattern=rf"{_FLAG}: invalid choice: '?(?P<value>[^' ]+)'? \(choose from (?P<choices>.*)\)?",
        fixes=_invalid_choice,
    ),
    rule("cli-invalid-choice", "invalid choice:", 94),
    rule(
        "cli-invalid-choice",
        "Invalid kv_cache_dtype:",
        95,
        pattern=r"Invalid (?P<flag>kv_cache_dtype): '(?P<value>[^']*)'\. Valid values are: (?P<choices>.*)",
        fixes=_invalid_choice,
    ),
    rule(
        "cli-invalid-choice",
        "Unknown attention backend:",
        94,
        pattern=r"Unknown (?P<flag>attention backend): '?(?P<value>[^'.]+)'?\. Valid options are: (?P<choices>.*)",
        fixes=lambda hit: tuple(
            set_args(
                fix.text.replace("attention backend", "attention_backend"),
                attention_backend=next(iter(fix.patch.set_args.values())),
            )
            if fix.patch is not None and fix.patch.set_args
            else remove_args("Remove attention_backend; vLLM then chooses itself.", "attention_backend")
            for fix in _invalid_choice(hit)
        ),
    ),
    rule(
        "cli-invalid-choice",
        "Load format `",
        90,
        pattern=r"Load format `(?P<value>(?!gguf|bitsandbytes)[^`]+)` is not supported",
    ),
    rule("cli-invalid-value", "only support 'bitsandbytes' load format", 82),
    rule("cli-invalid-choice", "Unknown load_format:", 90, pattern=r"Unknown load_format: (?!gguf|bitsandbytes)"),
    rule(
        "cli-invalid-value",
        "error: argument",
        93,
        pattern=(
            rf"error: {_FLAG}: (?:invalid \S+ value|expected (?:one|at least one) argument|not allowed with|.*must "
            rf"be|ignored explicit argument)"
        ),
    ),
    rule("cli-invalid-value", "the following arguments are required", 93),
    rule("cli-invalid-value", "error: argument", 80, pattern=rf"error: {_FLAG}: "),
    rule(
        "max-len-exceeds-model",
        "is greater than the derived max_model_len",
        92,
        pattern=(
            r"max_model_len \((?P<asked>[\d.]+)\) is greater than the derived max_model_len \(\w+=(?P<derived>[\d.]+)"
        ),
        fixes=_too_long,
    ),
    rule(
        "max-len-exceeds-model",
        "is greater than the derived max_model_len",
        91,
        fixes=lambda hit: (remove_args("Remove max_model_len; vLLM takes the model's own.", "max_model_len"),),
    ),
    rule(
        "cli-invalid-value",
        "is smaller than max_model_len",
        90,
        pattern=r"max_num_batched_tokens \((?P<tokens>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)",
        fixes=_batched_tokens,
    ),
    rule(
        "cli-invalid-value",
        "must be greater than or equal to max_num_seqs",
        90,
        pattern=(
            r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs "
            r"\((?P<length>\d+)\)"
        ),
        fixes=_batched_tokens,
    ),
    rule(
        "cli-invalid-value",
        "[type=",
        72,
        pattern=r"Input should be .*\[type=(?:less_than|greater_than)\w*, input_value=(?P<value>-?[\d.]+)",
        fixes=_pydantic_value,
    ),
    rule(
        "cli-invalid-value",
        "[type=",
        71,
        pattern=r"Input should be .*\[type=\w+, input_value=(?P<value>'[^']*'|\S+)",
        fixes=_pydantic_value,
    ),
    rule(
        "cli-invalid-value",
        "[type=",
        70,
        pattern=(
            r"(?:Unexpected keyword argument|Extra inputs are not permitted|Field required|Missing required).*\[type="
        ),
    ),
    rule(
        "cli-invalid-value",
        "gpu_memory_utilization",
        70,
        pattern=(
            r"(?:GPU memory utilization must be|gpu_memory_utilization must be)[^.]*(?:Got|got)? ?(?P<value>[\d.]+)?"
        ),
        fixes=_fraction,
    ),
    rule(
        "cli-invalid-value",
        "is larger than the number of available GPUs",
        90,
        pattern=r"World size \((?P<size>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
        fixes=_world_size,
    ),
    rule("cli-invalid-value", "larger than the available GPUs", 88),
    rule("cli-invalid-value", "Unsupported speculative method", 88),
    rule(
        "cli-invalid-value",
        "num_speculative_tokens",
        80,
        pattern=r"num_speculative_tokens.*(?:must be|was not provided|was provided|to be greater)",
    ),
    rule("cli-invalid-value", "must be a positive integer", 75, pattern=r"max_model_len must be a positive integer"),
    rule(
        "cli-invalid-value",
        "is incompatible with dtype=",
        85,
        pattern=r"kv_cache_dtype=\S+ is incompatible with dtype=",
        fixes=lambda hit: (set_args("kv_cache_dtype = 'auto' follows dtype.", kv_cache_dtype="auto"),),
    ),
    rule("cli-invalid-value", "Unknown dtype:", 85),
    rule("cli-invalid-value", "Value error,", 20, pattern=r"^\s*Value error, .*(?:\[type=value_error|$)"),
    rule(
        "cli-invalid-value",
        "max_num_seqs (",
        80,
        pattern=r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
        fixes=lambda hit: (set_args(f"max_num_seqs = {hit.match['blocks']}.", max_num_seqs=int(hit.match["blocks"])),),
    ),
    rule(
        "tp-not-divisible",
        "must be divisible by tensor parallel size",
        92,
        pattern=r"\((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        fixes=_tensor_parallel,
    ),
    rule(
        "tp-not-divisible",
        "is not divisible by",
        55,
        pattern=r"AssertionError: (?P<heads>\d+) is not divisible by (?P<tp>\d+)$",
        fixes=_tensor_parallel,
    ),
    rule(
        "tp-not-divisible",
        "must be divisible by tensor_parallel_size",
        90,
        pattern=r"\(?(?P<heads>\d+)?\)? must be divisible by tensor_parallel_size",
    ),
    rule(
        "tp-not-divisible",
        "divisible by tensor",
        50,
        pattern=r"(?:num_(?:attention_|kv_)?heads|vocab|heads).*divisible by (?:the )?tensor",
    ),
    rule("dtype-unsupported-sm", "Bfloat16 is only supported on GPUs", 92, fixes=_half),
    rule(
        "dtype-unsupported-sm",
        "does not support float16. Reason",
        85,
        fixes=lambda hit: (
            set_args("dtype = 'bfloat16', or 'float32' below compute capability 8.0.", dtype="bfloat16"),
        ),
    ),
    rule(
        "dtype-unsupported-sm",
        "is not supported for quantization method",
        88,
        pattern=r"(?P<dtype>\S+) is not supported for quantization method (?P<method>\S+)\.",
        fixes=_supported_dtype,
        explain=lambda hit: (
            f"Quantization {hit.match['method']} does not run in {hit.match['dtype'].removeprefix('torch.')}."
        ),
    ),
    rule(
        "tool-parser-config",
        "invalid tool call parser",
        92,
        pattern=r"invalid (?P<kind>tool) call parser: (?P<name>\S+) \(chose from (?P<known>.*)\)",
        fixes=_parser,
    ),
    rule(
        "tool-parser-config",
        "invalid reasoning parser",
        92,
        pattern=r"invalid (?P<kind>reasoning) parser: (?P<name>\S+) \(chose from (?P<known>.*)\)",
        fixes=_parser,
    ),
    rule(
        "tool-parser-config",
        "arser '",
        85,
        pattern=(
            r"(?P<kind>Tool|Reasoning|tool|reasoning) parser '(?P<name>[^']*)' not found\.?(?: Available parsers: "
            r"(?P<known>.*))?"
        ),
        fixes=_parser,
    ),
    rule(
        "tool-parser-config",
        "parser: ",
        84,
        pattern=r"(?P<kind>Tool|Reasoning|tool|reasoning)(?: call)? parser: (?P<name>\S+) (?:not found|is not)",
        fixes=_parser,
    ),
    rule(
        "tool-parser-config",
        "--enable-auto-tool-choice requires --tool-call-parser",
        92,
        fixes=lambda hit: (
            Fix(
                "Add tool_call_parser, or remove enable_auto_tool_choice.",
                Patch(remove_args=("enable_auto_tool_choice",)),
            ),
        ),
    ),
    rule("tool-parser-config", "--enable-reasoning requires --reasoning-parser", 92),
)
