"""A/B: pick two arms, look at answers side by side, measure, read the verdict. Decides nothing about numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Label, Select, TabbedContent, TabPane

from vq_console.core.errors import VqError
from vq_console.core.places import runs_dir
from vq_console.serving.model import ServerState
from vq_console.ui.hub import Snapshot
from vq_console.ui.runner import RunTail, cancel_run, start_ab
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.widgets.live import LivePane
from vq_console.ui.widgets.results import LatencyPane, ProgressLine, QualityPane, VerdictPane

PROFILE, SERVER, URL = "profile", "server", "url"


class AbScreen(ConsoleScreen):
    """Two arms, four views of how they differ."""

    MODE = "ab"
    AUTO_FOCUS = "#arm-a"
    HELP_TEXT = (
        "Compare two ways of serving. An arm is a profile (it is started and stopped for you), a running "
        "server or a URL. Live shows one prompt answered by both and where they part. Quick and Standard "
        "measure in interleaved blocks and end in a verdict with its interval; B is judged against A, so put "
        "the 16-bit arm first or name it as baseline. The measuring runs in a process of its own: leave this "
        "screen or the console, it goes on."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "run('quick')", "Quick check"),
        Binding("G", "run('standard')", "Standard", key_display="G"),
        Binding("c", "cancel", "Cancel"),
        Binding("x", "swap", "Swap arms"),
        Binding("l", "tab('live')", "Live"),
        Binding("v", "tab('verdict')", "Verdict"),
        Binding("e", "export", "Export"),
        Binding("escape", "leave_input", "Leave prompt", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._tail: RunTail | None = None
        self._choices: tuple[tuple[str, str], ...] = ()
        self._announced = False

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="arms"):
            yield Label("A", classes="arm-letter")
            yield Select[str]([], prompt="first arm", id="arm-a", compact=True)
            yield Label("B", classes="arm-letter")
            yield Select[str]([], prompt="second arm", id="arm-b", compact=True)
            yield Button("Quick", id="quick", compact=True, variant="primary")
        with TabbedContent(id="views", initial="live"):
            with TabPane("Live", id="live"):
                yield LivePane()
                yield Input(placeholder="one prompt for both arms, Enter sends it", id="prompt", compact=True)
            with TabPane("Latency", id="latency"):
                yield LatencyPane()
            with TabPane("Quality", id="quality"):
                yield QualityPane()
            with TabPane("Verdict", id="verdict"):
                yield VerdictPane()
        with Vertical(id="progress-box"):
            yield ProgressLine()

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        app = self.console_app
        if app.compare_arm is not None:
            empty = self.query_one("#arm-a", Select).is_blank()
            self.choose(**{"a" if empty else "b": app.compare_arm})
            app.compare_arm = None
        if app.open_run is not None:
            self.follow(app.open_run)
            app.open_run = None

    # What may be chosen

    def show_snapshot(self, snapshot: Snapshot) -> None:
        choices = arm_choices(snapshot, profile_names())
        if choices != self._choices:
            self._choices = choices
            for selector in ("#arm-a", "#arm-b"):
                select = self.query_one(selector, Select)
                value = select.value
                select.set_options(choices)
                if value in {choice for _, choice in choices}:
                    select.value = value

    def pump(self) -> None:
        super().pump()
        if self._tail is not None and self._tail.poll():
            self.show_run(self._tail)

    def choose(self, a: str | None = None, b: str | None = None) -> None:
        """Set arms from another screen; texts are as on the command line, e.g. `server:fp8`."""
        self.show_snapshot(self.console_app.hub.snapshot)
        known = {choice for _, choice in self._choices}
        for selector, value in (("#arm-a", a), ("#arm-b", b)):
            if value in known:
                self.query_one(selector, Select).value = value

    def arms(self) -> tuple[str, str] | None:
        """The chosen arms, or None with a word to the user when one is missing or both are the same."""
        values = [self.query_one(selector, Select).value for selector in ("#arm-a", "#arm-b")]
        if not all(isinstance(value, str) for value in values):
            self.notify("Choose both arms first (Tab moves, Enter opens a list).", severity="warning")
            return None
        return str(values[0]), str(values[1])

    # Actions

    @on(Button.Pressed, "#quick")
    def _quick(self) -> None:
        self.action_run("quick")

    def action_run(self, mode: str) -> None:
        """Start a check in a process of its own."""
        chosen = self.arms()
        if chosen is None:
            return
        if self._tail is not None and not self._tail.ended:
            self.notify("A check runs already; c cancels it.", severity="warning")
            return
        labels = (chosen[0].partition(":")[2] or chosen[0], chosen[1].partition(":")[2] or chosen[1])
        extra = ("--engine", "simulator") if self.console_app.simulated else ()
        try:
            name = start_ab(chosen[0], chosen[1], (f"--{mode}", *extra), labels=labels)
        except OSError as error:
            self.notify(f"The check could not be started: {error}", severity="error")
            return
        self.follow(runs_dir() / name)
        self.query_one("#views", TabbedContent).active = "latency"

    def follow(self, folder: Path) -> None:
        """Show a run, live or finished."""
        self._tail = RunTail(folder)
        self._announced = False
        self.query_one(LatencyPane).clear()
        self.query_one(QualityPane).clear()
        self.query_one(VerdictPane).clear()
        self._tail.poll()
        self.show_run(self._tail)

    def action_cancel(self) -> None:
        """End the running check; what was measured is kept."""
        if self._tail is None or self._tail.ended:
            self.notify("No check is running.")
        elif cancel_run(self._tail.folder):
            self.notify("Ending after this block; what was measured is kept.")
        else:
            self.notify("The check has ended already.", severity="warning")

    def action_swap(self) -> None:
        """Exchange the arms."""
        a, b = self.query_one("#arm-a", Select), self.query_one("#arm-b", Select)
        a.value, b.value = b.value, a.value

    def action_tab(self, name: str) -> None:
        """Show one of the four views."""
        self.query_one("#views", TabbedContent).active = name
        if name == "live":
            self.query_one("#prompt", Input).focus()

    def action_leave_input(self) -> None:
        self.set_focus(None)

    def action_export(self) -> None:
        """Say where the reports of the shown run lie."""
        if self._tail is None or self._tail.summary is None:
            self.notify("No finished run is shown.", severity="warning")
            return
        self.notify(f"{self._tail.folder}/report.md and report.html", title="Report", timeout=12)
        self.app.copy_to_clipboard(str(self._tail.folder / "report.md"))

    # What a run says

    def show_run(self, tail: RunTail) -> None:
        """Redraw progress and results."""
        self.query_one(ProgressLine).show(tail)
        self.query_one(LatencyPane).show(tail)
        self.query_one(QualityPane).show(tail)
        if tail.ended and not self._announced:
            self._announced = True
            self.query_one(VerdictPane).show(tail)
            if tail.summary is not None:
                self.query_one("#views", TabbedContent).active = "verdict"
                self.app.notify("The verdict is there.", title=tail.folder.name)
            elif tail.error:
                self.app.notify(tail.error, title="The check failed", severity="error", timeout=15)

    # Live

    @on(Input.Submitted, "#prompt")
    def _ask(self, event: Input.Submitted) -> None:
        chosen = self.arms()
        if chosen is not None and event.value.strip():
            self._stream(chosen, event.value)

    @work(group="live", exclusive=True, exit_on_error=False)
    async def _stream(self, chosen: tuple[str, str], prompt: str) -> None:
        import asyncio

        from vq_console.checks.live import stream_pair
        from vq_console.compare.arms import resolve_endpoint

        pane = self.query_one(LivePane)
        try:
            a = await asyncio.to_thread(resolve_endpoint, chosen[0])
            b = await asyncio.to_thread(resolve_endpoint, chosen[1])
        except VqError as error:
            self.notify(str(error), title="Live needs running servers", severity="error", timeout=10)
            return
        pane.begin(prompt)
        async for left, right, parting in stream_pair(a, b, [{"role": "user", "content": prompt}]):
            pane.show(left, right, parting)


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that can be read."""
    from vq_console.profiles.store import list_profiles

    return tuple(listed.name for listed in list_profiles() if listed.error is None)


def arm_choices(snapshot: Snapshot, profiles: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(label, value) of what may be an arm: ready servers first, then profiles."""
    choices: list[tuple[str, str]] = []
    for server in snapshot.servers:
        record = server.record
        if record.state is ServerState.READY:
            choices.append((f"● {record.name} (running)", f"server:{record.name}"))
    choices += [(f"○ {name} (profile)", f"profile:{name}") for name in profiles]
    return tuple(choices)


def describe_arm(arm: dict[str, Any]) -> str:
    """One line: name, GPU, kernels, grade."""
    rows = arm.get("asked_vs_runs") or ()
    kernels = ", ".join(dict.fromkeys(str(row.get("selected")) for row in rows if row.get("selected")))
    grade = next((str(row.get("grade")) for row in rows if row.get("kind") == "linear"), "")
    parts = [str(arm.get("profile") or arm.get("label") or arm.get("url")), str(arm.get("gpu") or ""), kernels, grade]
    return "  ".join(part for part in parts if part and part != "None")
