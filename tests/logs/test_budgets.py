"""Large logs: explained in seconds and in bounded memory, opened at their end at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from logs.cases import DATA
from vq_console.logs.explain import explain_lines, explain_path
from vq_console.logs.tail import TailIndex

pytestmark = pytest.mark.alone

_START = (DATA / "real" / "h200-vllm-0.26.0" / "healthy-w4a16-machete.log").read_bytes().partition(b"[shutdown]")[0]
_START = _START[: _START.rindex(b"\n") + 1]
_END = (DATA / "cases" / "cuda-oom-at-runtime-long-prompt" / "log.txt").read_bytes().partition(b"\n")[2]
_CRASH = (DATA / "real" / "h200-vllm-0.26.0" / "gpu-busy-nvfp4.log").read_bytes()

_MEASURE = (
    "import re, sys, time\n"
    "from vq_console.logs.explain import explain_path\n"
    "begin = time.process_time()\n"
    "explanation = explain_path(sys.argv[1])\n"
    "spent = time.process_time() - begin\n"
    # Not ru_maxrss: a child takes over the peak of the process that started it.
    "peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024\n"
    "print(explanation.diagnosis.slug, explanation.lines, f'{spent:.2f}', f'{peak:.0f}')\n"
)


def _served(number: int) -> bytes:
    line = b'(APIServer pid=556) INFO:     127.0.0.1:%d - "POST /v1/completions HTTP/1.1" 200 OK\n' % (number % 999)
    stats = (
        b"(APIServer pid=556) INFO 11-30 04:32:34 [loggers.py:310] Engine 000: Avg prompt throughput: %d.4 tokens/s,"
        b" Avg generation throughput: 671.5 tokens/s, Running: 64 reqs, Waiting: 0 reqs, GPU KV cache usage: 77.1%%\n"
        % number
    )
    return line * 50 + stats


def _requests(number: int) -> bytes:
    line = (
        b"(APIServer pid=556) INFO 11-30 04:32:34 [logger.py:45] Received request cmpl-%x: params: SamplingParams(n=1),"
        b" prompt: 'CUDA out of memory'\n"
    )
    return b"".join(line % (number * 50 + extra) for extra in range(50))


def _crashes(_number: int) -> bytes:
    return _CRASH


def _refused(number: int) -> bytes:
    line = b'(APIServer pid=556) INFO:     127.0.0.1:%d - "POST /v1/completions HTTP/1.1" 503 Service Unavailable\n'
    other = b"(APIServer pid=556) INFO:httpx:HTTP Request: POST http://sidecar:%d/check\n"
    return b"".join(line % extra + other % (number + extra) for extra in range(50))


def _errors(number: int) -> bytes:
    line = b"(EngineCore pid=556) ERROR 11-30 04:32:34 [core.py:%d] something %x failed with code %d\n"
    return b"".join(line % (extra, number * 50 + extra, extra) for extra in range(50))


def _write(path: Path, size: int, block: Callable[[int], bytes], *, end: bytes = _END) -> None:
    def blocks() -> Iterator[bytes]:
        written = len(_START)
        yield _START
        for number in count():
            if written >= size:
                break
            piece = block(number)
            written += len(piece)
            yield piece
        yield end

    with open(path, "wb", buffering=1 << 20) as file:
        file.writelines(blocks())


def _measured(path: Path) -> tuple[str, int, float, float]:
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n{_MEASURE}",
        str(path),
    ]
    slug, lines, seconds, mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return slug, int(lines), float(seconds), float(mib)


def test_ten_megabytes_cost_a_tenth(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _write(log, 10_000_000, _served)
    slug, lines, seconds, mib = _measured(log)
    assert slug == "cuda-oom-runtime"
    assert lines == log.read_bytes().count(b"\n")
    assert seconds < 1.5
    assert mib < 200


def test_runs_that_are_left_out_change_no_answer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _write(log, 5_000_000, _crashes, end=b"")
    skipped = explain_path(log)
    whole = explain_lines(log.read_bytes().decode().split("\n")[:-1])
    assert skipped.diagnosis == whole.diagnosis
    assert (skipped.facts, skipped.phases, skipped.lines) == (whole.facts, whole.phases, whole.lines)


@pytest.mark.soak
@pytest.mark.parametrize(
    "block", [_served, _requests, _refused, _crashes, _errors], ids=lambda block: block.__name__.strip("_")
)
def test_a_hundred_megabytes_in_three_seconds_and_two_hundred_megabytes(
    tmp_path: Path, block: Callable[[int], bytes]
) -> None:
    log = tmp_path / "log"
    _write(log, 100_000_000, block, end=b"" if block is _crashes else _END)
    slug, _lines, seconds, mib = _measured(log)
    log.unlink()
    print(f"soak: 100 MB of{block.__name__.replace('_', ' ')}: {seconds:.2f} s of CPU, {mib:.0f} MiB at most")
    assert slug == ("gpu-memory-busy" if block is _crashes else "cuda-oom-runtime")
    assert seconds < 3.0
    assert mib < 200


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def test_a_gigabyte_is_opened_at_its_end_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.writelines(
            b"\n(APIServer pid=556) INFO 11-30 04:32:34 [a.py:1] line %d" % number for number in range(5000)
        )
    index = TailIndex(log)
    window = index.last(2000)
    assert len(window.lines) == 2000
    assert window.lines[-1].endswith("line 4999")
    assert min(_seconds(lambda: TailIndex(log).last(2000)) for _ in range(3)) < 0.5


@pytest.mark.soak
def test_a_gigabyte_of_text_is_opened_at_its_end_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _write(log, 1_000_000_000, lambda number: _served(number) * 200)
    seconds = _seconds(lambda: TailIndex(log).last(2000))
    print(f"soak: the last 2,000 lines of 1 GB: {seconds * 1000:.0f} ms")
    assert seconds < 0.5
    log.unlink()


def test_the_reader_keeps_up_with_thousands_of_lines_a_second() -> None:
    from vq_console.logs.reader import FactReader

    reader = FactReader()
    reader.feed(_START.decode().split("\n"))
    lines = _served(7).decode().split("\n")[:-1] * 40
    _ = (reader.failed, reader.facts, reader.phase)

    def second() -> None:
        reader.feed(lines)
        _ = (reader.failed, reader.facts, reader.phase)

    assert len(lines) > 2000
    assert min(_seconds(second) for _ in range(10)) < 0.016
