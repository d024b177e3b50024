"""Panes of a comparison: progress, latency, quality, verdict. They draw what a run folder says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Static

from vq_console.compare.history import FAILED
from vq_console.compare.report import arm_name, interval, latency_rows, number
from vq_console.compare.verdict import headline
from vq_console.compare.worth_rows import worth_rows
from vq_console.core.text import counted, seconds_text, strip_control
from vq_console.ui.details import cut
from vq_console.ui.plots import bar, curves, forest, kld_bands, plane
from vq_console.ui.runner import RunTail
from vq_console.ui.samples import Samples


class ProgressLine(Static):
    """One line: what happens now, how far, how long it still takes."""

    def on_mount(self) -> None:
        self.update(Text("g quick check   G standard   nothing is running", style="dim"))

    def show(self, tail: RunTail) -> None:
        if tail.ended:
            words = {"finished": "finished", "partial": "stopped early; what was measured is kept"}.get(
                tail.state, "failed"
            )
            keys = "   e export   d answers that differ" if tail.summary is not None else ""
            name = tail.folder.name[:15] if self.size.width < 100 else tail.folder.name
            why = strip_control(tail.error or "").replace("\n", ": ")
            said = f"{words}: {name}" + (f"   {why}" if why else "") + keys
            self.update(Text(cut(said, max(self.size.width, 20)), no_wrap=True))
            return
        if not tail.events:
            self.update(Text("starting …"))
            return
        event = tail.events[-1]
        done, total, eta = event.get("done"), event.get("total"), event.get("eta_s")
        text = Text()
        text.append(f"{event.get('stage')} ", style="bold")
        text.append(f"{event.get('arm') or ''} {strip_control(str(event.get('message')))} ")
        tail_text = Text()
        if isinstance(done, int) and isinstance(total, int) and total:
            cells = 20 if self.size.width >= 100 else 8
            tail_text.append(bar(done / total, cells, ascii_only=_ascii(self)), style="cyan")
            tail_text.append(f" {done}/{total}")
        if eta is not None:
            tail_text.append(f"  {seconds_text(float(eta))} left")
        tail_text.append("   c cancel", style="dim")
        # How far and how long is never cut; the words before it are.
        text.truncate(max(self.size.width - tail_text.cell_len - 1, 8), overflow="ellipsis")
        text.append(" ")
        self.update(text.append_text(tail_text))


METRICS = "ttft first token, tpot each further one, e2e whole answer: less is better"


class LatencyPane(VerticalScroll):
    """Endpoints with interval, the pair forest, distributions. During a run only anytime-valid intervals are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._latency: Mapping[str, Any] = {}
        self._final = False
        self._samples: Samples | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="latency-head")
        yield DataTable[str](id="latency-table", cursor_type="row", zebra_stripes=True)
        yield Static(id="latency-forest")
        yield Static(id="latency-plots")

    def on_mount(self) -> None:
        self.clear()

    def on_resize(self) -> None:
        """A hidden pane has no width: it is drawn once it is seen."""
        self._draw_table()
        self._draw_plots()

    def clear(self) -> None:
        self._latency, self._samples = {}, None
        self.query_one(DataTable).clear()
        self.query_one(DataTable).display = False
        self._say("No latency check has run for this pair yet: g measures")
        for name in ("forest", "plots"):
            self.query_one(f"#latency-{name}", Static).update("")

    def show(self, tail: RunTail) -> None:
        latency = (tail.summary or {}).get("latency") if tail.summary else tail.interim.get("latency")
        latency = latency or tail.interim.get("pair")
        if not latency or not latency.get("endpoints"):
            if tail.events and not tail.ended:
                self._say("Measuring: figures come with the first pair of blocks.")
            return
        if tail.summary is None:
            rows = [
                {**e, "word": "not yet" if e.get("word") == "continue" else e.get("word")} for e in latency["endpoints"]
            ]
            latency = {**latency, "endpoints": rows}
        self._latency, self._final = latency, tail.summary is not None
        self._draw_table()
        head = (
            "* decides the verdict; the unit of an interval is the pair of blocks"
            if self._final
            else "so far; intervals hold at any time"
        )
        void = f", {latency.get('void')} void" if latency.get("void") else ""
        blocks = f"{counted(latency['blocks'], 'block')}{void}; " if latency.get("blocks") else ""
        self.query_one("#latency-head", Static).update(Text(f"{blocks}{head}\n{METRICS}", style="dim"))
        self._draw_plots()

    def _say(self, words: str) -> None:
        self.query_one("#latency-head", Static).update(Text(words, style="dim"))

    def show_samples(self, samples: Samples) -> None:
        """Distributions of a finished run, from its raw samples."""
        self._samples = samples
        self._draw_plots()

    def _draw_table(self) -> None:
        if not self._latency or not self.size.width:
            return
        table = self.query_one(DataTable)
        at = table.cursor_coordinate
        table.display = True
        table.clear(columns=True)
        if self.size.width >= 94:
            table.add_columns("metric", "streams", "A", "B", "B/A", "95 % CI", "pairs", "B is")
            rows = latency_rows(self._latency)
        else:  # the word must not be what is cut off; pairs stand in the plot below
            table.add_columns("metric", "n", "A", "B", "B/A (95 % CI)", "B is")
            short = [
                tuple(cell.replace(" tok/s", "").replace("throughput", "tok/s") for cell in row)
                for row in latency_rows(self._latency)
            ]
            rows = [
                (metric, streams, a, b, f"{ratio} ({ci.replace(' to ', '–')})" if ci[0].isdigit() else ratio, word)
                for metric, streams, a, b, ratio, ci, _, word in short
            ]
        for row in rows:
            table.add_row(*row)
        table.move_cursor(row=at.row)

    def _draw_plots(self) -> None:
        if not self._latency or not self.size.width:
            return
        width = min(max(self.size.width - 4, 30), 100)
        lines = forest(self._latency["endpoints"], width, ascii_only=_ascii(self))
        note = "├●┤ interval, ( ) ±3 %: equivalent" if self._final else "○ ratio so far, · its pairs, ( ) ±3 %"
        self.query_one("#latency-forest", Static).update(Text(f"\nB/A by endpoint; {note}\n" + "\n".join(lines)))
        if self._samples is not None:
            plots = sample_lines(self._samples, self._latency, min(width - 12, 76))
            self.query_one("#latency-plots", Static).update(Text("\n".join(plots)))


def sample_lines(samples: Samples, latency: Mapping[str, Any], width: int) -> list[str]:
    """TTFT as ECDF by streams, A and B on one plane; TPOT against throughput."""
    lines: list[str] = []
    for count in sorted({key[1] for key in samples.ttft_s}):
        both = {side: [x * 1000 for x in samples.ttft_s.get((side, count), ())] for side in "AB"}
        if not all(both.values()):
            continue
        told = ", ".join(f"{side} median {statistics.median(values):.0f} ms" for side, values in both.items())
        number = f"n {len(both['A'])} and {len(both['B'])}"
        lines += [
            "",
            f"TTFT at {counted(count, 'stream')}, share of answers begun by then: {told}, {number}",
        ]
        lines += curves(both, width, 6, "ms")
    tpot = {key: sum(values) / len(values) * 1000 for key, values in samples.tpot_s.items() if values}
    points: list[tuple[float, float, str]] = []
    for e in latency.get("endpoints") or ():
        if e.get("metric") == "throughput":
            for side, value in (("A", e.get("a")), ("B", e.get("b"))):
                if value and (side, e["concurrency"]) in tpot:
                    points.append((float(value), tpot[side, e["concurrency"]], f"{side}{e['concurrency']}"))
    drawn = plane(points, width, 7, "tokens/s in all", "TPOT in ms; A4 is arm A at 4 streams; down and right is better")
    return [*lines, "", *drawn] if drawn else lines


class QualityPane(VerticalScroll):
    """Word, KLD on its bands, figures, tasks, health; during a run the divergence so far with its interval."""

    def __init__(self) -> None:
        super().__init__()
        self._quality: Mapping[str, Any] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="quality-text")

    def on_mount(self) -> None:
        self.clear()

    def on_resize(self) -> None:
        """A hidden pane has no width: it is drawn once it is seen."""
        self._draw()

    def clear(self) -> None:
        self._quality = {}
        self.query_one("#quality-text", Static).update(
            Text("No quality check has run for this pair yet: g measures", style="dim")
        )

    def show(self, tail: RunTail) -> None:
        quality = (tail.summary or {}).get("quality") if tail.summary else tail.interim.get("score")
        if quality and quality != self._quality:
            self._quality = quality
            self._draw()
        elif not quality and tail.events and not tail.ended:
            words = "Measuring: the divergence comes with the first texts that both arms have scored."
            self.query_one("#quality-text", Static).update(Text(words, style="dim"))

    def _draw(self) -> None:
        if not self._quality or not self.size.width:
            return
        width, plain = min(max(self.size.width - 4, 40), 100), _ascii(self)
        text = so_far_text if "of" in self._quality else quality_text
        self.query_one("#quality-text", Static).update(text(self._quality, width, ascii_only=plain))


def so_far_text(interim: Mapping[str, Any], width: int, *, ascii_only: bool = False) -> Text:
    """The divergence while texts are still being scored; no word before the end."""
    kld = interim.get("kld") or {}
    text = Text()
    text.append("so far", style="bold")
    scored = f"{counted(kld.get('sequences') or 0, 'text')}, {counted(kld.get('tokens') or 0, 'token')} scored"
    text.append(f"  {scored}; the word comes at the end\n\n")
    text.append(strip_control(f"KL divergence of {interim.get('of')} from {interim.get('from')}, nats per token\n"))
    text.append("\n".join(kld_bands(kld, width, ascii_only=ascii_only)) + "\n\n")
    text.append(f"{number(kld.get('value'))}", style="bold")
    text.append(
        f"   {interval(kld['ci'])} (95 %, holds at any time)"
        if kld.get("ci")
        else "   no interval yet: more texts needed"
    )
    return text


def quality_text(quality: Mapping[str, Any], width: int, *, ascii_only: bool = False) -> Text:
    """Everything that the quality check found, as text for a pane of `width` cells."""
    kld = quality.get("kld") or {}
    text = Text()
    text.append(f"{quality.get('word') or 'so far'}\n\n", style="bold")
    text.append("KL divergence of B from A, nats per token\n")
    text.append("\n".join(kld_bands(kld, width, ascii_only=ascii_only)) + "\n\n")
    rows = [
        ("KL divergence", number(kld.get("value")), interval(kld.get("ci"))),
        ("noise floor (A against itself)", number(kld.get("floor")), ""),
        ("same first choice", number(quality.get("top1_agreement")), ""),
    ]
    for name, key in (("perplexity ratio B/A", "ppl_ratio"),):
        value = quality.get(key) or {}
        rows.append((name, number(value.get("value"), 4), interval(value.get("ci"), 4)))
    divergence = quality.get("divergence") or {}
    rows.append(("first divergence per token", number(divergence.get("hazard")), interval(divergence.get("ci"))))
    for name, value, ci in rows:
        text.append(f"{name:32}{value:>10}   {ci}\n")
    if kld.get("sequences"):
        told = f"{counted(kld['sequences'], 'sequence')}, {counted(kld.get('tokens') or 0, 'token')}\n"
        text.append(told, style="dim")
    for task in quality.get("tasks") or ():
        if not task.get("n"):
            text.append(f"\n{strip_control(str(task['name'])):24} not one answer could be judged", style="dim")
            continue
        text.append(
            f"\n{task['name']:24} n {number(task.get('n')):>5}  A {number(task.get('a')):>6}"
            f"  B {number(task.get('b')):>6}"
            f"  B−A {number(task.get('difference')):>7}  {interval(task.get('ci'))}"
        )
    faults = [item for item in quality.get("health") or () if item.get("a") or item.get("b")]
    sound = [str(item["name"]) for item in quality.get("health") or () if item not in faults]
    if quality.get("health"):
        text.append("\n\nanswers with a fault\n", style="bold")
        if sound:
            text.append(f"none in either arm: {', '.join(sound)}\n", style="dim")
        for item in faults:
            text.append(
                f"{item['name']:24} A {number(item.get('a')):>5}  B {number(item.get('b')):>5}"
                f"  of {number(item.get('n'))}\n"
            )
    return text


class VerdictPane(VerticalScroll):
    """The sentences first, then flags, what was not tested, and where the report lies."""

    _summary: Mapping[str, Any] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="verdict-text")
        yield Static(id="verdict-plots")

    def on_mount(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._summary = None
        self.query_one("#verdict-plots", Static).update("")
        self.query_one("#verdict-text", Static).update(
            Text("No verdict yet. g measures the two arms in minutes.", style="dim")
        )

    def show(self, tail: RunTail) -> None:
        if tail.summary is None:
            failed = tail.state == FAILED
            head, style = ("✖ The check failed", "bold red") if failed else ("The check was stopped", "bold yellow")
            text = Text(f"{head}\n\n", style=style)
            text.append(strip_control(tail.error or "the run has no summary"), style="not bold default")
            self.query_one("#verdict-text", Static).update(text)
            return
        self.query_one("#verdict-text", Static).update(verdict_text(tail.summary))
        self._summary = tail.summary
        self._draw_plots()

    def on_resize(self) -> None:
        """A hidden pane has no width: plots are drawn once it is seen."""
        self._draw_plots()

    def _draw_plots(self) -> None:
        if self._summary is None or not self.size.width:
            return
        width = min(max(self.size.width - 4, 30), 100)
        lines: list[str] = []
        primary = [e for e in (self._summary.get("latency") or {}).get("endpoints") or () if e.get("primary")]
        if primary:
            lines += ["", "B/A of the primary endpoints; ( ) is ±3 %, equivalent"]
            lines += forest(primary, width, ascii_only=_ascii(self))
        kld = (self._summary.get("quality") or {}).get("kld") or {}
        if kld.get("value") is not None:
            lines += ["", "KL divergence of B from A, nats per token"]
            lines += kld_bands(kld, width, ascii_only=_ascii(self))
        self.query_one("#verdict-plots", Static).update(Text("\n".join(lines)))


def verdict_text(summary: Mapping[str, Any]) -> Group:
    """A finished comparison for a person who has to decide: arms, sentences, what is worth what, flags."""
    parts: list[Text | Table] = []
    if summary.get("simulated"):
        parts += [Text("SIMULATED: a stand-in engine answered; nothing here is about hardware", style="bold"), Text()]
    arms, verdict = _grid(9), _grid(9)
    for side in ("A", "B"):
        arm = (summary.get("arms") or {}).get(side) or {}
        facts = arm.get("facts") or {}
        kernels = (
            ", ".join(dict.fromkeys(str(k.get("kernel")) for k in facts.get("kernels") or ()))
            or "kernel not in the log"
        )
        words = Text(strip_control(arm_name(arm, side)), style="bold")
        words.append(strip_control(f"  {facts.get('quantization') or 'unquantized'}  {kernels}"), style="not bold")
        grade = next((row.get("grade") for row in arm.get("asked_vs_runs") or () if row.get("kind") == "linear"), None)
        if grade and grade != "unknown":
            words.append(f"  {grade}", style="not bold green" if grade == "native" else "not bold yellow")
        for row in arm.get("asked_vs_runs") or ():
            if row.get("alarm"):
                words.append(f"\n▲ {row['kind']}: expected {row['expected']}, runs {row['selected']}", style="bold red")
        arms.add_row(Text(side, style="bold"), words)
    parts += [arms, Text()]
    if short := headline(summary):
        verdict.add_row(Text("In short", style="bold"), Text(strip_control(short), style="bold"))
        verdict.add_row("", "")
    for name, sentence in (summary.get("verdict") or {}).items():
        verdict.add_row(Text(name.capitalize(), style="bold"), Text(strip_control(str(sentence))))
        verdict.add_row("", "")
    parts.append(verdict)
    if rows := worth_rows(summary.get("latency") or {}):
        parts += [_worth_table(rows, [arm_name((summary.get("arms") or {}).get(side), side) for side in "AB"]), Text()]
    flags = _grid(20)
    for item in summary.get("validity") or ():
        flags.add_row(Text(strip_control(str(item["flag"]))), Text(strip_control(str(item["detail"])), style="dim"))
    if summary.get("validity"):
        parts += [Text("Validity", style="bold"), flags]
    if summary.get("not_tested"):
        parts.append(Text("\nNot tested", style="bold"))
        parts.append(Text("; ".join(strip_control(str(item)) for item in summary["not_tested"])))
    return Group(*parts)


def _worth_table(rows: Sequence[tuple[str, str, str]], names: Sequence[str]) -> Table:
    """What it is worth under the names of the arms; where it is narrow the words wrap, the figures never."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in names:
        table.add_column(no_wrap=True)
    table.add_row(*(Text(cut(strip_control(word), 26), style="bold") for word in ("Worth", *names)))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _grid(width: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, width=width)
    table.add_column(ratio=1, overflow="fold")
    return table


def _ascii(widget: Widget) -> bool:
    settings = getattr(widget.app, "settings", None)
    return bool(getattr(settings, "ascii", False))
