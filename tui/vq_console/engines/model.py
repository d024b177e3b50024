"""An engine and its catalogue, as frozen values. None in a catalogue means unknown, never empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Engine:
    """A Python environment that has vLLM in it, named by its interpreter.

    `launch` is the argument list that comes before the model: the interpreter, `-m`, a module and, where that
    module has subcommands, `serve`. `device` is `cuda`, `cpu`, `rocm`, `xpu` or `tpu`. A simulated engine is
    this console's own stand-in; whatever it shows says SIMULATED.
    """

    python: str
    vllm_version: str | None
    device: str | None
    origin: str
    """Where it was found: `current`, `path`, `venv`, `conda`, `uv`, `console`, `given` or `simulator`."""
    site: str | None = None
    """The folder of the installed `vllm` package."""
    launch: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    """Distributions that register into `vllm.general_plugins`."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Versions of the distributions that decide what runs: torch, flashinfer-python, compressed-tensors, …"""
    problem: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """One serve flag. `kind` is `bool`, `int`, `float`, `str`, `json`, or `choice`; `many` takes several values."""

    name: str
    kind: str | None = None
    many: bool = False
    choices: tuple[str, ...] | None = None
    negatable: bool = False
    """Has a `--no-` form."""
    help: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What one vLLM accepts. `origin` is `source` (read from that installation), or `snapshot` (shipped, nearest
    version). `flags` is by name without dashes in front, with underscores."""

    vllm_version: str | None
    origin: str
    quantization: tuple[str, ...] | None = None
    deprecated: tuple[str, ...] | None = None
    online: tuple[str, ...] | None = None
    quant_keys: tuple[str, ...] | None = None
    kv_cache_dtypes: tuple[str, ...] | None = None
    linear_backends: tuple[str, ...] | None = None
    moe_backends: tuple[str, ...] | None = None
    attention_backends: tuple[str, ...] | None = None
    load_formats: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    flags: Mapping[str, Flag] | None = None
    env: tuple[str, ...] | None = None
    min_capability: Mapping[str, int] | None = None
    linear_backend_kernels: Mapping[str, tuple[str, ...]] | None = None
    kernel_order: Mapping[str, Any] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Lists that could not be read, and why."""
