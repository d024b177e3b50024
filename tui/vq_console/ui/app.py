"""The application: modes, bindings, theme, lifetime of the hub, what is said on every screen. Screens do the rest."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

from textual import work
from textual.app import App, SuspendNotSupported, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import ScreenResume
from textual.notifications import SeverityLevel
from textual.screen import Screen

from vq_console.core.errors import ExitCode, MissingError
from vq_console.core.text import strip_control
from vq_console.ui.ascii_driver import ascii_driver
from vq_console.ui.hub import Hub
from vq_console.ui.notices import notices
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.screens.servers import ServersScreen
from vq_console.ui.settings import UiSettings, ascii_asked, last_looked, load_settings, save_looked, save_settings
from vq_console.ui.terminal import can_open, end_with_terminal, terminal_driver
from vq_console.ui.widgets.topbar import TopBar

MODE_NAMES = {
    "servers": "Servers",
    "profiles": "Profiles",
    "logs": "Logs",
    "ab": "A/B",
    "history": "History",
}
NOTICE_PERIOD_S = 1.0
SWITCH_S = 0.001
LOOK_AFTER_S = 0.05
WARM_AFTER_S = 1.0
"""After the first picture: what the other screens need is loaded then, so that the first switch is quick too."""
WARM = (
    *(f"vq_console.ui.screens.{name}" for name in ("logs", "profiles", "ab", "history")),
    "vq_console.preflight.check",
    "vq_console.engines.catalogue",
    "vq_console.logs.explain",
    "vq_console.ui.widgets.help",
)


def _screen(module: str, name: str) -> Screen[object]:
    """A screen whose module is loaded only now: the first picture does not wait for the other four."""
    screen: Screen[object] = getattr(importlib.import_module(f"vq_console.ui.screens.{module}"), name)()
    return screen


class VqConsole(App[int]):
    """The console. `hub` holds the newest snapshots; `selected_server` is shared by the screens."""

    TITLE = "vq-console"
    CSS_PATH = "console.tcss"
    MODES = {  # noqa: RUF012  Textual declares it as a plain class attribute
        "servers": ServersScreen,
        "profiles": lambda: _screen("profiles", "ProfilesScreen"),
        "logs": lambda: _screen("logs", "LogsScreen"),
        "ab": lambda: _screen("ab", "AbScreen"),
        "history": lambda: _screen("history", "HistoryScreen"),
    }
    DEFAULT_MODE = "servers"
    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(str(number), f"show('{mode}')", name, show=False)
            for number, (mode, name) in enumerate(MODE_NAMES.items(), start=1)
        ],
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit", show=False),
    ]

    def __init__(
        self, *, simulated: bool = False, settings: UiSettings | None = None, open_run: Path | None = None
    ) -> None:
        # The driver is chosen while the base class is made, and ASCII needs another one.
        self.settings = settings if settings is not None else load_settings()
        super().__init__()
        self.simulated = simulated
        self.hub = Hub()
        self.selected_server: str | None = None
        self.log_path: str | None = None
        self.compare_arm: str | None = None
        """An arm that another screen wants compared, e.g. `server:fp8`."""
        self.compare_pair: tuple[str, str] | None = None
        """Both arms of a comparison that another screen wants."""
        self.open_run = open_run
        """A run folder that another screen wants shown."""
        self.running_check: Path | None = None
        """A check that an earlier console began and that still measures; the A/B screen takes it over."""
        self.last_looked = last_looked()
        """When the console was closed before; None the first time."""
        self._told = self.hub.snapshot
        if not self.is_headless:
            end_with_terminal()

    def get_driver_class(self) -> type[Driver]:
        """The platform's driver on the terminal, in ASCII where that was asked for."""
        base = super().get_driver_class()
        if base.__module__ == "textual.drivers.linux_driver":
            base = terminal_driver(base)
        return ascii_driver(base) if self.settings.ascii else base

    def on_mount(self) -> None:
        if self.settings.theme in self.available_themes:
            self.theme = self.settings.theme
        self._told = self.hub.snapshot
        # A thread that reads a log must give way to the screen within a frame.
        sys.setswitchinterval(SWITCH_S)
        # The first picture comes before the first look at the machine, which has much to load.
        self.set_timer(LOOK_AFTER_S, self.hub.start)
        self.set_interval(NOTICE_PERIOD_S, self._notice)
        self.set_timer(WARM_AFTER_S, self._warm)
        if self.open_run is not None:
            self.switch_mode("ab")

    def on_unmount(self) -> None:
        self.hub.stop()
        save_looked()

    @work(thread=True, group="warm", exit_on_error=False)
    def _warm(self) -> None:
        """Load the modules of the other screens while nobody waits for them."""
        for name in WARM:
            if not self.is_running:
                return
            importlib.import_module(name)
            # The event loop comes first.
            time.sleep(SWITCH_S)
        from vq_console.ui.runner import running_check

        run = running_check()
        if run is not None and self.is_running:
            self.call_from_thread(self._goes_on, run.folder, f"{run.arms['A']} against {run.arms['B']}")

    def _goes_on(self, folder: Path, pair: str) -> None:
        """A check that was begun before is still measuring: say so, and have the A/B screen follow it."""
        self.running_check = folder
        if self.current_mode == "ab":
            self.screen.post_message(ScreenResume())
        else:
            self.notify("A/B (4) follows it.", title=f"A check goes on: {pair}", timeout=10)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Say something for a moment. What is said often holds words from elsewhere: it is never markup."""
        super().notify(
            strip_control(message), title=strip_control(title), severity=severity, timeout=timeout, markup=False
        )

    def _notice(self) -> None:
        """Say what changed, whichever screen is shown."""
        snapshot = self.hub.snapshot
        if snapshot.version == self._told.version:
            return
        old, self._told = self._told, snapshot
        for said in notices(old, snapshot):
            severity = cast("SeverityLevel", said.severity)
            self.notify(said.message, title=said.title, severity=severity, timeout=8, markup=False)

    def action_show(self, mode: str) -> None:
        """Switch to one of the five screens."""
        self.switch_mode(mode)

    def on_top_bar_chosen(self, event: TopBar.Chosen) -> None:
        """A tab of the bar was clicked."""
        self.action_show(event.mode)

    def action_help(self) -> None:
        """Explain the screen that is shown."""
        from vq_console.ui.widgets.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen))

    def watch_theme(self, theme: str) -> None:
        """Remember the theme for the next time."""
        if self.is_running and theme != self.settings.theme:
            self.remember(self.settings.with_theme(theme))

    def remember(self, settings: UiSettings) -> None:
        """Keep a choice about the screen for the next time."""
        self.settings = settings
        save_settings(settings)

    def action_toggle_ascii(self) -> None:
        """Symbols and lines in ASCII from the next start on."""
        if ascii_asked():
            self.notify("ASCII was asked for by --ascii, the environment or the terminal itself.")
            return
        self.remember(replace(self.settings, ascii=not self.settings.ascii))
        words = "ASCII" if self.settings.ascii else "Unicode"
        self.notify(f"Symbols and lines are drawn in {words} from the next start on.")

    def action_tour(self) -> None:
        """Run the simulated tour in this terminal; the console comes back when it is left."""
        if self.simulated:
            self.notify("This is the simulated tour.")
            return
        import subprocess

        try:
            with self.suspend():
                subprocess.run([sys.executable, "-m", "vq_console", "demo", "--simulated"], check=False)
        except SuspendNotSupported:
            self.notify("In a shell: vq-console demo --simulated", title="Simulated tour", timeout=12)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: Textual's own commands, the screens, and every action of the current screen."""
        if isinstance(screen, ConsoleScreen):
            for title, action in own_actions(screen):
                yield SystemCommand(title, f"{MODE_NAMES.get(screen.MODE, '')} screen", _runner(screen, action))
        for mode, name in MODE_NAMES.items():
            yield SystemCommand(f"Go to {name}", f"Show the {name} screen", lambda mode=mode: self.action_show(mode))
        yield SystemCommand("Simulated tour", "Everything with a stand-in engine, no download", self.action_tour)
        yield SystemCommand("ASCII symbols", "Draw lines and symbols in ASCII, or not", self.action_toggle_ascii)
        yield from super().get_system_commands(screen)


def own_actions(screen: ConsoleScreen) -> Iterator[tuple[str, str]]:
    """(title with its key, action) of everything that the screen binds."""
    seen: set[str] = set()
    for binding in type(screen).BINDINGS:
        if isinstance(binding, Binding) and binding.description and binding.action not in seen:
            seen.add(binding.action)
            key = binding.key_display or binding.key.partition(",")[0]
            yield f"{binding.tooltip or binding.description}  ({key})", binding.action


def _runner(screen: ConsoleScreen, action: str):  # type: ignore[no-untyped-def]
    async def run() -> None:
        await screen.run_action(action)

    return run


def run_console(*, simulated: bool = False, open_run: Path | None = None) -> ExitCode:
    """Open the console and return when the user leaves it; servers go on running. `open_run` shows a run at once.

    Raises MissingError where there is no terminal to draw on or to read keys from.
    """
    if not can_open():
        raise MissingError("the console needs a terminal", "every screen has commands: vq-console --help")
    app = VqConsole(simulated=simulated, open_run=open_run)
    app.run()
    return ExitCode.DONE
