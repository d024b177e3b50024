"""Small checkpoints as files: safetensors with real headers, configs of every kind of quantization."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def safetensors_bytes(tensors: Mapping[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file with zero data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(end)


def write_model(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[str, list[int]]] | None = None,
    **files: Any,
) -> Path:
    """A model folder; `files` are further JSON files by their name without `.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    if tensors is None:
        tensors = {"model.embed_tokens.weight": ("BF16", [16, 8]), "model.norm.weight": ("BF16", [8])}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def group(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One config group of compressed-tensors."""
    return {"targets": ["Linear"], "weights": dict(weights), "input_activations": inputs, **more}


def compressed(form: str, **groups: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors."""
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": groups,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, list[int]]) -> bytes:
    """The header of a GGUF file, version 3; integers are u32, lists are lists of text."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(item) for item in value)
        else:
            out += struct.pack("<II", 4, value)
    for name, shape in tensors.items():
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        out += struct.pack("<IQ", 0, 0)
    return out
