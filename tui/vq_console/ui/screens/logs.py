"""Logs: follow, search, filter, jump to what matters, and the explanation beside the root line."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Static

from vq_console.core.text import counted, seconds_text, strip_control
from vq_console.logs.model import Explanation
from vq_console.serving.model import ServerState
from vq_console.ui.details import PHASES
from vq_console.ui.hub import Snapshot
from vq_console.ui.logbuffer import LEVELS, LogBuffer
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.widgets.dialogs import Choose
from vq_console.ui.widgets.logstrip import LogStrip
from vq_console.ui.widgets.logview import LogView

EXPLAIN_EVERY_S = 10.0
CALM_LINES = 40
FLOOD_DRAW_S = 0.6


class LogsScreen(ConsoleScreen):
    """One log at a time, of a server or any file."""

    MODE = "logs"
    TITLE_TEXT = "3 Logs"
    AUTO_FOCUS = "LogView"
    PUMP_HZ = 15.0
    HELP_TEXT = (
        "The log of a server, or of any vLLM anywhere: o opens a file. The explanation on the right names the "
        "root cause, its line and what to do; g jumps there. / searches (regular expression), n and N move "
        "between matches. v and m narrow by level and process. End follows what is written.\n"
        "The line on top is the whole loaded log from left to right: E error, w warning, K kernel, R ready, ┃ you."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", key_display="/"),
        Binding("n", "match(1)", "Next", show=False),
        Binding("N", "match(-1)", "Previous", show=False),
        Binding("g", "root", "Root cause"),
        Binding("e", "jump('trouble')", "Next error"),
        Binding("K", "jump('kernel')", "Kernel", key_display="K"),
        Binding("R", "jump('ready')", "Ready", show=False, key_display="R"),
        Binding("v", "level", "Level"),
        Binding("m", "process", "Process"),
        Binding("f", "follow", "Follow"),
        Binding("x", "explain", "Explain"),
        Binding("o", "open", "Open"),
        Binding("y", "copy", "Copy", show=False),
        Binding("escape", "leave", "Leave search", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._path: str | None = None
        self._explanation: Explanation | None = None
        self._explained_size = -1
        self._explain_next = 0.0
        self._fresh = 0
        """Lines that came since the picture was drawn."""
        self._drawn = 0.0
        self._head_due = self._skipping = False
        self._just_opened = False
        """Nobody has moved in this log yet: a failed server's log goes to its root line by itself."""
        self._story: tuple[object, ...] | None = None
        """What the hub said of this log's server when it was explained."""

    def compose_body(self) -> ComposeResult:
        yield Static(id="log-head")
        yield LogStrip()
        with Horizontal(id="log-body"):
            yield LogView()
            with VerticalScroll(id="explanation"):
                yield Static(id="explanation-text")
        yield Input(placeholder="search: regular expression, Enter finds, Esc leaves", id="log-search", compact=True)

    def begin(self) -> None:
        self.query_one("#log-search").display = False
        self.query_one("#explanation").border_title = "explanation"
        self.query_one("#explanation").display = self.console_app.settings.explanation
        self.query_one(LogView).focus()

    def resumed(self) -> None:
        wanted = self.console_app.log_path or self._default_path()
        if wanted and wanted != self._path:
            self.open_log(wanted)
        self._draw_head()

    def resized(self) -> None:
        self.call_after_refresh(self._draw_head)

    def _default_path(self) -> str | None:
        servers = self.console_app.hub.snapshot.servers
        chosen = [s for s in servers if s.record.name == self.console_app.selected_server] or list(servers)
        return chosen[0].record.log if chosen else None

    def open_log(self, path: str) -> None:
        """Show a file from its end; a file that cannot be read is said and nothing changes."""
        self._path = self.console_app.log_path = os.path.expanduser(path)
        self._explanation, self._explained_size, self._story = None, -1, None
        self._just_opened = True
        self._open(self._path)

    @work(group="open", exclusive=True, exit_on_error=False)
    async def _open(self, path: str) -> None:
        """Index and read the end of the file in a thread: its last lines take longer than a frame."""
        view = self.query_one(LogView)
        try:
            buffer = await asyncio.to_thread(LogBuffer, path)
        except OSError as error:
            self.notify(f"{path}: {error.strerror or error}", severity="error", markup=False)
            return
        if path != self._path:
            buffer.close()
            return
        if view.buffer is not None:
            view.buffer.close()
        view.open(buffer)
        # Tens of thousands of lines that stay: the collector need not walk over them again and again.
        gc.freeze()
        self._draw_head()
        self._count(buffer)
        self._explain(path)

    @work(group="skip", exit_on_error=False)
    async def _skip_to_end(self, old: LogBuffer) -> None:
        """Go on at the end of a log that ran away while another screen was shown."""
        view = self.query_one(LogView)
        try:
            fresh = await asyncio.to_thread(old.again)
        finally:
            self._skipping = False
        if view.buffer is old and view.following:
            old.close()
            view.open(fresh)
            self._count(fresh)
        else:
            fresh.close()

    @work(thread=True, group="count", exit_on_error=False)
    def _count(self, buffer: LogBuffer) -> None:
        if buffer.first_number is None:
            first = buffer.count_before()
            if buffer.first_number is None:
                buffer.first_number = first

    @work(group="explain", exclusive=True, exit_on_error=False)
    async def _explain(self, path: str) -> None:
        from vq_console.logs.explain import explain_path
        from vq_console.serving.view import diagnose_server

        server = next((s for s in self.console_app.hub.snapshot.servers if s.record.log == path), None)

        def read() -> tuple[Explanation, int]:
            explanation, size = explain_path(path), os.stat(path).st_size
            # Where the log of a server is silent, how the server ended is not.
            diagnosis = diagnose_server(server.record) if server is not None else None
            return (explanation if diagnosis is None else replace(explanation, diagnosis=diagnosis)), size

        began = time.monotonic()
        try:
            explanation, self._explained_size = await asyncio.to_thread(read)
        except OSError as error:
            self.query_one("#explanation-text", Static).update(Text(str(error)))
            return
        spent = time.monotonic() - began
        self._explain_next = began + max(EXPLAIN_EVERY_S, spent * 20)
        if path == self._path:
            self._explanation = explanation
            self.query_one("#explanation-text", Static).update(explanation_text(explanation))
            opened, self._just_opened = self._just_opened, False
            failed = server is not None and server.record.state is ServerState.FAILED
            if opened and failed and explanation.diagnosis.root_line and self.query_one(LogView).following:
                self.action_root()

    def pump(self) -> None:
        super().pump()
        if not self.ready:
            return
        view = self.query_one(LogView)
        if view.buffer is None:
            if self._path is None and (path := self._default_path()):
                self.open_log(path)
            return
        if view.following and view.buffer.far_behind and not self._skipping:
            self._skipping = True
            self._skip_to_end(view.buffer)
        self._fresh += view.buffer.poll()
        now = time.monotonic()
        # Nobody reads hundreds of lines a second: then the picture changes less often, and keys stay quick.
        if self._fresh and (self._fresh <= CALM_LINES or now - self._drawn >= FLOOD_DRAW_S):
            self._fresh, self._drawn = 0, now
            view.changed()
            self._head_due = True
        elif self._head_due:
            # Not in the same picture: what changed above and below makes Textual draw all that lies between, too.
            self._head_due = False
            self._draw_head()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """A log is explained again when its server's story changed, any other file now and then while it grows.

        Explaining reads the whole file: with a busy log and at every look it would take the machine for itself.
        """
        path = self._path
        if path is None or self._explained_size < 0:
            return
        server = next((s for s in snapshot.servers if s.record.log == path), None)
        if server is not None:
            seen = server.seen
            story = (server.record.state, seen.get("diagnosis"), seen.get("phases"), len(seen.get("facts") or ()))
            if story != self._story:
                known, self._story = self._story, story
                if known is not None:
                    self._explain(path)
            return
        if time.monotonic() >= self._explain_next:
            try:
                size = os.stat(path).st_size
            except OSError:
                return
            if size != self._explained_size:
                self._explain(path)

    def _draw_head(self) -> None:
        view = self.query_one(LogView)
        text = Text(no_wrap=True)
        if view.buffer is None:
            text.append("No log yet. o opens a file; a launched server shows its own here.", style="dim")
        else:
            server = next((s for s in self.console_app.hub.snapshot.servers if s.record.log == self._path), None)
            text.append(f"{server.record.name} ({server.record.state.value})  " if server else "", style="bold")
            text.append(counted(len(view.buffer.shown), "line", ","))
            text.append(
                "  following" if view.following else "  paused (f follows)",
                style="green" if view.following else "yellow",
            )
            only = [f"{view.buffer.level}+" if view.buffer.level else "", strip_control(view.buffer.process or "")]
            if any(only):
                text.append(f"  only {' '.join(word for word in only if word)}", style="bold")
            if view.buffer.pattern is not None:
                found = len(view.buffer.matches)
                words = f"{found:,} match{'' if found == 1 else 'es'} of {view.buffer.pattern.pattern!r}"
                text.append(f"  {words}", style="bold")
            text.append(f"  {strip_control(str(self._path))}", style="dim")
            text.truncate(max(self.size.width - 2, 20), overflow="ellipsis")
            self.query_one(LogStrip).show(view.buffer, view.position)
        self.query_one("#log-head", Static).update(text, layout=False)  # one line, whatever it says

    @on(LogStrip.Wanted)
    def _strip(self, event: LogStrip.Wanted) -> None:
        self.query_one(LogView).go(event.position)

    @on(LogView.Moved)
    def _moved(self) -> None:
        self._draw_head()

    # Actions

    def action_search(self) -> None:
        field = self.query_one("#log-search", Input)
        field.display = True
        field.focus()

    def action_leave(self) -> None:
        self.query_one("#log-search").display = False
        self.query_one(LogView).focus()

    @on(Input.Submitted, "#log-search")
    def _searched(self, event: Input.Submitted) -> None:
        view = self.query_one(LogView)
        if view.buffer is None:
            return
        problem = view.buffer.search(event.value)
        if problem:
            self.notify(problem, severity="warning")
        self.action_leave()
        view.refresh()
        if event.value and not view.buffer.matches:
            self.notify(f"no line matches {event.value!r}")
        self.action_match(-1)
        self._draw_head()

    def action_match(self, step: int) -> None:
        view = self.query_one(LogView)
        if view.buffer is not None and view.position is not None:
            view.go(view.buffer.next_match(view.position, step))

    def action_jump(self, kind: str) -> None:
        view = self.query_one(LogView)
        if view.buffer is None:
            return
        after = view.position if view.position is not None and not view.following else -1
        found = view.buffer.find(kind, after)
        if found is None:
            words = {"kernel": "kernel line", "ready": "ready line", "trouble": "error line"}[kind]
            self.notify(f"no {words} in the part of the log that is loaded")
        elif not view.go(found):
            self.notify("that line is hidden by the filter", severity="warning")

    def action_root(self) -> None:
        """Jump to the root line of the explanation."""
        view = self.query_one(LogView)
        line = self._explanation.diagnosis.root_line if self._explanation else 0
        if not line or view.buffer is None:
            self.notify("The explanation names no root line.")
            return
        while (position := view.buffer.position_of(line)) is None and view.buffer.load_earlier():
            pass
        view.changed()
        view.go(position)

    def action_level(self) -> None:
        """Cycle the lowest level that is shown."""
        view = self.query_one(LogView)
        if view.buffer is not None:
            steps = (None, *LEVELS[1:])
            level = steps[(steps.index(view.buffer.level) + 1) % len(steps)]
            view.buffer.filter(level=level, process=view.buffer.process)
            view.changed()
            self._draw_head()

    def action_process(self) -> None:
        """Cycle the process that is shown."""
        view = self.query_one(LogView)
        if view.buffer is not None:
            steps = (None, *view.buffer.processes)
            at = steps.index(view.buffer.process) if view.buffer.process in steps else 0
            view.buffer.filter(level=view.buffer.level, process=steps[(at + 1) % len(steps)])
            view.changed()
            self._draw_head()

    def action_follow(self) -> None:
        view = self.query_one(LogView)
        view.following = not view.following
        view.changed()
        self._draw_head()

    def action_explain(self) -> None:
        """Show or hide the explanation."""
        pane = self.query_one("#explanation")
        pane.display = not pane.display
        self.console_app.remember(replace(self.console_app.settings, explanation=bool(pane.display)))

    def action_copy(self) -> None:
        """Copy the line under the cursor."""
        view = self.query_one(LogView)
        if view.buffer is not None and view.position is not None:
            self.app.copy_to_clipboard(view.buffer.entries[view.position].text)
            self.notify("line copied")

    @work(exit_on_error=False)
    async def action_open(self) -> None:
        """Choose the log of a server, or type a path."""
        servers = self.console_app.hub.snapshot.servers
        options = [(str(s.record.log), f"{s.record.name} ({s.record.state.value})") for s in servers if s.record.log]
        path = await self.app.push_screen_wait(Choose("Open which log?", options, free=True))
        if path:
            self.open_log(path)


def explanation_text(explanation: Explanation) -> Text:
    """Diagnosis, evidence, fixes, facts and timeline for the pane."""
    diagnosis = explanation.diagnosis
    style = {"error": "bold red", "unknown": "bold red", "warning": "bold yellow"}.get(diagnosis.severity, "bold green")
    text = Text()
    text.append(strip_control(diagnosis.title), style=style)
    text.append(f"  {diagnosis.slug}\n", style="dim")
    if diagnosis.severity in {"error", "warning", "unknown"}:
        for fix in diagnosis.fixes:
            text.append("fix  ", style="bold")
            text.append(strip_control(fix.text) + ("  (p on Servers applies it)\n" if fix.patch else "\n"))
    text.append(f"\n{strip_control(diagnosis.explanation)}\n")
    if diagnosis.root_line:
        text.append(
            f"\n[g] line {diagnosis.root_line}" + (f", {diagnosis.process}" if diagnosis.process else "") + "\n",
            style="bold",
        )
        text.append(f"{strip_control(diagnosis.evidence)[:600]}\n", style="dim")
    facts = explanation.facts
    text.append("\nfacts\n", style="bold")
    for kernel in facts.get("kernels") or ():
        text.append(strip_control(f"{kernel.get('module')}: {kernel.get('kernel')}") + "\n")
    if not facts.get("kernels"):
        text.append("kernel line not found\n")
    for key in (
        "vllm_version",
        "quantization",
        "attention_backend",
        "moe_backend",
        "kv_cache_dtype",
        "kv_cache_tokens",
        "model_load_gib",
    ):
        if facts.get(key) is not None:
            text.append(f"{key.replace('_', ' ')}: {strip_control(str(facts[key]))}\n")
    if explanation.phases:
        text.append("\nstart-up\n", style="bold")
        longest = max(phase.seconds for phase in explanation.phases)
        for phase in explanation.phases:
            name = PHASES.get(phase.name, phase.name)
            style = "bold" if phase.seconds == longest else ""
            text.append(f"{name:16} {seconds_text(phase.seconds):>6}\n", style=style)
    return text
