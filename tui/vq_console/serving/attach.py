"""Servers that somebody else started: by URL, by pid, by container, or found on this machine.

They are shown, measured and compared like any other and never stopped. Owns their records and the look at whether
they still answer. A key is only ever named by its environment variable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vq_console.core import http
from vq_console.core.errors import MissingError, UsageError
from vq_console.core.files import write_json
from vq_console.core.places import host_id
from vq_console.core.text import strip_control
from vq_console.serving import containers
from vq_console.serving.keeping import procfs
from vq_console.serving.launch import NAME, claimed_folder
from vq_console.serving.model import Identity, ServerRecord, ServerState

LOOK_EVERY_S = 5.0
LOOK_TIMEOUT_S = 1.5
_ENDED = (ServerState.STOPPED, ServerState.FAILED)
_looks: dict[str, tuple[float, ServerState, str]] = {}


@dataclass(frozen=True, slots=True)
class Found:
    """A vLLM server that runs on this machine and was not started here."""

    pid: int
    port: int | None
    command: str
    user: str | None
    age_s: float | None
    container: str | None = None
    """Short id of the container that it runs in."""

    @property
    def url(self) -> str | None:
        return f"http://127.0.0.1:{self.port}" if self.port else None


def attach_url(url: str, *, name: str | None = None, api_key_env: str | None = None) -> ServerRecord:
    """Attach the OpenAI-compatible server at `url` (with or without `/v1`).

    Raises UsageError for no URL, MissingError when nothing answers there or its key is missing or wrong.
    """
    return _attach(_base(url), name=name, api_key_env=api_key_env)


def attach_pid(pid: int, *, name: str | None = None, api_key_env: str | None = None) -> ServerRecord:
    """Attach the server that process `pid` runs; its log is read where its output goes to a file.

    Raises MissingError when there is no such process or it listens on no port.
    """
    proc = procfs.read_proc(pid)
    if proc is None or proc.gone:
        raise MissingError(f"there is no process {pid}", "`vq-console attach` lists the servers of this machine")
    port = _port_of(pid)
    inside = containers.container_of_process(pid)
    if port is None and inside is not None:
        raise MissingError(f"process {pid} runs in container {inside}", f"attach that: --container {inside}")
    if port is None:
        raise MissingError(
            f"process {pid} ({strip_control(proc.comm)}) listens on no port that this user may see",
            "attach it by its URL once it serves",
        )
    return _attach(
        f"http://127.0.0.1:{port}",
        name=name,
        api_key_env=api_key_env,
        extra={
            "log": _output_file(pid),
            "server": {"pid": pid, "start_ticks": proc.start_ticks, "boot_id": procfs.boot_id()},
        },
    )


def attach_container(container: str, *, name: str | None = None, api_key_env: str | None = None) -> ServerRecord:
    """Attach the server in a Docker or Podman container, by its published port or on the host's network.

    The container's log is its log. Raises MissingError when the container does not run, publishes no port or no
    server answers there.
    """
    places = containers.addresses(containers.inspect(container))
    if not places:
        raise MissingError(f"container {container!r} publishes no port", "attach it by its URL")
    problems = []
    for place in places:
        try:
            return _attach(
                f"http://{place}", name=name or container, api_key_env=api_key_env, extra={"container": container}
            )
        except MissingError as error:
            problems.append(error)
    raise problems[0]


def _base(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no address of a server", "for example http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise UsageError("a URL with a password in it is not kept", "name its key's variable with --api-key-env")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1").rstrip("/")


def _attach(
    url: str, *, name: str | None, api_key_env: str | None, extra: Mapping[str, Any] | None = None
) -> ServerRecord:
    key = http.key_from_environment(api_key_env)
    if api_key_env and key is None:
        raise MissingError(f"the environment variable {api_key_env} is not set", f"export {api_key_env}=…")
    _not_ours(url)
    answer = http.get(f"{url}/v1/models", timeout=10, api_key=key)
    if answer.status in (401, 403):
        raise MissingError(f"{url} wants a key", "name the variable that holds it: --api-key-env NAME")
    models = (answer.json() or {}).get("data") if isinstance(answer.json(), dict) else None
    if not answer.ok or not models:
        raise MissingError(
            f"{url}: no OpenAI-compatible server answers ({answer.error or f'HTTP {answer.status}'})",
            "is it up, and is this its base address?",
        )
    version = http.get(f"{url}/version", timeout=5).json()
    parts = urlsplit(url)
    given: dict[str, Any] = {
        "attached": True,
        "url": url,
        "port": parts.port,
        "model": strip_control(str(models[0].get("id") or "")),
        "vllm_version": version.get("version") if isinstance(version, dict) else None,
        "simulated": "simulated" in str(version).lower(),
        "api_key_env": api_key_env,
        "created": time.time(),
        **(extra or {}),
    }
    wanted = name or "".join(c if c.isalnum() or c in "._-" else "-" for c in parts.netloc)
    if not NAME.fullmatch(wanted):
        raise UsageError(f"{wanted!r} is no name for a server", "give one with --name")
    with claimed_folder(name, wanted) as (folder, _lock):
        write_json(folder / "server.json", {**given, "name": folder.name}, mode=0o600)
        if given.get("container"):
            containers.fetch_log(folder, str(given["container"]))
    return attached_record(folder, {**given, "name": folder.name})


def _not_ours(url: str) -> None:
    """Raise UsageError when a server that was started here answers at `url`: it has its row already."""
    from vq_console.serving.registry import list_servers

    port, host = urlsplit(url).port, urlsplit(url).hostname
    for record in list_servers(adopt=False):
        own = not record.attached and record.url and record.state not in _ENDED and port == urlsplit(record.url).port
        if own and host in (urlsplit(record.url or "").hostname, "localhost", "127.0.0.1", "::1"):
            raise UsageError(f"{url} is {record.name}, which was started here", "it needs no attaching: use its name")


def attached_record(folder: Path, given: Mapping[str, Any]) -> ServerRecord:
    """The record of an attached server; asks it whether it lives at most every few seconds."""
    url = str(given.get("url") or "")
    state, reason = _look(url, given)
    server = given.get("server")
    return ServerRecord(
        name=str(given.get("name") or folder.name),
        state=state,
        url=url,
        port=given.get("port"),
        model=given.get("model"),
        identity=Identity(int(server["pid"]), int(server["start_ticks"]), str(server["boot_id"])) if server else None,
        log=given.get("log") or (str(folder / "server.log") if given.get("container") else None),
        folder=str(folder),
        reason=reason,
        created=float(given.get("created") or 0.0),
        attached=True,
        simulated=bool(given.get("simulated")),
        api_key_env=given.get("api_key_env"),
        host_id=host_id(),
    )


def _look(url: str, given: Mapping[str, Any]) -> tuple[ServerState, str]:
    now = time.monotonic()
    known = _looks.get(url)
    if known is not None and now - known[0] < LOOK_EVERY_S:
        return known[1], known[2]
    answer = http.get(
        f"{url}/health", timeout=LOOK_TIMEOUT_S, api_key=http.key_from_environment(given.get("api_key_env"))
    )
    if answer.ok or answer.status in (401, 403, 404):
        state, reason = ServerState.READY, ""
    elif answer.status:
        state, reason = ServerState.UNRESPONSIVE, f"/health says {answer.status}"
    else:
        server = given.get("server") or {}
        gone = bool(server) and not procfs.matches(
            int(server["pid"]), int(server["start_ticks"]), str(server["boot_id"])
        )
        ended = "its process is gone" if gone else containers.why_not_running(given.get("container"))
        state = ServerState.STOPPED if ended else ServerState.UNRESPONSIVE
        reason = ended or f"does not answer ({answer.error})"
    _looks[url] = (now, state, reason)
    return state, reason


def discover(known_pids: frozenset[int] = frozenset()) -> tuple[Found, ...]:
    """vLLM API servers of this machine that the console did not start (`known_pids` are those that it did)."""
    found = []
    for proc in procfs.all_procs().values():
        if proc.gone or proc.pid in known_pids:
            continue
        words = command_line(proc.pid)
        if not is_api_server(words):
            continue
        found.append(
            Found(
                pid=proc.pid,
                port=_port_of(proc.pid),
                command=strip_control(" ".join(words))[:300],
                user=user_of(proc.pid),
                age_s=procfs.age_s(proc.start_ticks),
                container=containers.container_of_process(proc.pid),
            )
        )
    return tuple(sorted(found, key=lambda item: item.pid))


def is_api_server(words: list[str]) -> bool:
    """True when this command line starts vLLM's API server. Pure."""
    joined = " ".join(words)
    if "vllm.entrypoints.openai.api_server" in words:
        return True
    if "vllm.entrypoints.cli.main" in joined and "serve" in words:
        return True
    return any(
        os.path.basename(word) == "vllm" and words[index + 1 : index + 2] == ["serve"]
        for index, word in enumerate(words[:4])
    )


def command_line(pid: int) -> list[str]:
    """The arguments of a process, empty where they may not be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except OSError:
        return []


def user_of(pid: int) -> str | None:
    """The name of the user who owns a process, or None."""
    import pwd

    try:
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    except (OSError, KeyError):
        return None


def _port_of(pid: int) -> int | None:
    ours = procfs.socket_inodes(pid)
    ports = [port for port, inode in procfs.listening_ports() if inode in ours]
    return min(ports) if ports else None


def _output_file(pid: int) -> str | None:
    """The file that a process writes its output to, when it is a plain one."""
    for number in (1, 2):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if target.startswith("/") and os.path.isfile(target):
            return target
    return None
