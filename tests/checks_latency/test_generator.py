"""The load generator against the simulator's own send log, and what it does when servers misbehave."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.terminal import Terminal
from simulator.running import served
from ui.bench import start_writer
from vq_console.checks.endpoint import Capabilities, Endpoint, probe
from vq_console.checks.generator import LoadGenerator
from vq_console.checks.measures import times_of
from vq_console.checks.order import BlockOrder, can_do, request_body
from vq_console.checks.prompts import PromptPool, make_pool, read_requests, token_prompt
from vq_console.checks.records import REQUESTS_FILE, read_records, records_by_block
from vq_console.checks.steady import concurrency_in, steady_window
from vq_console.core.errors import CheckError

POOL = PromptPool(tuple(range(300, 400)))


def _order(folder: Path, endpoint: Endpoint, **changes: object) -> BlockOrder:
    order = BlockOrder(
        block="b",
        server="A",
        model=endpoint.model,
        records=str(folder / REQUESTS_FILE),
        concurrency=1,
        prompt_tokens=32,
        output_tokens=16,
        prompt_seed=1,
        prompt_key="k",
        pool=POOL,
        requests_per_stream=1,
        **can_do(Capabilities(vllm=True, exact_length=True, extra_sampling=True, cache_salt=True, stream_usage=True)),
    )
    return replace(order, **changes)  # type: ignore[arg-type]


_BUSY_MS = 3.0
"""A machine that wakes a process so late (p99) cannot be asked for 2 ms."""


def hold_against_the_send_log(tmp_path: Path, streams: int, requests: int) -> str:
    """Bias against the server's send log: TTFT at most max(2 %, 2 ms), TPOT at most 0.5 %. The bias in words."""
    log = tmp_path / "sent.jsonl"
    spec = {"ttft_ms": 80, "ttft_sd": 0.1, "tpot_ms": 30, "tpot_token_sd": 0.2, "send_log": str(log)}
    spec["access_log"] = False
    with served(tmp_path, spec) as running, LoadGenerator(tmp_path / "log") as generator:
        generator.server("A", running.endpoint)
        warm = _order(tmp_path, running.endpoint, block="warm", concurrency=streams, output_tokens=2, stagger_s=0.3)
        generator.block(warm)
        account = generator.block(
            _order(
                tmp_path, running.endpoint, concurrency=streams, output_tokens=24, requests_per_stream=requests,
                stagger_s=0.8,
            )
        )  # fmt: skip
    sent = {row["id"]: row for row in map(json.loads, log.read_text().splitlines())}
    records = records_by_block(tmp_path)["b"]
    assert len(records) == streams * requests == account["requests"]
    ttft, tpot, errors, own = [], [], [], []
    for record in records:
        assert record.end == "complete", record.error
        assert not record.reconnected
        row = sent[record.request_id]
        found = times_of(record)
        assert record.completion_tokens == sum(row["tokens"]) == 24
        assert len(found.gaps) == 23
        assert found.ttft is not None
        assert found.tpot is not None
        own.append((row["send_ns"][0] - row["arrival_ns"]) / 1e9)
        ttft.append(found.ttft - own[-1])
        tpot.append(found.tpot)
        errors.append(found.tpot - (row["send_ns"][-1] - row["send_ns"][0]) / 1e9 / 23)
    assert statistics.median(ttft) > 0  # a first token cannot be seen before it was sent
    assert abs(statistics.mean(errors)) <= 0.005 * statistics.mean(tpot)
    if account["lag"]["p99_ms"] > _BUSY_MS:
        pytest.skip(f"the machine is too busy to time first tokens: lag p99 {account['lag']['p99_ms']} ms")
    assert statistics.median(ttft) <= max(0.002, 0.02 * statistics.mean(own))
    tpot_bias = statistics.mean(errors) / statistics.mean(tpot)
    return f"{streams} streams: TTFT late by {statistics.median(ttft) * 1000:.2f} ms, TPOT off by {tpot_bias:.4%}"


@pytest.mark.parametrize(("streams", "requests"), [(1, 3), (16, 2), (64, 2)])
def test_it_sees_what_the_server_sent(tmp_path: Path, streams: int, requests: int) -> None:
    hold_against_the_send_log(tmp_path, streams, requests)


@pytest.mark.soak
@pytest.mark.parametrize(("streams", "requests"), [(1, 3), (16, 2), (64, 2)])
def test_it_sees_the_same_beside_a_console_that_draws(
    vq_home: Path, tmp_path: Path, streams: int, requests: int
) -> None:
    """The console follows a log of 2,000 lines a second in a terminal meanwhile."""
    flooded = tmp_path / "flooded.log"
    flooded.write_text("INFO the first line\n")
    writer = start_writer(flooded)
    terminal = Terminal(size=(160, 48), env={"VQ_CONSOLE_HOME": str(vq_home)})
    try:
        terminal.see("No server yet.")
        terminal.press("3", "o")
        terminal.see("Open which log?")
        terminal.press(str(flooded), "enter")
        terminal.see("following", "Engine 000", seconds=60)
        with terminal.drawing() as sizes:
            said = hold_against_the_send_log(tmp_path, streams, requests)
    finally:
        terminal.close()
        writer.kill()
        writer.wait()
    assert len(sizes) > 10
    assert sum(sizes) > 50_000, "the console did not draw"
    print(f"soak: {said}, while the console drew {sum(sizes) / 1e6:.1f} MB")


def test_windows_ramp_and_cut(tmp_path: Path) -> None:
    with served(tmp_path, {"ttft_ms": 30, "tpot_ms": 10}) as running, LoadGenerator(tmp_path / "log") as generator:
        generator.server("A", running.endpoint)
        shape = {"concurrency": 4, "requests_per_stream": None, "stagger_s": 0.1, "ramp_s": 0.25, "window_s": 0.6}
        generator.block(_order(tmp_path, running.endpoint, **shape))
        time.sleep(0.2)
        assert "num_requests_running" in running.endpoint.get("/metrics").body.decode()
        running_now = running.endpoint.get("/metrics").body.decode().split("vllm:num_requests_running{")[1].split()[1]
    records = list(read_records(tmp_path))
    assert float(running_now) == 0  # cut requests are aborted on the server
    assert {record.end for record in records} == {"complete", "cut"}
    assert sum(record.end == "cut" for record in records) <= 4
    assert all(record.token_chunks for record in records)  # the drain waits for first tokens
    window = steady_window(records)
    assert window is not None
    assert concurrency_in(records, window) == pytest.approx(4, abs=0.3)


def test_open_loop_keeps_the_schedule_and_reports_the_queue(tmp_path: Path) -> None:
    with served(tmp_path, {"ttft_ms": 100, "tpot_ms": 5}) as running, LoadGenerator(tmp_path / "log") as generator:
        generator.server("A", running.endpoint)
        arrivals = (0.0, 0.02, 0.04, 0.06)
        generator.block(_order(tmp_path, running.endpoint, concurrency=2, arrivals_s=arrivals, output_tokens=4))
    records = sorted(read_records(tmp_path), key=lambda record: record.scheduled_ns)
    waits = [(record.send_ns - record.scheduled_ns) / 1e9 for record in records]
    assert waits[0] < 0.03
    assert waits[2] > 0.05  # both connections were busy
    assert times_of(records[2]).ttft == pytest.approx(waits[2] + records[2].token_chunks[0].offset_ns / 1e9)


def test_a_dead_server_is_not_hammered(tmp_path: Path) -> None:
    nobody = Endpoint("A", "http://127.0.0.1:9", "m")
    with LoadGenerator(tmp_path / "log") as generator:
        generator.server("A", nobody)
        account = generator.block(_order(tmp_path, nobody))
    assert "could not be opened" in account["problem"]


def test_failures_are_data_and_end_a_stream(tmp_path: Path) -> None:
    with (
        served(tmp_path, {"faults": {"error": 1.0}}) as running,
        LoadGenerator(tmp_path / "log") as generator,
    ):
        generator.server("A", running.endpoint)
        account = generator.block(_order(tmp_path, running.endpoint, requests_per_stream=50))
    records = list(read_records(tmp_path))
    assert account["requests"] == len(records) == 3
    assert all(record.end == "failed" and "HTTP 500" in (record.error or "") for record in records)


def test_a_short_answer_and_a_broken_stream_are_told_apart(tmp_path: Path) -> None:
    with (
        served(tmp_path, {"faults": {"short": 1.0, "exit_zero_after": 1}, "tpot_ms": 30}) as running,
        LoadGenerator(tmp_path / "log") as generator,
    ):
        generator.server("A", running.endpoint)
        generator.block(_order(tmp_path, running.endpoint, output_tokens=12))
        generator.block(_order(tmp_path, running.endpoint, output_tokens=12, block="c"))
    found = records_by_block(tmp_path)
    assert (found["b"][0].completion_tokens, found["b"][0].end) == (6, "complete")
    assert found["c"][0].end == "failed"


def test_a_cancelled_block_keeps_its_records(tmp_path: Path) -> None:
    with served(tmp_path, {"tpot_ms": 50}) as running, LoadGenerator(tmp_path / "log") as generator:
        generator.server("A", running.endpoint)
        seen: list[int] = []
        order = _order(tmp_path, running.endpoint, output_tokens=400)
        began = time.monotonic()
        generator.block(
            order, cancelled=lambda: bool(seen and seen[-1] > 3), tick=lambda event: seen.append(event["reads"])
        )
        assert time.monotonic() - began < 15  # uncut it would take 20 s
    [record] = read_records(tmp_path)
    assert record.end == "cut"
    assert record.token_chunks


def test_the_generator_ends_with_its_parent_pipe(tmp_path: Path) -> None:
    import psutil

    generator = LoadGenerator(tmp_path / "log")
    process = psutil.Process(generator.pid)
    generator.close()
    assert not process.is_running()
    with pytest.raises(CheckError, match="ended"):
        generator.server("A", Endpoint("A", "http://127.0.0.1:9", "m"))


def test_another_kind_of_server_works_with_estimates(tmp_path: Path) -> None:
    with (
        served(tmp_path, {"vllm_fields": False, "usage": False}) as running,
        LoadGenerator(tmp_path / "log") as generator,
    ):
        able = probe(running.endpoint)
        assert (able.exact_length, able.stream_usage) == (False, False)
        pool = make_pool(running.endpoint, able)
        assert not pool.exact
        generator.server("A", running.endpoint)
        order = replace(_order(tmp_path, running.endpoint), pool=pool, **can_do(able))
        generator.block(order)
    [record] = read_records(tmp_path)
    assert (record.end, record.completion_tokens, record.prompt_asked) == ("complete", None, None)
    assert times_of(record).estimated


def test_bodies_say_every_sampling_field_and_only_what_is_known() -> None:
    """Trap 18, and no vLLM-only field without a probe."""
    order = _order(Path("/x"), Endpoint("A", "http://h", "m"))
    body = json.loads(request_body(order, 0, 0))
    explicit = {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "n",
    }
    assert explicit <= body.keys()
    assert body["min_tokens"] == body["max_tokens"] == 16
    assert body["ignore_eos"] is True
    assert len(body["prompt"]) == 32
    plain = json.loads(request_body(replace(order, **can_do(Capabilities())), 0, 0))
    assert not plain.keys() & {"top_k", "min_p", "ignore_eos", "min_tokens", "cache_salt", "stream_options"}


def test_prompts_repeat_by_key_and_salts_never() -> None:
    order = _order(Path("/x"), Endpoint("A", "http://h", "m"))
    first, again, other = (json.loads(request_body(order, 0, number)) for number in (0, 0, 1))
    assert first["prompt"] == again["prompt"] != other["prompt"]
    assert first["cache_salt"] != again["cache_salt"]
    headed = PromptPool(POOL.ids, (1,))
    assert token_prompt(headed, 8, 1, "k")[0] == 1
    assert len(token_prompt(headed, 8, 1, "k")) == 8


def test_own_requests_are_replayed() -> None:
    rows = read_requests(['{"messages": [{"role": "user", "content": "a"}]}', "", '{"messages": [], "prompt": "b"}'])
    order = replace(_order(Path("/x"), Endpoint("A", "http://h", "m")), requests=tuple(rows), chat=True)
    assert json.loads(request_body(order, 0, 0))["messages"][0]["content"] == "a"
    assert json.loads(request_body(order, 0, 1))["prompt"] == "b"
    with pytest.raises(ValueError, match="line 2"):
        read_requests(['{"prompt": "x"}', "{}"])
