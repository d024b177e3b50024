"""What differs between two arms besides what the comparison is about. Only decides; reads nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

FORMAT_KEYS = frozenset(
    {
        "model",
        "quantization",
        "quantization_config",
        "kv_cache_dtype",
        "linear_backend",
        "moe_backend",
        "load_format",
    }
)
"""Settings that say which format an arm runs; a comparison of formats declares them by its nature."""

LOCAL_KEYS = frozenset({"host", "port", "served_model_name", "device_ids", "uds", "api_key"})
"""Settings that cannot change what is measured."""

RESOLVED_KEYS = (
    "vllm_version",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "enable_prefix_caching",
    "speculative_config",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "tensor_parallel_size",
    "attention_backend",
)
"""Facts of the log that are compared where both sides have them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that is not the same. `declared` differences are the subject; the others confound it."""

    key: str
    a: Any
    b: Any
    declared: bool

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "a": self.a, "b": self.b, "declared": self.declared}

    def words(self) -> str:
        """The difference as a person reads it."""
        kind = "the question" if self.declared else "NOT declared, blocks a verdict on formats"
        return f"differs in {self.key}: A {_value(self.a)}, B {_value(self.b)} ({kind})"


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What an arm was asked for and what it resolved to, as far as known."""

    args: Mapping[str, Any]
    env: Mapping[str, Any]
    facts: Mapping[str, Any]
    model: str | None = None
    gpu_names: tuple[str, ...] = ()


def find_differences(a: ArmSettings, b: ArmSettings, *, declared: Collection[str] = ()) -> tuple[Difference, ...]:
    """Every difference between two arms, declared ones first.

    A key resolved in both logs is compared by its resolved value; otherwise by what was asked. `declared` names
    keys that the user says are part of the question.
    """
    found: dict[str, Difference] = {}
    subject = FORMAT_KEYS | set(declared)

    def note(key: str, left: Any, right: Any) -> None:
        if left != right:
            found[key] = Difference(key, left, right, key in subject)

    if a.model is not None and b.model is not None:
        note("model", a.model, b.model)
    for key in RESOLVED_KEYS:
        if key in a.facts and key in b.facts:
            note(key, a.facts[key], b.facts[key])
    for key in sorted((set(a.args) | set(b.args)) - LOCAL_KEYS - {"model"}):
        if key in RESOLVED_KEYS and key in a.facts and key in b.facts:
            continue
        note(key, a.args.get(key), b.args.get(key))
    for key in sorted(set(a.env) | set(b.env)):
        note(f"env.{key}", a.env.get(key), b.env.get(key))
    if a.gpu_names and b.gpu_names:
        note("gpu", list(a.gpu_names), list(b.gpu_names))
    return tuple(sorted(found.values(), key=lambda d: (not d.declared, d.key)))


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def confounders(differences: Collection[Difference]) -> tuple[Difference, ...]:
    """The undeclared differences: any of them blocks a verdict on formats."""
    return tuple(d for d in differences if not d.declared)
