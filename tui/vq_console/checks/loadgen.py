"""The load generator: `python -m vq_console.checks.loadgen`, a process that does nothing else.

Reads one JSON command per line from standard input, writes one JSON event per line to standard output, and appends
raw records to a file. Ends with its standard input. It computes no latency figure: it stamps, keeps and reports how
well it could keep time itself.

Commands: {"command": "server", "name", "url", "headers"}, {"command": "block", …BlockOrder},
{"command": "stop", "block"}.
Events: {"event": "tick"|"done"|"error", …}.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vq_console.checks import stream
from vq_console.checks.client import Connection, Exchange
from vq_console.checks.order import BlockOrder, order_from_json, request_body
from vq_console.checks.punctual import LagMeter, ask_for_priority, cpu_s
from vq_console.checks.records import COMPLETE, CUT, FAILED, RequestRecord, chunks_of

_MOST_FAILURES = 3
"""A stream whose requests fail so many times in a row ends: a dead server must not be hammered."""


class Block:
    """One block of load against one server."""

    def __init__(self, order: BlockOrder, connections: list[Connection]) -> None:
        self._order = order
        self._connections = connections
        self._kept: list[tuple[int, int, str, int, Exchange, str]] = []
        self._stopping = asyncio.Event()
        self._live: dict[int, Exchange] = {}
        self.complete = 0

    @property
    def name(self) -> str:
        """The block's name in the records."""
        return self._order.block

    @property
    def reads(self) -> int:
        """How many reads came in so far; a sign of life, not a token count."""
        live = sum(len(exchange.reads) for exchange in self._live.values())
        return live + sum(len(exchange.reads) for *_, exchange, _ in self._kept)

    def stop(self) -> None:
        """No further request; those in flight are cut."""
        self._stopping.set()

    async def run(self) -> dict[str, Any]:
        """Run to the end of the order; returns what the generator knows of itself."""
        order = self._order
        warmed = await asyncio.gather(*(connection.warm() for connection in self._connections))
        problem = next((error for error in warmed if error), None)
        if problem:
            return {"problem": f"a connection could not be opened: {problem}"}
        meter = LagMeter()
        gc.collect()
        gc.disable()
        meter.start()
        began_ns, cpu, wall = time.perf_counter_ns(), cpu_s(), time.time()
        try:
            await self._drive()
        finally:
            ended_ns = time.perf_counter_ns()
            used = cpu_s() - cpu
            gc.enable()
            meter.stop()
        span = (ended_ns - began_ns) / 1e9
        return {
            "start_ns": began_ns,
            "end_ns": ended_ns,
            "started": wall,
            "lag": meter.summary(),
            "client_cpu": round(used / span, 4) if span > 0 else None,
            "block": order.block,
        }

    async def _drive(self) -> None:
        order = self._order
        if order.arrivals_s:
            await self._open_loop()
            return
        tasks = [asyncio.create_task(self._closed_loop(index)) for index in range(order.concurrency)]
        try:
            if order.window_s is None:
                await self._until_done(tasks)
            else:
                await self._until_done(tasks, order.ramp_s + order.window_s)
                cut = self._stopping.is_set()
                self._stopping.set()
                if not cut:
                    await self._first_tokens(order.drain_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_done(self, tasks: list[asyncio.Task[None]], most_s: float | None = None) -> None:
        """Return when all tasks ended, when the block is stopped, or after `most_s`."""

        async def everything() -> None:
            # `wait`, not `gather`: giving up on this must not cancel the streams, which still have to drain.
            await asyncio.wait(tasks)

        async def stopped() -> None:
            await self._stopping.wait()

        waits = {asyncio.create_task(everything()), asyncio.create_task(stopped())}
        _, pending = await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in pending:
            waiting.cancel()
        for task in tasks:
            if task.done():
                task.result()

    async def _first_tokens(self, most_s: float) -> None:
        """Let what is in flight reach its first token, so that slow first tokens are not lost from the sample."""
        needed = 2 if self._order.chat else 1
        deadline = time.perf_counter() + most_s
        while time.perf_counter() < deadline:
            if all(len(exchange.reads) >= needed for exchange in self._live.values()):
                return
            await asyncio.sleep(0.005)

    async def _closed_loop(self, index: int) -> None:
        order = self._order
        if order.stagger_s and index:
            await asyncio.sleep(order.stagger_s * index / order.concurrency)
        number = failures = 0
        while not self._stopping.is_set() and failures < _MOST_FAILURES:
            if order.requests_per_stream is not None and number >= order.requests_per_stream:
                return
            if order.fresh:
                await self._connections[index].renew()
            exchange = await self._one(index, number, self._connections[index], None)
            failures = failures + 1 if exchange.error or exchange.status != 200 else 0
            number += 1

    async def _open_loop(self) -> None:
        order = self._order
        free: asyncio.Queue[int] = asyncio.Queue()
        for index in range(len(self._connections)):
            free.put_nowait(index)
        zero = time.perf_counter_ns()

        async def arrive(number: int, offset_s: float) -> None:
            due = zero + round(offset_s * 1e9)
            await asyncio.sleep(max(0.0, (due - time.perf_counter_ns()) / 1e9))
            index = await free.get()
            try:
                await self._one(index, number, self._connections[index], due)
            finally:
                free.put_nowait(index)

        tasks = [asyncio.create_task(arrive(number, offset)) for number, offset in enumerate(order.arrivals_s)]
        try:
            await self._until_done(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, index: int, number: int, connection: Connection, due_ns: int | None) -> Exchange:
        order = self._order
        request_id = f"{order.block}-{index}-{number}"
        body = request_body(order, index, number)
        exchange = Exchange()
        self._live[index] = exchange
        end = FAILED
        try:
            await connection.stream(order.path, body, request_id, exchange, order.timeout_s)
            end = COMPLETE
        except asyncio.CancelledError:
            end = CUT
            raise
        finally:
            self._live.pop(index, None)
            if exchange.send_ns:
                self.complete += end == COMPLETE
                self._kept.append((index, number, request_id, due_ns or exchange.send_ns, exchange, end))
        return exchange

    def records(self) -> list[RequestRecord]:
        """The raw records, with events taken apart now that nothing is being timed."""
        return [_record(self._order, *kept) for kept in sorted(self._kept, key=lambda one: one[4].send_ns)]


def _record(
    order: BlockOrder, index: int, number: int, request_id: str, due_ns: int, exchange: Exchange, end: str
) -> RequestRecord:
    error = exchange.error
    events: list[stream.Event] = []
    if exchange.status == 200:
        events = stream.read_stream(exchange.reads, vllm=order.vllm)
        error = error or next((event.error for event in events if event.kind == stream.ERROR), None)
        ended = any(event.kind == stream.DONE or event.finish for event in events)
        if end == COMPLETE and not ended:
            error = error or "the stream ended without a finish reason"
    elif exchange.status is not None:
        said = b"".join(data for _, data in exchange.reads)[:300].decode("utf-8", "replace")
        error = error or f"HTTP {exchange.status} {said}"
    if end == COMPLETE and error:
        end = FAILED
    with_prompt = next((e.prompt_tokens for e in reversed(events) if e.prompt_tokens is not None), None)
    with_count = [event.completion_tokens for event in events if event.completion_tokens is not None]
    return RequestRecord(
        block=order.block,
        stream=index,
        number=number,
        request_id=request_id,
        scheduled_ns=due_ns if not exchange.reconnected else max(due_ns, exchange.send_ns),
        send_ns=exchange.send_ns,
        headers_ns=exchange.headers_ns,
        first_byte_ns=exchange.reads[0][0] if exchange.reads else None,
        end_ns=exchange.end_ns,
        chunks=chunks_of(events, exchange.send_ns),
        requested=order.output_tokens,
        prompt_asked=order.prompt_tokens if order.pool.exact and not order.requests else None,
        prompt_tokens=with_prompt,
        completion_tokens=with_count[-1] if with_count else None,
        status=exchange.status,
        error=error,
        finish=next((event.finish for event in reversed(events) if event.finish), None),
        end=end,
        reconnected=exchange.reconnected,
    )


class Generator:
    """Keeps a connection per stream and server between blocks."""

    def __init__(self, priority: str) -> None:
        self._priority = priority
        self._servers: dict[str, tuple[str, dict[str, str]]] = {}
        self._connections: dict[str, list[Connection]] = {}
        self._block: Block | None = None
        self._stopped: set[str] = set()

    def server(self, command: Mapping[str, Any]) -> None:
        """Learn a server's address and headers; keys come by this pipe, never by argv or file."""
        self._servers[str(command["name"])] = (str(command["url"]), dict(command.get("headers") or {}))

    def stop(self, block: str) -> None:
        """Cut a block, also one that has not begun yet."""
        self._stopped.add(block)
        if self._block is not None and self._block.name == block:
            self._block.stop()

    async def block(self, order: BlockOrder) -> dict[str, Any]:
        """Run one block, append its records, and say how it went."""
        url, headers = self._servers[order.server]
        have = self._connections.setdefault(order.server, [])
        while len(have) < order.concurrency:
            have.append(Connection(url, headers))
        self._block = Block(order, have[: order.concurrency])
        if order.block in self._stopped:
            self._block.stop()
        ticks = asyncio.create_task(self._tick(self._block))
        try:
            outcome = await self._block.run()
        finally:
            ticks.cancel()
        records = self._block.records()
        _append(Path(order.records), records)
        outcome.update(requests=len(records), priority=self._priority)
        self._block = None
        return outcome

    async def _tick(self, block: Block) -> None:
        while True:
            await asyncio.sleep(0.5)
            _say({"event": "tick", "reads": block.reads, "complete": block.complete})

    async def close(self) -> None:
        """Close all connections."""
        for connections in self._connections.values():
            for connection in connections:
                await connection.close()


def _append(path: Path, records: list[RequestRecord]) -> None:
    """Between blocks nothing is timed, so plain blocking writes are right."""
    with open(path, "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record.to_json(), separators=(",", ":")) + "\n")


def _say(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def main() -> int:
    """Serve commands until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    generator = Generator(ask_for_priority())
    running: asyncio.Task[None] | None = None

    async def work(order: BlockOrder) -> None:
        try:
            _say({"event": "done", **await generator.block(order)})
        except (OSError, KeyError, ValueError) as error:
            _say({"event": "error", "message": f"{type(error).__name__}: {error}", "block": order.block})

    try:
        while line := await reader.readline():
            command = json.loads(line)
            if command["command"] == "server":
                generator.server(command)
            elif command["command"] == "stop":
                generator.stop(str(command["block"]))
            elif command["command"] == "block":
                running = asyncio.create_task(work(order_from_json(command)))
    finally:
        if running is not None and not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await generator.close()
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(asyncio.run(main()))
