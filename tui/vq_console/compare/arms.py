"""What an ARM on the command line means: a profile, a running server, a URL or a recorded baseline.

Resolves words to values; starts nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from vq_console.core.errors import MissingError, UsageError
from vq_console.core.text import nearest
from vq_console.serving.model import LIVE, ServerState

if TYPE_CHECKING:
    from vq_console.checks.endpoint import Endpoint
    from vq_console.serving.model import ServerRecord

ArmKind = Literal["profile", "server", "url", "reference"]
SOURCE = "source:"
"""`source:NAME` is what profile NAME was quantized from, served with its flags."""
PREFIXES: dict[str, ArmKind] = {"profile": "profile", "server": "server", "ref": "reference"}


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One side of a comparison as the user named it; `name` is without prefix (a path stays a path)."""

    kind: ArmKind
    name: str

    @property
    def label(self) -> str:
        """What reports call it: the profile's or server's name, a URL's host and port."""
        if self.kind == "url":
            parts = urlsplit(self.name)
            return parts.netloc or self.name
        if self.kind in {"profile", "reference"} and ("/" in self.name or self.name.endswith(".toml")):
            return Path(self.name).stem
        return self.name


def parse_arm(
    text: str, *, profiles: Collection[str], servers: Collection[str], references: Collection[str]
) -> ArmSpec:
    """Decide what `text` means, given the names that exist now.

    Raises UsageError when a bare name means two things (say `profile:NAME` or `server:NAME`), or nothing.
    """
    prefix, separator, rest = text.partition(":")
    if separator and prefix in PREFIXES and not rest.startswith("//"):
        if not rest:
            raise UsageError(f"{text!r}: a name is missing after the colon", f"for example {prefix}:my-name")
        return ArmSpec(PREFIXES[prefix], rest)
    if text.startswith(("http://", "https://")):
        try:
            known = bool(urlsplit(text).hostname)
        except ValueError:
            known = False
        if not known:
            raise UsageError(f"{text!r} is no URL", "for example http://127.0.0.1:8000")
        return ArmSpec("url", text.rstrip("/"))
    if "/" in text or text.endswith(".toml"):
        return ArmSpec("profile", text)
    kinds: list[ArmKind] = []
    if text in profiles:
        kinds.append("profile")
    if text in servers:
        kinds.append("server")
    if text in references:
        kinds.append("reference")
    if len(kinds) == 1:
        return ArmSpec(kinds[0], text)
    if kinds:
        short = {"reference": "ref"}
        choices = " or ".join(f"{short.get(kind, kind)}:{text}" for kind in kinds)
        raise UsageError(f"{text!r} is the name of a {' and of a '.join(kinds)}", f"say {choices}")
    close = nearest(text, [*profiles, *servers, *references])
    hint = f"did you mean {close!r}? " if close else ""
    raise UsageError(
        f"{text!r} is no profile, running server or recorded baseline",
        hint + "`vq-console profiles list` and `vq-console ps` show what there is; a URL works too",
    )


def resolve_arm(text: str) -> ArmSpec:
    """`parse_arm` against the profiles, live servers and references of this machine."""
    from vq_console.core.places import references_dir
    from vq_console.profiles.store import list_profiles
    from vq_console.serving.registry import list_servers

    if text.startswith(SOURCE):
        from vq_console.profiles.origin import source_arm
        from vq_console.profiles.store import load_profile

        return ArmSpec("profile", source_arm(load_profile(text.removeprefix(SOURCE))))
    folder = references_dir()
    return parse_arm(
        text,
        profiles={listed.name for listed in list_profiles()},
        servers={server.name for server in list_servers() if server.state in LIVE},
        references={path.stem for path in folder.glob("*.vqref")} if folder.is_dir() else set(),
    )


def running_server(spec: ArmSpec) -> ServerRecord | None:
    """The live server that already serves this arm: by its name, or the one ready server of the profile."""
    from vq_console.serving.registry import get_server, list_servers

    if spec.kind == "server":
        return get_server(spec.name)
    if spec.kind != "profile":
        return None
    ready = [s for s in list_servers() if s.profile == spec.label and s.state is ServerState.READY and not s.attached]
    return ready[0] if len(ready) == 1 else None


def server_endpoint(server: ServerRecord, label: str) -> Endpoint:
    """The endpoint of a server that is ready. Raises MissingError when it is not."""
    from vq_console.checks.endpoint import Endpoint

    if server.state is not ServerState.READY or not server.url:
        raise MissingError(
            f"server {server.name!r} is {server.state.value}, not ready",
            f"`vq-console logs {server.name}` shows why; `vq-console serve PROFILE --wait` starts one",
        )
    facts = server.plan.get("target", {})
    device = facts.get("device") if isinstance(facts, dict) else None
    return Endpoint(
        label=label,
        url=server.url,
        model=server.model or "",
        api_key_env=server.api_key_env,
        device=device,
        gpu_uuids=gpu_uuids(server.gpus),
        pid=server.identity.pid if server.identity else None,
        simulated=server.simulated,
    )


def gpu_uuids(indices: Collection[int]) -> tuple[str, ...]:
    """UUIDs of the GPUs with these indices; empty where there is none (a CPU engine) or none can be read."""
    if not indices:
        return ()
    from vq_console.hardware.probe import read_machine

    return tuple(g.uuid for g in read_machine(processes=False).gpus if g.index in indices and g.uuid)


def url_endpoint(url: str, label: str, *, api_key_env: str | None = None) -> Endpoint:
    """An endpoint that someone else runs. Raises MissingError when no server answers there."""
    from vq_console.checks.endpoint import Endpoint
    from vq_console.core import http

    base = url.removesuffix("/v1").rstrip("/")
    answer = http.get(f"{base}/v1/models", timeout=10, api_key=http.key_from_environment(api_key_env))
    models = (answer.json() or {}).get("data") if answer.ok and isinstance(answer.json(), dict) else None
    if not models:
        why = answer.error or f"HTTP {answer.status}"
        hint = "is the server up, and is this the base URL without /v1?"
        if answer.status == 401:
            hint = "name the environment variable that holds its key with --api-key-env"
        raise MissingError(f"{url}: no OpenAI-compatible server answers ({why})", hint)
    version = http.get(f"{base}/version", timeout=5).json()
    simulated = isinstance(version, dict) and "simulated" in str(version).lower()
    return Endpoint(
        label=label,
        url=base,
        model=str(models[0].get("id", "")),
        api_key_env=api_key_env,
        device=None,
        gpu_uuids=(),
        pid=None,
        simulated=simulated,
    )


def resolve_endpoint(text: str, *, api_key_env: str | None = None) -> Endpoint:
    """The endpoint of an ARM that runs already. Raises MissingError when it must be started first."""
    spec = resolve_arm(text)
    if spec.kind == "url":
        return url_endpoint(spec.name, spec.label, api_key_env=api_key_env)
    server = running_server(spec)
    if server is not None:
        return server_endpoint(server, spec.label)
    if spec.kind == "reference":
        raise UsageError(f"{text!r} is a recorded baseline; a check needs a running server", "name a server or a URL")
    raise MissingError(f"no ready server runs profile {spec.name!r}", f"start one: vq-console serve {spec.name} --wait")
