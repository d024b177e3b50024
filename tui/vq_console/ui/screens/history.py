"""History: runs that were made, opened as they were, tagged, compared, exported."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Input, Static

from vq_console.compare import history
from vq_console.compare.history import Run
from vq_console.compare.regression import compare_runs
from vq_console.compare.report import number
from vq_console.core.errors import VqError
from vq_console.core.text import strip_control
from vq_console.ui.hub import Snapshot
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.widgets.dialogs import Ask, Choose, Confirm
from vq_console.ui.widgets.results import verdict_text

EMPTY = (
    "No run yet.\n\nA comparison on 4 A/B is kept here with every sample:\n"
    "it can be opened, tagged, compared and shared.\n"
    "Without an engine: `vq-console demo --simulated` in a shell shows one in a minute."
)


class HistoryScreen(ConsoleScreen):
    """A table of runs and the verdict of the one under the cursor."""

    MODE = "history"
    TITLE_TEXT = "5 History"
    AUTO_FOCUS = "#runs"
    PUMP_HZ = 1.0
    HELP_TEXT = (
        "Every comparison that was made, newest first. Enter opens it on the A/B screen as it was. d compares "
        "it with an earlier run of the same pair: the check before and after an engine upgrade. e writes a "
        "bundle that another console imports (vq-console history import FILE)."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", show=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("t", "tag", "Tag"),
        Binding("o", "note", "Note"),
        Binding("d", "diff", "Compare with"),
        Binding("e", "export", "Bundle"),
        Binding("delete", "remove", "Delete"),
        Binding("escape", "leave", "Leave", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._runs: tuple[Run, ...] = ()
        self._filter = ""

    def compose_body(self) -> ComposeResult:
        yield Input(placeholder="filter by name, arm, tag or machine", id="history-filter", compact=True)
        with Horizontal(id="history-body"):
            yield DataTable[Text](id="runs", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="run-box", classes="detail"):
                yield Static(id="run-text")
        yield Static(EMPTY, id="history-empty", markup=False)

    def begin(self) -> None:
        self.query_one("#history-filter").display = False
        self.query_one(DataTable).add_columns("when", "arms", "state", "quality", "tags")

    def resumed(self) -> None:
        self.load()
        self.query_one(DataTable).focus()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Runs are read when the screen is shown, not with every sample."""

    @work(group="load", exclusive=True, exit_on_error=False)
    async def load(self) -> None:
        """Read the runs off the event loop and draw them."""
        runs = await asyncio.to_thread(history.list_runs)
        text = self._filter.lower()
        self._runs = tuple(r for r in runs if text in f"{r.name} {r.arms} {r.tags} {r.machine} {r.note}".lower())
        table = self.query_one(DataTable)
        row = table.cursor_row
        table.clear()
        for run in self._runs:
            arms = (
                f"{run.arms.get('A', '–')} | {run.arms.get('B', '–')}"
                if run.kind == "ab"
                else f"{run.kind} {run.arms.get('A', '')}"
            )
            state = Text("SIMULATED " if run.simulated else "", style="bold")
            state.append(run.state if run.error is None else "cannot be read", style="red" if run.error else "")
            when = time.strftime("%m-%d %H:%M", time.localtime(run.created))
            table.add_row(
                Text(when),
                Text(arms[:40]),
                state,
                Text(run.quality_word or "–"),
                Text(" ".join(run.tags)),
                key=run.name,
            )
        self.query_one("#history-body").display = bool(self._runs) or bool(self._filter)
        self.query_one("#history-empty").display = not self._runs and not self._filter
        if self._runs:
            table.move_cursor(row=min(row, len(self._runs) - 1))
        self._draw()

    def selected(self) -> Run | None:
        """The run under the cursor."""
        row = self.query_one(DataTable).cursor_row
        return self._runs[row] if 0 <= row < len(self._runs) else None

    @on(DataTable.RowHighlighted)
    def _draw(self) -> None:
        run = self.selected()
        if run is None:
            self.query_one("#run-text", Static).update("")
        else:
            self._read(run)

    @work(group="read", exclusive=True, exit_on_error=False)
    async def _read(self, run: Run) -> None:
        """Read one summary off the event loop and draw it."""
        text = Text(f"{run.name}\n", style="bold")
        text.append(f"{strip_control(run.machine)}\n", style="not bold dim")
        if run.note:
            text.append(f"note: {strip_control(run.note)}\n", style="not bold")
        pane = self.query_one("#run-text", Static)
        if run.error or run.said:
            text.append(
                f"\n{run.error}" if run.error else "\n" + "\n".join(run.said), style="red" if run.error else "not bold"
            )
            pane.update(text)
            return
        try:
            summary = await asyncio.to_thread(history.summary_of, run)
        except VqError as error:
            text.append(f"\n{error}", style="not bold")
            pane.update(text)
        else:
            pane.update(Group(text, verdict_text(summary)))

    @on(DataTable.RowSelected)
    def action_open(self) -> None:
        """Show the run on the A/B screen."""
        run = self.selected()
        if run is not None and run.kind != "ab":
            self.notify("A check of one server has no comparison to open; its figures stand here.")
        elif run is not None:
            self.console_app.open_run = run.folder
            self.console_app.action_show("ab")

    def action_filter(self) -> None:
        field = self.query_one("#history-filter", Input)
        field.display = True
        field.focus()

    def action_leave(self) -> None:
        self.query_one("#history-filter").display = bool(self._filter)
        self.query_one(DataTable).focus()

    @on(Input.Changed, "#history-filter")
    def _filtered(self, event: Input.Changed) -> None:
        self._filter = event.value
        self.load()

    @on(Input.Submitted, "#history-filter")
    def _filter_done(self) -> None:
        self.action_leave()

    @work(exit_on_error=False)
    async def action_tag(self) -> None:
        """Add tags, or remove one by a leading minus."""
        run = self.selected()
        if run is None:
            return
        words = await self.app.push_screen_wait(Ask(f"Tags for {run.name}", "release -old", " ".join(run.tags)))
        if words is not None:
            asked = words.split()
            keep = [word for word in asked if not word.startswith("-")]
            try:
                history.tag_run(run, add=keep, remove=[t for t in run.tags if t not in keep])
            except VqError as error:
                self.notify(str(error), severity="error")
            self.load()

    @work(exit_on_error=False)
    async def action_note(self) -> None:
        """Write a note on the run."""
        run = self.selected()
        if run is None:
            return
        note = await self.app.push_screen_wait(Ask(f"Note on {run.name}", "what was this for?", run.note))
        if note is not None:
            history.tag_run(run, note=note)
            self.load()

    @work(exit_on_error=False)
    async def action_diff(self) -> None:
        """Compare this run with another, the other one being the earlier."""
        run = self.selected()
        others = [other for other in self._runs if run is not None and other.name != run.name and other.error is None]
        if run is None or not others:
            self.notify("There is no other run to compare with.")
            return
        options = [(other.name, " | ".join(other.arms.values())) for other in others]
        name = await self.app.push_screen_wait(Choose(f"What changed to {run.name} from …", options))
        if not name:
            return
        try:
            changes = compare_runs(history.summary_of(history.find_run(name)), history.summary_of(run))
        except VqError as error:
            self.notify(str(error), severity="error")
            return
        text = Text(f"from {name}\nto   {run.name}\n\n", style="bold")
        for change in changes:
            style = {"regression": "bold red", "improvement": "green"}.get(change.word, "dim")
            text.append(f"{change.what:28} {number(change.before):>14} → {number(change.after):<14} ")
            text.append(f"{change.word}\n", style=style)
        self.query_one("#run-text", Static).update(
            text if changes else Text("nothing to compare: no endpoint in common")
        )

    def action_export(self) -> None:
        """Write a bundle to the current folder."""
        run = self.selected()
        if run is not None:
            from pathlib import Path

            target = history.export_bundle(run, Path.cwd() / f"{run.name}.tar.gz")
            self.notify(str(target), title="Bundle written", timeout=10)

    @work(exit_on_error=False)
    async def action_remove(self) -> None:
        """Delete a run after a question."""
        run = self.selected()
        if run is not None and await self.app.push_screen_wait(
            Confirm(f"Delete {run.name}?", "Its samples and report are gone then.")
        ):
            try:
                history.delete_run(run)
            except (VqError, OSError) as error:
                self.notify(str(error), severity="error")
            self.load()
