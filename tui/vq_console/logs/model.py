"""What a log says, as frozen values. Lines are 1-based and split at `\\n` only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vq_console.preflight.model import Grade, Patch


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line taken apart; `message` has no prefix, colour or carriage return. `time` is seconds since the first
    dated line of the run, None where the line carries no time."""

    number: int
    message: str
    level: str | None = None
    process: str | None = None
    pid: int | None = None
    time: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel line: `module` as vLLM names it, `kernel` the class."""

    module: str
    kernel: str
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"module": self.module, "kernel": self.kernel, "line": self.line}


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the start-up, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Fix:
    """A concrete step; `patch` changes the profile where one exists."""

    text: str
    patch: Patch | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer: slug of the closed list, severity (ok, warning, error, unknown), root line and its evidence."""

    slug: str
    title: str
    severity: str
    root_line: int = 0
    process: str | None = None
    evidence: str = ""
    explanation: str = ""
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that `explain` prints. `facts` has the keys of `[expect]` in the cases (vllm_version,
    quantization, kernels, attention_backend, moe_backend, kv_cache_dtype, kv_cache_tokens, max_concurrency,
    model_load_gib, model_load_s, max_model_len, init_engine_s, ready, …); a key is absent when the log does not say."""

    diagnosis: Diagnosis
    facts: Mapping[str, Any] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    lines: int = 0


@dataclass(frozen=True, slots=True)
class AskedVsRuns:
    """Expected by preflight beside selected by vLLM, for one kind of layer. `alarm` is a silent fallback."""

    kind: str
    expected: str | None
    selected: str | None
    grade: Grade
    alarm: bool
    detail: str = ""
