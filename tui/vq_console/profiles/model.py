"""One profile as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class EnvRef:
    """A secret that is only ever named: the value comes from this variable at launch."""

    from_env: str


@dataclass(frozen=True, slots=True)
class Profile:
    """How to serve one model. `args` keys have underscores; values are TOML values. `path` is where it was read."""

    name: str
    model: str
    description: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | EnvRef] = field(default_factory=dict)
    vllm: str | None = None
    """A version specifier such as `>=0.27`, or None for any."""
    gpu_count: int | None = None
    tags: tuple[str, ...] = ()
    made_on: Mapping[str, Any] | None = None
    path: Path | None = None
