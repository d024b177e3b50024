"""How commands show profiles: as JSON, and as text that is safe on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vq_console.engines.model import Flag
    from vq_console.profiles.model import Profile
    from vq_console.profiles.store import Listed


def listed_json(entry: Listed) -> dict[str, Any]:
    """One entry of the list; a broken one has its error and no content."""
    base = {"name": entry.name, "path": str(entry.path), "origin": entry.origin, "error": entry.error}
    if entry.profile is None:
        return base
    return {**profile_json(entry.profile), **base}


def profile_json(profile: Profile) -> dict[str, Any]:
    """A profile with every part present, what it can do beyond serving, and whether that was agreed to."""
    from vq_console.profiles.format import profile_table
    from vq_console.profiles.trust import is_trusted, trust_review

    filled: dict[str, Any] = {
        "description": "",
        "tags": [],
        "args": {},
        "env": {},
        "engine": {},
        "placement": {},
        "made_on": None,
    }
    return {
        **filled,
        **profile_table(profile),
        "path": str(profile.path) if profile.path is not None else None,
        "risks": [risk.to_json() for risk in trust_review(profile)],
        "trusted": is_trusted(profile),
    }


def newest_flags() -> Mapping[str, Flag] | None:
    """The flags of the newest vLLM that is known here, for reading and writing arguments."""
    from vq_console.engines.catalogue import snapshot

    return snapshot(None).flags


def plain(text: str) -> str:
    """Text from a profile, without control sequences."""
    from vq_console.core.text import strip_control

    return strip_control(text)


def unknown_flags(profile: Profile) -> list[str]:
    """A sentence for every flag of the profile that no vLLM known here has, with the nearest that it has."""
    from vq_console.core.text import nearest
    from vq_console.profiles.arguments import SHORT_FORMS
    from vq_console.profiles.values import argument_key

    flags = newest_flags() or {}
    known = {*flags, *SHORT_FORMS, *(argument_key(alias) for flag in flags.values() for alias in flag.aliases)}
    notes = []
    for key in profile.args:
        head = key.partition(".")[0]
        if flags and head not in known:
            guess = nearest(head, flags)
            hint = f"; did you mean {guess}?" if guess else ""
            notes.append(f"the newest vLLM that is known here has no flag {head}{hint}")
    return notes
