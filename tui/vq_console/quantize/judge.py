"""What is known before a quantization runs: which layers, whether the groups divide them, room, memory, time. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.core.text import counted, nearest, seconds_text
from vq_console.quantize.model import Judged, Layer, Note, Request, Scheme, Source
from vq_console.quantize.schemes import GROUP_SIZES, SERVED_GROUPS, find_scheme, needs_data

_GIB = 2**30
_SPARE_GIB = 1.0
_TOOL_GIB = 1.5
"""Memory of the tool itself, before any weight."""

_LEFT_ALONE: tuple[tuple[str, str], ...] = (
    (r"re:.*\.mlp\.gate$", "MoE routers"),
    (r"re:.*\.block_sparse_moe\.gate$", "MoE routers"),
    (r"re:.*\.router$", "MoE routers"),
    (r"re:.*\.feed_forward\.router$", "MoE routers"),
    (r"re:.*\.shared_expert_gate$", "gates of shared experts"),
    (r"re:.*\.linear_attn\..*", "linear-attention layers"),
    (r"re:.*\.mamba\..*", "Mamba layers"),
    (r"re:.*\.mixer\.(in_proj|out_proj|x_proj|dt_proj)$", "Mamba layers"),
    (r"re:.*(^|\.)(visual|vision_tower|vision_model|vision_encoder)\..*", "the vision part"),
    (r"re:.*(^|\.)(multi_modal_projector|mm_projector)\..*", "the vision part"),
    (r"re:.*(^|\.)(audio_tower|audio_encoder)\..*", "the audio part"),
)
"""Layers that lose much and save little; a pattern is used only where it matches something."""

_SPLIT_INPUTS = re.compile(r"\.(o_proj|down_proj|out_proj|dense_4h_to_h|fc2|w2)$")


@dataclass(frozen=True, slots=True)
class Room:
    """What this machine has free, GiB; None is unknown. `rates` are earlier runs here."""

    disk_gib: float | None
    memory_gib: float | None
    rates: Sequence[Mapping[str, Any]] = ()


def judge(request: Request, source: Source, room: Room) -> Judged:
    """Make the open choices of a request and say everything that is known before it runs."""
    scheme, method = find_scheme(request.scheme, request.method)
    check_patterns(request.ignore)
    ignore, spared = ignored(request.ignore, source)
    quantized = tuple(layer for layer in source.layers if not matches_any(layer.name, ignore))
    notes: list[Note] = []
    group = request.group_size
    if scheme.group_free:
        group, said = _group(request, scheme, quantized)
        notes += said
    elif group is not None and group != scheme.group:
        fixed = f"groups of {scheme.group}" if scheme.group else "no groups"
        notes.append(Note("group-size-fixed", "error", f"{scheme.name} has {fixed}", "leave out --group-size"))
    else:
        group = scheme.group
        notes += _fixed_group(scheme, quantized)
    if request.kv_cache and scheme.maker != "compressor":
        notes.append(
            Note(
                "kv-cache-tool",
                "error",
                f"{scheme.name}: scales for a KV cache are made with LLM Compressor only",
                "FP8_STATIC --kv-cache fp8, or NVFP4 --kv-cache fp8",
            )
        )
    chosen = replace(request, scheme=scheme.name, method=method, group_size=group)
    notes += _ignore_notes(request.ignore, source.layers)
    notes += _layer_notes(quantized, spared, source.facts)
    size = predicted_bytes(scheme, group, quantized, source) / _GIB
    memory = needed_memory_gib(source, chosen, scheme)
    notes += _room_notes(size, memory, room, chosen)
    seconds = expected_seconds(room.rates, source.parameters, chosen)
    if seconds is None:
        notes.append(Note("time-unknown", "info", "how long it takes here is not known: nothing like it was made yet"))
    else:
        notes.append(Note("time", "info", f"about {seconds_text(seconds)}, from earlier runs on this machine"))
    if needs_data(scheme, method, request.kv_cache) and request.data is None:
        notes.append(
            Note(
                "data-generated",
                "info",
                f"calibrated with {counted(request.samples, 'text')} that the model writes itself",
                "--data FILE.jsonl takes your own prompts, which know your use better",
            )
        )
    return Judged(chosen, scheme, ignore, quantized, size, memory, seconds, tuple(notes))


def ignored(given: Sequence[str], source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(patterns of layers to leave in 16 bits, what they are): lm_head, the usual sensitive ones here, and `given`."""
    names = [layer.name for layer in source.layers]
    patterns, words = ["lm_head"], []
    if any(name.endswith(".lm_head") for name in names):
        patterns.append("re:.*lm_head$")
    for pattern, what in _LEFT_ALONE:
        if any(matches(name, pattern) for name in names):
            patterns.append(pattern)
            words.append(what)
    return tuple(dict.fromkeys([*patterns, *given])), tuple(dict.fromkeys(words))


def check_patterns(given: Sequence[str]) -> None:
    """Raise UsageError for a pattern that no layer can be held against."""
    for pattern in given:
        try:
            re.compile(pattern[3:] if pattern.startswith("re:") else "")
        except re.error as error:
            raise UsageError(
                f"--ignore {pattern}: not a regular expression: {error}", "such as --ignore 're:.*down_proj$'"
            ) from None


def matches(name: str, pattern: str) -> bool:
    """Whether a layer is meant, as compressed-tensors decides it: `re:` and a regular expression, or the name."""
    if not pattern.startswith("re:"):
        return name == pattern
    return re.match(pattern[3:], name) is not None


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether any of the patterns means this layer."""
    return any(matches(name, pattern) for pattern in patterns)


def dividing_groups(layers: Sequence[Layer], tensor_parallel: int = 1) -> tuple[int, ...]:
    """The usual group sizes that divide the inputs of every layer, largest first, also once split over GPUs."""
    return tuple(size for size in GROUP_SIZES if all(_divides(layer, size, tensor_parallel) for layer in layers))


def predicted_bytes(scheme: Scheme, group: int | None, quantized: Sequence[Layer], source: Source) -> float:
    """The size of the result's tensors, to a few percent."""
    inside = {f"{layer.name}.weight" for layer in quantized}
    total = float(sum(nbytes for name, (_, _, nbytes) in source.stored.items() if name not in inside))
    for layer in quantized:
        total += layer.elements * scheme.bits / 8
        if group:
            total += layer.elements / group * scheme.scale_bytes
        elif scheme.block:
            total += layer.elements / (scheme.block[0] * scheme.block[1]) * scheme.scale_bytes
        elif scheme.per_channel:
            total += layer.outputs * scheme.scale_bytes
    return total


def needed_memory_gib(source: Source, request: Request, scheme: Scheme) -> float:
    """Main memory at the peak: the 16-bit model, what is made of it, the caches of calibration, the tool itself."""
    weights = source.size_bytes / _GIB
    hidden = source.facts.get("hidden_size")
    cache, held = 0.0, 1.6
    if needs_data(scheme, request.method, request.kv_cache):
        # Without a GPU calibration computes in 32 bits.
        held = 2.6
    if needs_data(scheme, request.method, request.kv_cache) and isinstance(hidden, int):
        # Inputs of the current layer for every sample, kept twice (before and after), in 32 bits at worst.
        cache = request.samples * request.sequence_length * hidden * 4 * 2 / _GIB
        if "gptq" in request.method:
            cache += max((layer.inputs for layer in source.layers), default=0) ** 2 * 4 * 3 / _GIB
    return weights * held + cache + _TOOL_GIB


def expected_seconds(rates: Sequence[Mapping[str, Any]], parameters: int, request: Request) -> float | None:
    """The time from earlier runs of the same kind here, by parameters (and samples); None without any."""
    estimates = []
    for rate in rates:
        if rate.get("scheme") != request.scheme or rate.get("method") != request.method:
            continue
        try:
            scale = parameters / float(rate["parameters"])
            if request.method != "rtn":
                scale *= request.samples / max(1, int(rate.get("samples") or request.samples))
            estimates.append(float(rate["seconds"]) * max(scale, 0.2))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            continue
    return sorted(estimates)[len(estimates) // 2] if estimates else None


def _divides(layer: Layer, size: int, tensor_parallel: int) -> bool:
    inputs = layer.inputs
    if tensor_parallel > 1 and _SPLIT_INPUTS.search(layer.name):
        if inputs % tensor_parallel:
            return False
        inputs //= tensor_parallel
    return inputs % size == 0


def _group(request: Request, scheme: Scheme, layers: Sequence[Layer]) -> tuple[int | None, list[Note]]:
    usable = dividing_groups(layers, request.tensor_parallel)
    served = [size for size in usable if size in SERVED_GROUPS]
    split = f" split over {request.tensor_parallel} GPUs" if request.tensor_parallel > 1 else ""
    works = f"group sizes that divide every layer{split}: {', '.join(map(str, usable)) or 'none'}"
    if request.group_size is None:
        wanted = scheme.group or 128
        if wanted in usable:
            return wanted, []
        bad = _first_bad(layers, wanted, request.tensor_parallel)
        if not served:
            return None, [Note("group-size-divides", "error", f"{bad}; {works}", _leave_out(layers, request))]
        return served[0], [Note("group-size-chosen", "warning", f"group size {served[0]}: {bad}", works)]
    if request.group_size < 1:
        return None, [Note("group-size-divides", "error", f"{request.group_size} is no group size", works)]
    if not all(_divides(layer, request.group_size, request.tensor_parallel) for layer in layers):
        bad = _first_bad(layers, request.group_size, request.tensor_parallel)
        return None, [Note("group-size-divides", "error", f"{bad}; {works}", _leave_out(layers, request))]
    notes = []
    if request.group_size not in SERVED_GROUPS:
        notes.append(
            Note(
                "group-size-served",
                "warning",
                f"vLLM's INT kernels take groups of {', '.join(map(str, SERVED_GROUPS))}, not {request.group_size}",
                works,
            )
        )
    return request.group_size, notes


def _fixed_group(scheme: Scheme, layers: Sequence[Layer]) -> list[Note]:
    if scheme.group is not None and not all(_divides(layer, scheme.group, 1) for layer in layers):
        bad = _first_bad(layers, scheme.group, 1)
        return [
            Note("group-size-divides", "error", bad, "leave those layers out with --ignore, or take another scheme")
        ]
    if scheme.block is not None:
        rows, columns = scheme.block
        odd = [layer for layer in layers if layer.outputs % rows or layer.inputs % columns]
        if odd:
            one = odd[0]
            verb = "is" if len(odd) == 1 else "are"
            return [
                Note(
                    "block-divides",
                    "warning",
                    f"{counted(len(odd), 'layer')} {verb} no multiple of the {rows} × {columns} block, such as "
                    f"{one.name} ({one.outputs} × {one.inputs}); vLLM refuses such layers or splits them badly",
                    "FP8_DYNAMIC has no blocks",
                )
            ]
    return []


def _first_bad(layers: Sequence[Layer], size: int, tensor_parallel: int) -> str:
    bad = [layer for layer in layers if not _divides(layer, size, tensor_parallel)]
    if not bad:
        return f"groups of {size} divide every layer"
    one = bad[0]
    inputs = f"{one.inputs} inputs"
    if tensor_parallel > 1 and _SPLIT_INPUTS.search(one.name):
        inputs += f", {one.inputs / tensor_parallel:g} on each of {tensor_parallel} GPUs"
    more = f", and {counted(len(bad) - 1, 'more layer')}" if len(bad) > 1 else ""
    return f"groups of {size} do not divide {one.name} ({inputs}){more}"


def _leave_out(layers: Sequence[Layer], request: Request) -> str:
    usable = dividing_groups(layers, request.tensor_parallel)
    best = next((size for size in usable if size in SERVED_GROUPS), None)
    return f"take --group-size {best}" if best else "leave those layers out with --ignore, or take FP8_DYNAMIC or W8A8"


def _ignore_notes(given: Sequence[str], layers: Sequence[Layer]) -> list[Note]:
    """One warning for each pattern that leaves nothing out; `lm_head` is left alone whether it was named or not."""
    notes = []
    for pattern in given:
        if pattern == "lm_head" or any(matches(layer.name, pattern) for layer in layers):
            continue
        near = nearest(pattern, [layer.name for layer in layers])
        shown = near or (layers[0].name if layers else "")
        fix = "a layer's whole name, or re: and a regular expression that its name begins with"
        said = f"--ignore {pattern} matches no layer"
        notes.append(Note("ignore-matches-nothing", "warning", said, fix + (f", such as {shown}" if shown else "")))
    return notes


def _layer_notes(quantized: Sequence[Layer], spared: Sequence[str], facts: Mapping[str, Any]) -> list[Note]:
    notes = []
    if not quantized:
        notes.append(Note("nothing-to-quantize", "error", "no layer is left to quantize", "ignore fewer layers"))
    if spared:
        notes.append(Note("layers-left", "info", f"left in 16 bits: lm_head and {', '.join(spared)}"))
    if facts.get("moe"):
        notes.append(
            Note(
                "moe",
                "warning",
                "a mixture of experts: rare experts see little calibration data, and every expert must be held at once",
                "data-free schemes (FP8_DYNAMIC, RTN) do not depend on it",
            )
        )
    if any("linear-attention" in words or "Mamba" in words for words in spared):
        notes.append(
            Note(
                "hybrid-attention",
                "warning",
                "hybrid attention: its recurrent layers stay in 16 bits, so it shrinks less",
            )
        )
    return notes


def _room_notes(size: float, memory: float, room: Room, request: Request) -> list[Note]:
    notes = []
    if room.disk_gib is not None and size + _SPARE_GIB > room.disk_gib:
        notes.append(
            Note(
                "disk-full",
                "error",
                f"{request.out.parent}: the result takes {size:.2f} GiB, {room.disk_gib:.2f} GiB are free",
                "make room, or choose another disk with --out",
            )
        )
    if room.memory_gib is not None and memory > room.memory_gib:
        notes.append(
            Note(
                "memory-too-small",
                "error",
                f"about {memory:.1f} GiB of main memory are needed, {room.memory_gib:.1f} GiB are available",
                "stop what uses it, or take fewer --samples, a shorter --sequence-length or a data-free scheme",
            )
        )
    return notes
