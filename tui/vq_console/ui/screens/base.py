"""What all screens share: the bar on top, the footer, one pump that redraws only when the hub has something new."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer

from vq_console.ui.hub import Snapshot
from vq_console.ui.widgets.topbar import TopBar

if TYPE_CHECKING:
    from vq_console.ui.app import VqConsole


class ConsoleScreen(Screen[None]):
    """A screen of the console. Subclasses yield their widgets in `compose_body` and redraw in `show_snapshot`."""

    MODE: ClassVar[str] = ""
    PUMP_HZ: ClassVar[float] = 4.0
    TITLE_TEXT: ClassVar[str] = ""
    """Its number and name, as the help's title."""
    HELP_TEXT: ClassVar[str] = ""
    """What `?` shows above the keys: what the screen is for and how to read it. Plain text."""

    _pump: Timer | None = None
    _seen_version = -1

    @property
    def console_app(self) -> VqConsole:
        return cast("VqConsole", self.app)

    def compose(self) -> ComposeResult:
        yield TopBar(self.MODE)
        yield from self.compose_body()
        yield Footer(show_command_palette=True, compact=True)

    def compose_body(self) -> ComposeResult:
        """The widgets between bar and footer."""
        yield from ()

    def on_resize(self) -> None:
        """Narrow and low terminals get a class each, so that the style sheet decides what they leave out."""
        self.set_class(self.size.width < 110, "-narrow")
        self.set_class(self.size.height < 32, "-low")
        self.set_class(self.size.height < 22, "-tiny")
        self._seen_version = -1

    def on_mount(self) -> None:
        self._pump = self.set_interval(1 / self.PUMP_HZ, self.pump)

    def on_screen_resume(self) -> None:
        self._seen_version = -1
        if self._pump is not None:
            self._pump.resume()
        self.pump()

    def on_screen_suspend(self) -> None:
        if self._pump is not None:
            self._pump.pause()

    def pump(self) -> None:
        """Look at the hub; redraw in one batch when its version grew."""
        snapshot = self.console_app.hub.snapshot
        if snapshot.version == self._seen_version:
            return
        self._seen_version = snapshot.version
        with self.app.batch_update():
            self.query_one(TopBar).show(snapshot)
            self.show_snapshot(snapshot)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Redraw what this screen shows of the snapshot."""
