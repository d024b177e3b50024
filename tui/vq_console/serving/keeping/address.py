"""Where a server listens: its port in the arguments, its URL, and who else has its port."""

from __future__ import annotations

from vq_console.serving.keeping import locks, procfs

PORT_TAKEN = "port-in-use"
"""Slug of the diagnosis when another program has the port: the keeper sees it itself, the log may be empty."""


def with_port(argv: list[str], old: int, new: int) -> list[str]:
    """The arguments with another value for `--port`."""
    changed = list(argv)
    for index, item in enumerate(argv):
        if item == f"--port={old}":
            changed[index] = f"--port={new}"
        elif item == "--port" and index + 1 < len(argv):
            changed[index + 1] = str(new)
    return changed


def url_of(host: str, port: int, tls: bool) -> str:
    """The address at which this machine reaches a server bound to `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if tls else 'http'}://{name}:{port}"


def near_host(host: str) -> str:
    """The address to connect to for a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def who_has(port: int) -> str:
    """The program that listens on `port`, as a person says it."""
    other = procfs.owner_of_port(port)
    if other is not None:
        return f"pid {other.pid} ({other.comm})"
    name = locks.holder_of(f"port-{port}").get("name")
    return f"server {name}" if name else "another program"
