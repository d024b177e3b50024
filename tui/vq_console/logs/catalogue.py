"""The closed list of diagnoses: slug, title, explanation, fixes. Owns the list as shipped; changes nothing in it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Entry:
    """One diagnosis of the closed list."""

    slug: str
    title: str
    explanation: str
    fixes: tuple[str, ...]


@cache
def diagnoses() -> Mapping[str, Entry]:
    """All diagnoses by slug, from `diagnoses.toml` of this package."""
    text = resources.files("vq_console.logs").joinpath("diagnoses.toml").read_text(encoding="utf-8")
    return {
        item["slug"]: Entry(item["slug"], item["title"], item["explanation"], tuple(item["fixes"]))
        for item in tomllib.loads(text)["diagnosis"]
    }
