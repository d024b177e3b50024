"""One measured stream on aiohttp: a connection of its own, warmed before it is timed, never retried.

Runs only inside the load generator's process. Every read is stamped before anything looks at its bytes; events are
taken apart after the block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp


@dataclass(slots=True)
class Exchange:
    """What one request saw so far; filled while it runs, so that a cancelled one keeps its reads."""

    send_ns: int = 0
    sent: bool = False
    headers_ns: int | None = None
    end_ns: int = 0
    status: int | None = None
    error: str | None = None
    reconnected: bool = False
    reads: list[tuple[int, bytes]] = field(default_factory=list)


class Connection:
    """One stream's connection to one server."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = dict(headers)
        self._session = self._open()

    def _open(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._connected)
        trace.on_request_chunk_sent.append(self._sending)
        # The limit of one makes the connection this stream's own; the keep-alive outlasts any pause between blocks,
        # so that only the server may close it.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=3600, ttl_dns_cache=3600),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[trace],
            auto_decompress=False,
            read_bufsize=1 << 20,
        )

    async def _connected(self, _: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        exchange = context.trace_request_ctx
        if isinstance(exchange, Exchange):
            exchange.reconnected = True

    async def _sending(self, _: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        """aiohttp signals this right before headers and body go to the socket, in one write.

        Everything before it is the generator's own work (building headers, waiting for its loop, a handshake) and
        would be counted as the server's by a stamp taken earlier.
        """
        exchange = context.trace_request_ctx
        if isinstance(exchange, Exchange) and not exchange.sent:
            exchange.sent = True
            exchange.send_ns = time.perf_counter_ns()

    async def warm(self, timeout_s: float = 10.0) -> str | None:
        """Open the connection, or prove that it is open, with a request that costs no tokens; the error if any."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.get(self._url + "/v1/models") as response:
                    await response.read()
                    return None if response.status < 500 else f"HTTP {response.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"

    async def stream(self, path: str, body: bytes, request_id: str, exchange: Exchange, timeout_s: float) -> None:
        """Send one request and stamp its reads into `exchange`. Trouble is data there; only cancellation is raised."""
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        exchange.send_ns = time.perf_counter_ns()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(
                    self._url + path, data=body, headers=headers, trace_request_ctx=exchange
                ) as response,
            ):
                exchange.headers_ns = time.perf_counter_ns()
                exchange.status = response.status
                content = response.content
                reads = exchange.reads
                now = time.perf_counter_ns
                while not content.at_eof():
                    data = await content.readany()
                    if data:
                        reads.append((now(), data))
        except TimeoutError:
            exchange.error = f"no end within {timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            exchange.error = f"{type(error).__name__}: {error}"[:300]
        finally:
            exchange.end_ns = time.perf_counter_ns()

    async def renew(self) -> None:
        """Drop the connection, so that the next request makes a new one."""
        await self._session.close()
        self._session = self._open()

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()
