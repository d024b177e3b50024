"""What a finished quantization is offered as: its profile, its size, its divergence in numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vq_console.quantize.model import Judged, Source
from vq_console.quantize.schemes import label


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
    args: dict[str, Any] = {"kv_cache_dtype": "fp8"} if request.kv_cache else {}
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
        args=args,
        tags=("quantized",),
        made_on={key: value for key, value in made.items() if value},
    )
    save_profile(profile)
    return name


def profile_name(text: str) -> str:
    """A name that a profile may have, from a folder's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._").lower()[:100] or "quantized"


def size_gib(folder: Path) -> float:
    """The size of a checkpoint's weight files, GiB."""
    return round(sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**30, 4)
