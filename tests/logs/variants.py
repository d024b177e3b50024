"""Ways in which the same log may arrive: other prefixes, other numbers, other neighbours.

Each takes lines and returns lines and, for every old line number, the new one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

Variant = Callable[[Sequence[str]], tuple[list[str], Mapping[int, int]]]

_RECORD = re.compile(
    r"^(?P<process>\((?P<name>[\w.\- =]+?) pid=(?P<pid>\d+)\) )?(?P<level>INFO|WARNING|ERROR|CRITICAL|DEBUG) "
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[?(?P<source>[\w./<>]+:\d+)\] ?(?P<message>.*)$"
)


def _each(change: Callable[[str], str]) -> Variant:
    def variant(lines: Sequence[str]) -> tuple[list[str], Mapping[int, int]]:
        return [change(line) for line in lines], {number: number for number in range(1, len(lines) + 1)}

    return variant


def _colour(line: str) -> str:
    match = _RECORD.match(line)
    if match is None:
        return line
    process = f"\x1b[0;36m{match['process'][:-1]}\x1b[0;0m " if match["process"] else ""
    return (
        f"{process}\x1b[32m{match['level']}\x1b[0m \x1b[90m{match['time']}\x1b[0m \x1b[90m[{match['source']}]\x1b[0m"
        f" {match['message']}"
    )


def _other_numbers(line: str) -> str:
    """Another build: source lines, process ids, clock."""
    line = re.sub(r"(\.py:)(\d+)\]", lambda m: f"{m[1]}{int(m[2]) + 37}]", line)
    line = re.sub(r'(\.py", line )(\d+)', lambda m: f"{m[1]}{int(m[2]) + 11}", line)
    line = re.sub(r"( pid=)(\d+)\)", lambda m: f"{m[1]}{int(m[2]) + 70000})", line)
    return re.sub(r"\b(\d\d-\d\d) (\d\d):", lambda m: f"{m[1]} {(int(m[2]) + 5) % 24:02d}:", line)


def _other_folders(line: str) -> str:
    line = line.replace("/usr/local/lib/python3.12/dist-packages/", "/home/ann/env/lib/python3.13/site-packages/")
    return line.replace("/opt/venv/lib/python3.11/site-packages/", "C:\\env\\Lib\\site-packages\\").replace(
        "/opt/venv/lib/python3.12/site-packages/", "/conda/envs/serve/lib/python3.11/site-packages/"
    )


def _old_source(line: str) -> str:
    """As 0.6 and 0.7 wrote it: no opening bracket."""
    match = _RECORD.match(line)
    if match is None or "/" in match["source"]:
        return line
    return f"{match['process'] or ''}{match['level']} {match['time']} {match['source']}] {match['message']}"


def _all_prefixed(line: str) -> str:
    """As 0.10 to 0.30 wrote it: bare lines of the API server carry its name too."""
    bare = not line.startswith(("(", "[", "\r", "W1", "vllm-")) and _RECORD.match(line) is None
    return f"(APIServer pid=77) {line}" if bare and line.strip() and "core dumped" not in line else line


def _as_json(line: str) -> str:
    match = _RECORD.match(line)
    if match is None or "\r" in line or "\x1b" in line:
        return line
    return json.dumps(
        {
            "asctime": match["time"],
            "levelname": match["level"],
            "name": "vllm." + match["source"].split(".py")[0].replace("/", "."),
            "processName": match["name"] or "MainProcess",
            "process": int(match["pid"] or 1),
            "message": match["message"],
        }
    )


def _docker_json(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-04T15:00:00.123456789Z"})


def _cloud(line: str) -> str:
    """A collector's own level and time in front."""
    return f"{'ERROR' if 'rror' in line else 'INFO'} 2026-11-04T15:00:00.123456789Z {_colour(line)}"


def _inside_another(line: str) -> str:
    """A parent passes on what its children print."""
    return f"(APIServer pid=1) {line}" if line.startswith("(") else line


def _margin(line: str) -> str:
    """As pasted into a report: leading blanks are lost."""
    match = _RECORD.match(line)
    if match is None:
        return line.lstrip(" ")
    return line[: match.start("message")] + match["message"].lstrip(" ")


def _carriage_returns(line: str) -> str:
    return line + "\r"


def _with_debug(lines: Sequence[str]) -> tuple[list[str], Mapping[int, int]]:
    """DEBUG records of another process between all lines."""
    made: list[str] = []
    numbers: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        made.append(
            f"(DPCoordinator pid=99) DEBUG 11-03 09:00:00 [v1/engine/coordinator.py:{number}] error failed {number}"
        )
        made.append(line)
        numbers[number] = len(made)
    return made, numbers


def _behind_a_bar(lines: Sequence[str]) -> tuple[list[str], Mapping[int, int]]:
    """A progress bar that was not ended stands before records of the logger."""
    bar = "\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.13s/it]"
    made = [bar + line if line.startswith("(") and " ERROR " in line[:40] else line for line in lines]
    return made, {number: number for number in range(1, len(lines) + 1)}


def _after_a_failed_run(lines: Sequence[str]) -> tuple[list[str], Mapping[int, int]]:
    """The file begins with another start that ended on a taken port."""
    before = [
        "(APIServer pid=31) INFO 11-01 08:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.31.0",
        (
            "(APIServer pid=31) INFO 11-01 08:00:00 [api_utils.py:286] non-default args: "
            "{'model_tag': 'a/b', 'model': 'a/b'}"
        ),
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/vllm", line 10, in <module>',
        "    sys.exit(main())",
        "OSError: [Errno 98] Address already in use",
        "(APIServer pid=32) INFO 11-01 09:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.31.0",
    ]
    return [*before, *lines], {number: number + len(before) for number in range(1, len(lines) + 1)}


def _after_a_served_run(lines: Sequence[str]) -> tuple[list[str], Mapping[int, int]]:
    """The file begins with a server that ran well and was stopped."""
    before = [
        "(APIServer pid=31) INFO 11-01 08:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.31.0",
        "(EngineCore pid=32) INFO 11-01 08:00:20 [core.py:133] Initializing a V1 LLM engine (v0.31.0) with "
        "config: model='a/b',"
        " dtype=torch.bfloat16, max_seq_len=4096, quantization=awq, kv_cache_dtype=fp8",
        "INFO:     Application startup complete.",
        "(EngineCore pid=32) INFO 11-01 08:30:00 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM",
        "(APIServer pid=31) INFO 11-01 08:30:00 [launcher.py:254] [shutdown] API server: shutdown triggered",
        "(APIServer pid=33) INFO 11-01 09:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.31.0",
    ]
    return [*before, *lines], {number: number + len(before) for number in range(1, len(lines) + 1)}


def _shutdown_noise(lines: Sequence[str]) -> tuple[list[str], Mapping[int, int]]:
    """What dying workers print last."""
    after = [
        (
            "[rank0]:[W1104 13:00:51.001 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=61): Connection "
            "was closed"
        ),
        "(Worker_TP1 pid=302) WARNING 11-04 13:00:00 [multiproc_executor.py:974] WorkerProc was terminated",
        (
            "[rank0]:[W1016 14:22:29.114 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was "
            "not called"
        ),
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There "
        "appear to be 1"
        " leaked semaphore objects to clean up at shutdown",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    return [*lines, *after * 30], {number: number for number in range(1, len(lines) + 1)}


def cut_head(lines: Sequence[str], root: int) -> tuple[list[str], Mapping[int, int]]:
    """Only the last lines before the cause are left of the beginning."""
    first = max(0, root - 4)
    return list(lines[first:]), {number: number - first for number in range(first + 1, len(lines) + 1)}


SAME_MEANING: Mapping[str, Variant] = {
    "docker compose": _each(lambda line: f"vllm-1  | {line}"),
    "stern": _each(lambda line: f"vllm-6f9c7d5b8-x2x4z vllm {line}"),
    "srun -l": _each(lambda line: f"0: {line}"),
    "with a byte order mark": lambda lines: (
        ["\ufeff" + lines[0], *lines[1:]],
        {number: number for number in range(1, len(lines) + 1)},
    ),
    "shell's prompt behind": lambda lines: (
        [*lines, "user@box:~$ "],
        {number: number for number in range(1, len(lines) + 1)},
    ),
    "docker compose, coloured": _each(lambda line: f"\x1b[36mvllm-server-1  | \x1b[0m{line}"),
    "docker logs -t": _each(lambda line: f"2026-11-04T15:00:00.123456789Z {line}"),
    "container runtime": _each(lambda line: f"2026-11-04T15:00:00.123456789+00:00 stderr F {line}"),
    "kubectl --prefix": _each(lambda line: f"[pod/vllm-7d9f-abcde/vllm] {line}"),
    "journald": _each(lambda line: f"Nov 04 15:00:00 gpubox vllm[4711]: {line}"),
    "journald, full time": _each(lambda line: f"2026-11-04T15:00:00+0100 gpubox vllm.sh[4711]: {line}"),
    "journald in December": _each(lambda line: f"Dec  4 15:00:00 gpubox vllm[4711]: {line}"),
    "cloud": _each(_cloud),
    "spelt-out colours": _each(lambda line: _colour(line).replace("\x1b", "#033")),
    "lost escapes": _each(lambda line: _colour(line).replace("\x1b", "")),
    "ts": _each(lambda line: f"[2026-11-04 15:00:00] {line}"),
    "quoted": _each(lambda line: f"> vllm-1  | {line}"),
    "docker desktop": _each(lambda line: f"2026-11-04 15:00:00.681 | {line}"),
    "inside another": _each(_inside_another),
    "at the margin": _each(_margin),
    "docker json file": _each(_docker_json),
    "colours": _each(_colour),
    "other build": _each(_other_numbers),
    "other folders": _each(_other_folders),
    "0.6 source style": _each(_old_source),
    "0.10 process style": _each(_all_prefixed),
    "JSON logging": _each(_as_json),
    "CR LF": _each(_carriage_returns),
    "debug level": _with_debug,
    "behind a bar": _behind_a_bar,
    "after a failed run": _after_a_failed_run,
    "after a served run": _after_a_served_run,
    "dying workers": _shutdown_noise,
}


def blocks(lines: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    """The same lines in pieces, as a follower delivers them."""
    cuts = [0, *sizes, len(lines)]
    return [list(lines[a:b]) for a, b in pairwise(cuts) if a < b]
