"""Profiles that travel: what is stripped before one leaves, and how one from elsewhere is read.

Owns the rule that a shared file holds no secret, no path of this machine and no choice that is only right here.
Fetching reads at most 1 MiB by http(s); nothing that is fetched is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vq_console.core.errors import ProfileError, UsageError, VqError
from vq_console.core.text import redact, strip_control
from vq_console.profiles.format import parse_profile, parse_toml, profile_from, profile_toml
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.store import model_argument, read_text, save_profile
from vq_console.profiles.trust import mark_imported
from vq_console.profiles.values import looks_secret

LIMIT_BYTES = 1024 * 1024
_LOCAL_ARGS = frozenset({
    "host", "port", "uds", "device_ids", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "download_dir",
    "log_config_file", "data_parallel_address", "data_parallel_rpc_port", "master_addr", "master_port", "node_rank",
    "numa_bind_nodes", "numa_bind_cpus", "otlp_traces_endpoint", "grpc_port", "allowed_local_media_path",
})  # fmt: skip
_LOCAL_ENV = frozenset(
    {"CUDA_VISIBLE_DEVICES", "VLLM_HOST_IP", "VLLM_PORT", "HF_ENDPOINT", "VLLM_CPU_OMP_THREADS_BIND"}
)
_HUB_CACHE = re.compile(r"/models--([^/]+)--([^/]+)/snapshots/([0-9a-f]{7,40})(?:/([^/]+\.gguf))?/?$")


@dataclass(frozen=True, slots=True)
class Source:
    """One profile file from elsewhere: its text, or the error that reading it gave."""

    name: str
    text: str | None
    error: VqError | None = None


def shared_profile(profile: Profile) -> tuple[Profile, tuple[str, ...]]:
    """The profile as it may leave this machine, and a sentence for everything that was changed.

    References to secrets stay (they hold a name only); literal values that look like keys go. Local choices (address,
    port, GPU indices, folders) go. A model below the Hugging Face cache becomes its hub id with the pinned revision,
    any other local path its last part.
    """
    notes: list[str] = []
    args: dict[str, Any] = {}
    model, revision = _shared_model(profile, notes)
    for key, value in profile.args.items():
        if key in _LOCAL_ARGS:
            notes.append(f"args.{key} was left out: it is a choice of this machine")
            continue
        kept = without_secret(value, f"args.{key}", notes, paths=True)
        if kept is not None:
            args[key] = kept
    if revision is not None:
        args.setdefault("revision", revision)
    env: dict[str, str | EnvRef] = {}
    for name, text in profile.env.items():
        if isinstance(text, EnvRef):
            env[name] = text
        elif name in _LOCAL_ENV or text.startswith(("/", "~")):
            notes.append(f"env.{name} was left out: it is a choice of this machine")
        elif looks_secret(name, text):
            notes.append(f"env.{name} was left out: its value looks like a secret")
        else:
            env[name] = seen(text, f"env.{name}", notes)
    description = redact(profile.description.replace(str(Path.home()), "~"))
    made_on = without_secret(profile.made_on, "made_on", notes, paths=True) if profile.made_on is not None else None
    shared = replace(
        profile,
        model=model,
        args=args,
        env=env,
        description=seen(description, "description", notes),
        tags=tuple(seen(tag, "tags", notes) for tag in profile.tags),
        made_on=made_on or None,
        path=None,
    )
    return shared, tuple(notes)


def seen(text: str, label: str, notes: list[str]) -> str:
    """The text without characters that show nothing or turn its direction, and a note where it held some."""
    shown = strip_control(text)
    if shown != text:
        notes.append(f"{label} held characters that are not seen or turn the direction of text; they were left out")
    return shown


def shared_toml(profile: Profile) -> str:
    """The text of the profile to hand on."""
    text = profile_toml(shared_profile(profile)[0])
    parse_profile(text)
    return text


def _shared_model(profile: Profile, notes: list[str]) -> tuple[str, str | None]:
    local = model_argument(profile)
    cached = _HUB_CACHE.search(local)
    if cached:
        notes.append("the model's path in the cache was replaced by its hub id and revision")
        return f"{cached[1]}/{cached[2]}", cached[3]
    if local.startswith("/") or profile.model.startswith(("./", "../")):
        name = Path(local).name
        notes.append(f"the model is a folder of this machine; whoever imports this needs their own ./{name}")
        return f"./{name}", None
    return profile.model, None


def kept_args(args: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """`[args]` without what looks like a secret, and a note for each that went."""
    kept = {key: without_secret(value, f"args.{key}", notes) for key, value in args.items()}
    return {key: value for key, value in kept.items() if value is not None}


def without_secret(value: Any, label: str, notes: list[str], *, paths: bool = False) -> Any:
    """A value without what looks like a secret, None when nothing is left; with `paths` also without local folders."""
    if isinstance(value, str):
        if looks_secret(label, value):
            notes.append(f"{label} was left out: its value looks like a secret")
            return None
        if value.lstrip()[:1] == "{":
            try:
                table = json.loads(value)
            except (ValueError, RecursionError):
                return seen(value, label, notes)
            kept = without_secret(table, label, notes, paths=paths)
            return value if kept == table else kept
        if paths and value.startswith(("/", "~/")) and (value.startswith(str(Path.home())) or _exists(value)):
            notes.append(f"{label} was a path of this machine; only its last part is kept")
            return f"./{Path(value).name}"
        return seen(value, label, notes)
    if isinstance(value, Mapping):
        kept = {key: without_secret(inner, f"{label}.{key}", notes, paths=paths) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None}
    if isinstance(value, list | tuple):
        items = [without_secret(inner, label, notes, paths=paths) for inner in value]
        return [item for item in items if item is not None]
    return value


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):
        return False


def read_sources(where: str) -> Iterator[Source]:
    """The profile files at a path, in a folder (every `*.toml` of it), or at an http(s) address."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", where):
        yield Source(where, fetch_text(where))
        return
    path = Path(where).expanduser()
    paths = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not paths:
        raise UsageError(f"{path}: no *.toml file in that folder")
    for entry in paths:
        try:
            yield Source(str(entry), read_text(entry))
        except ProfileError as error:
            yield Source(str(entry), None, error)


def fetch_text(url: str) -> str:
    """The text at an http(s) address, at most 1 MiB, following redirects to http(s) only.

    Raises UsageError for another scheme and VqError when nothing usable came; waits at most 10 s per step.
    """
    import http.client
    import urllib.error
    import urllib.request

    class OnlyHttp(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
            if urlsplit(newurl).scheme not in ("http", "https"):
                raise UsageError(f"{url}: leads to {newurl[:200]}, which is no http(s) address")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url}: only http and https addresses are read")
    opener = urllib.request.build_opener(OnlyHttp)
    try:
        request = urllib.request.Request(url, headers={"Accept": "text/plain, application/toml, */*"})
        with opener.open(request, timeout=10) as response:
            raw = response.read(LIMIT_BYTES + 1)
    except urllib.error.HTTPError as error:
        if 300 <= error.code < 400:
            raise UsageError(f"{url}: leads to something that is no http(s) address") from error
        raise VqError(f"{url}: the server answered {error.code}", "open the address in a browser to see why") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise VqError(f"{url}: cannot be fetched: {reason}", "download it yourself and import the file") from error
    if len(raw) > LIMIT_BYTES:
        raise VqError(f"{url}: is larger than 1 MiB, which no profile is")
    try:
        return bytes(raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise VqError(f"{url}: is not UTF-8 text", "give the address of the raw file") from error


def parse_import(source: Source, *, name: str | None = None, model: str | None = None) -> Profile:
    """The profile of a source, under another name or with this machine's model when given; raises ProfileError."""
    if source.error is not None:
        raise source.error
    stem = re.sub(r"\.toml$", "", urlsplit(source.name).path.rsplit("/", 1)[-1])
    table_path = Path(f"{stem}.toml") if stem else None
    profile = profile_from(parse_toml(source.text or "", source.name), table_path, source.name)
    if model is None and "://" not in source.name and profile.model.startswith(("./", "../")):
        model = model_argument(replace(profile, path=Path(source.name).expanduser().absolute()))
    return replace(profile, name=name or profile.name, model=model or profile.model, path=None)


def keep_import(profile: Profile) -> Path:
    """Write an imported profile into the user's folder and remember that it came from elsewhere."""
    from vq_console.core.places import profiles_dir

    path = profiles_dir() / f"{profile.name}.toml"
    if path.exists():
        raise ProfileError(str(path), "", "a profile of that name exists", "give the new one another with --name")
    save_profile(profile, path=path)
    mark_imported(replace(profile, path=path))
    return path
