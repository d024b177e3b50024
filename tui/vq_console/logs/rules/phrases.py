"""Sentences that decide what a line is, before any rule: lost, stopped, harmless, noise, a mere wrapper.

Owns those lists. Texts: vLLM 0.6 to 0.33, torch, the shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_START = 2000


@dataclass(frozen=True, slots=True)
class Phrases:
    """Pieces of text, any of which may stand anywhere, and a pattern that must match at the beginning."""

    anywhere: tuple[str, ...]
    beginning: re.Pattern[str] | None = None

    def in_(self, text: str) -> bool:
        """Whether the text says one of them; only its first 2,000 characters count."""
        if len(text) > _START:
            text = text[:_START]
        if any(piece in text for piece in self.anywhere):
            return True
        return self.beginning is not None and self.beginning.match(text) is not None


BENIGN = Phrases(
    (
        "We must use the `spawn` multiprocessing start method",
        "ustom allreduce is disabled",
        "NVLink detection failed",
        "Found ulimit of",
        "No available shared memory broadcast block found",
        "Failed to import Triton kernels",
        "Failed to import from vllm.",
        ", retrying ",
        "Chat template warmup failed",
        "destroy_process_group() was not called",
        "resource_tracker: There appear to be",
        "pin_memory=False",
    )
)
"""Harmless by its text, at whatever level it is written."""

NOISE = Phrases(
    (
        "NVLink detection failed",
        "Failed to import Triton kernels",
        ", retrying ",
        "ound ulimit of",
        "recvValue failed on SocketImpl",
        "Exception ignored in",
        "destroy_process_group()",
        "UserWarning: ",
        "FutureWarning: ",
        "DeprecationWarning: ",
        "RuntimeWarning: ",
        "ResourceWarning: ",
        "Dumping input data",
        "Dumping scheduler",
        "lines dropped by log rotation",
    ),
    re.compile(r"\s*warnings\.warn|\[shutdown\]|\[vq-console\]|Worker \S+ pid \d+ died, exit code: -(?:2|15)\b"),
)
"""Lines that never are a cause, though they are written at ERROR or to standard error."""

RETRIED = re.compile(r"\brepo_utils\b")
"""Sources whose ERROR records announce another attempt."""

FATAL = Phrases(
    (
        "EngineCore failed to start",
        "EngineCore encountered a fatal error",
        "EngineCore hit an exception",
        "Engine core initialization failed",
        "Engine process failed to start",
        "WorkerProc failed to start",
        "WorkerProc initialization failed",
        "WorkerProc hit an exception",
        "Error executing method",
        "died unexpectedly",
        "engine core exited unexpectedly",
        "AsyncLLM output_handler failed",
        "EngineDeadError",
        "Engine loop has died",
        "Engine loop is not running",
        "Background loop has errored",
        "Engine background task failed",
        "Got fatal signal from worker",
        "died, exit code: ",
        "Timed out waiting for engine core",
        ": error: unrecognized arguments",
        ": error: argument ",
        ": error: the following arguments",
        ": error: ambiguous option",
        "Segfault encountered",
        "Fatal Python error",
        "terminate called after throwing",
        "died with <Signals",
        "NVRM: Xid",
        "fallen off the bus",
        " which is incompatible.",
    ),
    re.compile(
        r"(?:.*: line \d+: +\d+ )?(?:Illegal instruction|Segmentation fault|Bus error|Aborted|Killed"
        r"|Floating point exception)\b|Exception in worker \w+ while processing"
    ),
)
"""After one of these, before any stop, the run has failed."""

WRAPPERS = Phrases(
    (
        "Engine core initialization failed",
        "WorkerProc initialization failed",
        "EngineCore encountered an issue",
        "Engine process failed to start",
        "Engine loop has died",
        "Background loop has errored",
        "Engine background task failed",
        "Worker failed with error",
        "See root cause",
        "See stack trace",
        "please check the stack trace above",
        "please check the log above",
        "failed to be inspected. Please check the logs",
        "Error raised in subprocess",
    ),
    re.compile(
        r"RuntimeError: cancelled\s*$|SystemExit\b|(?:asyncio\.exceptions|concurrent\.futures\._base)\.CancelledError"
        r"|(?:BrokenPipeError|ConnectionResetError|EOFError)\b"
        r"|(?:\w+\.)*(?:EngineDeadError|MQEngineDeadError|AsyncEngineDeadError|EngineGenerateError)\b"
    ),
)
"""Exceptions that only pass on that something else failed."""

STOP = Phrases(
    (
        "[shutdown] EngineCore: trigger received signal",
        "[shutdown] API server: shutdown triggered",
        "Shutdown initiated (timeout",
        "Gracefully stopping http server",
    ),
    re.compile(r"Received SIG\w+, shutting down|Shutting down$"),
)
"""Somebody asked the server to stop; what follows is noise."""
