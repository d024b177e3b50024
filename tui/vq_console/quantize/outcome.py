"""What a finished quantization is offered as: its profile, its size, its divergence in numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vq_console.quantize.model import Judged, Source
from vq_console.quantize.schemes import label

if TYPE_CHECKING:
    from vq_console.profiles.model import Profile


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Mean KL divergence per token in nats with its 95 % interval over texts, agreement, ratio of perplexities.

    Texts are the independent samples: the interval is Student's t over the ratio of their sums. None without tokens.
    """
    from scipy.stats import t

    tokens = [int(row["tokens"]) for row in rows]
    total = sum(tokens)
    if not total:
        return None
    kl = [float(row["kl"]) for row in rows]
    mean = sum(kl) / total
    count = len(rows)
    interval = None
    if count > 1:
        spread = sum((value - mean * n) ** 2 for value, n in zip(kl, tokens, strict=True)) / (count - 1)
        half = float(t.ppf(0.975, count - 1)) * math.sqrt(spread * count) / total
        interval = [max(0.0, mean - half), mean + half]
    shift = sum(float(row["logp_a"]) - float(row["logp_b"]) for row in rows) / total
    return {
        "value": mean,
        "ci": interval,
        "sequences": count,
        "tokens": total,
        "on_policy": True,
        "top1_agreement": sum(int(row["top1"]) for row in rows) / total,
        "ppl_ratio": math.exp(shift),
    }


def save_result_profile(judged: Judged, source: Source, tool: str, out: Path) -> str:
    """Write the profile that serves the result, and return its name; an existing one of another model is kept."""
    from vq_console.profiles.model import Profile
    from vq_console.profiles.store import list_profiles, save_profile

    request = judged.request
    wanted = request.profile_name or profile_name(out.name)
    taken = {entry.name: entry for entry in list_profiles()}
    name, number = wanted, 2
    while name in taken:
        other = taken[name].profile
        if other is not None and other.model == str(out) and taken[name].origin == "user":
            break
        name, number = f"{wanted}-{number}", number + 1
    kind = label(judged.scheme, request.method, request.group_size, request.kv_cache)
    made = {
        "scheme": kind,
        "tool": tool,
        "recipe": str(out / "recipe.py"),
        "source": source.model,
        "source_revision": source.revision,
    }
    profile = Profile(
        name=name,
        model=str(out),
        description=f"{Path(source.model).name}, {judged.scheme.words}, made by {tool}",
        args={"kv_cache_dtype": "fp8"} if request.kv_cache else {},
        tags=("quantized",),
        made_on={key: value for key, value in made.items() if value},
    )
    save_profile(_servable(profile))
    return name


_SMALL: tuple[tuple[Mapping[str, Any], Mapping[str, str]], ...] = (
    ({}, {}),
    ({"max_model_len": 4096}, {}),
    ({"max_model_len": 4096, "gpu_memory_utilization": 0.3}, {"VLLM_CPU_KVCACHE_SPACE": "2"}),
    ({"max_model_len": 2048, "gpu_memory_utilization": 0.3}, {"VLLM_CPU_KVCACHE_SPACE": "1"}),
)
"""vLLM's defaults, then less: a workstation without a GPU does not have 92 % of its memory free."""


def _servable(profile: Profile) -> Profile:
    """The profile with as few restrictions as preflight asks for on this machine; as it is where none helps."""
    from dataclasses import replace

    from vq_console.core.errors import VqError
    from vq_console.preflight.check import plan_profile

    for args, env in _SMALL:
        candidate = replace(profile, args={**profile.args, **args}, env={**profile.env, **env})
        try:
            plan = plan_profile(candidate)
        except VqError:
            break
        if env and plan.target.get("device") != "cpu":
            break
        if not any(finding.severity == "error" for finding in plan.findings):
            return candidate
    return profile


def profile_name(text: str) -> str:
    """A name that a profile may have, from a folder's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._").lower()[:100] or "quantized"


def size_gib(folder: Path) -> float:
    """The size of a checkpoint's weight files, GiB."""
    return round(sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**30, 4)
