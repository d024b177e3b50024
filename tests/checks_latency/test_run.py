"""Whole comparisons against simulated servers: words, void blocks, cancel, resume, a lost server, A-B-A."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.running import Running, served
from vq_console.checks import validity
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.latency import LatencySettings, check_latency, reanalyse, run_latency
from vq_console.checks.latency_alternate import AlternatingLatency
from vq_console.checks.progress import Callback
from vq_console.checks.records import measured_records
from vq_console.core.errors import CheckError

SMALL = replace(
    LatencySettings.of("quick", seed=3, budget_s=60.0),
    levels=(1, 3),
    prompt_tokens=24,
    output_tokens=6,
    window_min_s=0.2,
    single_min_s=0.1,
    warmup_blocks=1,
)


@pytest.fixture(autouse=True)
def _any_machine(vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How busy the test machine is must not decide here; the limits themselves are tested in test_validity."""
    monkeypatch.setattr(validity, "LAG_FLOOR_MS", 1000.0)
    monkeypatch.setattr(validity, "CPU_SHARE", 10.0)
    monkeypatch.setattr(validity, "CONCURRENCY_SHARE", 0.6)


def _pair(stack: ExitStack, folder: Path, a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Running, Running]:
    base = {"ttft_ms": 12, "tpot_ms": 10, "tpot_request_sd": 0.01, "prefix_caching": True}
    return (
        stack.enter_context(served(folder, {**base, **a}, name="a")),
        stack.enter_context(served(folder, {**base, "seed": 1, **b}, name="b")),
    )


def _ends(a: Running, b: Running) -> tuple[Endpoint, Endpoint]:
    return a.endpoint, replace(b.endpoint, label="B")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Two servers for all tests that leave them as they were; B is 30 % faster per token."""
    with ExitStack() as stack:
        yield _ends(*_pair(stack, tmp_path_factory.mktemp("pair"), {}, {"tpot_factor": 0.7}))


@pytest.fixture(scope="module")
def finished(
    pair: tuple[Endpoint, Endpoint], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, list[Mapping[str, Any]]]:
    """One finished run."""
    folder = tmp_path_factory.mktemp("run")
    events: list[Mapping[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VQ_CONSOLE_HOME", str(folder / "home"))
        patch.setattr(validity, "LAG_FLOOR_MS", 1000.0)
        patch.setattr(validity, "CONCURRENCY_SHARE", 0.6)
        result = run_latency(*pair, SMALL, folder / "latency", Callback(events.append))
    return folder / "latency", result, events


def test_a_faster_arm_is_called_faster(finished: tuple[Path, Any, list[Mapping[str, Any]]]) -> None:
    _, result, _ = finished
    found = {(one.metric, one.concurrency): one for one in result.outcomes}
    tpot, rate = found["tpot", 1], found["throughput", 3]
    assert (tpot.word, rate.word) == ("faster", "faster")
    assert tpot.primary
    assert rate.primary
    assert tpot.ratio == pytest.approx(0.7, abs=0.12)
    assert rate.ratio is not None
    assert rate.ratio > 1.1
    assert tpot.pairs >= 6
    assert not result.partial


def test_its_json_has_the_contracts_keys(finished: tuple[Path, Any, list[Mapping[str, Any]]]) -> None:
    _, result, _ = finished
    value = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert {"endpoints", "blocks", "void"} <= value.keys()
    for endpoint in value["endpoints"]:
        assert {"metric", "concurrency", "a", "b", "ratio", "ci", "pairs", "word", "primary"} <= endpoint.keys()
        assert endpoint["word"] in {"faster", "slower", "equivalent", "inconclusive"}
    assert [one["primary"] for one in value["endpoints"]].count(True) == 2
    assert value["blocks"] >= 24
    assert all(set(flag) == {"flag", "detail"} for flag in result.validity)


def test_it_can_be_analysed_again(finished: tuple[Path, Any, list[Mapping[str, Any]]]) -> None:
    folder, result, _ = finished
    assert reanalyse(folder).to_json() == result.to_json()
    with pytest.raises(CheckError):
        reanalyse(folder / "nothing")


def test_a_second_half_with_the_arms_swapped_is_found_beside_the_first(
    finished: tuple[Path, Any, list[Mapping[str, Any]]], tmp_path: Path
) -> None:
    folder, result, _ = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.copytree(folder, tmp_path / "run" / "swapped")
    both = reanalyse(tmp_path / "run")
    assert both.design == "swapped-gpus"
    assert len(both.blocks) == 2 * len(result.blocks) == len({block.turn.block for block in both.blocks})
    for one, half in zip(both.outcomes, result.outcomes, strict=True):
        assert (one.pairs, one.confidence) == (2 * half.pairs, "swapped")
        assert one.ratio == pytest.approx(half.ratio)
    assert "differ by 0.0 %" in next(flag.detail for flag in both.flags if flag.flag == "gpus-swapped")


def test_nothing_but_anytime_intervals_is_shown_on_the_way(
    finished: tuple[Path, Any, list[Mapping[str, Any]]],
) -> None:
    """Trap 15."""
    _, _, events = finished
    told = [event for event in events if event["stage"] == "pair"]
    assert len(told) >= 6
    for event in told:
        for endpoint in event["interim"]["endpoints"]:
            assert endpoint["ci"] is None or endpoint["pairs"] >= 6
            assert endpoint["ci"] is None or endpoint["confidence"] == "anytime"
    plan = next(event for event in events if event["stage"] == "plan")
    assert "6 to 12 pairs" in plan["message"]
    assert plan["eta_s"] > 0


def test_every_prompt_is_fresh_and_forced_to_length(finished: tuple[Path, Any, list[Mapping[str, Any]]]) -> None:
    folder, result, _ = finished
    records = measured_records(folder)
    assert len(records) > 100
    assert all(record.prompt_tokens == 24 for record in records if record.end == "complete")
    assert all(record.completion_tokens == record.requested for record in records if record.end == "complete")
    assert not any(record.reconnected for record in records)
    assert result.to_json()["void"] == 0


def test_cancel_keeps_and_resume_continues(tmp_path: Path, pair: tuple[Endpoint, Endpoint]) -> None:
    folder = tmp_path / "latency"

    def tell(event: Mapping[str, Any]) -> None:
        if event["stage"] == "pair" and event["done"] == 2:
            progress.cancel()

    progress = Callback(tell)
    settings = replace(SMALL, pairs_min=4, pairs_cap=4)
    first = run_latency(*pair, settings, folder, progress)
    assert first.partial
    assert "cancelled" in {flag["flag"] for flag in first.validity}
    kept = [one.pairs for one in first.outcomes if one.primary]
    assert kept == [2, 2]
    assert all(one.word == "inconclusive" for one in first.outcomes)
    with pytest.raises(CheckError, match="other settings"):
        run_latency(*pair, replace(settings, equivalence=0.1), folder)
    second = run_latency(*pair, settings, folder)
    assert [one.pairs for one in second.outcomes if one.primary] == [4, 4]
    assert [block.turn.block for block in second.blocks[:8]] == [block.turn.block for block in first.blocks[:8]]
    assert not second.partial


def test_a_budget_that_ends_early_says_so(tmp_path: Path, pair: tuple[Endpoint, Endpoint]) -> None:
    result = run_latency(*pair, replace(SMALL, budget_s=4.0), tmp_path / "latency")
    assert result.partial
    assert {"budget-ended", "few-pairs"} <= {flag["flag"] for flag in result.validity}
    assert all(one.word == "inconclusive" for one in result.outcomes)


@pytest.mark.soak
def test_preempted_blocks_are_void_and_measured_again(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ends = _ends(*_pair(stack, tmp_path, {"faults": {"preempt": 0.05}}, {}))
        result = run_latency(*ends, replace(SMALL, budget_s=6.0), tmp_path / "latency")
    void = [block for block in result.blocks if not block.valid]
    assert {flag.flag for block in void for flag in block.void} <= {"preemptions"}
    for one in result.outcomes:
        if one.primary and void:
            assert one.pairs <= sum(block.valid for block in result.blocks if block.turn.arm == "A")


def test_a_lost_server_ends_the_run_with_what_there_is(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = _pair(stack, tmp_path, {}, {})

        def tell(event: Mapping[str, Any]) -> None:
            if event["stage"] == "pair" and event["done"] == 1:
                b.process.kill()

        result = run_latency(*_ends(a, b), SMALL, tmp_path / "latency", Callback(tell))
    assert "server-lost" in {flag["flag"] for flag in result.validity}
    assert result.partial


def test_a_server_without_tokens_cannot_be_measured(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = _pair(stack, tmp_path, {}, {"faults": {"error": 1.0}})
        with pytest.raises(CheckError, match="gave no token"):
            run_latency(*_ends(a, b), SMALL, tmp_path / "latency")


def test_one_server(tmp_path: Path, pair: tuple[Endpoint, Endpoint]) -> None:
    figures = check_latency(pair[0], replace(SMALL, budget_s=20.0), tmp_path / "check")
    value = json.loads(json.dumps(figures.to_json(), allow_nan=False))
    assert value["simulated"] is True
    assert len(value["samples"]) == 6
    levels = {(row["metric"], row["concurrency"]): row for row in value["summary"]["levels"]}
    assert levels["tpot", 1]["value"] == pytest.approx(0.01, rel=0.3)
    assert levels["throughput", 3]["blocks"] == 3
    assert ("throughput", 1) not in levels
    p99 = next(row for row in value["summary"]["percentiles"] if row["metric"] == "ttft")["p99"]
    assert p99["value"] is None


def test_one_after_the_other(tmp_path: Path) -> None:
    run = AlternatingLatency(replace(SMALL, budget_s=12.0), tmp_path / "latency")
    with pytest.raises(CheckError, match="cannot be B"):
        run.measure("B", Endpoint("B", "http://127.0.0.1:9", "m"))
    for phase, factor in enumerate((1.0, 2.0, 1.0)):
        spec = {"ttft_ms": 12, "tpot_ms": 10, "tpot_request_sd": 0.01, "tpot_factor": factor, "seed": phase}
        with served(tmp_path, spec, name=f"p{phase}") as running:
            run.measure("ABA"[phase], running.endpoint)
        if phase == 1:
            early = run.result()
            assert early.partial
            assert all(one.ci is None and one.word == "inconclusive" for one in early.outcomes)
    result = run.result()
    tpot = next(one for one in result.outcomes if one.primary and one.metric == "tpot")
    assert (tpot.word, tpot.confidence) == ("slower", "drift")
    assert tpot.ratio == pytest.approx(2.0, abs=0.4)
    assert result.design == "one-at-a-time"


def test_the_command(tmp_path: Path, pair: tuple[Endpoint, Endpoint], capsys: pytest.CaptureFixture[str]) -> None:
    from vq_console.cli import main

    words = ["check", "latency", pair[0].url, "--json", "--levels", "1,2", "--lengths", "16/4", "--minutes", "0.15"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    value = json.loads(capsys.readouterr().out)
    assert main(["check", "latency", pair[0].url, "--levels", "x"]) == 2
    assert value["schema"] == "vq-console/check/1"
    assert {"samples", "summary"} <= value.keys()
    assert value["simulated"] is True
    assert (tmp_path / "out" / "requests.jsonl").exists()
