"""Panes of a comparison: progress, latency, quality, verdict. They draw what a run folder says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

from vq_console.compare.report import interval, latency_rows, number
from vq_console.core.text import seconds_text, strip_control
from vq_console.ui.plots import bar, forest, kld_bands
from vq_console.ui.runner import RunTail


class ProgressLine(Static):
    """One line: what happens now, how far, how long it still takes."""

    def on_mount(self) -> None:
        self.update(Text("g quick check   G standard   nothing is running", style="dim"))

    def show(self, tail: RunTail) -> None:
        if tail.ended:
            words = {"finished": "finished", "partial": "stopped early; what was measured is kept"}.get(
                tail.state, "failed"
            )
            self.update(Text(f"{words}: {tail.folder.name}" + (f"   {tail.error}" if tail.error else "")))
            return
        if not tail.events:
            self.update(Text("starting …"))
            return
        event = tail.events[-1]
        done, total, eta = event.get("done"), event.get("total"), event.get("eta_s")
        text = Text()
        text.append(f"{event.get('stage')} ", style="bold")
        text.append(f"{event.get('arm') or ''} {strip_control(str(event.get('message')))} ")
        if isinstance(done, int) and isinstance(total, int) and total:
            text.append(bar(done / total, 20), style="cyan")
            text.append(f" {done}/{total}")
        if eta is not None:
            text.append(f"  {seconds_text(float(eta))} left")
        text.append("   c cancel", style="dim")
        self.update(text)


class LatencyPane(VerticalScroll):
    """Endpoints with interval, and the pair forest. During a run only anytime-valid intervals are shown."""

    def compose(self) -> ComposeResult:
        yield Static(id="latency-head")
        yield DataTable[str](id="latency-table", cursor_type="row", zebra_stripes=True)
        yield Static(id="latency-forest")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("metric", "streams", "A", "B", "B/A", "95 % CI", "pairs", "B is")
        self.clear()

    def clear(self) -> None:
        self.query_one(DataTable).clear()
        self.query_one("#latency-head", Static).update(
            Text("No latency check has run for this pair yet: g", style="dim")
        )
        self.query_one("#latency-forest", Static).update("")

    def show(self, tail: RunTail) -> None:
        latency = (tail.summary or {}).get("latency") if tail.summary else tail.interim.get("latency")
        if not latency or not latency.get("endpoints"):
            return
        table = self.query_one(DataTable)
        table.clear()
        for row in latency_rows(latency):
            table.add_row(*row)
        final = tail.summary is not None
        head = (
            "* primary; each interval's unit is the pair of interleaved blocks"
            if final
            else "so far; intervals hold at any time"
        )
        void = f", {latency.get('void')} void" if latency.get("void") else ""
        self.query_one("#latency-head", Static).update(
            Text(f"{latency.get('blocks') or '–'} blocks{void}; {head}", style="dim")
        )
        width = max(self.size.width - 8, 30)
        lines = forest(latency["endpoints"], min(width, 100), ascii_only=_ascii(self))
        self.query_one("#latency-forest", Static).update(
            Text("\nB/A by endpoint; ( ) is ±3 %, where arms count as equivalent\n" + "\n".join(lines))
        )


class QualityPane(VerticalScroll):
    """Word, KLD on its bands, figures, tasks, health."""

    def compose(self) -> ComposeResult:
        yield Static(id="quality-text")

    def on_mount(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.query_one("#quality-text", Static).update(
            Text("No quality check has run for this pair yet: g", style="dim")
        )

    def show(self, tail: RunTail) -> None:
        quality = (tail.summary or {}).get("quality") if tail.summary else tail.interim.get("quality")
        if quality:
            width = min(max(self.size.width - 8, 40), 90)
            self.query_one("#quality-text", Static).update(quality_text(quality, width, ascii_only=_ascii(self)))


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
        text.append(f"{kld['sequences']} sequences, {kld.get('tokens')} tokens\n", style="dim")
    for task in quality.get("tasks") or ():
        text.append(
            f"\n{task['name']:24} n {number(task.get('n')):>5}  A {number(task.get('a')):>6}"
            f"  B {number(task.get('b')):>6}"
            f"  B−A {number(task.get('difference')):>7}  {interval(task.get('ci'))}"
        )
    if quality.get("health"):
        text.append("\n\nhealth: answers with a fault, of all\n", style="bold")
        for item in quality["health"]:
            text.append(
                f"{item['name']:24} A {number(item.get('a')):>5}  B {number(item.get('b')):>5}"
                f"  of {number(item.get('n'))}\n"
            )
    return text


class VerdictPane(VerticalScroll):
    """The sentences first, then flags, what was not tested, and where the report lies."""

    def compose(self) -> ComposeResult:
        yield Static(id="verdict-text")

    def on_mount(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.query_one("#verdict-text", Static).update(
            Text("No verdict yet. g measures the two arms in minutes.", style="dim")
        )

    def show(self, tail: RunTail) -> None:
        if tail.summary is None:
            self.query_one("#verdict-text", Static).update(Text(tail.error or "the run has no summary"))
            return
        self.query_one("#verdict-text", Static).update(verdict_text(tail.summary))


def verdict_text(summary: Mapping[str, Any]) -> Text:
    """A finished comparison for a person who has to decide."""
    text = Text()
    if summary.get("simulated"):
        text.append("SIMULATED: a stand-in engine answered; nothing here is about hardware\n\n", style="bold reverse")
    for side in ("A", "B"):
        arm = (summary.get("arms") or {}).get(side) or {}
        text.append(f"{side}  ", style="bold")
        facts = arm.get("facts") or {}
        kernels = (
            ", ".join(dict.fromkeys(str(k.get("kernel")) for k in facts.get("kernels") or ()))
            or "kernel not in the log"
        )
        name = arm.get("profile") or arm.get("label") or arm.get("url")
        text.append(f"{name}  {facts.get('quantization') or 'unquantized'}  {kernels}\n")
        for row in arm.get("asked_vs_runs") or ():
            if row.get("alarm"):
                text.append(
                    f"   ▲ {row['kind']}: expected {row['expected']}, runs {row['selected']}\n", style="bold red"
                )
    text.append("\n")
    for name, words in (summary.get("verdict") or {}).items():
        text.append(f"{name.capitalize():9}", style="bold")
        text.append(f"{strip_control(str(words))}\n\n")
    if summary.get("validity"):
        text.append("Validity\n", style="bold")
        for item in summary["validity"]:
            text.append(f"  {item['flag']}: {strip_control(str(item['detail']))}\n")
    if summary.get("not_tested"):
        text.append("Not tested\n", style="bold")
        for item in summary["not_tested"]:
            text.append(f"  {item}\n")
    return text


def _ascii(widget: VerticalScroll) -> bool:
    settings = getattr(widget.app, "settings", None)
    return bool(getattr(settings, "ascii", False))
