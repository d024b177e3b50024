"""One line taken apart, in every style."""

from __future__ import annotations

import pytest

from vq_console.logs.lines import parse_line, strip_container
from vq_console.logs.model import LogLine


def _line(raw: str) -> LogLine:
    return parse_line(1, raw).line


@pytest.mark.parametrize(
    ("raw", "process", "pid", "level", "source", "message"),
    [
        ("INFO 02-12 10:11:12 engine.py:366] hello", None, None, "INFO", "engine.py:366", "hello"),
        ("INFO 02-12 10:11:12 [core.py:340] hello", None, None, "INFO", "core.py:340", "hello"),
        (
            "(EngineCore_DP0 pid=585) ERROR 09-16 17:46:20 [core.py:718] x",
            "EngineCore_DP0",
            585,
            "ERROR",
            "core.py:718",
            "x",
        ),
        (
            "(VllmWorker rank=1 pid=2978) INFO 03-19 07:27:31 [a.py:1] x",
            "VllmWorker rank=1",
            2978,
            "INFO",
            "a.py:1",
            "x",
        ),
        (
            "(RayWorkerWrapper pid=12, ip=10.0.0.2) INFO 03-19 07:27:31 a.py:1] x",
            "RayWorkerWrapper",
            12,
            "INFO",
            "a.py:1",
            "x",
        ),
        (
            "(APIServer pid=556) INFO:     Started server process [556]",
            "APIServer",
            556,
            "INFO",
            "uvicorn",
            "Started server process [556]",
        ),
        (
            'INFO:     127.0.0.1:50366 - "GET /health HTTP/1.1" 200 OK',
            None,
            None,
            "INFO",
            "uvicorn",
            '127.0.0.1:50366 - "GET /health HTTP/1.1" 200 OK',
        ),
        ("WARNING:root:careful", None, None, "WARNING", "root", "careful"),
        (
            "W1130 04:37:55.801000 4112 torch/_library/triton.py:53] no",
            None,
            None,
            "WARNING",
            "torch/_library/triton.py:53",
            "no",
        ),
        (
            "[rank0]:[W1130 05:12:27.090574041 ProcessGroupNCCL.cpp:1575] w",
            "rank0",
            None,
            "WARNING",
            "ProcessGroupNCCL.cpp:1575",
            "w",
        ),
        (
            "[rank3]: Traceback (most recent call last):",
            "rank3",
            None,
            None,
            None,
            "Traceback (most recent call last):",
        ),
        (
            "(EngineCore pid=1) 2026-11-30 05:13:29,284 - INFO - autotuner.py:651 - flashinfer.jit: go",
            "EngineCore",
            1,
            "INFO",
            "autotuner.py:651",
            "flashinfer.jit: go",
        ),
        (
            "(Worker pid=4) INFO 11-30 04:38:10 [v1/worker/gpu_worker.py:12] deep",
            "Worker",
            4,
            "INFO",
            "v1/worker/gpu_worker.py:12",
            "deep",
        ),
        ("ValueError: no prefix at all", None, None, None, None, "ValueError: no prefix at all"),
        ("", None, None, None, None, ""),
    ],
)
def test_styles(
    raw: str, process: str | None, pid: int | None, level: str | None, source: str | None, message: str
) -> None:
    line = _line(raw)
    assert (line.process, line.pid, line.level, line.source, line.message) == (process, pid, level, source, message)


@pytest.mark.parametrize(
    "prefix",
    [
        "vllm-1  | ",
        "vllm_server-2 | 2026-11-04T15:00:00.123456789Z ",
        "2026-11-04T15:00:00.123456789Z stdout F ",
        "2026-11-04T15:00:00.123456789Z ",
        "[pod/vllm-7d9f/vllm] ",
        "[pod/vllm-7d9f/vllm] 2026-11-04T15:00:00.1Z ",
        "Nov  4 15:00:00 host vllm[123]: ",
        "2026-11-04T15:00:00+01:00 host vllm.service[123]: ",
        "[2026-11-04 15:00:00] ",
    ],
)
def test_container_prefixes_are_removed(prefix: str) -> None:
    inner = "(EngineCore pid=210) ERROR 11-04 15:00:00 [core.py:1510] EngineCore failed to start."
    line = _line(prefix + inner)
    assert (line.process, line.level, line.message) == ("EngineCore", "ERROR", "EngineCore failed to start.")
    assert strip_container(prefix + "Traceback (most recent call last):") == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("raw", "process", "level", "source", "message"),
    [
        (
            "(APIServer pid=1) (EngineCore_DP0 pid=439) ERROR 11-03 09:00:00 [core.py:1] lost",
            "EngineCore_DP0",
            "ERROR",
            "core.py:1",
            "lost",
        ),
        (
            "(EngineCore_0 pid=3927913) (VllmWorker TP0 pid=3927919) INFO 08-20 09:00:00 [w.py:1] hi",
            "VllmWorker TP0",
            "INFO",
            "w.py:1",
            "hi",
        ),
        ("> vllm-1  | ERROR 11-03 09:00:00 [core.py:1] lost", None, "ERROR", "core.py:1", "lost"),
        ("2025-06-01 06:42:29.681 | ERROR 11-03 09:00:00 [core.py:1] lost", None, "ERROR", "core.py:1", "lost"),
        (
            "2023-11-20 02:07:50,728\tERROR worker.py:406 -- Unhandled error",
            None,
            "ERROR",
            "worker.py:406",
            "Unhandled error",
        ),
        (
            "[rank1]:[W828 03:13:16.402 ProcessGroupNCCL.cpp:1496] Warning: x",
            "rank1",
            "WARNING",
            "ProcessGroupNCCL.cpp:1496",
            "Warning: x",
        ),
    ],
)
def test_prefixes_in_front_of_prefixes(raw: str, process: str | None, level: str, source: str, message: str) -> None:
    line = _line(raw)
    assert (line.process, line.level, line.source, line.message) == (process, level, source, message)


def test_a_dated_record_is_no_container_prefix() -> None:
    assert _line("2026-11-30 05:13:29,284 - INFO - x.py:1 - said").message == "said"


def test_colours_are_removed_and_their_place_does_not_matter() -> None:
    raw = (
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-03 09:00:00\x1b[0m"
        " \x1b[90m[a.py:7]\x1b[0m hi"
    )
    line = _line(raw)
    assert (line.process, line.level, line.source, line.message) == ("APIServer", "INFO", "a.py:7", "hi")


def test_of_a_progress_bar_what_says_something_is_kept() -> None:
    bar = "\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.13s/it]"
    assert _line(bar * 3 + "\rOSError: [Errno 5] Input/output error").message == "OSError: [Errno 5] Input/output error"
    line = _line(bar + "(EngineCore pid=9) ERROR 11-04 11:00:00 [core.py:1] lost")
    assert (line.process, line.level, line.message) == ("EngineCore", "ERROR", "lost")
    assert "50% Completed" in _line(bar).message


def test_continuation_lines_end_with_a_carriage_return() -> None:
    line = _line("(EngineCore pid=210) WARNING 11-04 18:00:00 [__init__.py:1232]  - CutlassNvFp4LinearKernel: no\r")
    assert line.message == " - CutlassNvFp4LinearKernel: no"


def test_json_records() -> None:
    raw = (
        '{"asctime": "11-30 04:32:34", "levelname": "ERROR", "name": "vllm.v1.engine.core",'
        ' "processName": "EngineCore",'
        ' "process": 12, "message": "EngineCore failed to start.", "exc_info": "Traceback\\nValueError: x"}'
    )
    line = _line(raw)
    assert (line.process, line.pid, line.level) == ("EngineCore", 12, "ERROR")
    assert line.message.startswith("EngineCore failed to start.\nTraceback")
    inner = _line('{"log":"(Worker pid=3) INFO 11-30 04:32:34 [a.py:1] hi\\n","stream":"stdout","time":"2026"}')
    assert (inner.process, inner.message) == ("Worker", "hi")
    assert _line('{"not": "a record"}').message == '{"not": "a record"}'
    assert _line('{"broken').message == '{"broken'


def test_a_line_of_megabytes_is_cut_and_keeps_both_ends() -> None:
    message = _line("(EngineCore pid=1) INFO 11-04 18:00:00 [a.py:1] begin " + "x" * 5_000_000 + " end").message
    assert message.startswith("begin")
    assert message.endswith(" end")
    assert len(message) < 300_000


def test_the_clock_is_read_where_there_is_one() -> None:
    first = parse_line(1, "INFO 12-31 23:59:58 [a.py:1] x").clock
    second = parse_line(2, "INFO 01-01 00:00:03 [a.py:1] x").clock
    assert first is not None
    assert second is not None
    assert second < first
    assert parse_line(3, "INFO:     no clock").clock is None
