"""Causes in quantization: methods, flags against checkpoints, capabilities, settings, shapes.

Texts: vLLM 0.6 to 0.33 (config/model.py, config/vllm.py, config/quantization.py, model_executor/layers/quantization).
"""

from __future__ import annotations

import re

from vq_console.core.text import nearest
from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, remove_args, rule, say, set_args

_ONLINE = {
    "fp8_w8a8": "fp8_per_tensor",
    "w8a8_fp8": "fp8_per_tensor",
    "fp8_dynamic": "fp8_per_channel",
    "fp8_e4m3": "fp8_per_tensor",
    "float8": "fp8_per_tensor",
    "w8a8": "fp8_per_tensor",
    "fp8_block": "fp8_per_block",
    "blockwise_fp8": "fp8_per_block",
    "nvfp4": "nvfp4_per_token",
    "fp4": "mxfp4",
}


def _unknown_method(hit: Hit) -> tuple[Fix, ...]:
    method = (hit.group("method") or "").strip("'\" ")
    fixes = [remove_args("Remove quantization: a quantized checkpoint names its method itself.", "quantization")]
    known = re.findall(r"'([^']+)'", hit.line.message.partition("Must be one of")[2])
    online = _ONLINE.get(method.lower().replace("-", "_"))
    better = online if online in known or not known else nearest(method, known)
    if better:
        fixes.append(set_args(f"For a 16-bit checkpoint: quantization = {better!r}.", quantization=better))
    elif re.search(r"int4|w4a16|4bit|4-bit", method, re.IGNORECASE):
        fixes.append(say("INT4 needs a checkpoint made for it (AWQ, GPTQ, compressed-tensors W4A16)."))
    return tuple(fixes)


def _conflict_words(hit: Hit) -> str:
    checkpoint, asked = hit.group("checkpoint"), hit.group("asked")
    return f"The checkpoint says {checkpoint}, quantization = {asked} was asked for." if checkpoint and asked else ""


def _drop_method(_hit: Hit) -> tuple[Fix, ...]:
    return (
        remove_args("Remove quantization: the checkpoint decides.", "quantization"),
        say("To quantize it another way start from the 16-bit checkpoint."),
    )


def _capability_words(hit: Hit) -> str:
    need, have = hit.group("need"), hit.group("have")
    return f"It needs compute capability {need}, this GPU has {have}." if need and have else ""


def other_format(hit: Hit) -> tuple[Fix, ...]:
    """What to take where the GPU does not carry the format."""
    asked = str(hit.context.asked("quantization") or "")
    if asked in ("fp8_per_channel", "fp8_per_block", "nvfp4_per_token", "mxfp8", "mxfp4"):
        return (
            set_args(
                "quantization = 'fp8_per_tensor' runs from compute capability 7.5 on.", quantization="fp8_per_tensor"
            ),
            say("Or a W4A16 (AWQ, GPTQ) or INT8 checkpoint."),
        )
    return (
        say(
            "Choose a format for this GPU: AWQ or GPTQ from 7.5, INT8 W8A8 from 7.5, FP8 from 8.9 (weight-only below)."
        ),
        say("A newer vLLM may have lowered the limit."),
    )


def _bad_config(hit: Hit) -> tuple[Fix, ...]:
    name = hit.group("name")
    known = re.findall(r"'([^']+)'", hit.line.message.partition("expected one of")[2])
    known += ["fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8", "mxfp4"]
    better = nearest(name, known) if name else None
    if better:
        return (say(f"Write {better!r} instead of {name!r}."), say("Keys: linear, moe, ignore, targets."))
    return (say("quantization_config has the keys linear, moe, ignore and targets (targets alone)."),)


def _online_alone(_hit: Hit) -> tuple[Fix, ...]:
    return (
        set_args("quantization = 'fp8_per_tensor' needs no further settings.", quantization="fp8_per_tensor"),
        set_args("Or say what to do.", quantization="online", quantization_config={"linear": "fp8_per_block"}),
    )


def split_fixes(hit: Hit) -> tuple[Fix, ...]:
    """What to do where a layer cannot be cut into as many parts."""
    facts = hit.context.facts
    size = facts.get("tensor_parallel_size") or hit.context.asked("tensor_parallel_size", "tp")
    fixes: list[Fix] = []
    if isinstance(size, int) and size > 1:
        half = size // 2
        fixes.append(set_args(f"tensor_parallel_size = {half}.", tensor_parallel_size=half))
    expert = re.search(r"gate's|down's|expert|moe", hit.line.message + hit.frames, re.IGNORECASE)
    if expert:
        fixes.insert(0, set_args("Experts are not cut with enable_expert_parallel.", enable_expert_parallel=True))
    if isinstance(size, int) and size > 1:
        fixes.append(set_args("Or pipeline parallelism.", tensor_parallel_size=1, pipeline_parallel_size=size))
    fixes.append(say("Or a checkpoint whose group size divides the shard (32, 64, 128)."))
    return tuple(fixes)


RULES = (
    rule(
        "quant-method-unknown",
        "Unknown quantization method:",
        93,
        pattern=r"Unknown quantization method: '?(?P<method>[^.']+)'?\.",
        fixes=_unknown_method,
    ),
    rule(
        "quant-method-unknown",
        "Invalid quantization method:",
        93,
        pattern=r"Invalid quantization method: (?P<method>\S+)",
        fixes=_unknown_method,
    ),
    rule(
        "quant-checkpoint-conflict",
        "does not match the quantization method specified in the `quantization` argument",
        94,
        pattern=r"model config \((?P<checkpoint>[^)]*)\) does not match .*`quantization` argument \((?P<asked>[^)]*)\)",
        fixes=_drop_method,
        explain=_conflict_words,
    ),
    rule(
        "quant-checkpoint-conflict",
        "Cannot find the config file for",
        85,
        fixes=_drop_method,
        explain=lambda hit: (
            "The method was named, but the checkpoint carries no configuration of it: it is not quantized that way."
        ),
    ),
    rule(
        "quant-checkpoint-conflict",
        "in the model's quantization config",
        84,
        pattern=r"Cannot find any of .* in the model's quantization config",
        fixes=_drop_method,
    ),
    rule(
        "quant-checkpoint-conflict",
        "Config.__init__() missing",
        82,
        pattern=(
            r"(?:CompressedTensors|TorchAO|Quark|ModelOpt\w*|Fp8|AWQ|GPTQ|AutoAWQ|AutoGPTQ)Config\.__init__\(\) "
            r"missing"
        ),
        fixes=_drop_method,
        explain=lambda hit: (
            "The method was named, but the checkpoint carries no configuration of it: it is not quantized that way."
        ),
    ),
    rule("quant-checkpoint-conflict", "Unsupported quantization config found for", 80, fixes=_drop_method),
    rule(
        "quant-method-deprecated",
        "is deprecated and will be removed in future versions of vLLM. To bypass",
        93,
        fixes=lambda hit: (
            set_args("Accept it for now.", allow_deprecated_quantization=True),
            say("Better: re-quantize to FP8, compressed-tensors or NVFP4."),
        ),
    ),
    rule(
        "quant-method-deprecated",
        "--allow-deprecated-quantization",
        90,
        fixes=lambda hit: (set_args("Accept it for now.", allow_deprecated_quantization=True),),
    ),
    rule(
        "quant-method-deprecated",
        "no longer supports online quantization",
        90,
        fixes=lambda hit: (set_args("quantization = 'fp8_per_tensor'.", quantization="fp8_per_tensor"),),
    ),
    rule(
        "quant-unsupported-sm",
        "is not supported for the current GPU",
        90,
        pattern=r"is not supported for the current GPU\.? Min(?:imum)? capability: (?P<need>\d+)\.?\D+(?P<have>\d+)",
        fixes=other_format,
        explain=_capability_words,
    ),
    rule(
        "quant-unsupported-sm",
        "uantization scheme is not supported for",
        89,
        pattern=r"uantization scheme is not supported for(?:.*?capability: (?P<need>\d+).*?capability: (?P<have>\d+))?",
        fixes=other_format,
        explain=_capability_words,
    ),
    rule("quant-unsupported-sm", "is not supported for the current GPU", 86, fixes=other_format),
    rule(
        "quant-unsupported-sm",
        "requires a kernel that honors per-token activation quantization",
        88,
        fixes=other_format,
    ),
    rule(
        "quant-unsupported-sm",
        "online quant",
        86,
        pattern=r"(?:nvfp4|mxfp\d|fp8|int8)\S* online quantization requires",
        fixes=other_format,
    ),
    rule(
        "quant-unsupported-sm",
        "does not support",
        80,
        pattern=r"(?:platform|device|GPU|hardware) does not support \w+ (?:quantization|MoE|format)",
        fixes=other_format,
    ),
    rule("quant-unsupported-sm", "requires GPU compute capability", 85, fixes=other_format),
    rule("quant-unsupported-sm", "quantization is currently not supported in", 88, fixes=other_format),
    rule(
        "quant-unsupported-sm",
        "Int8 not supported on SM",
        85,
        fixes=lambda hit: (
            set_args("Triton still runs INT8 here.", linear_backend="triton"),
            say("Use an FP8 checkpoint on this GPU."),
        ),
    ),
    rule("quant-unsupported-sm", "Marlin W4A8-FP8 only support", 84, fixes=other_format),
    rule(
        "quant-unsupported-sm",
        "requires SM100",
        80,
        pattern=r"requires SM100 GPUs|requires (?:an? )?(?:SM|sm_?)\d+",
        fixes=other_format,
    ),
    rule(
        "quant-unsupported-sm",
        "is not supported on this",
        60,
        pattern=r"(?:[Qq]uantiz|FP8|FP4|INT8|AWQ|GPTQ).{0,60}is not supported on this (?:GPU|device|platform)",
        fixes=other_format,
    ),
    rule(
        "quant-config-invalid",
        "for QuantizationConfigArgs",
        96,
        pattern=r"argument --quantization-config\S*: \d+ validation errors? for QuantizationConfigArgs",
        fixes=lambda hit: _bad_config(_next_line(hit)),
    ),
    rule(
        "quant-config-invalid",
        "for QuantizationConfigArgs",
        74,
        pattern=r"\d+ validation errors? for QuantizationConfigArgs",
        fixes=lambda hit: _bad_config(_next_line(hit)),
    ),
    rule(
        "quant-config-invalid",
        "unknown quantization name",
        94,
        pattern=r"unknown quantization name '(?P<name>[^']*)'",
        fixes=_bad_config,
    ),
    rule(
        "quant-config-invalid",
        "online shorthand",
        93,
        pattern=r"(?:online shorthand '?(?P<name>[\w.]+)'? does not define|is not a valid online shorthand name)",
        fixes=_bad_config,
    ),
    rule(
        "quant-config-invalid",
        "OnlineQuantizationConfig.__init__() missing",
        93,
        fixes=_online_alone,
        explain=lambda hit: "quantization = 'online' needs a quantization_config that says what to quantize.",
    ),
    rule("quant-config-invalid", "OnlineQuantizationConfig requires at least one of", 93, fixes=_online_alone),
    rule(
        "quant-config-invalid",
        "quantization_config is only supported when quantization is one of",
        92,
        fixes=lambda hit: (
            remove_args("Remove quantization_config: it steers online quantization only.", "quantization_config"),
        ),
    ),
    rule(
        "quant-config-invalid",
        "quantization_config.",
        88,
        pattern=(
            r"(?:quantization_config\.(?:targets|ignore|linear|moe)\b.*(?:exclusive|matches|both|may|aligned"
            r"|requires)|matches both quantization_config)"
        ),
        fixes=_bad_config,
    ),
    rule(
        "quant-config-invalid",
        "online quantization for",
        86,
        pattern=r"online quantization for \S+ with weight=",
        fixes=_bad_config,
    ),
    rule("quant-config-invalid", "activation override (", 84, fixes=_bad_config),
    rule(
        "quant-config-invalid",
        "targets",
        80,
        pattern=r"targets (?:must be a dict|keys must be strings|key '.*' is not a valid regex|pattern)",
        fixes=_bad_config,
    ),
    rule("quant-tp-shape-mismatch", "is not divisible by weight quantization block", 90, fixes=split_fixes),
    rule("quant-tp-shape-mismatch", "not divisible by group_size", 90, fixes=split_fixes),
    rule("quant-tp-shape-mismatch", "not divisible by  min_thread", 88, fixes=split_fixes),
    rule("quant-tp-shape-mismatch", "not divisible by min_thread", 88, fixes=split_fixes),
    rule("quant-tp-shape-mismatch", "is not aligned with the quantized weight shape", 90, fixes=split_fixes),
    rule(
        "quant-tp-shape-mismatch",
        "divisible by",
        78,
        pattern=(
            r"(?:size|sizes|width|dim|channels|K|in_features|hidden|partition)\S*[ =(].*(?:(?:must|to) (?:be "
            r")?(?:evenly )?(?:be )?divisible by|not divisible by|divide both).*(?:group|block|BLOCK|pack|thread|\d)"
        ),
        fixes=split_fixes,
        when=lambda hit: "attention heads" not in hit.line.message and "tensor parallel size" not in hit.line.message,
    ),
    rule("quant-tp-shape-mismatch", "must evenly divide both hidden size", 88, fixes=split_fixes),
    rule("quant-tp-shape-mismatch", "in features size is not multiple of 16", 84, fixes=split_fixes),
    rule("quant-ignore-mismatch", "Detected some but not all shards of", 86),
    rule(
        "quant-ignore-mismatch",
        "for the shards of",
        80,
        pattern=r"Found (?:a )?different quantization (?:schemes|configuration)s? for",
    ),
    rule("quant-ignore-mismatch", "was never loaded (still NaN)", 84),
    rule("quant-ignore-mismatch", "Mixed quant_algo within fused layer", 84),
)


def _next_line(hit: Hit) -> Hit:
    """The hit moved to the `Value error, …` line of the same report, which names the value."""
    for line in hit.context.lines:
        if hit.line.number < line.number <= hit.line.number + 6:
            match = re.search(r"unknown quantization name '(?P<name>[^']*)'", line.message)
            if match:
                return Hit(hit.rule, match, type(hit.spot)(line, hit.spot.trace), hit.context)
    return hit
