"""What the Hugging Face hub says of a model, asked only on demand and with short time-outs.

Needs the extra `hub` (huggingface_hub). Writes nothing into the cache: small files go through a temporary folder.
"""

from __future__ import annotations

import importlib
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vq_console.core.errors import MissingError, VqError
from vq_console.core.text import strip_control
from vq_console.profiles.checkpoint import Checkpoint, facts_of, read_config
from vq_console.profiles.hubcache import is_repository

OFFLINE_S = 2.0
"""How long anything here waits before it says that the hub cannot be reached."""

_ANSWER_S = 10.0
INSTALL_HINT = "pip install 'vq-console[hub]'"


def endpoint() -> str:
    """The hub's address, as HF_ENDPOINT says."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def require_hub() -> Any:
    """The module `huggingface_hub`; raises MissingError with what to install."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingError("huggingface_hub is not installed here", INSTALL_HINT) from error
    return huggingface_hub


def hub_utility(name: str) -> Any:
    """A function of `huggingface_hub.utils`, which types do not export by name."""
    return getattr(importlib.import_module("huggingface_hub.utils"), name)


def offline_reason(seconds: float = OFFLINE_S) -> str | None:
    """Why the hub cannot be asked, or None when a connection to it (or to the proxy) opens within `seconds`."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").strip().upper() in {"1", "ON", "YES", "TRUE"}:
            return f"{name} is set"
    address = urlsplit(endpoint())
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        if address.scheme == "https" and os.environ.get(name):
            address = urlsplit(os.environ[name])
            break
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    answer: list[str | None] = [f"{host} did not answer within {seconds:.0f} s"]

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            answer[0] = None
        except OSError as error:
            answer[0] = f"{host} cannot be reached: {error.strerror or error}"

    # Resolving a name has no time-out of its own, so a thread that may be left behind does it.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0]


def hub_trouble(error: BaseException, model: str) -> VqError:
    """What an exception of huggingface_hub means: not found, not logged in, licence not accepted, offline."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    page = f"{endpoint()}/{model}"
    if status == 403:
        return VqError(f"{model}: its licence is not accepted with this account", f"accept it at {page}")
    if isinstance(error, errors.GatedRepoError) or (
        status == 401 and not isinstance(error, errors.RepositoryNotFoundError)
    ):
        words = "the token is not accepted" if has_token() else "not logged in, and this model needs it"
        return VqError(f"{model}: {words}", f"`hf auth login` (or set HF_TOKEN), and accept the licence at {page}")
    if isinstance(error, errors.RepositoryNotFoundError):
        # The hub answers 401 to strangers for what is private and for what does not exist.
        if status == 401 and not has_token():
            return VqError(
                f"{model}: not found at the hub, or private and you are not logged in",
                f"check the spelling at {page}; if it is private: `hf auth login`, or set HF_TOKEN",
            )
        return VqError(f"{model}: not found at the hub", f"check the spelling: {page}")
    if isinstance(error, errors.RevisionNotFoundError):
        return VqError(f"{model}: no such revision", f"branches and tags: {page}/tree/main")
    if isinstance(error, errors.EntryNotFoundError):
        return VqError(f"{model}: a file that was asked for is not there: {strip_control(str(error))[:200]}")
    return VqError(f"{model}: the hub could not be asked: {strip_control(str(error))[:300]}", "try again")


def has_token() -> bool:
    """Whether a token of the hub is at hand; its value stays where it is."""
    from huggingface_hub import get_token

    return bool(get_token())


def look_up(model: str, revision: str | None = None) -> Checkpoint:
    """Facts of a hub id from the hub itself; every trouble is a problem of the answer."""
    repository = model.partition(":")[0]
    if not is_repository(repository):
        return Checkpoint(model, problems=(f"{model}: is no hub id",))
    try:
        hub = require_hub()
    except MissingError as error:
        return Checkpoint(model, problems=(f"{error.message}: {error.hint}",))
    reason = offline_reason()
    if reason is not None:
        return Checkpoint(model, problems=(f"the hub cannot be asked: {reason}",))
    try:
        info = hub.HfApi(endpoint=endpoint()).model_info(
            repository, revision=revision, files_metadata=True, timeout=_ANSWER_S
        )
        with tempfile.TemporaryDirectory() as folder:
            names = {entry.rfilename for entry in info.siblings or ()}
            for name in ("config.json", "hf_quant_config.json"):
                if name in names:
                    hub.hf_hub_download(
                        repository,
                        name,
                        revision=info.sha,
                        local_dir=folder,
                        etag_timeout=_ANSWER_S,
                        endpoint=endpoint(),
                    )
            problems: list[str] = []
            config = read_config(Path(folder) / "config.json", problems)
            modelopt = read_config(Path(folder) / "hf_quant_config.json", problems)
    except Exception as error:
        return Checkpoint(model, problems=(hub_trouble(error, repository).message,))
    facts = facts_of(config, modelopt, None) if config is not None else {}
    size = sum(entry.size or 0 for entry in info.siblings or () if entry.rfilename.endswith(".safetensors"))
    if size and facts:
        facts["size_gib"] = facts["weights_gib"] = round(size / 2**30, 3)
    return Checkpoint(model, facts, None, "hub", info.sha, tuple(problems), getattr(info.safetensors, "total", None))
