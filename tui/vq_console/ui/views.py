"""What the Servers screen says, as values and text made from a snapshot. Pure: no widget, no clock, no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from vq_console.core.text import seconds_text, strip_control
from vq_console.hardware.model import Gpu, Host
from vq_console.serving.model import ServerState
from vq_console.ui.hub import ServerSnapshot, Snapshot
from vq_console.ui.plots import bar, sparkline

DASH = "–"
SYMBOLS = {
    ServerState.QUEUED: ("○", "o", "dim"),
    ServerState.STARTING: ("◐", "~", "yellow"),
    ServerState.READY: ("●", "*", "green"),
    ServerState.UNRESPONSIVE: ("◌", "?", "bold yellow"),
    ServerState.STOPPING: ("◑", "~", "yellow"),
    ServerState.STOPPED: ("■", "-", "dim"),
    ServerState.FAILED: ("✖", "x", "bold red"),
}


def gib(mib: float | None, digits: int = 1) -> str:
    """MiB as GiB, a dash where unknown."""
    return DASH if mib is None else f"{mib / 1024:.{digits}f}"


def gpu_line(gpu: Gpu, history: Sequence[float], width: int, *, ascii_only: bool = False) -> Text:
    """One GPU in one line, dropping what does not fit."""
    total, used = gpu.memory_total_mib, gpu.memory_used_mib
    share = used / total if used is not None and total else None
    text = Text(no_wrap=True)
    text.append(f"{gpu.index} ", style="bold")
    text.append(f"{(gpu.name or 'GPU').removeprefix('NVIDIA ')[:20]:20} ")
    text.append(f"SM {gpu.sm or DASH:5}")
    text.append(bar(share, 24 if width >= 120 else 10, ascii_only=ascii_only), style="cyan")
    text.append(f" {gib(used)}/{gib(total)} GiB ")
    parts = [
        f" util {DASH if gpu.utilization_pct is None else f'{gpu.utilization_pct} %':>5} "
        + sparkline(history, 8 if width >= 100 else 0, ascii_only=ascii_only),
        f"  {DASH if gpu.power_w is None else f'{gpu.power_w:.0f}'}/"
        f"{DASH if gpu.power_limit_w is None else f'{gpu.power_limit_w:.0f}'} W",
        f"  {DASH if gpu.temperature_c is None else gpu.temperature_c} °C",
        f"  {DASH if gpu.sm_clock_mhz is None else gpu.sm_clock_mhz} MHz",
        f"  throttled: {', '.join(gpu.throttle)}" if gpu.throttle else "",
    ]
    for part in parts:
        if text.cell_len + len(part) <= width:
            text.append(part, style="bold yellow" if "throttled" in part else "")
    return text


def gpu_owners(gpu: Gpu, servers: Sequence[ServerSnapshot], width: int) -> Text:
    """Whose memory it is: each server's part, others, and the room that is left."""
    parts: list[str] = []
    known = 0
    for server in servers:
        pids = set(server.seen.get("pids") or ())
        used = sum(p.used_mib or 0 for p in gpu.processes if p.pid in pids)
        if used:
            known += used
            parts.append(f"{server.record.name} {gib(used)}")
    others = sum(p.used_mib or 0 for p in gpu.processes) - known
    if others > 0:
        parts.append(f"other {gib(others)}")
    free = gpu.memory_free_mib
    if free is not None and gpu.memory_total_mib:
        parts.append(f"room for {gib(free)} GiB ({free / gpu.memory_total_mib * 100:.0f} %)")
    return Text(("  " + " · ".join(parts))[:width], style="dim", no_wrap=True)


def host_line(host: Host | None, history: Sequence[float], width: int, *, ascii_only: bool = False) -> Text:
    """The CPU and main memory: what a machine without a GPU serves with."""
    if host is None:
        return Text("reading the machine …", style="dim")
    total, free = host.ram_total_mib, host.ram_available_mib
    used = total - free if total is not None and free is not None else None
    text = Text(no_wrap=True)
    text.append("CPU ", style="bold")
    isa = (
        "AMX"
        if "amx_tile" in host.cpu_isa
        else "AVX-512"
        if "avx512f" in host.cpu_isa
        else "AVX2"
        if "avx2" in host.cpu_isa
        else ""
    )
    text.append(f"{(host.cpu_model or 'processor')[:30]} {host.cpu_count or DASH} cores {isa}  ")
    text.append(bar(used / total if used is not None and total else None, 16, ascii_only=ascii_only), style="cyan")
    text.append(f" {gib(used)}/{gib(total)} GiB")
    tail = f"  load {DASH if host.cpu_pct is None else f'{host.cpu_pct:.0f} %'} " + sparkline(
        history, 8, ascii_only=ascii_only
    )
    if text.cell_len + len(tail) <= width:
        text.append(tail)
    return text


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the server table; narrow screens leave out those of a higher `rank`."""

    key: str
    title: str
    rank: int


COLUMNS = (
    Column("name", "name", 0),
    Column("state", "state", 0),
    Column("model", "model", 3),
    Column("runs", "asked → runs", 0),
    Column("gpu", "gpu", 2),
    Column("port", "port", 1),
    Column("tok", "tok/s", 1),
    Column("ttft", "TTFT p50/p95", 3),
    Column("queue", "run/wait", 3),
    Column("kv", "KV", 2),
    Column("prefix", "prefix", 4),
    Column("up", "up", 2),
)


def columns_for(width: int) -> tuple[Column, ...]:
    """The columns that a table of this width shows."""
    rank = 4 if width >= 150 else 3 if width >= 125 else 2 if width >= 100 else 1
    return tuple(column for column in COLUMNS if column.rank <= rank)


def state_text(server: ServerSnapshot, *, ascii_only: bool = False) -> Text:
    """Symbol and word; a start says its phase and for how long."""
    record = server.record
    wide, plain, style = SYMBOLS[record.state]
    word = record.state.value
    if record.state is ServerState.STARTING:
        word = record.phase or "starting"
        if server.seen.get("uptime_s") is not None:
            word += f" {seconds_text(server.seen['uptime_s'])}"
    elif record.state is ServerState.QUEUED and record.gpus:
        word = f"queued (gpu {','.join(map(str, record.gpus))})"
    if record.attached:
        word += " (attached)"
    return Text(f"{plain if ascii_only else wide} {word}", style=style)


def runs_text(server: ServerSnapshot) -> Text:
    """Asked against runs in one cell; an alarm is a word and a mark, not only a colour."""
    rows = server.seen.get("asked_vs_runs") or ()
    facts = server.seen.get("facts") or {}
    asked = (server.record.plan.get("method") or {}).get("asked") or facts.get("quantization") or "16-bit"
    row = next((r for r in rows if r.get("kind") in {"linear", "moe"} and r.get("selected")), None)
    kernels = facts.get("kernels") or ()
    selected = row["selected"] if row else (kernels[0]["kernel"] if kernels else None)
    if server.record.state is ServerState.FAILED:
        diagnosis = problem_of(server)
        title = diagnosis.get("title") if diagnosis else server.record.reason
        return Text(strip_control(str(title or "failed"))[:60], style="red")
    if row is None and selected is None:
        return Text(f"{asked} → {DASH}", style="dim")
    text = Text(f"{asked} → {short_kernel(str(selected))}")
    if any(r.get("alarm") for r in rows):
        alarmed = next(r for r in rows if r.get("alarm"))
        text.append(f" ▲ expected {short_kernel(str(alarmed.get('expected')))}", style="bold yellow")
    elif row is not None and row.get("grade") not in {None, "unknown", "native"}:
        text.append(f" {row['grade']}", style="yellow")
    return text


def short_kernel(name: str) -> str:
    """A kernel class without the words that all of them share."""
    for tail in ("ScaledMMLinearKernel", "LinearKernel", "ScaledMMKernel", "Kernel"):
        if name.endswith(tail) and len(name) > len(tail):
            return name.removesuffix(tail)
    return name


def problem_of(server: ServerSnapshot) -> Mapping[str, Any] | None:
    """The diagnosis where it is a problem."""
    value = server.seen.get("problem")
    return value if isinstance(value, Mapping) and value.get("severity") in {"error", "unknown", "warning"} else None


def cell(server: ServerSnapshot, key: str, *, ascii_only: bool = False) -> Text:
    """One cell of the server table."""
    record, metrics = server.record, server.metrics
    if key == "name":
        return Text(record.name[:24], style="bold")
    if key == "state":
        return state_text(server, ascii_only=ascii_only)
    if key == "runs":
        return runs_text(server)
    plain = {
        "model": (record.model or str(record.plan.get("model") or DASH))[-26:],
        "gpu": ",".join(map(str, record.gpus)) or "cpu",
        "port": str(record.port or DASH),
        "tok": figure(metrics.get("tokens_per_s"), "{:.0f}"),
        "ttft": f"{milliseconds(metrics.get('ttft_p50_s'))}/{milliseconds(metrics.get('ttft_p95_s'))}",
        "queue": f"{figure(metrics.get('running'), '{:.0f}')}/{figure(metrics.get('waiting'), '{:.0f}')}",
        "kv": percent(metrics.get("kv_use")),
        "prefix": percent(metrics.get("prefix_hit_rate")),
        "up": seconds_text(server.seen.get("uptime_s")),
    }
    return Text(plain[key])


def figure(value: float | None, form: str) -> str:
    return DASH if value is None else form.format(value)


def milliseconds(seconds: float | None) -> str:
    return DASH if seconds is None else f"{seconds * 1000:.0f} ms"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{share * 100:.0f} %"


def facts_text(server: ServerSnapshot) -> Text:
    """What the log says, requested beside resolved."""
    facts = server.seen.get("facts") or {}
    rows: list[tuple[str, str]] = [("vLLM", str(facts.get("vllm_version") or DASH))]
    rows.append(("method", str(facts.get("quantization") or "none (16-bit)" if facts else DASH)))
    for kernel in facts.get("kernels") or ():
        rows.append(("kernel", f"{kernel.get('kernel')} for {kernel.get('module')}"))
    if facts and not facts.get("kernels"):
        rows.append(("kernel", "not found in the log"))
    for row in server.seen.get("asked_vs_runs") or ():
        mark = "▲ " if row.get("alarm") else ""
        rows.append(
            (
                f"{row['kind']}",
                f"{mark}expected {row.get('expected') or DASH}, "
                f"runs {row.get('selected') or DASH} ({row.get('grade')})",
            )
        )
    rows.append(("attention", str(facts.get("attention_backend") or DASH)))
    tokens = facts.get("kv_cache_tokens")
    kv = f"{facts.get('kv_cache_dtype') or 'auto'}" + (f", {tokens:,} tokens" if tokens is not None else "")
    if facts.get("max_concurrency") is not None:
        kv += f", {facts['max_concurrency']:g} × {facts.get('max_model_len') or DASH}"
    rows.append(("KV cache", kv))
    planned = (server.record.plan.get("fit") or {}).get("weights_gib")
    weights = figure(facts.get("model_load_gib"), "{:.2f} GiB")
    rows.append(("weights", weights + (f" (planned {planned:.2f})" if planned is not None else "")))
    text = Text()
    for name, value in rows:
        text.append(f"{name:10}", style="dim")
        text.append(f"{strip_control(value)}\n")
    return text


def startup_text(server: ServerSnapshot, width: int, *, ascii_only: bool = False) -> Text:
    """The start-up as bars, the longest part marked."""
    phases = server.seen.get("phases") or ()
    if not phases:
        return Text("not started yet", style="dim")
    longest = max(phase["seconds"] for phase in phases) or 1.0
    text = Text()
    for phase in phases:
        is_longest = phase["seconds"] == longest
        text.append(f"{phase['name'][:12]:12} ", style="bold" if is_longest else "")
        text.append(bar(phase["seconds"] / longest, max(width - 24, 4), ascii_only=ascii_only), style="cyan")
        text.append(f" {seconds_text(phase['seconds']):>6}\n")
    return text


def problem_text(server: ServerSnapshot) -> Text:
    """The problem with its line, why, and the first fix; advice when nothing failed."""
    text = Text()
    problem = problem_of(server)
    if problem is not None and problem.get("severity") != "warning":
        text.append(f"✖ {problem.get('title')}\n", style="bold red")
        text.append(f"{problem.get('explanation')}\n")
        if problem.get("evidence"):
            where = f"line {problem.get('root_line')}: " if problem.get("root_line") else ""
            text.append(f"{where}{strip_control(str(problem['evidence']))[:300]}\n", style="dim")
        for fix in problem.get("fixes") or ():
            text.append(f"fix: {fix.get('text')}" + ("  [p] apply\n" if fix.get("patch") else "\n"))
        return text
    for row in server.seen.get("asked_vs_runs") or ():
        if row.get("alarm"):
            text.append("▲ runs another kernel than expected\n", style="bold yellow")
            text.append(
                f"{row['kind']}: expected {row['expected']}, runs {row['selected']} ({row['grade']}). "
                f"{row.get('detail') or ''}\n"
            )
    if problem is not None:
        text.append(f"▲ {problem.get('title')}\n", style="yellow")
        text.append(f"{problem.get('explanation')}\n")
    for line in server.advice:
        text.append(f"▲ {line}\n", style="yellow")
    if not text:
        text.append("nothing to report", style="dim")
    return text


def worst_problem(snapshot: Snapshot) -> str:
    """The one line at the foot: the worst that needs a person, and the key for it; empty when all is well."""
    for server in snapshot.servers:
        if server.record.state is ServerState.FAILED:
            problem = problem_of(server)
            title = problem.get("title") if problem else server.record.reason
            return f"✖ {server.record.name} failed: {strip_control(str(title or 'see its log'))}   enter log   p patch"
    for server in snapshot.servers:
        if any(row.get("alarm") for row in server.seen.get("asked_vs_runs") or ()):
            return f"▲ {server.record.name} runs another kernel than expected: select it for details"
    for server in snapshot.servers:
        if server.record.state is ServerState.UNRESPONSIVE:
            return f"◌ {server.record.name} answers /health but gives no token   enter log   s stop"
    return ""
