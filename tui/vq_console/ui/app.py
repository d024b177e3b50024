"""The application: modes, bindings, theme, lifetime of the hub. Screens do the rest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from vq_console.core.errors import ExitCode
from vq_console.ui.hub import Hub
from vq_console.ui.screens.ab import AbScreen
from vq_console.ui.screens.history import HistoryScreen
from vq_console.ui.screens.logs import LogsScreen
from vq_console.ui.screens.profiles import ProfilesScreen
from vq_console.ui.screens.servers import ServersScreen
from vq_console.ui.settings import UiSettings, load_settings, save_settings
from vq_console.ui.widgets.help import HelpScreen
from vq_console.ui.widgets.topbar import TopBar

MODE_NAMES = {
    "servers": "Servers",
    "profiles": "Profiles",
    "logs": "Logs",
    "ab": "A/B",
    "history": "History",
}


class VqConsole(App[int]):
    """The console. `hub` holds the newest snapshots; `selected_server` is shared by the screens."""

    TITLE = "vq-console"
    CSS_PATH = "console.tcss"
    MODES = {  # noqa: RUF012  Textual declares it as a plain class attribute
        "servers": ServersScreen,
        "profiles": ProfilesScreen,
        "logs": LogsScreen,
        "ab": AbScreen,
        "history": HistoryScreen,
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
        super().__init__()
        self.simulated = simulated
        self.hub = Hub()
        self.settings = settings if settings is not None else load_settings()
        self.selected_server: str | None = None
        self.log_path: str | None = None
        self.compare_arm: str | None = None
        """An arm that another screen wants compared, e.g. `server:fp8`."""
        self.open_run = open_run
        """A run folder that another screen wants shown."""

    def on_mount(self) -> None:
        if self.settings.theme in self.available_themes:
            self.theme = self.settings.theme
        self.hub.start()
        if self.open_run is not None:
            self.switch_mode("ab")

    def on_unmount(self) -> None:
        self.hub.stop()

    def action_show(self, mode: str) -> None:
        """Switch to one of the five screens."""
        self.switch_mode(mode)

    def on_top_bar_chosen(self, event: TopBar.Chosen) -> None:
        """A tab of the bar was clicked."""
        self.action_show(event.mode)

    def action_help(self) -> None:
        """Explain the screen that is shown."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen))

    def watch_theme(self, theme: str) -> None:
        """Remember the theme for the next time."""
        if self.is_running and theme != self.settings.theme:
            self.settings = self.settings.with_theme(theme)
            save_settings(self.settings)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: Textual's own commands, the screens, and what the current screen offers."""
        yield from super().get_system_commands(screen)
        for mode, name in MODE_NAMES.items():
            yield SystemCommand(f"Go to {name}", f"Show the {name} screen", lambda mode=mode: self.action_show(mode))


def run_console(*, simulated: bool = False, open_run: Path | None = None) -> ExitCode:
    """Open the console and return when the user leaves it; servers go on running. `open_run` shows a run at once."""
    app = VqConsole(simulated=simulated, open_run=open_run)
    app.run()
    return ExitCode.DONE
