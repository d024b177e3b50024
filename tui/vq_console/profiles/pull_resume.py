"""Large files of a download that can be broken off at any moment and go on later.

huggingface_hub keeps whole files only (2.4 deletes what is unfinished), and one file may be gigabytes. This puts large
files into its cache by itself, with its own HTTP client: a part stays beside its blob until it is whole, has its hash
checked when it was resumed, and is then renamed to the name by which the hub's library finds it.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from vq_console.core.errors import VqError
from vq_console.core.files import file_lock

FROM_BYTES = 32 * 1024 * 1024
"""Smaller files are fetched again rather than resumed."""

_HTTP_LIMIT = 50 * 10**9
_AT_ONCE = 4
_PART = ".vq-part"


def fetch_large(
    repository: str, revision: str, names: Iterable[str], cache: Path, endpoint: str, timeout_s: float
) -> None:
    """Fetch the blobs of `names` at a commit into the hub's cache, going on where an earlier attempt ended.

    Raises what huggingface_hub raises, and VqError when a resumed file does not have the hash that the hub states; the
    part is then removed.
    """
    from huggingface_hub import hf_hub_url

    blobs = cache / f"models--{repository.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    urls = [hf_hub_url(repository, name, revision=revision, endpoint=endpoint) for name in names]
    stop = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(_fetch, url, blobs, endpoint, timeout_s, stop) for url in urls]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _StoppableFile:
    """What the client writes to; ends the download at the next piece once the person has interrupted."""

    def __init__(self, file: BinaryIO, stop: threading.Event) -> None:
        self.file, self.stop = file, stop

    def write(self, data: bytes) -> int:
        if self.stop.is_set():
            raise InterruptedError("the download was interrupted")
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _fetch(url: str, blobs: Path, endpoint: str, timeout_s: float, stop: threading.Event) -> None:
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.file_download import http_get

    from vq_console.profiles.hub import hub_utility

    metadata = get_hf_file_metadata(url, timeout=timeout_s, endpoint=endpoint)
    name, size = metadata.etag, metadata.size
    if not name or not re.fullmatch(r"[\w.-]+", name) or size is None or size > _HTTP_LIMIT:
        return
    blob, part = blobs / name, blobs / (name + _PART)
    lock = blobs / f".{name}.lock"
    with file_lock(lock, blocking=False) as mine:
        if not mine or blob.exists():
            return
        begun = part.stat().st_size if part.exists() else 0
        if begun > size:
            part.unlink()
            begun = 0
        with open(part, "ab") as file:
            sink: Any = _StoppableFile(file, stop)
            headers = hub_utility("build_hf_headers")()
            http_get(metadata.location, sink, resume_size=begun, headers=headers, expected_size=size)
        if begun and re.fullmatch(r"[0-9a-f]{64}", name) and _hash(part) != name:
            part.unlink()
            raise VqError(f"{url}: what was resumed does not have the right hash", "pull again; it starts afresh")
        os.replace(part, blob)
        lock.unlink(missing_ok=True)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
