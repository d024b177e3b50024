"""vLLM servers in Docker and Podman containers: where they listen from here, and what they wrote.

Source: the JSON of `docker inspect` (Engine API 1.41, ContainerInspect), which Podman's has the same fields of.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vq_console.core.errors import MissingError
from vq_console.core.files import read_json, write_atomic
from vq_console.core.text import strip_control
from vq_console.serving.model import ServerRecord

VLLM_PORT = 8000
LAST_LINES = 20_000
FIRST_LINES = 4_000
"""A long log is taken over as its begin, where a start says what it chose, and its end."""
FETCH_EVERY_S = 15.0


def addresses(inspected: Mapping[str, Any]) -> tuple[str, ...]:
    """`HOST:PORT` at which the container may serve, the likeliest first; empty when it publishes nothing. Pure.

    The likeliest is vLLM's own port: that of `--port` in its command line, else 8000.
    """
    words = [
        str(word) for word in (*(inspected.get("Args") or ()), *((inspected.get("Config") or {}).get("Cmd") or ()))
    ]
    own = _port_of(words)
    if str((inspected.get("HostConfig") or {}).get("NetworkMode")) == "host":
        return (f"127.0.0.1:{own}",)
    published = (inspected.get("NetworkSettings") or {}).get("Ports") or {}
    ranked = []
    for inner, places in published.items():
        number, _, protocol = str(inner).partition("/")
        for place in places or ():
            if protocol in ("tcp", "") and (port := str(place.get("HostPort") or "")).isdecimal():
                host = str(place.get("HostIp") or "")
                near = host in ("", "0.0.0.0", "::")
                ranked.append(
                    (number != str(own), int(port), "127.0.0.1" if near else f"[{host}]" if ":" in host else host)
                )
    return tuple(dict.fromkeys(f"{host}:{port}" for _, port, host in sorted(ranked)))


def _port_of(words: list[str]) -> int:
    for word, following in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name == "--port" and (value if equals else following).isdecimal():
            return int(value if equals else following)
    return VLLM_PORT


def inspect(container: str) -> Mapping[str, Any]:
    """What the container engine knows of a running container.

    Raises MissingError when there is no container engine, no such container, or it does not run.
    """
    value = _inspect(container)
    if ended := _ended(container, value):
        name = os.path.basename(tool())
        raise MissingError(ended, f"`{name} logs {container} 2>&1 | vq-console explain -` says why")
    return value


def _inspect(container: str) -> Mapping[str, Any]:
    try:
        return dict(json.loads(_run("inspect", "--type", "container", container))[0])
    except (ValueError, IndexError, TypeError) as error:
        raise MissingError(f"the answer of `inspect {container}` is not understood: {error}") from error


def _ended(container: str, inspected: Mapping[str, Any]) -> str:
    state = inspected.get("State") or {}
    if state.get("Running"):
        return ""
    how = f"{state.get('Status') or 'stopped'}, exit code {state.get('ExitCode', '?')}"
    return f"container {container!r} does not run ({how})"


def why_not_running(container: str | None) -> str:
    """Why the container of a server that does not answer is known to be down; empty when it is not known to be."""
    if not container:
        return ""
    try:
        return _ended(container, _inspect(container))
    except MissingError as error:
        return "its container is gone" if "no such" in error.message.lower() else ""


def fetch_log(folder: Path, container: str) -> Path:
    """Write the container's log into the record's folder. Raises MissingError when it cannot be had."""
    text = _run("logs", "--tail", str(LAST_LINES), container)
    if text.count("\n") >= LAST_LINES:
        head = folder / "head.log"
        if not head.exists():
            write_atomic(head, "\n".join(itertools.islice(_lines("logs", container), FIRST_LINES)) + "\n", mode=0o600)
        text = f"{head.read_text()}[vq-console] lines in between are left out\n{text}"
    path = folder / "server.log"
    write_atomic(path, text, mode=0o600)
    return path


def container_of(record: ServerRecord) -> str | None:
    """The container of an attached server, or None."""
    if not record.attached or not record.folder:
        return None
    try:
        found = read_json(Path(record.folder) / "server.json").get("container")
    except (OSError, ValueError):
        return None
    return str(found) if found else None


def container_of_process(pid: int) -> str | None:
    """Short id of the Docker or Podman container that a process runs in, by its control group (cgroup v1 and v2)."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="ascii", errors="replace") as file:
            return container_id(file.read())
    except OSError:
        return None


def container_id(cgroups: str) -> str | None:
    """The first 12 digits of the container's id in the text of /proc/PID/cgroup. Pure."""
    found = re.search(r"(?:docker|libpod|containers)\S*?[/-]([0-9a-f]{64})", cgroups)
    return found[1][:12] if found else None


def refresh_log(record: ServerRecord) -> None:
    """Fetch a container's log again when the copy is old; trouble leaves the copy as it is."""
    container = container_of(record)
    if container is None or not record.folder or not record.log:
        return
    try:
        if time.time() - os.stat(record.log).st_mtime < FETCH_EVERY_S:
            return
    except OSError:
        pass
    try:
        fetch_log(Path(record.folder), container)
    except (MissingError, OSError):
        return


def follow_log(container: str) -> Iterator[str]:
    """Lines of a container's log as they come, from now on. Raises MissingError without a container engine."""
    return _lines("logs", "--follow", "--tail", "0", container)


def _lines(*arguments: str) -> Iterator[str]:
    process = subprocess.Popen([tool(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            yield line.decode("utf-8", "replace").rstrip("\n")
    finally:
        process.terminate()
        process.wait()


def tool() -> str:
    """The container engine's command. Raises MissingError when there is none."""
    found = shutil.which("docker") or shutil.which("podman")
    if found is None:
        raise MissingError("neither docker nor podman was found", "attach the server by its URL instead")
    return found


def _run(*arguments: str) -> str:
    # A container's own errors are part of its log; those of the container engine are not part of an answer.
    errors = subprocess.STDOUT if arguments[0] == "logs" else subprocess.PIPE
    try:
        done = subprocess.run([tool(), *arguments], stdout=subprocess.PIPE, stderr=errors, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{tool()} {arguments[0]}: {error}", "is its service running?") from error
    if done.returncode:
        name, said = os.path.basename(tool()), (done.stderr or done.stdout).decode("utf-8", "replace")
        raise MissingError(f"{name} {arguments[0]}: {strip_control(said.strip())}", f"`{name} ps` shows the containers")
    return done.stdout.decode("utf-8", "replace")
