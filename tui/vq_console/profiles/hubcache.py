"""Where the Hugging Face cache of this machine keeps a model.

Touches files, only reads, no network. Source: huggingface_hub `constants.py` and its cache layout
(`models--org--name/{blobs,refs,snapshots}`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Cached:
    """One revision of a model in the cache; `incomplete` counts downloads that were begun and not ended."""

    path: Path
    revision: str
    incomplete: int = 0


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The hub's cache folder, as HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME say."""
    env = os.environ if environment is None else environment
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    base = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    return base.expanduser() / "huggingface" / "hub"


def is_repository(model: str) -> bool:
    """Whether `model` can be a hub id."""
    return bool(_REPO.fullmatch(model)) and ".." not in model


def find_cached(repository: str, revision: str | None = None) -> Cached | None:
    """The snapshot of a hub id in the cache: that of `revision` (branch, tag or commit), else of `main`, else the
    newest; None when nothing of it is here."""
    if not is_repository(repository):
        return None
    folder = cache_folder() / ("models--" + repository.replace("/", "--"))
    snapshots = folder / "snapshots"
    try:
        incomplete = sum(1 for blob in (folder / "blobs").iterdir() if blob.name.endswith((".incomplete", ".vq-part")))
    except OSError:
        incomplete = 0
    commit = _commit(folder, revision or "main")
    if commit is not None and (snapshots / commit).is_dir():
        return Cached(snapshots / commit, commit, incomplete)
    if revision is not None:
        return None
    try:
        newest = max((path for path in snapshots.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    except (OSError, ValueError):
        return None
    return Cached(newest, newest.name, incomplete)


def _commit(folder: Path, revision: str) -> str | None:
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    if not re.fullmatch(r"[\w./-]+", revision) or ".." in revision:
        return None
    try:
        return (folder / "refs" / revision).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
