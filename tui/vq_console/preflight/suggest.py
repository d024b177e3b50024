"""Which ways of serving a model a machine can run, best first, and why.

Pure: takes what is known of model, target and engine, plans every candidate, ranks by grade, fit and what the GPU is
good at. What cannot run is kept apart with its reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vq_console.engines.model import Catalogue, Engine
from vq_console.preflight.model import Fit, Grade, Plan, Target
from vq_console.preflight.names import presume
from vq_console.preflight.plan import make_plan
from vq_console.preflight.scheme import checkpoint_scheme
from vq_console.preflight.shapes import anatomy
from vq_console.preflight.values import real, whole
from vq_console.profiles.model import Profile

_GRADES: Mapping[Grade, int] = {
    "native": 0,
    "weight-only": 1,
    "unquantized": 2,
    "unknown": 3,
    "emulated": 4,
    "unsupported": 5,
}

SMALL = "small batches: decoding waits for memory, and the weights are small"
LARGE = "large batches: the arithmetic itself is narrow"
BOTH = "small and large batches: small weights and narrow arithmetic"
LONG = "long contexts: the KV cache is half as large, the weights are not quantized"
PLAIN = "quality first: nothing is quantized"


@dataclass(frozen=True, slots=True)
class Choice:
    """One way: a profile that can be saved, its grade, its fit, what it is good for, and why it stands where it does.

    `make` is the command that makes the checkpoint where the choice needs one that is not there yet.
    """

    profile: Profile
    grade: Grade
    fit: Fit
    regime: str
    why: str
    make: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Choices, best first, and what was refused with the reason."""

    choices: tuple[Choice, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Candidate:
    label: str
    args: Mapping[str, Any]
    facts: Mapping[str, Any]
    make: str | None = None


_CHECKPOINTS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "FP8 checkpoint",
        "--scheme FP8_DYNAMIC",
        {"quant_method": "compressed-tensors", "format": "float-quantized", "scheme": "FP8_DYNAMIC", "bits": 8},
    ),
    (
        "W4A16 checkpoint",
        "--scheme W4A16 --method gptq",
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4, "group_size": 128},
    ),
    (
        "INT8 W8A8 checkpoint",
        "--scheme W8A8 --method smoothquant",
        {"quant_method": "compressed-tensors", "format": "int-quantized", "bits": 8},
    ),
    (
        "NVFP4 checkpoint",
        "--scheme NVFP4",
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "bits": 4, "group_size": 16},
    ),
)
"""What the checkpoint is, the options of `vq-console quantize` that make it, and what its config.json would say."""
_PREFERENCE: Mapping[str, tuple[str, ...]] = {
    "datacenter blackwell": ("nvfp4", "fp8", "mxfp8", "wna16", "none", "int8"),
    "workstation blackwell": ("fp8", "nvfp4", "wna16", "mxfp8", "none", "int8"),
    "hopper": ("fp8", "wna16", "int8", "none", "nvfp4", "mxfp8"),
    "ada": ("fp8", "wna16", "int8", "none", "nvfp4", "mxfp8"),
    "ampere": ("wna16", "int8", "fp8", "none", "nvfp4", "mxfp8"),
    "turing": ("wna16", "int8", "none", "fp8", "nvfp4"),
    "cpu": ("int8", "wna16", "none", "fp8"),
    "other": ("fp8", "wna16", "none"),
}
"""Which family of schemes serves best on which kind of device (measured on H200 and A5000; vendors' guidance)."""


def suggest(
    model: str, target: Target, *, engine: Engine | None, catalogue: Catalogue, checkpoint_facts: Mapping[str, Any]
) -> Suggestion:
    """The suggestion for one model on one target."""
    facts = {**checkpoint_facts, **target.checkpoint}
    known = {**presume(model).facts, **facts}
    choices: list[tuple[tuple[float, ...], Choice]] = []
    refused: dict[str, str] = {}
    for candidate in _candidates(model, facts, known, catalogue):
        judged = Target({k: v for k, v in target.facts.items() if k != "checkpoint"}, target.origin)
        args = {**candidate.args, **_room(known, target)}
        profile = Profile(name=_name(model, candidate.label), model=model, args=args)
        plan = make_plan(profile, judged, engine=engine, catalogue=catalogue, checkpoint_facts=candidate.facts)
        longest = plan.fit.max_context
        if longest is not None and _SHORTEST <= longest < int(args.get("max_model_len") or 0):
            profile = replace(profile, args={**args, "max_model_len": longest})
            plan = make_plan(profile, judged, engine=engine, catalogue=catalogue, checkpoint_facts=candidate.facts)
        errors = [finding for finding in plan.findings if finding.severity == "error"]
        if errors:
            refused[candidate.label] = errors[0].message
            continue
        grade = _grade(plan)
        if grade == "unsupported":
            refused[candidate.label] = "no kernel for it on this machine"
            continue
        choice = _choice(candidate, profile, plan, grade)
        choices.append((_rank(plan, grade, candidate), choice))
    return Suggestion(tuple(choice for _, choice in sorted(choices, key=lambda pair: pair[0])), refused)


_CONTEXT = 8192
_SHORTEST = 2048


def _room(known: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """A context that most work needs, and a share of memory that is free now."""
    args: dict[str, Any] = {}
    longest = whole(known.get("max_position_embeddings"))
    args["max_model_len"] = min(_CONTEXT, longest) if longest else _CONTEXT
    cpu = str(target.get("device")) == "cpu"
    total = real(target.get("host_ram_gib" if cpu else "gpu_mem_gib"))
    free = real(target.get("host_free_gib" if cpu else "gpu_free_gib"))
    if total and free is not None and free < total * 0.92:
        args["gpu_memory_utilization"] = max(int(free / total * 100 - 2), 1) / 100
    return args


def _candidates(
    model: str, facts: Mapping[str, Any], known: Mapping[str, Any], catalogue: Catalogue
) -> list[_Candidate]:
    if known.get("quant_method"):
        scheme = checkpoint_scheme(known)
        label = f"the checkpoint as it is ({scheme.label if scheme else known['quant_method']})"
        return [
            _Candidate(label, {}, facts),
            _Candidate(f"{label}, FP8 KV cache", {"kv_cache_dtype": "fp8"}, facts),
        ]
    found = [_Candidate("16-bit", {}, facts), _Candidate("16-bit, FP8 KV cache", {"kv_cache_dtype": "fp8"}, facts)]
    experts = bool(known.get("moe"))
    for name in catalogue.online or ():
        if name in {"online"} or (name in {"int8_per_channel_weight_only", "nvfp4_per_token"} and not experts):
            continue
        found.append(_Candidate(name, {"quantization": name}, facts))
    shape = {key: value for key, value in known.items() if key not in {"weights_gib", "size_gib", "parameters"}}
    for label, options, marks in _CHECKPOINTS:
        if marks.get("group_size") == 128 and (group := _group(known)) != 128:
            marks, options = {**marks, "group_size": group}, f"{options} --group-size {group}"
        command = f"vq-console quantize {shlex.quote(model)} {options}"
        found.append(_Candidate(label, {}, {**shape, **marks}, command))
    return found


def _group(known: Mapping[str, Any]) -> int:
    """The largest usual group size that divides every row-parallel input of the model."""
    shape = anatomy(known)
    widths = [layer.inner for layer in shape.linears if layer.split == "row"] if shape is not None else []
    return next((size for size in (128, 64, 32) if all(width % size == 0 for width in widths)), 128)


def _name(model: str, label: str) -> str:
    import re

    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rsplit("/", 1)[-1].partition(":")[0]).strip("-.").lower()
    tail = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return f"{stem or 'model'}-{tail}"[:100].rstrip("-.")


def _grade(plan: Plan) -> Grade:
    """The worst grade among linear layers and experts that are quantized; unquantized where none is."""
    grades: list[Grade] = [row.grade for row in plan.layers if row.kind in {"linear", "moe"}]
    quantized: list[Grade] = [grade for grade in grades if grade != "unquantized"]
    if not quantized:
        return "unquantized" if grades else "unknown"
    return max(quantized, key=lambda grade: _GRADES[grade])


def _families(plan: Plan) -> str:
    text = " ".join(row.scheme for row in plan.layers if row.kind in {"linear", "moe"} and row.grade != "unquantized")
    for word, family in (
        ("NVFP4", "nvfp4"),
        ("MXFP4", "mxfp4"),
        ("MXFP8", "mxfp8"),
        ("FP8", "fp8"),
        ("INT8", "int8"),
        ("W4A16", "wna16"),
        ("W8A16", "wna16"),
        ("GGUF", "wna16"),
        ("bitsandbytes", "wna16"),
    ):
        if word in text:
            return family
    return "none"


def device_class(target: Target) -> str:
    """The kind of device that preferences go by."""
    device = str(target.get("device") or ("cuda" if target.get("gpu_sm") is not None else ""))
    if device == "cpu":
        return "cpu"
    number = target.get("gpu_sm")
    if device != "cuda" or not isinstance(number, int):
        return "other"
    if number >= 120:
        return "workstation blackwell"
    if number >= 100:
        return "datacenter blackwell"
    if number >= 90:
        return "hopper"
    if number >= 89:
        return "ada"
    return "ampere" if number >= 80 else "turing"


def _rank(plan: Plan, grade: Grade, candidate: _Candidate) -> tuple[float, ...]:
    order = _PREFERENCE[device_class(plan.target)]
    family = _families(plan)
    place = order.index(family) if family in order else len(order)
    # A 16-bit baseline is sound everywhere, but no answer to the question which quantized way to take.
    graded = _GRADES[grade]
    loud = sum(1 for finding in plan.findings if finding.severity == "warning")
    requests = plan.fit.requests_at_context
    cramped = 1.0 if requests is not None and requests < 1 else 0.0
    return (
        cramped,
        float(graded),
        float(place),
        1.0 if candidate.make else 0.0,
        float(loud),
        float(_ONLINE_ORDER.get(candidate.label, 5)),
    )


_ONLINE_ORDER: Mapping[str, int] = {"fp8_per_channel": 0, "fp8_per_block": 1, "fp8_per_tensor": 2}
"""Finer scales first: the same speed class, less error (H200: Cutlass for channel and tensor, DeepGEMM for block)."""


def _choice(candidate: _Candidate, profile: Profile, plan: Plan, grade: Grade) -> Choice:
    family = _families(plan)
    kernels = sorted({row.kernel for row in plan.layers if row.kind in {"linear", "moe"} and row.kernel})
    if family == "none":
        regime = LONG if profile.args.get("kv_cache_dtype") else PLAIN
    elif family == "wna16" or grade == "weight-only":
        regime = SMALL
    elif device_class(plan.target) in {"ampere", "turing", "cpu"}:
        regime = LARGE
    else:
        regime = BOTH
    parts = [f"{grade}" + (f" on {', '.join(kernels)}" if kernels else "")]
    fit = plan.fit
    if fit.weights_gib is not None:
        parts.append(f"weights {fit.weights_gib:.1f} GiB")
    if fit.requests_at_context is not None:
        parts.append(f"{fit.requests_at_context:.1f} requests at full context")
    if candidate.make:
        parts.append("needs a calibrated checkpoint" if family in {"wna16", "int8", "nvfp4"} else "needs a checkpoint")
    elif profile.args.get("quantization"):
        parts.append("quantized on load, no calibration")
    warnings = tuple(finding.message for finding in plan.findings if finding.severity == "warning")
    return Choice(profile, grade, fit, regime, "; ".join(parts), candidate.make, warnings)


def suggestion_json(found: Suggestion) -> dict[str, Any]:
    """The suggestion as `suggest --json` prints it."""
    return {
        "choices": [
            {
                "profile": {"name": c.profile.name, "model": c.profile.model, "args": dict(c.profile.args)},
                "grade": c.grade,
                "fit": {name: getattr(c.fit, name) for name in c.fit.__slots__},
                "regime": c.regime,
                "why": c.why,
                "make": c.make,
                "warnings": list(c.warnings),
            }
            for c in found.choices
        ],
        "refused": [{"way": way, "why": why} for way, why in found.refused.items()],
    }
