"""What the console remembers of a profile on this machine, apart from the file: its last good run.

Files under the state folder, one per profile name; a broken one counts as nothing remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vq_console.core.files import read_json, write_json
from vq_console.core.places import state_dir
from vq_console.profiles.format import MADE_ON_KEYS, PROVENANCE_KEYS, valid_name
from vq_console.profiles.model import Profile


def remember_run(name: str, made_on: Mapping[str, Any]) -> None:
    """Keep what a good run was (`gpu`, `sm`, `vllm`, `kernels`, …); unknown keys and absent values drop out."""
    if valid_name(name):
        kept = {key: made_on[key] for key in MADE_ON_KEYS if made_on.get(key) not in (None, "", [], {})}
        write_json(_path(name), {"made_on": kept})


def last_run(name: str) -> Mapping[str, Any] | None:
    """What the last good run of a profile on this machine was, or None."""
    try:
        made_on = read_json(_path(name)).get("made_on")
    except (OSError, ValueError):
        return None
    return made_on if isinstance(made_on, dict) and made_on and set(made_on) <= set(MADE_ON_KEYS) else None


def with_last_run(profile: Profile) -> Profile:
    """The profile with `[made_on]` of its last good run here, where there was one."""
    last = last_run(profile.name)
    if last is None:
        return profile
    # Where a checkpoint came from does not change with where it last ran.
    made = {key: value for key, value in (profile.made_on or {}).items() if key in PROVENANCE_KEYS}
    return replace(profile, made_on={**made, **last})


def _path(name: str) -> Path:
    return state_dir() / "made_on" / f"{name}.json"
