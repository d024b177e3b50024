"""The child processes that make a simulated server's process tree look like vLLM's. Standard library only.

`python -m vq_console.simulator core …` waits for the end of its standard input (the API server) and ends with it,
unless it is told to outlive it. It computes nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_NAME = 15


def set_title(title: str) -> None:
    """Make `ps` and `/proc` show `title`, as setproctitle does: the command line is overwritten in place."""
    raw = title.encode()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NAME, ctypes.c_char_p(raw[:15]), 0, 0, 0)
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if start and end > start:
            ctypes.memmove(start, raw[: end - start - 1].ljust(end - start, b"\0"), end - start)
    except (OSError, AttributeError, IndexError, ValueError):
        return


def _keep_segment(megabytes: int) -> tuple[mmap.mmap, str]:
    """A shared memory segment named and mapped as vLLM's message queues are, and its path."""
    path = f"/dev/shm/psm_{secrets.token_hex(4)}"
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.ftruncate(handle, megabytes << 20)
    segment = mmap.mmap(handle, megabytes << 20)
    segment[:4] = b"SIM\0"
    os.close(handle)
    return segment, path


def child_command(*words: str) -> list[str]:
    """The argument list of a child of this simulator."""
    return [sys.executable, "-m", "vq_console.simulator", *words]


def run(argv: Sequence[str]) -> int:
    """The engine, a worker, or a descendant that will not go."""
    parser = argparse.ArgumentParser(prog="core")
    parser.add_argument("--title", default="VLLM::EngineCore")
    parser.add_argument("--outlive", action="store_true")
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--grandchild", action="store_true")
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--shm", type=int, default=0)
    args = parser.parse_args(argv)
    set_title(args.title)
    segment = _keep_segment(args.shm) if args.shm else None
    if args.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    children: list[subprocess.Popen[bytes]] = []
    if args.worker:
        words = ["core", "--title", "VLLM::Worker", *(["--outlive"] if args.outlive else [])]
        children.append(subprocess.Popen(child_command(*words), stdin=subprocess.PIPE))
    if args.grandchild:
        words = ["core", "--title", "VLLM::Worker", "--outlive", "--deaf"]
        children.append(subprocess.Popen(child_command(*words), stdin=subprocess.DEVNULL, start_new_session=True))
    print(os.getpid(), *[child.pid for child in children], flush=True)
    if args.outlive:
        while True:
            time.sleep(3600)
    while os.read(0, 4096):
        pass
    if segment is not None:
        segment[0].close()
        Path(segment[1]).unlink(missing_ok=True)
    return 0
