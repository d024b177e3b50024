"""Rules about several GPUs: how heads, layers and quantization groups divide."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.assign import skipped
from vq_console.preflight.rules.base import Context, Hit, put, rule
from vq_console.preflight.scheme import Scheme
from vq_console.preflight.values import whole
from vq_console.preflight.versions import span

WEIGHTS = "vLLM source: layers/quantization (partition checks), kernels/linear can_implement"


def _divisors(context: Context, total: int) -> list[int]:
    return [n for n in (1, 2, 4, 8, 16) if total % n == 0 and n <= context.s.tp]


@rule("tp-not-divisible", "error", source="vLLM source: config/model.py verify_with_parallel_config")
def heads(context: Context) -> Iterator[Hit]:
    """Attention heads must divide by the tensor-parallel size."""
    s = context.s
    count = whole(s.fact("num_attention_heads"))
    if count is None or count % s.tp == 0:
        return
    fits = max(_divisors(context, count))
    yield Hit(
        f"{count} attention heads do not divide by --tensor-parallel-size {s.tp}",
        fix=f"Use --tensor-parallel-size {fits}, or pipeline parallelism",
        patch=put(tensor_parallel_size=fits),
        severity=None if s.stated("num_attention_heads") is not None else "warning",
    )


@rule("too-few-gpus", "error", source="vLLM source: config/parallel.py (world size)")
def world(context: Context) -> Iterator[Hit]:
    """More GPUs asked for than there are."""
    s = context.s
    available = whole(s.target.get("gpu_count"))
    wanted = s.world * s.dp
    if available is None or wanted <= available or s.args.get("distributed_executor_backend") == "ray":
        return
    if s.device not in {"cuda", "rocm", "xpu"}:
        return
    if s.count("nnodes") or s.args.get("data_parallel_address"):
        return
    yield Hit(
        f"the profile needs {wanted} GPUs (tensor × pipeline × data parallel), and there are {available}",
        fix=f"Lower --tensor-parallel-size to {available} or below",
        patch=put(tensor_parallel_size=available) if s.pp == s.dp == 1 else None,
    )


@rule("too-few-gpus", "error", source="this console: [placement] of the profile")
def placement(context: Context) -> Iterator[Hit]:
    """A profile that asks for fewer GPUs than its own parallel sizes need."""
    s = context.s
    wanted = s.world * s.dp
    placed = s.profile.gpu_count
    if placed is not None and placed < wanted and s.device in {"cuda", "rocm", "xpu"}:
        yield Hit(
            f"[placement] gpu_count is {placed}, and the parallel sizes need {wanted} GPUs",
            fix=f"Set gpu_count = {wanted}, or lower --tensor-parallel-size",
            patch=put(tensor_parallel_size=placed) if s.pp == s.dp == 1 else None,
        )


@rule("cli-invalid-value", "error", source="vLLM source: config/model.py _verify_with_expert_parallelism")
def experts_needed(context: Context) -> Iterator[Hit]:
    """Expert parallelism on a dense model."""
    s = context.s
    if s.on("enable_expert_parallel") and s.moe is False and s.stated("hidden_size") is not None:
        yield Hit(
            "--enable-expert-parallel needs a model with experts",
            fix="Delete it",
            patch=put(enable_expert_parallel=False),
        )


def _row_inputs(context: Context) -> list[tuple[str, int]]:
    """(layer, input width) of every row-parallel layer whose width is stated or worked out."""
    shape = context.shape
    if shape is not None:
        return [(layer.name, layer.inner) for layer in shape.linears if layer.split == "row" and layer.count]
    s = context.s
    found = []
    width = whole(s.fact("intermediate_size"))
    if width:
        found.append(("mlp.down_proj", width))
    experts = whole(s.fact("moe_intermediate_size"))
    if experts:
        found.append(("mlp.experts.w2", experts))
    return found


def _column_parts(context: Context) -> list[tuple[str, int]]:
    shape = context.shape
    s = context.s
    found = []
    if shape is None:
        for key, name in (("intermediate_size", "mlp.gate_proj"), ("moe_intermediate_size", "mlp.experts.gate_proj")):
            width = whole(s.fact(key))
            if width:
                found.append((name, width))
        return found
    return [
        (layer.parts[0], layer.out // 2)
        for layer in shape.linears
        if layer.split == "column" and layer.count and ("gate_up" in layer.name or layer.name.endswith("w13"))
    ]


def _unit(scheme: Scheme) -> tuple[int, str] | None:
    """(what one shard must be a multiple of, its name) for a scheme."""
    if scheme.family == "wna16" and scheme.group and scheme.group > 0:
        return scheme.group, "quantization group"
    if scheme.family == "w4a8":
        return 128, "quantization group"
    if scheme.family == "fp8_block" and not scheme.online:
        return 128, "FP8 block"
    if scheme.family in {"nvfp4", "nvfp4_a16"}:
        return 16, "NVFP4 group"
    if scheme.family in {"mxfp4", "mxfp4_a16", "mxfp8"}:
        return 32, "MX block"
    return None


@rule("quant-tp-shape-mismatch", "error", source=WEIGHTS)
def partial_group(context: Context) -> Iterator[Hit]:
    """A shard that is no whole number of groups or blocks."""
    s = context.s
    scheme = context.resolution.linear
    moe = context.resolution.moe
    if context.resolution.online:
        return
    if scheme is None or not scheme.quantized:
        group = whole(s.stated("group_size"))
        if scheme is None and group and group > 0:
            scheme = Scheme("wna16", 4, group)
    shape = context.shape
    left = skipped(s, context.resolution, shape) if shape is not None else frozenset()
    for name, width in _row_inputs(context):
        if name in left:
            continue
        experts = "experts" in name and "shared" not in name
        used = moe if experts and moe is not None else scheme
        if used is None or (unit := _unit(used)) is None:
            continue
        if experts and s.on("enable_expert_parallel"):
            continue
        shard = width / s.tp
        if s.tp > 1 and shard % unit[0] != 0:
            yield _mismatch(context, name, width, unit, "input")
            return
        if s.tp == 1 and unit[1] == "quantization group" and width % unit[0] != 0:
            yield _mismatch(context, name, width, unit, "input")
            return
    if scheme is not None and scheme.family == "fp8_block" and s.tp > 1:
        for name, width in _column_parts(context):
            if "experts" in name and s.on("enable_expert_parallel"):
                continue
            if (width / s.tp) % 128 != 0:
                yield _mismatch(context, name, width, (128, "FP8 block"), "output")
                return


def _mismatch(context: Context, name: str, width: int, unit: tuple[int, str], side: str) -> Hit:
    s = context.s
    fits = max((n for n in (1, 2, 4, 8, 16) if n < s.tp and (width / n) % unit[0] == 0), default=None)
    shard = width / s.tp
    fix = "Lower --tensor-parallel-size, use pipeline parallelism, or a checkpoint with another group size"
    patch = None
    if "experts" in name:
        fix = "Use --enable-expert-parallel (experts are not cut), or a smaller --tensor-parallel-size"
        patch = put(enable_expert_parallel=True)
    elif fits is not None:
        fix = f"Use --tensor-parallel-size {fits}, or pipeline parallelism for the rest"
        patch = put(tensor_parallel_size=fits)
    return Hit(
        f"{name}: {side} {width} over {s.tp} GPUs is {shard:g} each, no multiple of the {unit[1]} of {unit[0]}",
        fix=fix,
        patch=patch,
        severity=None if _stated_width(context) else "warning",
    )


def _stated_width(context: Context) -> bool:
    """Whether the width and the group come from the checkpoint rather than from the model's name."""
    s = context.s
    width = s.stated("intermediate_size") is not None or s.stated("moe_intermediate_size") is not None
    return width and not context.resolution.presumed


@rule("quant-tp-shape-mismatch", "error", versions="<0.24", source="vLLM up to 0.20: marlin min_thread_n = 64")
def marlin_threads(context: Context) -> Iterator[Hit]:
    """Older Marlin wants 64 output columns and 128 inputs per GPU; newer releases pad."""
    s = context.s
    scheme = context.resolution.linear
    if scheme is None or scheme.family != "wna16" or s.sm is None or s.sm < 80 or context.resolution.presumed:
        return
    shape = context.shape
    if shape is None or s.tp == 1:
        return
    for layer in shape.linears:
        out, inner = layer.shard(s.tp)
        if layer.kind == "linear" and layer.count and (out % 64 or inner % 128):
            yield Hit(
                f"{layer.name}: {out} × {inner} on each GPU does not fit Marlin (64 × 128)",
                fix="Lower --tensor-parallel-size",
                patch=put(tensor_parallel_size=1),
            )
            return


@rule("quant-ignore-mismatch", "error", source="vLLM source: quant_utils (all shards of fused layers)")
def torn_checkpoint_list(context: Context) -> Iterator[Hit]:
    """A checkpoint whose ignore list names some parts of a fused layer only."""
    from vq_console.preflight.ignore import reach
    from vq_console.preflight.values import as_list

    s = context.s
    shape = context.shape
    patterns = as_list(s.stated("ignore"))
    if context.resolution.online or shape is None or not patterns or not span().holds(s.version):
        return
    found = reach(patterns, shape.linears)
    for name in found.torn:
        yield Hit(
            f"the checkpoint's ignore list names only some of the parts that vLLM fuses into {name}",
            evidence=f"ignore: {patterns[:6]}",
            fix="Correct quantization_config.ignore in config.json, or use a corrected upload",
        )
