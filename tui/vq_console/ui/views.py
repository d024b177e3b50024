"""What the upper half of the Servers screen says, made from a snapshot. Pure: no widget, no clock, no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from vq_console.core.text import counted, seconds_text, strip_control
from vq_console.hardware.model import Gpu, Host
from vq_console.metrics.adviser import SLOWED
from vq_console.serving.model import ServerState
from vq_console.serving.view import model_name as model_of
from vq_console.ui.details import DASH, cut, figure, needs_a_look, problem_of, short_kernel
from vq_console.ui.hub import ServerSnapshot, Snapshot
from vq_console.ui.plots import shares_bar, sparkline

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


def _used_by(gpu: Gpu, servers: Sequence[ServerSnapshot]) -> list[tuple[str, int]]:
    """MiB of this GPU by server; servers that hold nothing of it are left out."""
    found: list[tuple[str, int]] = []
    for server in servers:
        pids = {pid for pid, _ in server.processes} | set(server.seen.get("pids") or ())
        used = sum(p.used_mib or 0 for p in gpu.processes if p.pid in pids)
        if used:
            found.append((server.record.name, used))
    return found


def gpu_line(
    gpu: Gpu, history: Sequence[float], width: int, servers: Sequence[ServerSnapshot] = (), *, ascii_only: bool = False
) -> Text:
    """One GPU in one line: the bar shows each server's part and then others; what does not fit is dropped."""
    total, used = gpu.memory_total_mib, gpu.memory_used_mib
    text = Text(no_wrap=True)
    text.append(f"{gpu.index:>2} ", style="bold")
    name = (gpu.name or "GPU").removeprefix("NVIDIA ")
    text.append(f"{name[:20]:20} " if width >= 100 else f"{name[:12]:12} ")
    text.append(f"SM {gpu.sm or DASH:5}" if width >= 70 else "")
    room = 24 if width >= 120 else 10
    if total and used is not None:
        parts = [(mib / total, "cyan" if i % 2 else "green") for i, (_, mib) in enumerate(_used_by(gpu, servers))]
        parts.append((max(used / total - sum(share for share, _ in parts), 0.0), "yellow"))
        for piece, style in shares_bar(parts, room, ascii_only=ascii_only):
            text.append(piece, style=style)
    else:
        text.append(" " * room)
    text.append(f" {gib(used)}/{gib(total)} GiB ")
    load = DASH if gpu.utilization_pct is None else f"{gpu.utilization_pct} %"
    slowed = [reason for reason in gpu.throttle if reason in SLOWED]
    power = f"{figure(gpu.power_w, '{:.0f}')}/{figure(gpu.power_limit_w, '{:.0f}')} W"
    parts_right = [
        (f" throttled: {', '.join(slowed)}" if slowed and width >= 100 else ""),
        (" throttled" if slowed and width < 100 else ""),
        f" {load:>5} {sparkline(history, 8 if width >= 100 else 0, ascii_only=ascii_only)}",
        f" {DASH if gpu.temperature_c is None else gpu.temperature_c} °C",
        f" {power:>9}",
        f" {DASH if gpu.sm_clock_mhz is None else gpu.sm_clock_mhz} MHz",
    ]
    for part in parts_right:
        if part and text.cell_len + len(part) <= width:
            text.append(part, style="bold yellow" if "throttled" in part else "")
    return text


def gpu_grid(gpus: Sequence[Gpu], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Many GPUs in few lines: number, memory bar, use in GiB, load, a mark where one is throttled."""
    cells: list[Text] = []
    for gpu in gpus:
        used, total = gpu.memory_used_mib, gpu.memory_total_mib
        text = Text(no_wrap=True)
        text.append(f"{gpu.index:>2} ", style="bold")
        for piece, style in shares_bar([((used or 0) / total if total else 0.0, "cyan")], 5, ascii_only=ascii_only):
            text.append(piece, style=style)
        size = f"{gib(used, 0)}/{gib(total, 0)}G"
        load = DASH if gpu.utilization_pct is None else f"{gpu.utilization_pct}%"
        text.append(f" {size:>8} {load:>4}{'▲' if SLOWED.intersection(gpu.throttle) else ' '}  ")
        cells.append(text)
    columns = max(width // max(cell.cell_len for cell in cells), 1)
    return [Text("").join(cells[start : start + columns]) for start in range(0, len(cells), columns)]


def gpu_owners(gpu: Gpu, servers: Sequence[ServerSnapshot], width: int) -> Text:
    """Whose memory it is: each server's part, others, and the room that is left."""
    owned = _used_by(gpu, servers)
    parts = [f"{name} {gib(mib)}" for name, mib in owned]
    others = sum(p.used_mib or 0 for p in gpu.processes) - sum(mib for _, mib in owned)
    if others > 0:
        parts.append(f"other {gib(others)}")
    free = gpu.memory_free_mib
    if free is not None and gpu.memory_total_mib:
        parts.append(f"room for {gib(free)} GiB ({free / gpu.memory_total_mib * 100:.0f} %)")
    return Text(("   " + " · ".join(parts))[:width], style="dim", no_wrap=True)


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
    model = (host.cpu_model or "processor").replace("(R)", "").replace(" Processor", "")
    cores = counted(host.cpu_count, "core") if host.cpu_count else f"{DASH} cores"
    text.append(f"{model[: 30 if width >= 100 else 12]} · {cores} {isa}  ")
    load = f"load {DASH if host.cpu_pct is None else f'{host.cpu_pct:.0f} %':>5} "
    text.append(load)
    if width >= 76:
        text.append(sparkline(history, 8, ascii_only=ascii_only) + " ")
    memory = f"RAM {gib(used)}/{gib(total)} GiB "
    text.append(memory)
    if used is not None and total and text.cell_len + 10 <= width:
        for piece, style in shares_bar([(used / total, "cyan")], 16 if width >= 110 else 8, ascii_only=ascii_only):
            text.append(piece, style=style)
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
    rank = 4 if width >= 150 else 3 if width >= 125 else 2 if width >= 100 else 1 if width >= 72 else 0
    return tuple(column for column in COLUMNS if column.rank <= rank)


def state_text(server: ServerSnapshot, *, ascii_only: bool = False) -> Text:
    """Symbol and word; a start says its phase and for how long."""
    record = server.record
    wide, plain, style = SYMBOLS[record.state]
    word = record.state.value
    if record.state is ServerState.STARTING:
        word = (record.phase or "starting").removesuffix(" and configuration")[:18]
        if server.seen.get("uptime_s") is not None:
            word += f" {seconds_text(server.seen['uptime_s'])}"
    elif record.state is ServerState.QUEUED and record.gpus:
        word = f"queued (gpu {','.join(map(str, record.gpus))})"
    if record.attached:
        word += " (attached)"
    return Text(f"{plain if ascii_only else wide} {word}", style=style)


def runs_text(server: ServerSnapshot, room: int = 80) -> Text:
    """Asked against runs in at most `room` cells; an alarm is a word and a mark, not only a colour, and goes last."""
    rows = server.seen.get("asked_vs_runs") or ()
    facts = server.seen.get("facts") or {}
    asked = (server.record.plan.get("method") or {}).get("asked") or facts.get("quantization") or "16-bit"
    row = next((r for r in rows if r.get("kind") in {"linear", "moe"} and r.get("selected")), None)
    kernels = facts.get("kernels") or ()
    selected = row["selected"] if row else (kernels[0]["kernel"] if kernels else None)
    if server.record.state is ServerState.FAILED:
        diagnosis = problem_of(server)
        title = diagnosis.get("title") if diagnosis else server.record.reason
        return Text(cut(strip_control(str(title or "failed")), room), style="red")
    if selected is None:
        return Text(cut(f"{asked} → {DASH}", room), style="dim")
    runs = short_kernel(strip_control(str(selected)))
    tails: list[tuple[str, str]] = [("", "")]
    alarmed = next((r for r in rows if r.get("alarm")), None)
    if alarmed is not None:
        expected = short_kernel(strip_control(str(alarmed.get("expected"))))
        tails = [(f" ▲ expected {expected}", "bold yellow"), (f" ▲ not {expected}", "bold yellow")]
        tails.append((" ▲ fallback", "bold yellow"))
    elif row is not None and row.get("grade") not in {None, "unknown", "native"}:
        tails = [(f" {row['grade']}", "yellow")]
    heads = [f"{asked} → {runs}", f"→ {runs}", cut(runs, max(room - len(tails[-1][0]), 6))]
    for head in heads:
        for tail, style in tails:
            if len(head) + len(tail) <= room:
                return Text(head).append(tail, style=style)
    return Text(heads[-1]).append(*tails[-1])


def rows_for(
    servers: Sequence[ServerSnapshot], columns: Sequence[Column], width: int, *, ascii_only: bool = False
) -> list[list[Text]]:
    """The table's cells for `width` cells in all; what runs gets what the other columns leave."""
    rows = [[cell(s, c.key, ascii_only=ascii_only) for c in columns] for s in servers]
    at = next(i for i, column in enumerate(columns) if column.key == "runs")
    taken = sum(
        max(len(column.title), *(row[i].cell_len for row in rows), 0) + 2 for i, column in enumerate(columns) if i != at
    )
    room = max(width - taken - 2, 14)
    for server, row in zip(servers, rows, strict=True):
        row[at] = runs_text(server, room)
    return rows


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
        "model": model_name(server)[-28:],
        "gpu": ",".join(map(str, record.gpus)) or "cpu",
        "port": str(record.port or DASH),
        "tok": figure(metrics.get("generation_tokens_per_s"), "{:.0f}"),
        "ttft": ttft(metrics.get("ttft_p50_ms"), metrics.get("ttft_p95_ms")),
        "queue": f"{figure(metrics.get('running'), '{:.0f}')}/{figure(metrics.get('waiting'), '{:.0f}')}",
        "kv": percent(metrics.get("kv_usage_pct")),
        "prefix": percent(metrics.get("prefix_hit_pct")),
        "up": uptime(server),
    }
    return Text(plain[key])


def model_name(server: ServerSnapshot) -> str:
    """The model itself, not the name that it is served under; without its owner."""
    return model_of(server.record, server.seen.get("facts") or {}) or DASH


def uptime(server: ServerSnapshot) -> str:
    """To the minute once it is ready, so that a table at rest is not drawn every second."""
    seconds = server.seen.get("uptime_s")
    if seconds is None or server.record.state is not ServerState.READY:
        return seconds_text(seconds)
    if seconds < 60:
        return "<1 min"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else seconds_text(seconds)


def ttft(p50: float | None, p95: float | None) -> str:
    """Both percentiles in ms, one dash while nothing was observed."""
    return DASH if p50 is None else f"{milliseconds(p50)} / {milliseconds(p95)} ms"


def milliseconds(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} %"


def worst_problem(snapshot: Snapshot) -> tuple[str, str]:
    """The worst that needs a person and the keys for it; both empty when all is well."""
    for server in snapshot.servers:
        if server.record.state is ServerState.FAILED:
            problem = problem_of(server)
            title = strip_control(str((problem or {}).get("title") or server.record.reason or "see its log"))
            keys = "w look" + ("  p fix" if any(f.get("patch") for f in (problem or {}).get("fixes") or ()) else "")
            return f"✖ {server.record.name} failed: {title}", keys
    for server in snapshot.servers:
        if server.record.state is ServerState.UNRESPONSIVE:
            return f"◌ {server.record.name} does not answer: {strip_control(server.record.reason)}", "w look"
    for server in snapshot.servers:
        if any(row.get("alarm") for row in server.seen.get("asked_vs_runs") or ()):
            return f"▲ {server.record.name} runs another kernel than expected", "w look"
    if snapshot.orphans:
        held = sum(orphan.memory_mib or 0 for orphan in snapshot.orphans)
        count = len(snapshot.orphans)
        memory = f" hold{'s' if count == 1 else ''} {gib(held)} GiB" if held else ""
        return f"▲ {counted(count, 'left-over')} of dead servers{memory}", "o look"
    for server in snapshot.servers:
        if needs_a_look(server) and server.advice:
            return f"▲ {server.record.name}: {strip_control(server.advice[0])}", ""
    return "", ""


def foot_line(said: tuple[str, str], width: int) -> Text:
    """The problem cut to what fits, its keys always whole at the right."""
    words, keys = said
    room = max(width - len(keys) - 2, 8)
    text = Text(words if len(words) <= room else words[: room - 1] + "…", style="bold", no_wrap=True)
    if keys:
        text.append(" " * max(width - text.cell_len - len(keys), 2))
        text.append(keys, style="bold")
    return text


def missing_line(snapshot: Snapshot, *, engines: int | None, profiles: int | None) -> str:
    """What this machine lacks before it can serve, in one line with its keys; None counts are not known yet."""
    lacks: list[str] = []
    if not snapshot.gpus:
        lacks.append("a GPU (CPU serves small models)")
    if engines == 0:
        lacks.append("a vLLM engine (i)")
    if profiles == 0:
        lacks.append("a profile (n)")
    return "Missing: " + ", ".join(lacks) if lacks else "Nothing is missing: l launches a profile."
