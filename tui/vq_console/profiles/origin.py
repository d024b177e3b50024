"""The other arm of a quantized profile: the same flags on what it was quantized from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vq_console.core.errors import UsageError
from vq_console.profiles.model import Profile
from vq_console.profiles.store import list_profiles, model_argument, save_profile
from vq_console.profiles.trust import carry_trust

_QUANTIZED = ("quantization", "quantization_config", "kv_cache_dtype", "calculate_kv_scales")
"""Flags that say how numbers are kept, not how requests are served."""


def source_of(profile: Profile) -> Profile:
    """The profile on the 16-bit source: the one its checkpoint was made from, or the same model not quantized on load.

    Its name is `NAME-source`. Raises UsageError where the profile does not say what it was quantized from. Pure.
    """
    made_from = (profile.made_on or {}).get("source")
    args = {key: value for key, value in profile.args.items() if key not in _QUANTIZED}
    if not isinstance(made_from, str) or not made_from:
        if args == profile.args:
            raise UsageError(
                f"{profile.name}: does not say what it was quantized from",
                "`vq-console quantize` writes it into [made_on] as source",
            )
        made_from = model_argument(profile)
    return Profile(
        name=f"{profile.name[:93]}-source",
        model=made_from,
        description=f"What {profile.name} was quantized from, served with its flags",
        args=args,
        env=dict(profile.env),
        vllm=profile.vllm,
        gpu_count=profile.gpu_count,
        tags=("source",),
    )


def same_service(one: Profile, other: Profile) -> bool:
    """Whether two profiles serve the same model with the same flags, whatever they are called. Pure."""
    keys = ("args", "env", "vllm", "gpu_count")
    return model_argument(one) == model_argument(other) and all(getattr(one, k) == getattr(other, k) for k in keys)


def source_arm(profile: Profile) -> str:
    """The name of the profile that serves what this one was quantized from; written where there is none yet."""
    wanted = source_of(profile)
    listed = list_profiles()
    there = _first(entry.profile.name for entry in listed if entry.profile and same_service(entry.profile, wanted))
    if there is not None:
        return there
    taken = {entry.name for entry in listed}
    name, number = wanted.name, 2
    while name in taken:
        name, number = f"{wanted.name[:97]}-{number}", number + 1
    made = replace(wanted, name=name)
    carry_trust(profile, replace(made, path=save_profile(made)))
    return name


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)
