"""What is written down when a server dies unasked: what a person would look for an hour later and not find.

Only reads; whatever cannot be read is left out with the reason.
"""

from __future__ import annotations

import os
import time

from vq_console.serving.keeping import files
from vq_console.serving.keeping.child import StartError, start_aside
from vq_console.serving.keeping.procfs import Proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

KERNEL_WORDS = ("NVRM", "Xid", "oom", "Out of memory", "Killed process", "segfault", "general protection", "mce:")
REQUEST_WORDS = ('"POST /', "Received request", "Added request", "Aborted request")


def kernel_messages(since_s: float = 0.0, limit: int = 40) -> tuple[list[str], str]:
    """The last kernel messages about GPUs, memory and crashes, and why there are none where that is so.

    `since_s` is seconds since boot; what is older belongs to somebody else's story.
    """
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [], f"/dev/kmsg: {error.strerror}"
    found: list[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # a message was overwritten while reading; the next read goes on behind it
            head, _, text = record.decode("utf-8", "replace").split("\n")[0].partition(";")
            stamp = head.split(",")[2:3]
            young = bool(stamp) and stamp[0].isdigit() and int(stamp[0]) / 1e6 >= since_s
            if young and any(word in text for word in KERNEL_WORDS):
                found.append(text)
    except OSError as error:
        return found[-limit:], f"/dev/kmsg: {error.strerror}"
    finally:
        os.close(handle)
    return found[-limit:], ""


def oom_kills() -> int | None:
    """How often the kernel killed in this control group for want of memory, or None where that is not told."""
    try:
        with open("/proc/self/cgroup") as file:
            group = file.read().strip().splitlines()[-1].split(":", 2)[2]
        with open(f"/sys/fs/cgroup{group}/memory.events") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, IndexError, ValueError):
        pass
    return None


def run_on_death(argv: Sequence[str], folder: str, told: Mapping[str, str]) -> str:
    """Run the user's own command for a death, `told` as its VQ_ variables; returns why not, empty when it runs.

    What it prints goes to `on-death.log` in the server's folder. It gets the keeper's environment, not the server's.
    """
    env = {**os.environ, **{f"VQ_{key.upper()}": value for key, value in told.items()}}
    try:
        output = os.open(f"{folder}/on-death.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    try:
        start_aside(argv, env, output=output)
    except StartError as error:
        return str(error)
    finally:
        os.close(output)
    return ""


def death_words(before: str, code: int | None) -> str:
    """How a server went that nobody stopped. Pure."""
    present = "loading" if before == "starting" else before
    if code is None:
        return f"the server ended while {present}; how is unknown"
    return f"the server {f'was killed by signal {-code}' if code < 0 else f'exited with code {code}'} while {present}"


def write_incident(
    folder: str,
    *,
    summary: str,
    exit_code: int | None,
    state: str,
    log_lines: list[str],
    metrics: Mapping[str, float] | None,
    gpus: list[dict[str, Any]],
    members: Mapping[int, Proc],
    oom_kills_before: int | None,
    since_s: float,
) -> str | None:
    """Write `incident-N.json` into the server's folder and return its path; None when the disk refuses."""
    kernel, unreadable = kernel_messages(since_s)
    kills = oom_kills()
    try:
        number = 1 + sum(1 for name in os.listdir(folder) if name.startswith("incident-"))
    except OSError:
        return None
    path = f"{folder}/incident-{number}.json"
    said = [line.rstrip("\r") for line in log_lines]
    value = {
        "at": time.time(),
        "summary": summary,
        "state_before": state,
        "exit_code": exit_code,
        "log_tail": said[-200:],
        "last_requests": [line for line in said if any(word in line for word in REQUEST_WORDS)][-20:],
        "kernel_messages": kernel,
        "kernel_messages_missing": unreadable,
        "oom_kills": None if kills is None or oom_kills_before is None else kills - oom_kills_before,
        "last_metrics": dict(metrics) if metrics else None,
        "gpus": gpus,
        "survivors": [{"pid": p.pid, "name": p.comm, "session": p.session} for p in members.values()],
    }
    return path if files.write_json(path, value) else None
