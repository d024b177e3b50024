"""Home: GPUs above, servers below, the selected one explained. Routes keys to `serving`; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Static

from vq_console.core.errors import VqError
from vq_console.serving.model import LIVE
from vq_console.ui import views
from vq_console.ui.hub import ServerSnapshot, Snapshot
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.widgets.dialogs import Choose, Confirm

FIRST_RUN = (
    "No server yet.\n\n"
    "  l  launch a profile            n  new profile\n"
    "  d  simulated tour, no download: shows everything in a minute\n"
    "  i  make a vLLM engine for this machine\n"
)


class ServersScreen(ConsoleScreen):
    """GPUs, servers, details of the selected server."""

    MODE = "servers"
    AUTO_FOCUS = "#servers"
    HELP_TEXT = (
        "GPUs with who holds their memory; servers with what was asked for and which kernel really runs. ● "
        "ready (one token came out)   ◐ starting   ○ queued: one start at a time per GPU   ✖ failed   ▲ needs "
        "a look Servers go on running when you leave the console."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "launch", "Launch"),
        Binding("s", "stop", "Stop"),
        Binding("r", "restart", "Restart"),
        Binding("enter", "open_log", "Log"),
        Binding("b", "compare", "Compare"),
        Binding("p", "patch", "Apply fix"),
        Binding("delete", "forget", "Forget", show=False),
        Binding("n", "new_profile", "New profile", show=False),
        Binding("d", "tour", "Simulated tour", show=False),
        Binding("i", "engine", "Engine", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._columns: tuple[views.Column, ...] = ()
        self._snapshot = Snapshot()

    def compose_body(self) -> ComposeResult:
        yield Static(id="gpus")
        yield DataTable[Text](id="servers", cursor_type="row", zebra_stripes=True)
        yield Static(FIRST_RUN, id="first-run", markup=False)
        with Horizontal(id="details"):
            for name, _title in (("facts", "facts"), ("startup", "start-up"), ("problem", "problem")):
                with VerticalScroll(id=f"{name}-box", classes="detail"):
                    yield Static(id=name)
        yield Static(id="foot")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#servers").border_title = "Servers"
        for name, title in (("facts", "facts"), ("startup", "start-up"), ("problem", "problem")):
            self.query_one(f"#{name}-box").border_title = title

    @property
    def _ascii(self) -> bool:
        return self.console_app.settings.ascii

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._show_gpus(snapshot)
        self._show_table(snapshot)
        self._show_details()
        foot = self.query_one("#foot", Static)
        foot.update(Text(views.worst_problem(snapshot) or (snapshot.problem or ""), style="bold"))
        foot.display = bool(views.worst_problem(snapshot) or snapshot.problem)

    def _show_gpus(self, snapshot: Snapshot) -> None:
        width = max(self.size.width - 4, 20)
        self.query_one("#gpus").border_title = "GPUs" if snapshot.gpus else "this machine"
        lines: list[Text] = []
        servers = [server for server in snapshot.servers if server.record.state in LIVE]
        for gpu in snapshot.gpus:
            lines.append(views.gpu_line(gpu, snapshot.utilization.get(gpu.index, ()), width, ascii_only=self._ascii))
            if self.size.width >= 100 and len(snapshot.gpus) <= 4:
                lines.append(views.gpu_owners(gpu, servers, width))
        if not snapshot.gpus:
            history = snapshot.utilization.get(-1, ())
            lines.append(views.host_line(snapshot.host, history, width, ascii_only=self._ascii))
            reason = snapshot.gpu_reason or "no GPU is visible"
            lines.append(Text(f"no GPU: {reason}"[:width], style="dim", no_wrap=True))
        self.query_one("#gpus", Static).update(Text("\n").join(lines))

    def _show_table(self, snapshot: Snapshot) -> None:
        table = self.query_one(DataTable)
        empty = not snapshot.servers
        table.display = not empty
        self.query_one("#details").display = not empty
        self.query_one("#first-run").display = empty
        columns = views.columns_for(self.size.width)
        if columns != self._columns:
            self._columns = columns
            table.clear(columns=True)
            for column in columns:
                table.add_column(column.title, key=column.key)
        names = [server.record.name for server in snapshot.servers]
        if [str(key.value) for key in table.rows] != names:
            selected = self.console_app.selected_server
            table.clear()
            for server in snapshot.servers:
                table.add_row(
                    *[views.cell(server, c.key, ascii_only=self._ascii) for c in columns], key=server.record.name
                )
            if selected in names:
                table.move_cursor(row=names.index(selected))
            return
        for server in snapshot.servers:
            for column in columns:
                value = views.cell(server, column.key, ascii_only=self._ascii)
                if table.get_cell(server.record.name, column.key) != value:
                    table.update_cell(server.record.name, column.key, value, update_width=True)

    def selected(self) -> ServerSnapshot | None:
        """The server under the cursor."""
        table = self.query_one(DataTable)
        if 0 <= table.cursor_row < len(self._snapshot.servers):
            return self._snapshot.servers[table.cursor_row]
        return None

    def _show_details(self) -> None:
        server = self.selected()
        if server is None:
            return
        self.console_app.selected_server = server.record.name
        self.query_one("#facts-box").border_title = server.record.name
        self.query_one("#facts", Static).update(views.facts_text(server))
        width = self.query_one("#startup-box").size.width
        self.query_one("#startup", Static).update(views.startup_text(server, width, ascii_only=self._ascii))
        self.query_one("#problem", Static).update(views.problem_text(server))

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        self._show_details()

    @on(DataTable.RowSelected)
    def _opened(self) -> None:
        self.action_open_log()

    # Actions

    def action_open_log(self) -> None:
        """Show the log of the selected server."""
        server = self.selected()
        if server is not None:
            self.console_app.selected_server = server.record.name
            self.console_app.log_path = server.record.log
            self.console_app.action_show("logs")

    def action_compare(self) -> None:
        """Take the selected server as arm of a comparison."""
        server = self.selected()
        self.console_app.compare_arm = f"server:{server.record.name}" if server else None
        self.console_app.action_show("ab")

    def action_new_profile(self) -> None:
        self.console_app.action_show("profiles")

    @work(exit_on_error=False)
    async def action_launch(self) -> None:
        """Choose a profile and start it."""
        from vq_console.profiles.store import list_profiles

        listed = [entry for entry in await asyncio.to_thread(list_profiles) if entry.profile is not None]
        if not listed:
            self.notify("No profile yet: 2 shows the profiles, n makes one.", severity="warning")
            return
        options = [(entry.name, entry.profile.description if entry.profile else "") for entry in listed]
        name = await self.app.push_screen_wait(Choose("Launch which profile?", options))
        if name:
            self._act(f"launching {name}", lambda: self._launch(name))

    def _launch(self, name: str) -> str:
        from vq_console.engines.find import choose_engine
        from vq_console.profiles.store import load_profile
        from vq_console.serving.launch import launch

        profile = load_profile(name)
        engine = choose_engine(profile.vllm, python="simulator") if self.console_app.simulated else None
        return f"{launch(profile, engine=engine).name} is starting"

    @work(exit_on_error=False)
    async def action_stop(self) -> None:
        """Stop the selected server after a question."""
        server = self.selected()
        if server is None or server.record.state not in LIVE:
            self.notify("Nothing to stop here.")
            return
        if server.record.attached:
            self.notify("This server was not started here, so it is not stopped here.", severity="warning")
            return
        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Stop {name}?", "Its requests end; its memory comes back.")):
            from vq_console.serving.control import stop_server

            self._act(f"stopping {name}", lambda: f"{stop_server(name).name} stopped")

    @work(exit_on_error=False)
    async def action_restart(self) -> None:
        """Restart the selected server with the same plan."""
        server = self.selected()
        if server is None or server.record.attached:
            return
        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Restart {name}?", "It is stopped first when it runs.")):
            from vq_console.serving.control import restart_server

            self._act(f"restarting {name}", lambda: f"{restart_server(name).name} is starting")

    @work(exit_on_error=False)
    async def action_patch(self) -> None:
        """Apply the first fix that has a patch to the profile, and start it again."""
        server = self.selected()
        problem = views.problem_of(server) if server else None
        fix = next((f for f in (problem or {}).get("fixes") or () if f.get("patch")), None)
        if server is None or fix is None:
            self.notify("No fix here that can be applied by itself.")
            return
        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Change the profile of {name} and start it again?", fix["text"])):
            from vq_console.serving.fix import apply_fix, choose_fix

            self._act(f"fixing {name}", lambda: f"{apply_fix(choose_fix(name))[1].name} is starting with the fix")

    @work(exit_on_error=False)
    async def action_forget(self) -> None:
        """Remove an ended server from the list."""
        server = self.selected()
        if server is None or server.record.state in LIVE:
            return
        from vq_console.serving.registry import forget_server

        name = server.record.name
        if await self.app.push_screen_wait(Confirm(f"Forget {name}?", "Its log and record are removed.")):
            self._act(f"forgetting {name}", lambda: f"{forget_server(name).name} forgotten")

    def action_tour(self) -> None:
        """Show how the simulated tour is started; it needs a home of its own."""
        self.notify("In a shell: vq-console demo --simulated", title="Simulated tour", timeout=12)

    def action_engine(self) -> None:
        """Show how an engine is made; it takes minutes and a terminal shows its progress best."""
        device = "cuda" if self._snapshot.gpus else "cpu"
        self.notify(f"In a shell: vq-console engines install {device}", title="Make an engine", timeout=12)

    @work(group="actions", exit_on_error=False)
    async def _act(self, what: str, do: Callable[[], str]) -> None:
        """Run something that may take seconds in a thread; errors become a notification."""
        self.notify(f"{what} …")
        try:
            said = await asyncio.to_thread(do)
        except VqError as error:
            self.app.notify(str(error), title=f"{what}: no", severity="error", timeout=15)
        else:
            self.app.notify(said)
        self.console_app.hub.refresh()
