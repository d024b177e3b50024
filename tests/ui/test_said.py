"""What is said, as pure text: notices, the foot line, cells that fit, plots, samples, ASCII."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from ui.moments import PROBLEM, busy, h200, server
from vq_console.metrics.scrape import parse_metrics
from vq_console.metrics.window import Window
from vq_console.serving.model import ServerRecord, ServerState
from vq_console.ui import details, plots, views
from vq_console.ui.ascii_driver import plain
from vq_console.ui.hub import ServerSnapshot, Snapshot
from vq_console.ui.notices import notices, since
from vq_console.ui.samples import samples_of
from vq_console.ui.screens.ab_actions import prompt_of
from vq_console.ui.widgets.results import verdict_text


def text_of(renderable: object, width: int = 100) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


@pytest.mark.parametrize(
    ("before", "after", "title"),
    [
        (server("a", ServerState.STARTING), server("a", ServerState.READY), "a is ready"),
        (server("a", ServerState.READY), server("a", ServerState.FAILED, problem=PROBLEM), "a failed"),
        (server("a", ServerState.READY), server("a", ServerState.UNRESPONSIVE), "a does not answer"),
        (server("a", ServerState.READY), server("a", ServerState.READY, alarm=True), "a fell back"),
        (server("a", ServerState.READY), server("a", ServerState.READY), None),
        (None, server("a", ServerState.FAILED), None),
    ],
)
def test_changes_are_told_once(before: ServerSnapshot | None, after: ServerSnapshot, title: str | None) -> None:
    old = Snapshot(servers=(before,) if before else ())
    said = notices(old, Snapshot(servers=(after,)))
    assert [notice.title for notice in said] == ([title] if title else [])
    if title == "a failed":
        assert said[0].message == "Context does not fit the KV cache"
    assert notices(Snapshot(servers=(after,)), Snapshot(servers=(after,))) == []


def test_since_you_last_looked() -> None:
    records = (
        ServerRecord("old", ServerState.FAILED, ended_at=50.0),
        ServerRecord("died", ServerState.FAILED, ended_at=150.0),
        ServerRecord("up", ServerState.READY, ready_at=120.0),
    )
    assert since(records, [("run", 160.0), ("earlier", 90.0)], 100.0) == (
        "died failed, up ready, 1 comparison finished (5)"
    )
    assert since(records, [], None) == ""
    assert since(records, [], 200.0) == ""


def test_the_worst_is_said_with_its_keys_whole() -> None:
    words, keys = views.worst_problem(busy())
    assert (words, keys) == ("✖ mla failed: Context does not fit the KV cache", "w look  p fix")
    line = views.foot_line((words, keys), 40).plain
    assert len(line) == 40
    assert line.endswith("w look  p fix")
    assert "…" in line
    calm = Snapshot(servers=(server("fp8", ServerState.READY),))
    assert views.worst_problem(calm) == ("", "")


@pytest.mark.parametrize("room", [14, 20, 26, 34, 60])
def test_an_alarm_is_never_cut_from_what_runs(room: int) -> None:
    text = views.runs_text(server("int4", ServerState.READY, alarm=True), room).plain
    assert len(text) <= max(room, 17)
    assert "▲" in text
    assert "fallback" in text or "CutlassFP8" in text


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_table_fits_its_width(width: int) -> None:
    columns = views.columns_for(width)
    rows = views.rows_for(busy().servers, columns, width - 4)
    widths = [max(len(c.title), *(row[i].cell_len for row in rows)) + 2 for i, c in enumerate(columns)]
    assert sum(widths) <= width - 4


def test_eight_gpus_take_three_lines() -> None:
    lines = views.gpu_grid([h200(i) for i in range(8)], 76)
    assert len(lines) == 3
    assert all(line.cell_len <= 76 for line in lines)
    assert "97/140G" in lines[0].plain


def test_the_window_knows_every_figure_that_the_table_shows() -> None:
    def page(tokens: int, count: int) -> str:
        return (
            f'vllm:generation_tokens_total{{model_name="m"}} {tokens}\n'
            'vllm:num_requests_running{model_name="m"} 3\nvllm:num_requests_waiting{model_name="m"} 1\n'
            'vllm:kv_cache_usage_perc{model_name="m"} 0.12\n'
            f'vllm:prefix_cache_queries_total{{model_name="m"}} {tokens}\n'
            f'vllm:prefix_cache_hits_total{{model_name="m"}} {tokens // 2}\n'
            f'vllm:time_to_first_token_seconds_bucket{{le="0.04"}} {count}\n'
            f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {count}\n'
        )

    window = Window()
    window.add(parse_metrics(page(0, 0), at=0.0))
    window.add(parse_metrics(page(1000, 10), at=10.0))
    shown = server("fp8", ServerState.READY)
    shown = replace(shown, metrics=window.values())
    cells = {key: views.cell(shown, key).plain for key in ("tok", "ttft", "queue", "kv", "prefix")}
    assert cells == {"tok": "100", "ttft": "20 / 38 ms", "queue": "3/1", "kv": "12 %", "prefix": "50 %"}


def test_facts_say_what_runs_beside_what_was_expected() -> None:
    text = text_of(details.facts_table(server("int4", ServerState.READY, alarm=True)))
    assert "MarlinFP8ScaledMMLinearKernel  weight-only  ▲ expected CutlassFP8ScaledMMLinearKernel" in text
    good = text_of(details.facts_table(server("fp8", ServerState.READY)))
    assert "CutlassFP8ScaledMMLinearKernel  native  as expected" in good


def test_phase_names_are_whole_and_the_longest_is_marked() -> None:
    phases = [{"name": "arguments and configuration", "seconds": 1.0}, {"name": "CUDA graph capture", "seconds": 4.0}]
    text = details.startup_text(server("fp8", ServerState.READY, phases=phases), 40).plain
    assert "configuration " in text
    assert "CUDA graphs " in text
    assert "in all" in text
    assert max(len(line) for line in text.split("\n")) <= 40


def test_names_come_before_bars_where_the_start_up_has_little_room() -> None:
    phases = [{"name": "engine process", "seconds": 15.0}, {"name": "weights", "seconds": 3.0}]
    starting = replace(server("fp8", ServerState.READY, phases=phases), processes=((13417, "VLLM::EngineCore_0"),))
    narrow = details.startup_text(starting, 21).plain
    assert narrow.splitlines()[:2] == ["engine process  15 s", "weights          3 s"]
    assert max(len(line) for line in narrow.splitlines()) <= 21
    assert "13417 VLLM::Engin" in narrow
    assert "━━" in details.startup_text(starting, 30).plain


def test_figures_of_what_it_is_worth_are_never_broken() -> None:
    energy = {"value": 0.0914, "ci": [0.0869, 0.096]}
    worth = {"joules_per_token": [{"concurrency": 64, "A": energy, "B": energy}]}
    share = {"share": 0.29, "bandwidth_gb_s": 4300.0, "upper_bound": True}
    latency = {"worth": worth, "floor": [{"concurrency": 64, "A": share, "B": share}]}
    arms = {"A": {"profile": "fp8"}, "B": {"profile": "int4"}}
    text = text_of(verdict_text({"arms": arms, "latency": latency}), 74)
    head = next(line for line in text.splitlines() if line.startswith("Worth"))
    figures = next(line for line in text.splitlines() if "0.0914 (0.0869 to 0.096)" in line)
    assert text.count("at most 29 % of 4,300 GB/s") == 2
    assert head.index("fp8") == figures.index("0.0914")
    assert head.index("int4") == figures.rindex("0.0914")


@pytest.mark.parametrize(
    ("share", "drawn"), [(None, "    "), (0.0, "┄┄┄┄"), (0.001, "╸┄┄┄"), (0.5, "━━┄┄"), (0.63, "━━╸┄"), (2.0, "━━━━")]
)
def test_bars(share: float | None, drawn: str) -> None:
    assert plots.bar(share, 4) == drawn


def test_parts_of_a_bar_differ_in_their_line() -> None:
    pieces = plots.shares_bar([(0.5, "green"), (0.25, "yellow")], 8)
    assert pieces == [("━━━━", "green"), ("══", "yellow"), ("┄┄", "dim")]


def test_a_forest_without_intervals_shows_its_pairs() -> None:
    endpoint = {"metric": "tpot", "concurrency": 1, "ratio": 1.1, "ci": None, "values": [[1.0, 1.05], [1.0, 1.15]]}
    line = plots.forest([endpoint], 60)[-1]
    assert line.count("·") == 2
    assert line.count("○") == 1
    sure = plots.forest([{**endpoint, "ci": [1.05, 1.15]}], 60)[-1]
    assert "├" in sure
    assert "●" in sure


def test_curves_meet_where_arms_are_equal() -> None:
    lines = plots.curves({"A": [10, 20, 30], "B": [10, 20, 60]}, 30, 4, "ms")
    assert any("=" in line for line in lines)
    assert "61.2 ms" in lines[-1]
    assert plots.curves({"A": [], "B": []}, 30, 4, "ms") == []


def test_samples_leave_out_warm_up_and_failures() -> None:
    chunks = [[50_000_000, "t", None, 1], [70_000_000, "t", None, 1], [90_000_000, "u", None, 0]]
    found = samples_of(
        [
            {"block": "p000-c4-A", "chunks": chunks, "error": None},
            {"block": "p-100-c4-A", "chunks": chunks, "error": None},
            {"block": "p001-c4-B", "chunks": chunks, "error": "reset"},
            {"block": "p001-c4-B", "chunks": [], "error": None},
        ]
    )
    assert found.ttft_s == {("A", 4): (0.05,)}
    assert found.tpot_s[("A", 4)] == pytest.approx((0.02,))


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ("Why?", "Why?"),
        ('{"prompt": "Why?"}', "Why?"),
        ('{"messages": [{"role": "user", "content": "Why?"}]}', "Why?"),
        ('{"other": 1}', ""),
        ("{broken", "{broken"),
        ("", ""),
    ],
)
def test_prompts_of_a_file(line: str, prompt: str) -> None:
    assert prompt_of(line) == prompt


def test_ascii_keeps_the_width_and_other_languages() -> None:
    assert plain("╭─ ● ready ▲ → ━━┄ █ … 漢字 é") == "+- * ready ! > --- # ~ 漢字 é"
