"""Proof that a checkpoint is whole: config, every tensor of the source accounted for, numbers finite, size as expected.

Reads tensors from disk with numpy (only inside functions, in the job's own process); runs no model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vq_console.engines.packages import mib
from vq_console.profiles.checkpoint import read_checkpoint
from vq_console.quantize.model import Judged, Source
from vq_console.quantize.source import read_tensors

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
_SIZE_TOLERANCE = 0.15
_CHUNK = 16 * 2**20
_CHECKED = frozenset({"BF16", "F16", "F32", "F8_E4M3"})


def verify(folder: Path, judged: Judged, source: Source) -> tuple[str, ...]:
    """Everything that is wrong with the result; empty when it may be offered."""
    found = read_checkpoint(str(folder))
    problems = list(found.problems)
    problems += _config_problems(folder, judged)
    if problems:
        return tuple(problems)
    tensors = read_tensors(folder)
    problems += missing_tensors(tensors, judged, source)
    total = sum(tensor.nbytes for tensor in tensors.values())
    expected = judged.size_gib * 2**30
    if abs(total - expected) > _SIZE_TOLERANCE * expected:
        problems.append(f"{folder}: its tensors take {mib(total)}, {mib(round(expected))} were expected")
    for file in sorted(folder.glob("*.safetensors")):
        problems += number_problems(file)
    return tuple(problems)


def missing_tensors(tensors: Mapping[str, Any], judged: Judged, source: Source) -> Iterator[str]:
    """What the source has and the result lacks; a quantized layer has its weight and a scale, the rest is as it was."""
    quantized = {layer.name for layer in judged.quantized}
    tied = bool(source.facts.get("tie_word_embeddings"))
    absent: list[str] = []
    for name, (_, shape, _) in source.stored.items():
        module = name.removesuffix(".weight")
        if module in quantized and module != name:
            if not ({name, f"{module}.weight_packed"} & set(tensors) and f"{module}.weight_scale" in tensors):
                absent.append(name)
        elif name not in tensors:
            if not (tied and name.endswith("lm_head.weight")):
                absent.append(name)
        elif tuple(tensors[name].shape) != tuple(shape):
            yield f"{name}: has the shape {list(tensors[name].shape)}, the source {list(shape)}"
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        yield f"the result lacks {absent[0]}{more} of its source"
    if judged.request.kv_cache:
        yield from _kv_problems(tensors, judged, source)


def _kv_problems(tensors: Mapping[str, Any], judged: Judged, source: Source) -> Iterator[str]:
    """Layers with keys and values whose cache has no scales, or not one for each head where that was asked for."""
    have = {name.removesuffix(".k_scale") for name in tensors if name.endswith(".k_scale")}
    have &= {name.removesuffix(".v_scale") for name in tensors if name.endswith(".v_scale")}
    lacking = sorted({n.removesuffix(".k_proj.weight") for n in source.stored if n.endswith(".k_proj.weight")} - have)
    if not have:
        yield "the result has no scales for its KV cache"
    elif lacking:
        yield f"the result has no scales for the KV cache of {lacking[0]}"
    heads = source.facts.get("num_key_value_heads") if judged.request.kv_cache == "fp8_per_head" else None
    for name in sorted(have) if isinstance(heads, int) else ():
        if math.prod(tensors[f"{name}.k_scale"].shape) != heads:
            yield f"{name}: its {heads} heads have no scale each"
            return


def number_problems(file: Path) -> Iterator[str]:
    """Tensors of a file that hold NaN or infinity, and scales that are all zero; integers cannot."""
    import numpy as np

    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        table = json.loads(opened.read(length))
    data = np.memmap(file, dtype=np.uint8, mode="r", offset=8 + length)
    for name, entry in table.items():
        if name == "__metadata__" or entry["dtype"] not in _CHECKED:
            continue
        begin, end = entry["data_offsets"]
        nothing = True
        for at in range(begin, end, _CHUNK):
            piece = data[at : min(end, at + _CHUNK)]
            if not _finite(piece, entry["dtype"]):
                yield f"{file.name}: {name} holds NaN or infinity"
                nothing = False
                break
            nothing = nothing and not piece.any()
        if nothing and end > begin and name.endswith("_scale"):
            yield f"{file.name}: {name} is zero throughout"


def _finite(piece: Any, dtype: str) -> bool:
    import numpy as np

    if dtype == "F32":
        return bool(np.isfinite(piece.view(np.float32)).all())
    if dtype == "F16":
        return bool(np.isfinite(piece.view(np.float16)).all())
    if dtype == "BF16":
        # An exponent of all ones is NaN or infinity.
        return bool(((piece.view(np.uint16) & 0x7F80) != 0x7F80).all())
    return bool(((piece & 0x7F) != 0x7F).all())


def _config_problems(folder: Path, judged: Judged) -> Iterator[str]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield f"{folder / 'config.json'}: {error}"
        return
    quantization = config.get("quantization_config")
    method = "compressed-tensors" if judged.scheme.maker == "compressor" else "modelopt"
    if not isinstance(quantization, dict) or quantization.get("quant_method") != method:
        yield f"{folder / 'config.json'}: does not say that the checkpoint is quantized"
        return
    if not any((folder / name).exists() for name in _TOKENIZERS):
        yield f"{folder}: has no tokenizer"
    if method == "modelopt":
        algorithm = quantization.get("quant_algo")
        if algorithm != judged.scheme.format:
            yield f"{folder / 'config.json'}: its format is {algorithm}, not {judged.scheme.format}"
        return
    if quantization.get("format") not in (judged.scheme.format, "mixed-precision"):
        yield f"{folder / 'config.json'}: its format is {quantization.get('format')}, not {judged.scheme.format}"
    groups = quantization.get("config_groups") or {}
    sizes = {(group.get("weights") or {}).get("group_size") for group in groups.values() if isinstance(group, dict)}
    if judged.scheme.group_free and sizes != {judged.request.group_size}:
        yield f"{folder / 'config.json'}: its group size is {sizes}, not {judged.request.group_size}"
