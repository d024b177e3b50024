"""A target, a plan and what preflight found, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Grade = Literal["native", "weight-only", "emulated", "unquantized", "unsupported", "unknown"]


@dataclass(frozen=True, slots=True)
class Target:
    """The machine, engine and checkpoint that a profile is judged against.

    `facts` is the flat table of a target file (the keys of `lint_input`: vllm_version, gpu_sm, gpu_count,
    gpu_mem_gib, gpu_free_gib, device, host_ram_gib, cpu_flags, plugins, installed, tools, checkpoint, …).
    A missing key is unknown, and no rule may fire on what is unknown. `origin` is `this machine` or the file.
    """

    facts: Mapping[str, Any]
    origin: str = "this machine"

    def get(self, key: str, default: Any = None) -> Any:
        return self.facts.get(key, default)

    @property
    def checkpoint(self) -> Mapping[str, Any]:
        return self.facts.get("checkpoint") or {}


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of a profile that the screen can apply with one key: values to set and keys to remove."""

    set_args: Mapping[str, Any] = field(default_factory=dict)
    remove_args: tuple[str, ...] = ()
    set_env: Mapping[str, str] = field(default_factory=dict)
    remove_env: tuple[str, ...] = ()
    set_model: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "set_args": dict(self.set_args),
            "remove_args": list(self.remove_args),
            "set_env": dict(self.set_env),
            "remove_env": list(self.remove_env),
            "set_model": self.set_model,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that preflight has to say. `rule` is a slug of the closed list of diagnoses, or one of its own."""

    rule: str
    severity: Severity
    message: str
    fix: str = ""
    evidence: str = ""
    source: str = ""
    patch: Patch | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """Quantization as asked by the profile, declared by the checkpoint, and resolved by vLLM."""

    asked: str | None
    checkpoint: str | None
    resolved: str | None
    claimed_by: str = ""


@dataclass(frozen=True, slots=True)
class LayerExpectation:
    """What one kind of layer is expected to run. `kind` is linear, moe, attention, kv_cache, embedding or lm_head."""

    kind: str
    count: int | None
    scheme: str
    kernel: str | None
    grade: Grade
    source: str = ""

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> LayerExpectation:
        """A row of `plan.layers` as `lint --json` and a server's record have it."""
        return LayerExpectation(
            kind=str(row["kind"]),
            count=row.get("count"),
            scheme=str(row.get("scheme") or ""),
            kernel=row.get("kernel"),
            grade=row.get("grade") or "unknown",
            source=str(row.get("source") or ""),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory per GPU in GiB, and what it holds. None where the checkpoint does not say enough."""

    weights_gib: float | None = None
    load_peak_gib: float | None = None
    activation_gib: float | None = None
    graphs_gib: float | None = None
    kv_gib: float | None = None
    kv_bytes_per_token: float | None = None
    kv_tokens: int | None = None
    requests_at_context: float | None = None
    max_context: int | None = None
    budget_gib: float | None = None
    kv_tokens_by_dtype: Mapping[str, int] = field(default_factory=dict)
    """What the same memory would hold with another KV cache dtype that the GPU can serve."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a launch would be. `argv` is exactly what is executed; values of `env` that are secrets are not here
    but named in `secret_env` (variable → variable of the launching environment)."""

    profile: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    secret_env: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    served_model: str | None = None
    method: Method = field(default_factory=lambda: Method(None, None, None))
    layers: tuple[LayerExpectation, ...] = ()
    fit: Fit = field(default_factory=Fit)
    findings: tuple[Finding, ...] = ()
    target: Target = field(default_factory=lambda: Target({}))
