"""What a quantization is asked to be and what is known about it before it runs, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """One weight format of the tool whose kind of environment is `maker`. `bits` counts a weight in the file, scales
    apart.

    `group` is the number of inputs that share a scale: free to choose (`group_free`) or part of the format.
    `format` is how the checkpoint will describe itself: compressed-tensors' format, or ModelOpt's algorithm.
    """

    name: str
    words: str
    bits: float
    format: str
    group: int | None = None
    group_free: bool = False
    block: tuple[int, int] | None = None
    scale_bytes: float = 2.0
    per_channel: bool = False
    needs_data: bool = False
    methods: tuple[str, ...] = ("rtn",)
    preset: str = ""
    """What the tool calls it where that is another name."""
    maker: str = "compressor"


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that decides the result. Paths are absolute. `group_size` None means that it is to be chosen."""

    model: str
    scheme: str
    out: Path
    method: str = "rtn"
    group_size: int | None = None
    kv_cache: str | None = None
    """`fp8` or `fp8_per_head`: static scales for an FP8 KV cache, from calibration data."""
    data: Path | None = None
    samples: int = 32
    sequence_length: int = 512
    ignore: tuple[str, ...] = ()
    tensor_parallel: int = 1
    measure: bool = False
    profile: bool = True
    profile_name: str | None = None
    tool: str | None = None
    """Another interpreter that has llmcompressor; the console's own environment otherwise."""

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        return value | {"out": str(self.out), "data": str(self.data) if self.data else None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Request:
        """The request in a job's file; raises KeyError or TypeError for something else."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        known["out"] = Path(known["out"])
        known["data"] = Path(known["data"]) if known.get("data") else None
        known["ignore"] = tuple(known.get("ignore") or ())
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear layer of the source: its module name, outputs and inputs."""

    name: str
    outputs: int
    inputs: int

    @property
    def elements(self) -> int:
        return self.outputs * self.inputs


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint to quantize. `stored` holds name → (dtype, shape, bytes) of every tensor."""

    model: str
    path: Path
    revision: str | None
    facts: Mapping[str, Any]
    layers: tuple[Layer, ...]
    stored: Mapping[str, tuple[str, tuple[int, ...], int]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.stored.values())

    @property
    def parameters(self) -> int:
        count = 0
        for _, shape, _ in self.stored.values():
            product = 1
            for length in shape:
                product *= length
            count += product
        return count


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before it runs; an `error` keeps it from running."""

    rule: str
    severity: Severity
    message: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Judged:
    """A request with its open choices made, and what is expected of it. Sizes in GiB."""

    request: Request
    scheme: Scheme
    ignore: tuple[str, ...]
    quantized: tuple[Layer, ...]
    size_gib: float
    memory_gib: float
    seconds: float | None
    notes: tuple[Note, ...]

    @property
    def errors(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.severity == "error")
