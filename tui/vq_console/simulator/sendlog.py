"""The server's own record of when it sent what, to hold a load generator's figures against."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Sending:
    """One request: monotonic nanoseconds of its arrival and of each chunk, and how many tokens each chunk held."""

    request_id: str
    arrival_ns: int
    prompt_tokens: int
    send_ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def sent(self, now_ns: int, tokens: int) -> None:
        """Note a chunk just before it is written."""
        self.send_ns.append(now_ns)
        self.tokens.append(tokens)


class SendLog:
    """JSON lines, written when a request ends so that writing never delays a chunk of the same request."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def begin(self, request_id: str, arrival_ns: int, prompt_tokens: int) -> Sending:
        """A record for a request that has just arrived."""
        return Sending(request_id, arrival_ns, prompt_tokens)

    def end(self, record: Sending, reason: str) -> None:
        """Write a finished record."""
        value = {
            "id": record.request_id,
            "arrival_ns": record.arrival_ns,
            "prompt_tokens": record.prompt_tokens,
            "send_ns": record.send_ns,
            "tokens": record.tokens,
            "end_ns": time.perf_counter_ns(),
            "reason": reason,
        }
        self._file.write(json.dumps(value) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
