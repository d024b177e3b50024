"""A token source that costs almost nothing: pre-encoded chunks at a fixed pace, and a log of when they were written.

For the capacity figure of load generators only: the simulator would be the limit long before they are.
`python mock_stream.py PORT TPOT_MS LOG`; one JSON line per request is appended to LOG.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import random
import sys
import time

TTFT_S = (0.05, 0.25)
"""First tokens come after a random time in this range, so that streams do not move in step."""
CHUNK = (
    b'data: {"id":"c","object":"text_completion","created":1,"model":"mock","choices":[{"index":0,"text":" word",'
    b'"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
LAST = CHUNK.replace(b'"finish_reason":null', b'"finish_reason":"length"')


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Source:
    """All streams on one heap of due times, served by one timer."""

    def __init__(self, tpot_s: float, log: str) -> None:
        self.tpot_s = tpot_s
        self.due: list[tuple[float, int, Stream]] = []
        self.order = itertools.count()
        self.log = open(log, "a", buffering=1 << 16)  # noqa: SIM115
        self.timer: asyncio.TimerHandle | None = None

    def add(self, at: float, stream: Stream) -> None:
        heapq.heappush(self.due, (at, next(self.order), stream))
        self.arm()

    def arm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.due:
            self.timer = asyncio.get_running_loop().call_at(self.due[0][0], self.fire)

    def fire(self) -> None:
        now = asyncio.get_running_loop().time()
        while self.due and self.due[0][0] <= now:
            at, _, stream = heapq.heappop(self.due)
            if stream.emit():
                heapq.heappush(self.due, (at + self.tpot_s, next(self.order), stream))
        self.arm()


class Stream(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.buffer = b""
        self.left = 0
        self.row: dict[str, object] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines[1:])}
        length = int(fields.get("content-length", "0"))
        if len(body) < length:
            return
        self.buffer = body[length:]
        if lines[0].startswith("GET"):
            models = json.dumps({"object": "list", "data": [{"id": "mock", "object": "model"}]}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ")
            self.transport.write(b"%d\r\n\r\n%s" % (len(models), models))
            return
        asked = json.loads(body[:length])
        self.left = self.count = int(asked["max_tokens"])
        self.row = {"id": fields.get("x-request-id"), "arrival_ns": time.perf_counter_ns(), "tokens": self.count}
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self.source.add(asyncio.get_running_loop().time() + random.uniform(*TTFT_S), self)

    def emit(self) -> bool:
        """Write the next chunk; False after the last."""
        if self.transport.is_closing():
            return False
        now = time.perf_counter_ns()
        if self.left == self.count:
            self.row["first_ns"] = now
        self.left -= 1
        self.transport.write(framed(CHUNK if self.left else LAST))
        if self.left:
            return True
        self.row["last_ns"] = now
        usage = {"prompt_tokens": 8, "completion_tokens": self.count, "total_tokens": 8 + self.count}
        tail = {"id": "c", "object": "text_completion", "model": "mock", "choices": [], "usage": usage}
        self.transport.write(framed(b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(tail).encode()) + b"0\r\n\r\n")
        self.source.log.write(json.dumps(self.row) + "\n")
        self.source.log.flush()
        return False


async def main(port: int, tpot_ms: float, log: str) -> None:
    """Serve until killed."""
    source = Source(tpot_ms / 1000, log)
    server = await asyncio.get_running_loop().create_server(lambda: Stream(source), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
