"""The console in a browser of this machine: textual-serve behind a key, on loopback, for nobody else.

Whoever reaches the console can start programs, so each request must come from a page of this very server and know the
key that is printed at the start; a page from elsewhere that points at this port gets nothing.
"""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from vq_console.core.errors import MissingError, UsageError

try:
    from aiohttp import web
    from textual_serve.server import Server
except ImportError as error:
    raise MissingError("the browser needs textual-serve", "pip install 'vq-console[web]'") from error

HOST = "127.0.0.1"
COOKIE = "vq-console-key"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleServer(Server):
    """Serves the console on loopback to who knows the key."""

    def __init__(self, port: int, ready: Callable[[str], None]) -> None:
        super().__init__(f"{shlex.quote(sys.executable)} -m vq_console", host=HOST, port=port, title="vq-console")
        self.key = secrets.token_urlsafe(24)
        self._ready = ready

    @property
    def address(self) -> str:
        """What is opened in the browser."""
        return f"{self.public_url}/?key={self.key}"

    def initialize_logging(self) -> None:
        """Nothing is logged: an address holds the key."""

    async def on_startup(self, app: web.Application) -> None:
        """The port is not open yet, but will be a moment later."""
        self._ready(self.address)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.query.get("key") or request.cookies.get(COOKIE) or ""
        origin = request.headers.get("Origin")
        if not refusal(request.host, origin, self.port) and secrets.compare_digest(given, self.key):
            response = await handler(request)
            if not response.prepared:
                response.set_cookie(COOKIE, self.key, httponly=True, samesite="Strict")
            return response
        raise web.HTTPForbidden(text="Open the address that `vq-console web` printed, on the same machine.\n")


def refusal(host: str, origin: str | None, port: int) -> str:
    """Why a request is not of a page that this server served to this machine; empty when it is. Pure."""
    own = {f"{name}:{port}" for name in (HOST, "localhost")}
    if host not in own:
        return f"asked for as {host}"
    if origin is not None and urlsplit(origin).netloc not in own:
        return f"from a page of {origin}"
    return ""


def serve(port: int, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl+C; `ready` gets the address to open. Raises UsageError when the port is taken."""
    try:
        ConsoleServer(port, ready).serve()
    except OSError as error:
        raise UsageError(f"port {port} of {HOST}: {error.strerror or error}", "choose another with --port") from error
