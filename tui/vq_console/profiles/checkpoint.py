"""Facts of a model's checkpoint: shape, quantization, sizes, and what is wrong with its files.

Reads config.json, ModelOpt's file, safetensors and GGUF headers from a local folder or the Hugging Face cache; asks the
hub only when told to. Never loads a tensor, never runs code of the model, and turns every broken file into a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vq_console.core.text import strip_control
from vq_console.profiles import checkpoint_cache
from vq_console.profiles.configfacts import model_facts
from vq_console.profiles.gguf import read_gguf
from vq_console.profiles.hubcache import find_cached
from vq_console.profiles.quantfacts import quantization_facts
from vq_console.profiles.safetensors import Header, Tensor, read_header
from vq_console.profiles.store import resolve_model

_MAX_JSON = 64 * 1024 * 1024
_GIB = 2**30
_HALF_BYTE = frozenset({"F4", "F4_E2M1", "F4_E2M1FN_X2"})
_NO_PARAMETERS = (
    "_scale", "_scales", ".scales", ".qzeros", ".g_idx", "_zero_point", "_shape", "_scale_inv", "_scale_2", "_g_idx",
    ".input_scale", "_global_scale", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known of a model. `facts` has config.json's own names plus what `quantfacts` and sizes add; it is empty
    where this machine holds nothing of the model. Bytes are those of tensors in the files."""

    model: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    origin: str = "absent"
    """`folder`, `cache`, `gguf`, `hub` or `absent`."""
    revision: str | None = None
    problems: tuple[str, ...] = ()
    parameters: int | None = None
    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict)

    @property
    def here(self) -> bool:
        """Whether files of it are on this machine."""
        return self.path is not None


def read_checkpoint(
    model: str, *, base: Path | None = None, online: bool = False, revision: str | None = None
) -> Checkpoint:
    """The facts of `model`: a folder or file (relative to `base`), a hub id in the cache, or `repo:quant` for GGUF.

    With `online` a hub id that is not here is looked up at the hub (extra `hub`, a few seconds at most); trouble doing
    so is a problem of the answer, never an error.
    """
    place = resolve_model(model, base)
    if place.startswith("/"):
        path = Path(place)
        if path.suffix.lower() == ".gguf" or path.is_file():
            return _gguf(model, path, "gguf")
        if not path.is_dir():
            return Checkpoint(model, problems=(f"{path}: no such folder",))
        return _folder(model, path, "folder", None)
    repository, _, quant = place.partition(":")
    cached = find_cached(repository, revision)
    if cached is not None:
        files = sorted(cached.path.glob("*.gguf"))
        if quant or (files and not (cached.path / "config.json").exists()):
            chosen = [file for file in files if quant.lower() in file.name.lower()]
            if chosen:
                return _gguf(model, chosen[0], "cache", cached.revision)
        else:
            found = _folder(model, cached.path, "cache", cached.revision)
            if cached.incomplete and found.problems:
                note = f"{cached.path}: a download was begun and not ended: `vq-console pull {repository}` goes on"
                found = replace(found, problems=(note, *found.problems))
            if found.facts or not online:
                return found
    if online:
        from vq_console.profiles.hub import look_up

        return look_up(model, revision)
    return Checkpoint(model)


def facts_of(
    config: Mapping[str, Any], modelopt: Mapping[str, Any] | None, tensors: Mapping[str, Tensor] | None
) -> dict[str, Any]:
    """The flat facts of a parsed config.json, ModelOpt's parsed file, and the tensors of all headers. Pure."""
    facts = model_facts(config)
    facts.update(quantization_facts(config, modelopt))
    if not tensors:
        return facts
    if "tie_word_embeddings" not in facts:
        facts["tie_word_embeddings"] = not any(name.endswith("lm_head.weight") for name in tensors)
    if any(name.endswith((".q_proj.bias", ".qkv_proj.bias", ".c_attn.bias")) for name in tensors):
        facts["attention_bias"] = True
    facts["kv_scales"] = any(name.endswith((".k_scale", ".k_proj.output_scale", ".kv_scale")) for name in tensors)
    facts["weights_gib"] = round(sum(tensor.nbytes for tensor in tensors.values()) / _GIB, 3)
    facts["parameters"] = count_parameters(tensors, facts.get("bits"))
    if "dtype" not in facts:
        kinds = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
        present = [kinds[tensor.dtype] for tensor in tensors.values() if tensor.dtype in kinds]
        if present:
            facts["dtype"] = max(set(present), key=present.count)
    return facts


def count_parameters(tensors: Mapping[str, Tensor], bits: Any = None) -> int:
    """Weights of the model before they were packed; scales, zero points and indices do not count. Pure."""
    total = 0
    for name, tensor in tensors.items():
        if name.endswith(_NO_PARAMETERS):
            continue
        factor = 1
        if tensor.dtype == "I32" and isinstance(bits, int) and 0 < bits <= 32:
            factor = 32 // bits
        elif tensor.dtype in _HALF_BYTE or (tensor.dtype in ("U8", "I8") and bits == 4):
            factor = 2
        total += tensor.elements * factor
    return total


def _folder(model: str, path: Path, origin: str, revision: str | None) -> Checkpoint:
    key = checkpoint_cache.fingerprint(path)
    known = checkpoint_cache.kept(key)
    if known is not None:
        facts = known["facts"]
        return Checkpoint(
            model,
            facts,
            path,
            origin,
            revision,
            tuple(known["problems"]),
            facts.get("parameters"),
            known["bytes_by_dtype"],
        )
    found: list[str] = []
    config = read_config(path / "config.json", found)
    if config is None:
        params = path / "params.json"
        if params.exists():
            found.append(f"{params}: this is Mistral's own format; its shape is not read")
        elif not (path / "config.json").exists() and not (path / "config.json").is_symlink():
            found.append(f"{path / 'config.json'}: is missing")
    modelopt = read_config(path / "hf_quant_config.json", found)
    headers = _headers(path, found)
    tensors = {name: tensor for header in headers.values() for name, tensor in header.tensors.items()}
    if config is None:
        return Checkpoint(model, {}, path, origin, revision, tuple(found))
    facts = facts_of(config, modelopt, tensors)
    size = sum(header.size for header in headers.values()) or _size_of_old_weights(path)
    if size:
        facts["size_gib"] = round(size / _GIB, 3)
        facts.setdefault("weights_gib", facts["size_gib"])
    facts["chat_template"] = _has_chat_template(path)
    by_dtype: dict[str, int] = {}
    for tensor in tensors.values():
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.nbytes
    by_dtype = dict(sorted(by_dtype.items()))
    if len(tensors) >= checkpoint_cache.WORTH_KEEPING:
        checkpoint_cache.keep(key, {"facts": facts, "problems": found, "bytes_by_dtype": by_dtype})
    return Checkpoint(model, facts, path, origin, revision, tuple(found), facts.get("parameters"), by_dtype)


def _gguf(model: str, path: Path, origin: str, revision: str | None = None) -> Checkpoint:
    if path.suffix.lower() != ".gguf":
        return Checkpoint(model, {}, path, origin, revision, (f"{path}: is neither a folder nor a GGUF file",))
    facts, problem = read_gguf(path)
    problems = (f"{path}: {problem}",) if problem else ()
    return Checkpoint(model, facts, path, origin, revision, problems, facts.get("parameters"))


def _headers(path: Path, problems: list[str]) -> dict[str, Header]:
    """Headers of the files that vLLM would load: those of the index, else all but Mistral's consolidated ones."""
    index = read_config(path / "model.safetensors.index.json", problems)
    weight_map = index.get("weight_map") if index is not None else None
    if isinstance(weight_map, dict):
        names = sorted({name for name in weight_map.values() if isinstance(name, str) and "/" not in name})
    else:
        found = sorted(file.name for file in path.glob("*.safetensors"))
        names = [name for name in found if not name.startswith("consolidated")] or found
    headers: dict[str, Header] = {}
    missing: list[str] = []
    for name in names:
        header = read_header(path / name)
        if header.problem in ("is missing", "is a link to a blob that is not there"):
            missing.append(name)
            continue
        if header.problem:
            problems.append(f"{path / name}: {header.problem}")
        headers[name] = header
    if missing:
        problems.append(
            f"{path}: half downloaded: {len(missing)} of {len(names)} weight files are missing, such as {missing[0]}"
        )
    if not names and not _size_of_old_weights(path):
        problems.append(f"{path}: holds no weights")
    return headers


def _size_of_old_weights(path: Path) -> int:
    total = 0
    for pattern in ("pytorch_model*.bin", "*.pt", "*.pth"):
        for file in path.glob(pattern):
            try:
                total += file.stat().st_size
            except OSError:
                continue
    return total


def _has_chat_template(path: Path) -> bool:
    if any((path / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    tokenizer = read_config(path / "tokenizer_config.json", [])
    return bool(tokenizer and tokenizer.get("chat_template"))


def read_config(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """The object in a JSON file; None when absent or broken, and then `problems` says how."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_JSON + 1)
    except FileNotFoundError:
        if path.is_symlink():
            problems.append(f"{path}: is a link to a blob that is not there: fetch it again")
        return None
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return None
    if raw.startswith(b"version https://git-lfs"):
        problems.append(f"{path}: is a Git LFS pointer, not the file: run `git lfs pull`")
        return None
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        problems.append(f"{path}: not valid JSON: {strip_control(str(error))[:120]}")
        return None
    if not isinstance(value, dict) or len(raw) > _MAX_JSON:
        problems.append(f"{path}: a JSON object was expected")
        return None
    return value
