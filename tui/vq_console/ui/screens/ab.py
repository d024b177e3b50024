"""A/B: pick arms, look at answers side by side, measure, read the verdict. Decides nothing about numbers."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Label, Select, TabbedContent, TabPane

from vq_console.compare.history import FAILED
from vq_console.core.errors import VqError
from vq_console.core.places import runs_dir
from vq_console.core.text import strip_control
from vq_console.serving.model import ServerState
from vq_console.ui.hub import Snapshot
from vq_console.ui.runner import RunTail, cancel_run, start_ab
from vq_console.ui.samples import read_samples
from vq_console.ui.screens.ab_actions import AbActions
from vq_console.ui.widgets.live import LivePane
from vq_console.ui.widgets.results import LatencyPane, ProgressLine, QualityPane, VerdictPane

if TYPE_CHECKING:
    from vq_console.checks.live import LiveAnswer, Parting

PROFILES_EVERY_S = 5.0
POLL_EVERY_S = 0.25
TABS = ("live", "latency", "quality", "verdict")
ORDERS: tuple[tuple[bool | None, str], ...] = (
    (None, "one after the other on a shared device, else together"),
    (True, "both together"),
    (False, "one after the other"),
)
Choices = tuple[tuple[str, str], ...]


class AbScreen(AbActions):
    """Two arms and a baseline, four views of how they differ."""

    MODE = "ab"
    TITLE_TEXT = "4 A/B"
    AUTO_FOCUS = "#arm-a"
    HELP_TEXT = (
        "Compare two ways of serving. An arm is a profile (started and stopped for you), a running server, a recorded "
        "reference or a URL. Live shows one prompt answered by both and where they part. g and G measure in "
        "interleaved blocks and end in a verdict with its interval. B is judged against A: put the 16-bit arm first, "
        "or name it as baseline. It runs in a process of its own: leave the screen or the console, it goes on.\n"
        "Quality in words, from best to worst: INDISTINGUISHABLE, SMALL, NOTICEABLE, DAMAGING; UNRESOLVED where the "
        "interval lies across a cut. Speed is faster, slower, equivalent (within 3 %) or inconclusive."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "run('quick')", "Quick", tooltip="quick check, minutes"),
        Binding("G", "run('standard')", "Standard", key_display="G", tooltip="standard check, narrower"),
        Binding("c", "cancel", "Cancel", tooltip="end the check, keep what it has"),
        Binding("t", "next_tab", "View", tooltip="next view"),
        Binding("l", "tab('live')", "Live", tooltip="live: type a prompt"),
        Binding("v", "tab('verdict')", "Verdict", show=False, tooltip="verdict"),
        Binding("d", "answers", "Answers", tooltip="answers that differ"),
        Binding("e", "export", "Export", tooltip="export: html, md, csv, bundle"),
        Binding("x", "swap", "Swap", show=False, tooltip="swap the arms"),
        Binding("u", "url", "URL arm", show=False, tooltip="a URL as arm"),
        Binding("P", "prompts", "Prompts", show=False, key_display="P", tooltip="prompts of a file for Live"),
        Binding("n", "next_prompt", "Next prompt", show=False, tooltip="ask the file's next prompt"),
        Binding("o", "order", "Order", show=False, tooltip="live: together or in turn"),
        Binding("escape", "leave_input", "Leave prompt", show=False, tooltip="leave the prompt"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._choices: Choices = ()
        self._urls: list[str] = []
        self._stored: Choices = ()
        self._announced = False
        self._panes = False
        """The panes of results are there."""
        self._no_news = False
        """The run that is shown was opened, not made: its end is not told."""
        self._opened = False
        """The run came from elsewhere: its arms are to be shown, whatever was chosen here."""
        self._order = 0

    def compose_body(self) -> ComposeResult:
        with Vertical(id="arms"):
            with Horizontal():
                yield Label("A", classes="arm-letter")
                yield Select[str]([], prompt="first arm", id="arm-a", compact=True)
                yield Label("B", classes="arm-letter")
                yield Select[str]([], prompt="second arm", id="arm-b", compact=True)
            with Horizontal(id="arms-more"):
                yield Label("vs", classes="arm-letter")
                yield Select[str]([], prompt="no baseline: B against A", id="arm-baseline", compact=True)
                yield Button("Quick g", id="quick", compact=True, variant="primary")
                yield Button("Standard G", id="standard", compact=True)
                yield Button("URL u", id="url", compact=True)
        with TabbedContent(id="views", initial="live"):
            with TabPane("Live", id="live"):
                yield LivePane()
                yield Input(placeholder="one prompt for both arms, Enter sends it", id="prompt", compact=True)
            yield TabPane("Latency", id="latency")
            yield TabPane("Quality", id="quality")
            yield TabPane("Verdict", id="verdict")
        with Vertical(id="progress-box"):
            yield ProgressLine()

    def begin(self) -> None:
        self.call_after_refresh(self._mount_panes)
        self._read_arms()
        self.set_interval(PROFILES_EVERY_S, lambda: self._read_arms() if self.is_current else None)
        self.set_interval(POLL_EVERY_S, self._look)

    async def _mount_panes(self) -> None:
        """What no tab shows at first comes after the first picture."""
        for name, pane in (("latency", LatencyPane()), ("quality", QualityPane()), ("verdict", VerdictPane())):
            await self.query_one(f"#{name}", TabPane).mount(pane)
        self._panes = True
        if self.tail is not None:
            await self.show_run(self.tail)

    def resumed(self) -> None:
        app = self.console_app
        if app.compare_arm is not None or app.compare_pair is not None:
            self._read_arms()
        if app.open_run is not None:
            self.follow(app.open_run)
            self._opened = self._no_news = True
            app.open_run = None
        elif app.running_check is not None and self.tail is None:
            self.follow(app.running_check)
            self._opened = True
            self.query_one("#views", TabbedContent).active = "latency"
        app.running_check = None

    # What may be chosen

    @work(group="arms", exclusive=True, exit_on_error=False)
    async def _read_arms(self) -> None:
        """Profiles and references, read off the event loop."""
        if self.is_current or not self._stored:
            self._stored = await asyncio.to_thread(stored_arms)
            self.show_snapshot(self.console_app.hub.snapshot)
            self._show_arms()
            wanted, self.console_app.compare_arm = self.console_app.compare_arm, None
            if wanted is not None:
                empty = self.query_one("#arm-a", Select).is_blank()
                self.choose(**{"a" if empty else "b": wanted})
            pair, self.console_app.compare_pair = self.console_app.compare_pair, None
            if pair is not None:
                self.choose(a=pair[0], b=pair[1])

    def show_snapshot(self, snapshot: Snapshot) -> None:
        choices = (*running_arms(snapshot), *((f"◇ {url}", url) for url in self._urls), *self._stored)
        if choices == self._choices:
            return
        self._choices = choices
        known = {choice for _, choice in choices}
        for selector in ("#arm-a", "#arm-b", "#arm-baseline"):
            select = self.query_one(selector, Select)
            value = select.value
            select.set_options(choices)
            if value in known:
                select.value = value

    def choose(self, **arms: str) -> None:
        """Set arms (`a`, `b`, `baseline`); texts are as on the command line, e.g. `server:fp8`."""
        known = {choice for _, choice in self._choices}
        for side, value in arms.items():
            if value in known:
                self.query_one(f"#arm-{side}", Select).value = value

    def _show_arms(self) -> None:
        """The arms of a run that was opened, chosen where they still exist and named where they do not."""
        if not self._opened or self.tail is None or not self.tail.arms or not self._choices:
            return
        self._opened = False
        known = {choice for _, choice in self._choices}
        for side, name in ((side, self.tail.arms.get(side)) for side in "AB"):
            if name:
                select = self.query_one(f"#arm-{side.lower()}", Select)
                select.prompt = strip_control(f"{name} (in the run below)")
                found = [choice for kind in ("server", "profile") if (choice := f"{kind}:{name}") in known]
                if found:
                    select.value = found[0]
                else:
                    select.clear()

    def add_url(self, side: str, url: str) -> None:
        if url not in self._urls:
            self._urls.append(url)
        self.show_snapshot(self.console_app.hub.snapshot)
        self.choose(**{side: url})

    def arms(self) -> tuple[str, str] | None:
        """The chosen arms, or None with a word to the user when one is missing."""
        values = [self.query_one(selector, Select).value for selector in ("#arm-a", "#arm-b")]
        if not all(isinstance(value, str) for value in values):
            self.notify("Choose both arms first (Tab moves, Enter opens a list).", severity="warning")
            return None
        return str(values[0]), str(values[1])

    # Measuring

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "url":
            self.action_url()
        elif event.button.id in {"quick", "standard"}:
            self.action_run(event.button.id)

    def action_run(self, mode: str) -> None:
        """Start a check in a process of its own."""
        chosen = self.arms()
        if chosen is None:
            return
        if self.tail is not None and not self.tail.ended:
            self.notify("A check runs already; c cancels it.", severity="warning")
            return
        labels = (chosen[0].partition(":")[2] or chosen[0], chosen[1].partition(":")[2] or chosen[1])
        options = [f"--{mode}"]
        baseline = self.query_one("#arm-baseline", Select).value
        if isinstance(baseline, str):
            options += ["--baseline", baseline]
        if self.console_app.simulated:
            # The stand-in needs no long run to show what a verdict is.
            options += ["--engine", "simulator", "--latency-minutes", "0.5", "--quality-minutes", "0.3"]
        self._start(chosen, tuple(options), labels)

    @work(group="start", exit_on_error=False)
    async def _start(self, chosen: tuple[str, str], options: tuple[str, ...], labels: tuple[str, str]) -> None:
        try:
            name = await asyncio.to_thread(start_ab, chosen[0], chosen[1], options, labels=labels)
        except OSError as error:
            self.notify(f"The check could not be started: {error}", severity="error", markup=False)
            return
        self.follow(runs_dir() / name)
        self.query_one("#views", TabbedContent).active = "latency"

    def follow(self, folder: Path) -> None:
        """Show a run, live or finished."""
        self.tail = RunTail(folder)
        self._no_news = False
        self._announced = False
        if self._panes:
            self.query_one(LatencyPane).clear()
            self.query_one(QualityPane).clear()
            self.query_one(VerdictPane).clear()
        self._poll()

    def _look(self) -> None:
        """A worker is dear: it is begun only while there is a run to follow, on whatever screen."""
        if self.tail is not None and not self._announced and not self.tail.busy:
            self._poll()

    @work(group="poll", exclusive=False, exit_on_error=False)
    async def _poll(self) -> None:
        """Read what the run wrote, off the event loop, also while another screen is open."""
        tail = self.tail
        if tail is None or self._announced or tail.busy:
            return
        tail.busy = True
        try:
            changed = await asyncio.to_thread(tail.poll)
        finally:
            tail.busy = False
        if tail is self.tail and (changed or tail.ended):
            await self.show_run(tail)

    def action_cancel(self) -> None:
        """End the running check; what was measured is kept."""
        if self.tail is None or self.tail.ended:
            self.notify("No check is running.")
        elif cancel_run(self.tail.folder):
            self.notify("Ending after this block; what was measured is kept.")
        else:
            self.notify("The check has ended already.", severity="warning")

    async def show_run(self, tail: RunTail) -> None:
        """Redraw progress and results."""
        if not self._panes:
            return
        self._show_arms()
        with self.app.batch_update():
            self.query_one(ProgressLine).show(tail)
            self.query_one(LatencyPane).show(tail)
            self.query_one(QualityPane).show(tail)
        if not tail.ended or self._announced:
            return
        self._announced = True
        self.query_one(VerdictPane).show(tail)
        if tail.summary is not None:
            self.query_one("#views", TabbedContent).active = "verdict"
            if not self._no_news:
                self.app.notify("The verdict is there (4).", title=tail.folder.name, markup=False)
            samples = await asyncio.to_thread(read_samples, tail.folder)
            self.query_one(LatencyPane).show_samples(samples)
        elif tail.error and not self._no_news:
            failed = tail.state == FAILED
            self.app.notify(
                tail.error,
                title="The check failed" if failed else "The check was stopped",
                severity="error" if failed else "warning",
                timeout=15,
                markup=False,
            )

    # Keys that only move

    def action_swap(self) -> None:
        """Exchange the arms."""
        a, b = self.query_one("#arm-a", Select), self.query_one("#arm-b", Select)
        a.value, b.value = b.value, a.value

    def action_tab(self, name: str) -> None:
        """Show one of the four views."""
        self.query_one("#views", TabbedContent).active = name
        if name == "live":
            self.query_one("#prompt", Input).focus()

    def action_next_tab(self) -> None:
        """Show the next view."""
        views = self.query_one("#views", TabbedContent)
        views.active = TABS[(TABS.index(views.active) + 1) % len(TABS)]

    def action_leave_input(self) -> None:
        self.set_focus(None)

    def action_order(self) -> None:
        """Whether Live asks both arms together or one after the other."""
        self._order = (self._order + 1) % len(ORDERS)
        self.notify(f"Live: {ORDERS[self._order][1]}.")

    # Live

    @on(Input.Submitted, "#prompt")
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.ask(event.value)

    def ask(self, prompt: str) -> None:
        chosen = self.arms()
        if chosen is not None:
            self.query_one("#views", TabbedContent).active = "live"
            self._stream(chosen, prompt)

    @work(group="live", exclusive=True, exit_on_error=False)
    async def _stream(self, chosen: tuple[str, str], prompt: str) -> None:
        pane = self.query_one(LivePane)
        pane.begin(prompt)
        try:
            # The client is loaded with the first prompt, and not on the event loop.
            live = await asyncio.to_thread(importlib.import_module, "vq_console.checks.live")
            arms = await asyncio.to_thread(importlib.import_module, "vq_console.compare.arms")
            a = await asyncio.to_thread(arms.resolve_endpoint, chosen[0])
            b = await asyncio.to_thread(arms.resolve_endpoint, chosen[1])
        except VqError as error:
            self.notify(str(error), title="Live needs running servers", severity="error", timeout=10, markup=False)
            return
        if a.label == b.label:
            b = replace(b, label=f"{b.label} (B)")
        messages = [{"role": "user", "content": prompt}]
        drawn = 0.0
        last: tuple[LiveAnswer, LiveAnswer, Parting | None] | None = None
        async for left, right, parting in live.stream_pair(a, b, messages, together=ORDERS[self._order][0]):
            last = left, right, parting
            now = asyncio.get_running_loop().time()
            if now - drawn >= 1 / 15:
                drawn = now
                pane.show(left, right, parting)
        if last is not None:
            pane.show(*last)


def stored_arms() -> Choices:
    """(label, value) of profiles and recorded references."""
    from vq_console.core.places import references_dir
    from vq_console.profiles.store import list_profiles

    names = [listed.name for listed in list_profiles() if listed.error is None]
    folder = references_dir()
    recorded = (
        sorted(path.stem for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    )
    return (
        *((f"▤ {name} (recorded)", f"ref:{name}") for name in recorded),
        *((f"○ {name} (profile)", f"profile:{name}") for name in dict.fromkeys(names)),
    )


def running_arms(snapshot: Snapshot) -> Choices:
    """(label, value) of servers that answer."""
    return tuple(
        (f"● {server.record.name} (running)", f"server:{server.record.name}")
        for server in snapshot.servers
        if server.record.state is ServerState.READY
    )
