"""`vq-console check latency|quality ARM`: one server measured by itself."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, emit, table
from vq_console.commands.latency_words import add_load_options, load_settings
from vq_console.commands.names import help_of
from vq_console.commands.words import Words, watched
from vq_console.core.errors import ExitCode
from vq_console.core.text import counted

if TYPE_CHECKING:
    from vq_console.checks.endpoint import Endpoint


def register(subparsers: Subparsers) -> None:
    """Add `check latency` and `check quality`."""
    parser = subparsers.add_parser(
        "check", help=help_of("check"), description="Measure one server: latency or quality."
    )
    parser.set_defaults(handler=lambda _: _usage(parser))
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", title="checks")
    latency = add_command(kinds, "latency", "time to first token, per token and throughput of one server", _latency)
    quality = add_command(kinds, "quality", "health, tasks and consistency of one server", _quality)
    for command in (latency, quality):
        command.add_argument("arm", metavar="ARM", help="a profile, a running server, or a URL")
        mode = command.add_mutually_exclusive_group()
        mode.add_argument("--quick", dest="mode", action="store_const", const="quick", help="a few minutes (default)")
        mode.add_argument("--standard", dest="mode", action="store_const", const="standard", help="the longer check")
        command.add_argument("--minutes", type=float, metavar="M", help="time budget")
        command.add_argument("--seed", type=int, default=0, help="of prompts and order (default 0)")
        command.add_argument("--out", type=Path, metavar="DIR", help="where raw samples go (default: a new run folder)")
        command.set_defaults(mode="quick")
    add_load_options(latency)
    latency.add_argument("--sweep", action="store_true", help="double the streams until throughput ends to grow")
    quality.add_argument("--prompts", type=Path, metavar="F.jsonl", help="your own prompts")


def _usage(parser: argparse.ArgumentParser) -> ExitCode:
    parser.print_help()
    return ExitCode.WRONG_USE


def _run_folder(args: argparse.Namespace, endpoint: Endpoint) -> Path:
    from vq_console.core.places import runs_dir

    if args.out is not None:
        return Path(args.out)
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in endpoint.label)[:60]
    return runs_dir() / f"{time.strftime('%Y%m%d-%H%M%S')}-check-{safe}"


@contextlib.contextmanager
def _recorded(folder: Path, kind: str, endpoint: Endpoint, words: Words) -> Iterator[list[str]]:
    """Note the check in its folder as a run of the history; yields the lines of its answer, to be filled in."""
    from vq_console.compare import history
    from vq_console.core.files import write_json

    said: list[str] = []
    head = {"kind": kind, "created": time.time(), "arms": {"A": endpoint.label}, "simulated": endpoint.simulated}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", {**head, "state": history.RUNNING, "process": history.own_process()})
    state = history.FAILED
    try:
        yield said
        state = history.PARTIAL if words.cancelled() else history.FINISHED
    finally:
        write_json(folder / "run.json", {**head, "state": state, "said": said, "ended": time.time()})


def _latency(args: argparse.Namespace) -> ExitCode:
    from dataclasses import replace

    from vq_console.checks.latency import LatencySettings, check_latency
    from vq_console.checks.latency_sweep import sweep_latency
    from vq_console.compare.arms import resolve_endpoint

    settings = LatencySettings.of(args.mode, seed=args.seed, budget_s=args.minutes * 60 if args.minutes else None)
    settings = replace(settings, **load_settings(args))
    endpoint = resolve_endpoint(args.arm)
    words = Words()
    folder = _run_folder(args, endpoint)
    with _recorded(folder, "check latency", endpoint, words) as said, watched(words):
        result = (sweep_latency if args.sweep else check_latency)(endpoint, settings, folder, words)
        value = {**result.to_json(), "folder": str(folder)}
        said += _lines(value)
    if args.json:
        emit("vq-console/check/1", value)
    else:
        _print(said, folder)
    return ExitCode.PARTIAL if words.cancelled() else ExitCode.DONE


def _figure(metric: str, value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.1f} tok/s" if metric == "throughput" else f"{value * 1000:.1f} ms"


def _lines(value: Mapping[str, Any]) -> list[str]:
    summary = value["summary"]
    quantiles = {(row["metric"], row["concurrency"]): row for row in summary["percentiles"]}
    rows = []
    for row in summary["levels"]:
        metric = row["metric"]
        low, high = row["ci"] or (None, None)
        found = quantiles.get((metric, row["concurrency"]), {})
        at = [_figure(metric, (found.get(name) or {}).get("value")) for name in ("p50", "p95")]
        interval = f"{_figure(metric, low)} to {_figure(metric, high)}" if row["ci"] else "—"
        rows.append((metric, str(row["concurrency"]), _figure(metric, row["value"]), interval, *at, str(row["blocks"])))
    return [
        *(["SIMULATED"] if value["simulated"] else []),
        *table(rows, ("metric", "streams", "mean", "95 % interval", "p50", "p95", "blocks")).splitlines(),
        *_worth(summary),
        *(f"{flag['flag']}: {flag['detail']}" for flag in value["validity"]),
    ]


def _print(said: Sequence[str], folder: Path) -> None:
    for line in said:
        print(line)
    print(f"raw samples: {folder}")


def _worth(summary: Mapping[str, Any]) -> list[str]:
    worth = summary["worth"]
    slo = worth["slo"]
    lines = []
    served = worth["served"].get("A")
    objective = f"{slo['ttft_s'] * 1000:.0f} ms to the first token and {slo['tpot_s'] * 1000:.0f} ms per token"
    if served is None:
        lines.append(f"no measured level keeps {objective} for {slo['share'] * 100:.0f} % of requests")
    else:
        rate = served["requests_per_s"]
        more = ", more was not tried" if served["at_top"] else ""
        lines.append(
            f"within {objective}: {counted(served['concurrency'], 'stream')}{more}"
            + (f", {rate['value']:.2f} requests/s" if rate else "")
        )
    if summary["knee"] is not None:
        lines.append(f"knee (most throughput per second of waiting): {counted(summary['knee'], 'stream')}")
    lines += [
        f"energy at {counted(row['concurrency'], 'stream')}: {row['A']['value']:.2f} J per token"
        for row in worth["joules_per_token"]
    ]
    cost = (worth["cost_per_million_tokens"] or {}).get("A")
    if cost:
        lines.append(f"cost: {cost['value']:.2f} per million output tokens at the highest level")
    return lines


def _quality(args: argparse.Namespace) -> ExitCode:
    from vq_console.checks.quality_settings import QualitySettings
    from vq_console.checks.quality_single import check_quality
    from vq_console.compare.arms import resolve_endpoint

    endpoint = resolve_endpoint(args.arm)
    settings = QualitySettings.of(args.mode, seed=args.seed, budget_s=args.minutes * 60 if args.minutes else None)
    words = Words()
    folder = _run_folder(args, endpoint)
    with _recorded(folder, "check quality", endpoint, words) as said, watched(words):
        result = check_quality(endpoint, settings, folder, words, prompts=args.prompts)
        said += result.lines()
    value = {**result.to_json(), "folder": str(folder)}
    if args.json:
        emit("vq-console/check/1", value)
    else:
        _print(said, folder)
    return ExitCode.PARTIAL if words.cancelled() else ExitCode.DONE
