"""Home: GPUs above, servers below, the selected one explained. Composes and draws; `server_actions` acts."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Static

from vq_console.serving.model import LIVE
from vq_console.ui import details, views
from vq_console.ui.hub import ServerSnapshot, Snapshot
from vq_console.ui.notices import since
from vq_console.ui.screens.server_actions import ServerActions
from vq_console.ui.widgets.titles import entitle

FIRST_RUN = (
    "\n"
    "  d  simulated tour: all of it in a minute, no download\n"
    "  i  make a vLLM engine for this machine\n"
    "  n  new profile      l  launch one\n"
    "  a  attach a server that runs already\n"
    "  3  explain any vLLM log (o opens a file)\n"
)
LOOK_AFTER_S = 0.4
"""Engines, profiles and runs are counted once the first picture stands."""
PANES = ("facts", "startup", "problem")
TITLES = {"facts": "facts", "startup": "start-up", "problem": "problem"}


class ServersScreen(ServerActions):
    """GPUs, servers, details of the selected server."""

    MODE = "servers"
    EAGER = True
    TITLE_TEXT = "1 Servers"
    AUTO_FOCUS = "#servers"
    HELP_TEXT = (
        "GPUs with who holds their memory; servers with what was asked for and which kernel really runs.\n"
        "● ready: one token came out   ◐ starting   ○ queued: one start at a time per GPU   ◌ silent   ✖ failed\n"
        "▲ runs another kernel than expected. native: the kernel computes in the format that was asked for; "
        "weight-only: it unpacks the weights first, which saves memory and, with few streams, time; emulated: in "
        "another format, step by step.\n"
        "Servers go on running when you leave the console."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "launch", "Launch", tooltip="launch a profile"),
        Binding("s", "stop", "Stop", tooltip="stop the server"),
        Binding("enter", "open_log", "Log", tooltip="its log and explanation"),
        Binding("p", "patch", "Fix", tooltip="apply the diagnosis's fix, start again"),
        Binding("b", "compare", "Compare", tooltip="take it as arm of an A/B"),
        Binding("t", "pane", "Details", tooltip="next pane of details"),
        Binding("r", "restart", "Restart", tooltip="restart it"),
        Binding("a", "attach", "Attach", tooltip="attach a server by URL or pid"),
        Binding("w", "worst", "Worst", show=False, tooltip="select the worst problem"),
        Binding("o", "orphans", "Left-overs", show=False, tooltip="what dead servers left behind"),
        Binding("delete", "forget", "Forget", show=False, tooltip="forget an ended server"),
        Binding("n", "new_profile", "New profile", show=False, tooltip="new profile"),
        Binding("d", "tour", "Simulated tour", show=False, tooltip="simulated tour"),
        Binding("i", "engine", "Engine", show=False, tooltip="make a vLLM engine"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._columns: tuple[views.Column, ...] = ()
        self._pane: str | None = None
        """The pane that was asked for where only one fits; None shows the most important one."""
        self._counts: tuple[int | None, int | None] = (None, None)
        """Engines and own profiles, None until counted."""
        self._since = ""
        self._said: tuple[object, ...] = ()
        """What the details were drawn from."""
        self._drawn: dict[str, Text] = {}

    def compose_body(self) -> ComposeResult:
        yield Static(id="gpus")
        yield DataTable[Text](id="servers", cursor_type="row", zebra_stripes=True)
        yield Static(id="first-run", markup=False)
        with Horizontal(id="details"):
            for name in PANES:
                with VerticalScroll(id=f"{name}-box", classes="detail"):
                    yield Static(id=name)
        yield Static(id="foot")

    def begin(self) -> None:
        self.query_one("#servers").border_title = "servers"
        for name, title in TITLES.items():
            self.query_one(f"#{name}-box").border_title = title
        self.set_timer(LOOK_AFTER_S, self._look_around)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a server the keys at the foot are those that get one."""
        if action in {"stop", "open_log", "patch", "compare", "pane", "restart"} and not self.snapshot.servers:
            return False
        return super().check_action(action, parameters)

    @property
    def _ascii(self) -> bool:
        return self.console_app.settings.ascii

    def engine_made(self) -> None:
        self._look_around()

    @work(group="around", exclusive=True, exit_on_error=False)
    async def _look_around(self) -> None:
        """Count engines and own profiles for the first-run line, and read what happened while nobody looked."""

        def look() -> tuple[int, int, list[tuple[str, float]]]:
            from vq_console.compare.history import RUNNING, list_runs
            from vq_console.engines.find import find_engines
            from vq_console.profiles.store import list_profiles

            own = sum(entry.origin == "user" for entry in list_profiles())
            ended = []
            for run in list_runs():
                summary = run.folder / "summary.json"
                if run.state != RUNNING and summary.exists():
                    ended.append((run.name, summary.stat().st_mtime))
            return len(find_engines()), own, ended

        last = self.console_app.last_looked
        engines, own, ended = await asyncio.to_thread(look)
        self._counts = engines, own
        self._since = since((s.record for s in self.snapshot.servers), ended, last)
        self._seen_version = -1

    # Drawing

    def show_snapshot(self, snapshot: Snapshot) -> None:
        had, self.snapshot = bool(self.snapshot.servers), snapshot
        if had != bool(snapshot.servers):
            self.refresh_bindings()
        self._show_gpus(snapshot)
        self._show_table(snapshot)
        self._show_details()
        self._show_foot(snapshot)

    def _put(self, widget: Static, text: Text) -> None:
        """Draw only what is new, and lay the screen out again only for another number of lines: at rest it is cheap."""
        old = self._drawn.get(str(widget.id))
        if old != text:
            self._drawn[str(widget.id)] = text
            widget.update(text, layout=old is None or old.plain.count("\n") != text.plain.count("\n"))

    def _show_foot(self, snapshot: Snapshot) -> None:
        said = views.worst_problem(snapshot)
        if not said[0] and snapshot.problem:
            said = (snapshot.problem, "")
        if not said[0] and self._since:
            said = (f"since you last looked: {self._since}", "")
        foot = self.query_one("#foot", Static)
        foot.display = bool(said[0])
        self._put(foot, views.foot_line(said, max(self.size.width - 2, 10)))
        table = self.query_one("#servers")
        entitle(table, foot=f"since you last looked: {self._since}" if self._since else "")

    def _show_gpus(self, snapshot: Snapshot) -> None:
        width = max(self.size.width - 4, 20)
        box = self.query_one("#gpus", Static)
        driver = f" · driver {snapshot.driver}" if snapshot.driver else ""
        entitle(box, f"GPUs{driver}" if snapshot.gpus else "this machine")
        lines: list[Text] = []
        servers = [server for server in snapshot.servers if server.record.state in LIVE]
        rows = max(self.size.height // 6, 1)
        if len(snapshot.gpus) > rows:
            lines = views.gpu_grid(snapshot.gpus, width, ascii_only=self._ascii)
        for gpu in snapshot.gpus if not lines else ():
            history = snapshot.utilization.get(gpu.index, ())
            lines.append(views.gpu_line(gpu, history, width, servers, ascii_only=self._ascii))
            if self.size.width >= 100 and len(snapshot.gpus) * 2 <= rows:
                lines.append(views.gpu_owners(gpu, servers, width))
        if not snapshot.gpus:
            history = snapshot.utilization.get(-1, ())
            lines.append(views.host_line(snapshot.host, history, width, ascii_only=self._ascii))
            reason = snapshot.gpu_reason or "no GPU is visible"
            lines.append(Text(details.cut(f"no GPU: {reason}", width), style="dim", no_wrap=True))
        self._put(box, Text("\n").join(lines))

    def _show_table(self, snapshot: Snapshot) -> None:
        table = self.query_one(DataTable)
        empty = not snapshot.servers
        table.display = not empty
        self.query_one("#details").display = not empty
        first = self.query_one("#first-run", Static)
        first.display = empty
        if empty:
            engines, own = self._counts
            line = views.missing_line(snapshot, engines=engines, profiles=own)
            text = Text()
            text.append("No server yet.\n", style="bold")
            text.append(f"{line}\n")
            text.append(FIRST_RUN)
            self._put(first, text)
            return
        columns = views.columns_for(self.size.width)
        if columns != self._columns:
            self._columns = columns
            table.clear(columns=True)
            for column in columns:
                table.add_column(column.title, key=column.key)
        names = [server.record.name for server in snapshot.servers]
        rows = views.rows_for(snapshot.servers, columns, max(self.size.width - 4, 40), ascii_only=self._ascii)
        if [str(key.value) for key in table.rows] != names:
            selected = self.console_app.selected_server
            table.clear()
            for name, row in zip(names, rows, strict=True):
                table.add_row(*row, key=name)
            if selected in names:
                table.move_cursor(row=names.index(selected))
            return
        for name, row in zip(names, rows, strict=True):
            for column, value in zip(columns, row, strict=True):
                old = table.get_cell(name, column.key)
                if old != value:
                    table.update_cell(name, column.key, value, update_width=old.cell_len != value.cell_len)

    def selected(self) -> ServerSnapshot | None:
        """The server under the cursor."""
        table = self.query_one(DataTable)
        if 0 <= table.cursor_row < len(self.snapshot.servers):
            return self.snapshot.servers[table.cursor_row]
        return None

    def _show_details(self) -> None:
        server = self.selected()
        if server is None:
            return
        name = server.record.name
        self.console_app.selected_server = name
        one = self.has_class("-narrow")
        shown = self._pane or ("problem" if details.needs_a_look(server) else "facts")
        for pane in PANES:
            box = self.query_one(f"#{pane}-box")
            box.display = not one or pane == shown
            title = f"{name} · {TITLES[pane]}" if one or pane == "facts" else TITLES[pane]
            entitle(box, title, foot="t next" if one else "")
        width = (self.size.width if one else self.query_one("#startup-box").size.width) - 2
        seen = {key: value for key, value in server.seen.items() if key not in {"uptime_s", "cpu_pct"}}
        spoken = {key: server.metrics.get(key) for key in details.SPOKEN_METRICS}
        said = (width, server.record, seen, spoken, server.advice, server.processes)
        if said == self._said:
            return
        self._said = said
        self.query_one("#facts", Static).update(details.facts_table(server))
        self.query_one("#startup", Static).update(details.startup_text(server, width, ascii_only=self._ascii))
        self.query_one("#problem", Static).update(details.problem_text(server))

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        self._pane = None
        self._show_details()

    @on(DataTable.RowSelected)
    def _opened(self) -> None:
        self.action_open_log()

    def action_pane(self) -> None:
        """Show the next pane of details; where all three fit, put the keys into it so that it scrolls."""
        if self.has_class("-narrow"):
            now = next(pane for pane in PANES if self.query_one(f"#{pane}-box").display)
            self._pane = PANES[(PANES.index(now) + 1) % len(PANES)]
            self._show_details()
            return
        boxes = [self.query_one(f"#{pane}-box") for pane in PANES]
        at = boxes.index(self.focused) if self.focused in boxes else -1
        (boxes[at + 1] if at + 1 < len(boxes) else self.query_one(DataTable)).focus()

    def action_worst(self) -> None:
        """Put the cursor on the server that the line at the foot speaks of."""
        words = views.worst_problem(self.snapshot)[0]
        for row, server in enumerate(self.snapshot.servers):
            if f" {server.record.name} " in words.replace(":", " "):
                self.query_one(DataTable).move_cursor(row=row)
                return
        if self.snapshot.orphans:
            self.action_orphans()
