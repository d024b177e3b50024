"""A small blocking HTTP client for probes and control calls (never for measured load).

Standard library only: `vq-console --help` and the keeper must not pay for aiohttp.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said. `status` 0 means that no answer came; `error` says why."""

    status: int
    body: bytes
    error: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The decoded body, or None when it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def request(
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout: float = 5.0,
    api_key: str | None = None,
    limit_bytes: int = 256 * 1024 * 1024,
) -> Answer:
    """One request on a fresh connection. Never raises for network trouble: that is data (`status` 0).

    `timeout` is in seconds and counts for each socket operation. `api_key` is sent as a bearer token.
    """
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Accept": "application/json"}
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    connection = None
    try:
        connection = make(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)
        path = parts.path or "/"
        connection.request(method, f"{path}?{parts.query}" if parts.query else path, body=data, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(limit_bytes))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, b"", f"{type(error).__name__}: {error}")
    finally:
        if connection is not None:
            connection.close()


def get(url: str, *, timeout: float = 5.0, api_key: str | None = None) -> Answer:
    """GET `url`."""
    return request("GET", url, timeout=timeout, api_key=api_key)


def post(url: str, body: Mapping[str, Any], *, timeout: float = 30.0, api_key: str | None = None) -> Answer:
    """POST `body` as JSON."""
    return request("POST", url, body, timeout=timeout, api_key=api_key)


def key_from_environment(name: str | None) -> str | None:
    """The API key held in environment variable `name`; keys are only ever named, never stored."""
    return os.environ.get(name) if name else None
