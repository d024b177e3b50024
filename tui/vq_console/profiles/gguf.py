"""Headers of GGUF files: metadata, tensor shapes and the file's quantization, read from its beginning.

Touches files, reads at most a few MiB, and never fails on what it finds. Source: the GGUF specification, version 3
(ggml-org/ggml `docs/gguf.md`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_MAX_READ = 64 * 1024 * 1024
_MAX_ENTRIES = 1_000_000
_NAMES: Mapping[str, str] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "vocab_size": "vocab_size",
}
_QUANT = re.compile(r"(?:IQ\d_[A-Z0-9_]+|Q\d(?:_[01K](?:_[SMLX]+)?)?|BF16|F16|F32|MXFP4|TQ\d_0)", re.IGNORECASE)


class _Reader:
    """Reads little-endian values from a file and refuses to run past `_MAX_READ`."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.left = _MAX_READ

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError("its header is larger than any real one")
        self.left -= count
        raw = self.file.read(count)
        if len(raw) < count:
            raise ValueError("is cut off within its header")
        return bytes(raw)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY or depth > 4:
            raise ValueError("its header holds a value of an unknown kind")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in _SCALARS:
            self.take(count * struct.calcsize(_SCALARS[inner]))
            return count
        if count > _MAX_ENTRIES:
            raise ValueError("its header holds an endless list")
        for _ in range(count):
            self.value(inner, depth + 1)
        return count


def read_gguf(path: Path) -> tuple[dict[str, Any], str | None]:
    """Facts of a GGUF file under config.json's names, and what is wrong with it or None.

    Arrays are read over; of them only the length is kept. `format` is the quantization in the file's name.
    """
    facts: dict[str, Any] = {"quant_method": "gguf"}
    named = _QUANT.findall(path.name)
    if named:
        facts["format"] = named[-1].upper()
    try:
        facts["size_gib"] = round(path.stat().st_size / 2**30, 3)
        with open(path, "rb") as file:
            metadata, parameters = _read(_Reader(file))
    except FileNotFoundError:
        return {}, "is missing"
    except OSError as error:
        return {}, f"cannot be read: {error.strerror or error}"
    except (ValueError, struct.error, MemoryError, OverflowError) as error:
        return facts, str(error) if isinstance(error, ValueError) else "has a damaged header"
    facts["weights_gib"] = facts["size_gib"]
    facts["parameters"] = parameters
    architecture = metadata.get("general.architecture")
    if isinstance(architecture, str):
        facts["model_type"] = architecture
        for key, name in _NAMES.items():
            value = metadata.get(f"{architecture}.{key}")
            if isinstance(value, int) and not isinstance(value, bool):
                facts[name] = value
        if isinstance(metadata.get("tokenizer.ggml.tokens"), int):
            facts.setdefault("vocab_size", metadata["tokenizer.ggml.tokens"])
        facts["moe"] = bool(facts.get("num_experts"))
    return facts, None


def _read(reader: _Reader) -> tuple[dict[str, Any], int]:
    magic = reader.take(4)
    if magic != b"GGUF":
        pointer = magic + reader.take(8) == b"version http"
        raise ValueError("is a Git LFS pointer, not the file: run `git lfs pull`" if pointer else "is no GGUF file")
    version = reader.number("<I")
    if version not in (2, 3):
        raise ValueError(f"is GGUF of version {version}, which is not read here")
    tensors, entries = reader.number("<Q"), reader.number("<Q")
    if max(tensors, entries) > _MAX_ENTRIES:
        raise ValueError("has a damaged header")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = reader.text()
        metadata[key] = reader.value(reader.number("<I"))
    parameters = 0
    for _ in range(tensors):
        reader.text()
        count = 1
        for _ in range(min(reader.number("<I"), 8)):
            count *= reader.number("<Q")
        reader.number("<I")
        reader.number("<Q")
        parameters += count
    return metadata, parameters
