"""One HTTP exchange that never blocks, for a loop that also has a server to watch.

Small on purpose: `http.client` alone would double the keeper's memory. Speaks to the keeper's own server only.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import Any

LIMIT_BYTES = 4 * 1024 * 1024


class Exchange:
    """One request in flight. Call `step` when `fileno()` is ready; then `done`, `status` (0 for none), `body`, `error`.

    Times are monotonic seconds, given by the caller.
    """

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        *,
        now: float,
        timeout_s: float,
        body: dict[str, Any] | None = None,
        api_key: str | None = None,
        tls: bool = False,
        tag: str = "",
    ) -> None:
        self.tag = tag
        self.status = 0
        self.body = b""
        self.error = ""
        self.done = False
        self.started = now
        self.deadline = now + timeout_s
        self.events = select.POLLOUT
        self._received = b""
        self._out = _request(host, port, path, body, api_key)
        self._socket: socket.socket | ssl.SSLSocket = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM
        )
        self._socket.setblocking(False)
        try:
            code = self._socket.connect_ex((host, port))
        except OSError as error:  # a name that cannot be resolved
            self._finish(error.strerror or str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            self._finish(os.strerror(code))
        elif tls:
            self._wrap()

    def _wrap(self) -> None:
        import ssl

        # The keeper's own server on this machine: who answers is proven by the socket's owner, not by a certificate.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        plain = self._socket
        plain.setblocking(True)
        plain.settimeout(2.0)
        try:
            self._socket = context.wrap_socket(plain)
            self._socket.setblocking(False)
        except OSError as error:
            self._finish(str(error))

    def fileno(self) -> int:
        return self._socket.fileno()

    def step(self, now: float) -> None:
        """Send or receive what is possible now, and give up at the deadline."""
        if self.done:
            return
        try:
            if self._out:
                self._out = self._out[self._socket.send(self._out) :]
            if not self._out:
                self.events = select.POLLIN
                self._read()
        except OSError as error:
            # Wanting to read or write more is how a non-blocking socket, plain or TLS, says "later".
            if not isinstance(error, BlockingIOError) and not type(error).__name__.startswith("SSLWant"):
                self._finish(error.strerror or str(error))
        if not self.done and now >= self.deadline:
            self._finish("timed out")

    def _read(self) -> None:
        while not self.done:
            piece = self._socket.recv(65536)
            self._received += piece
            body, whole = _body(self._received)
            if whole or not piece or len(self._received) > LIMIT_BYTES:
                if body is None:
                    self._finish("the connection closed without an answer")
                else:
                    self.status = _status(self._received)
                    self.body = body
                    self._finish("" if self.status else "no HTTP answer")

    def _finish(self, error: str) -> None:
        self.error = error
        self.close()

    def close(self) -> None:
        """End the exchange, whatever came so far."""
        self.done = True
        self._socket.close()

    def json(self) -> Any:
        """The decoded body, or None."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def _request(host: str, port: int, path: str, body: dict[str, Any] | None, api_key: str | None) -> bytes:
    name = f"[{host}]" if ":" in host else host
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {name}:{port}", "Connection: close"]
    data = b""
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    if body is not None:
        data = json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _status(raw: bytes) -> int:
    first = raw.split(b"\r\n", 1)[0].split()
    if len(first) > 1 and first[0].startswith(b"HTTP/") and first[1].isdigit():
        return int(first[1])
    return 0


def _body(raw: bytes) -> tuple[bytes | None, bool]:
    """The body so far (None while the head is not whole) and whether it is whole."""
    head, found, rest = raw.partition(b"\r\n\r\n")
    if not found:
        return None, False
    length = None
    chunked = False
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        key = key.strip().lower()
        if key == b"content-length" and value.strip().isdigit():
            length = int(value)
        chunked = chunked or (key == b"transfer-encoding" and b"chunked" in value.lower())
    if chunked:
        return _unchunk(rest)
    if length is not None:
        return rest[:length], len(rest) >= length
    return rest, False


def _unchunk(raw: bytes) -> tuple[bytes, bool]:
    out: list[bytes] = []
    while True:
        size_text, found, rest = raw.partition(b"\r\n")
        if not found:
            return b"".join(out), False
        try:
            size = int(size_text.split(b";")[0], 16)
        except ValueError:
            return b"".join(out), True
        if size == 0:
            return b"".join(out), True
        if len(rest) < size + 2:
            return b"".join([*out, rest[:size]]), False
        out.append(rest[:size])
        raw = rest[size + 2 :]
