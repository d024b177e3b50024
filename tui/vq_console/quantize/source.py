"""Reading the checkpoint that is to be quantized: its linear layers by name and shape. Reads headers only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from vq_console.core.errors import MissingError, UsageError
from vq_console.profiles.checkpoint import read_checkpoint
from vq_console.profiles.safetensors import Tensor, read_header
from vq_console.quantize.model import Layer, Source

_NO_LINEAR = re.compile(
    r"(?:^|\.)(?:\w*embed\w*|wte|wpe|\w*norm\w*|conv\w*|A_log|dt_bias|rotary\w*)(?:\.|$)", re.IGNORECASE
)


def read_source(model: str) -> Source:
    """The 16-bit checkpoint of `model`, a folder or a hub id in the cache.

    Raises MissingError when it is not on this machine or not whole, UsageError when it is quantized already.
    """
    found = read_checkpoint(model)
    if found.path is None and model.startswith("/"):
        raise MissingError(f"{model}: no such folder", "name the folder of a model, or its hub id")
    if found.path is None:
        raise MissingError(f"{model}: its files are not on this machine", f"fetch it first: vq-console pull {model}")
    if not found.path.is_dir():
        raise MissingError(f"{model}: is no folder of safetensors files", "start from the 16-bit checkpoint's folder")
    if found.problems:
        raise MissingError(f"{model}: {found.problems[0]}", "fetch it again, or choose another folder")
    if found.facts.get("quant_method"):
        raise UsageError(
            f"{model}: is quantized already ({found.facts['quant_method']})", "start from the 16-bit checkpoint"
        )
    tensors = read_tensors(found.path)
    layers = linear_layers(tensors.items())
    if not layers:
        raise MissingError(f"{found.path}: no linear layers were found in its safetensors files")
    stored = {name: (tensor.dtype, tensor.shape, tensor.nbytes) for name, tensor in tensors.items()}
    return Source(model, found.path, found.revision, found.facts, layers, stored)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors files, by name. Raises MissingError for a file that is not whole."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if file.name.startswith("consolidated") and len(list(folder.glob("*.safetensors"))) > 1:
            continue
        header = read_header(file)
        if header.problem:
            raise MissingError(f"{file}: {header.problem}", "fetch it again")
        tensors.update(header.tensors)
    return tensors


def linear_layers(tensors: Iterable[tuple[str, Tensor]]) -> tuple[Layer, ...]:
    """The linear layers among tensors: two-dimensional weights that are no embedding, norm or convolution. Pure."""
    found = []
    for name, tensor in tensors:
        module = name.removesuffix(".weight")
        if module != name and len(tensor.shape) == 2 and not _NO_LINEAR.search(module):
            found.append(Layer(module, tensor.shape[0], tensor.shape[1]))
    return tuple(found)
