"""What the selected server's panes say: facts, start-up, problem, processes. Text made from a snapshot; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from vq_console.core.text import seconds_text, strip_control
from vq_console.serving.model import ServerState
from vq_console.ui.hub import ServerSnapshot
from vq_console.ui.plots import bar

DASH = "–"
PHASES = {
    "arguments and configuration": "configuration",
    "model loading": "weights",
    "CUDA graph capture": "CUDA graphs",
}
"""Shorter names where the log's own would be cut."""


SPOKEN_METRICS = ("spec_acceptance_pct", "spec_tokens_per_step", "failed_requests", "aborted_requests")
"""The figures of a metrics window that the facts pane says."""
KINDS = {"linear": "kernel", "moe": "MoE kernel", "kv_cache": "KV dtype", "lm_head": "lm head"}


def problem_of(server: ServerSnapshot) -> Mapping[str, Any] | None:
    """The diagnosis where it is a problem."""
    value = server.seen.get("problem")
    return value if isinstance(value, Mapping) and value.get("severity") in {"error", "unknown", "warning"} else None


def needs_a_look(server: ServerSnapshot) -> bool:
    """True when the problem pane has something to say."""
    return bool(
        server.record.state in {ServerState.FAILED, ServerState.UNRESPONSIVE}
        or problem_of(server)
        or server.advice
        or any(row.get("alarm") for row in server.seen.get("asked_vs_runs") or ())
    )


def short_kernel(name: str) -> str:
    """A kernel class without the words that all of them share."""
    for tail in ("ScaledMMLinearKernel", "LinearKernel", "ScaledMMKernel", "Kernel"):
        if name.endswith(tail) and len(name) > len(tail):
            return name.removesuffix(tail)
    return name


def cut(text: str, room: int) -> str:
    """The text in at most `room` cells; an ellipsis says that something was left out."""
    return text if cell_len(text) <= room else set_cell_size(text, max(room - 1, 1)).rstrip() + "…"


def figure(value: float | None, form: str) -> str:
    return DASH if value is None else form.format(value)


def _layer_rows(server: ServerSnapshot) -> list[tuple[str, Text]]:
    """Each kind of layer: what runs, how good that is, and what was expected where it differs."""
    facts = server.seen.get("facts") or {}
    rows: list[tuple[str, Text]] = []
    said: set[str] = set()
    for row in server.seen.get("asked_vs_runs") or ():
        runs, expected, grade = row.get("selected"), row.get("expected"), row.get("grade")
        if not runs and not expected:
            continue
        text = Text(strip_control(str(runs or "not in the log")))
        said.add(str(runs))
        if grade and grade != "unknown":
            text.append(f"  {grade}", style="green" if grade == "native" else "yellow")
        if row.get("alarm"):
            text.append(f"  ▲ expected {strip_control(str(expected))}", style="bold yellow")
        elif not runs:
            text.append(f"  expected {strip_control(str(expected))}", style="dim")
        elif runs == expected:
            text.append("  as expected", style="dim")
        rows.append((KINDS.get(str(row["kind"]), str(row["kind"]).replace("_", " ")), text))
    for kernel in facts.get("kernels") or ():
        if str(kernel.get("kernel")) not in said:
            text = Text(strip_control(str(kernel.get("kernel"))))
            text.append(f"  {strip_control(str(kernel.get('module') or ''))}", style="dim")
            rows.append(("kernel", text))
    if facts and not facts.get("kernels") and not any(name in {"kernel", "MoE kernel"} for name, _ in rows):
        rows.append(("kernel", Text("not found in the log", style="dim")))
    return rows


def facts_table(server: ServerSnapshot) -> Table:
    """What the log says, requested beside resolved, labels in one column and values in the other."""
    facts = server.seen.get("facts") or {}
    metrics = server.metrics
    plan = server.record.plan
    asked = (plan.get("method") or {}).get("asked")
    rows: list[tuple[str, Text]] = []
    method = str(facts.get("quantization") or ("none, 16-bit" if facts else DASH))
    text = Text(strip_control(method))
    if asked and asked != method:
        text.append(f"  asked {strip_control(str(asked))}", style="dim")
    rows.append(("method", text))
    rows += _layer_rows(server)
    if not any(name == "attention" for name, _ in rows):
        rows.append(("attention", Text(strip_control(str(facts.get("attention_backend") or DASH)))))
    tokens = facts.get("kv_cache_tokens")
    kv = f"{facts.get('kv_cache_dtype') or 'auto'}" + (f", {tokens:,} tokens" if tokens is not None else "")
    if facts.get("max_concurrency") is not None:
        kv += f", {facts['max_concurrency']:g} requests of {facts.get('max_model_len') or DASH}"
    rows.append(("KV memory", Text(strip_control(kv))))
    planned = (plan.get("fit") or {}).get("weights_gib")
    text = Text(figure(facts.get("model_load_gib"), "{:.2f} GiB"))
    if planned is not None:
        text.append(f"  planned {planned:.2f}", style="dim")
    rows.append(("weights", text))
    rows.append(("vLLM", Text(strip_control(str(facts.get("vllm_version") or DASH)))))
    if metrics.get("spec_acceptance_pct") is not None:
        steps = figure(metrics.get("spec_tokens_per_step"), "{:.2f} tokens a step")
        rows.append(("drafts", Text(f"{metrics['spec_acceptance_pct']:.0f} % accepted, {steps}")))
    if metrics.get("failed_requests") or metrics.get("aborted_requests"):
        rows.append(
            (
                "requests",
                Text(
                    f"{metrics.get('failed_requests') or 0:.0f} failed, {metrics.get('aborted_requests') or 0:.0f} "
                    "aborted in the last minute",
                    style="yellow",
                ),
            )
        )
    if server.record.url:
        rows.append(("address", Text(server.record.url)))
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True, width=10)
    table.add_column(ratio=1, overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def startup_text(server: ServerSnapshot, width: int, *, ascii_only: bool = False) -> Text:
    """The start-up as bars, the longest part marked, then the processes; names come before bars where it is narrow."""
    phases = server.seen.get("phases") or ()
    text = Text(no_wrap=True, overflow="ellipsis")
    if phases:
        longest = max(phase["seconds"] for phase in phases) or 1.0
        names = [PHASES.get(phase["name"], phase["name"]) for phase in phases]
        total = sum(phase["seconds"] for phase in phases)
        most = max(len(seconds_text(seconds)) for seconds in (total, *(phase["seconds"] for phase in phases)))
        label = min(max(len(name) for name in names), max(width - most - 2, 8))
        room = width - label - most - 3
        room = room if room >= 3 else 0
        for phase, name in zip(phases, names, strict=True):
            is_longest = phase["seconds"] == longest
            text.append(f"{cut(name, label):{label}} ", style="bold" if is_longest else "")
            if room:
                text.append(bar(phase["seconds"] / longest, room, ascii_only=ascii_only, track=False), style="cyan")
            text.append(f" {seconds_text(phase['seconds']):>{most}}\n", style="bold" if is_longest else "")
        text.append(f"{'in all':{label}} {'':{room}} {seconds_text(total):>{most}}\n", style="dim")
    else:
        text.append("no start-up in the log yet\n", style="dim")
    if server.processes:
        text.append("\nprocesses\n", style="dim")
        for pid, name in server.processes[:8]:
            text.append(f"{pid:>8} {cut(name, max(width - 9, 8))}\n")
        if len(server.processes) > 8:
            text.append(f"{'':8} and {len(server.processes) - 8} more\n", style="dim")
    return text


def problem_text(server: ServerSnapshot) -> Text:
    """The problem with its line, why, and the fixes; advice when nothing failed."""
    text = Text()
    problem = problem_of(server)
    if problem is not None and problem.get("severity") != "warning":
        text.append(f"✖ {strip_control(str(problem.get('title')))}\n", style="bold red")
        _append_fixes(text, problem)
        text.append(f"{strip_control(str(problem.get('explanation')))}\n")
        if problem.get("evidence"):
            where = f"log line {problem.get('root_line')} (enter): " if problem.get("root_line") else ""
            text.append(f"{where}{strip_control(str(problem['evidence']))[:300]}\n", style="dim")
        return text
    if server.record.state is ServerState.FAILED:
        text.append(f"✖ {strip_control(server.record.reason or 'it ended')}\n", style="bold red")
        text.append("The log names no cause: enter opens it.\n")
    for row in server.seen.get("asked_vs_runs") or ():
        if row.get("alarm"):
            text.append("▲ runs another kernel than expected\n", style="bold yellow")
            detail = strip_control(str(row.get("detail") or ""))
            text.append(
                f"{row['kind']}: expected {row['expected']}, runs {row['selected']} ({row['grade']}). {detail}\n"
            )
    if problem is not None:
        text.append(f"▲ {strip_control(str(problem.get('title')))}\n", style="yellow")
        text.append(f"{strip_control(str(problem.get('explanation')))}\n")
        _append_fixes(text, problem)
    for line in server.advice:
        text.append(f"▲ {strip_control(line)}\n", style="yellow")
    if server.record.incident:
        text.append(f"incident: {strip_control(str(server.record.incident))}\n", style="dim")
    if not text:
        text.append("nothing to report", style="dim")
    return text


def _append_fixes(text: Text, problem: Mapping[str, Any]) -> None:
    keyed = False
    for fix in problem.get("fixes") or ():
        text.append("fix  ", style="bold")
        text.append(strip_control(str(fix.get("text"))))
        if fix.get("patch") and not keyed:
            keyed = True
            text.append("  [p] apply and start again", style="bold")
        text.append("\n")
