"""What all screens share: the bar on top, the keys at the foot, one pump that redraws only what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.compose import compose
from textual.screen import Screen
from textual.timer import Timer

from vq_console.ui.hub import Snapshot
from vq_console.ui.widgets.keybar import KeyBar
from vq_console.ui.widgets.topbar import TopBar

if TYPE_CHECKING:
    from vq_console.ui.app import VqConsole


class ConsoleScreen(Screen[None]):
    """A screen of the console. Subclasses yield their widgets in `compose_body` and redraw in `show_snapshot`.

    What Textual calls by itself (`on_mount` and its like, for each class of the line) is only here; subclasses fill in
    `begin`, `resumed` and `resized`, each called once and only when the body is there.
    """

    MODE: ClassVar[str] = ""
    PUMP_HZ: ClassVar[float] = 4.0
    TITLE_TEXT: ClassVar[str] = ""
    """Its number and name, as the help's title."""
    HELP_TEXT: ClassVar[str] = ""
    """What `?` shows above the keys: what the screen is for and how to read it. Plain text."""

    EAGER: ClassVar[bool] = False
    """The body is part of the first picture. Elsewhere the two bars come at once and the body a moment later."""

    ready = False
    """The body is there."""
    _pump: Timer | None = None
    _seen_version = -1

    def __init__(self) -> None:
        super().__init__()
        if not self.EAGER:
            # Nothing stands on it yet that an earlier style sheet could have styled. Without this Textual 8 parses
            # every rule of the application anew, twice, when the screen is shown for the first time.
            self._css_update_count = self.app._css_update_count

    @property
    def console_app(self) -> VqConsole:
        return cast("VqConsole", self.app)

    def compose(self) -> ComposeResult:
        yield TopBar(self.MODE)
        if self.EAGER:
            yield from self.compose_body()
        yield KeyBar()

    def compose_body(self) -> ComposeResult:
        """The widgets between the two bars."""
        yield from ()

    def on_resize(self) -> None:
        """Narrow and low terminals get a class each, so that the style sheet decides what they leave out."""
        self.set_class(self.size.width < 110, "-narrow")
        self.set_class(self.size.height < 32, "-low")
        self.set_class(self.size.height < 22, "-tiny")
        self._seen_version = -1
        if self.ready:
            self.resized()

    def on_mount(self) -> None:
        self._pump = self.set_interval(1 / self.PUMP_HZ, self.pump)
        if self.EAGER:
            self._begin()
        else:
            self.call_after_refresh(self._mount_body)

    async def _mount_body(self) -> None:
        await self.mount_all(compose(self, self.compose_body()), before=self.query_one(KeyBar))
        self._begin()
        if self.is_current:
            self.resumed()
            self.pump()
            if self.focused is None and self.AUTO_FOCUS:
                self.query(self.AUTO_FOCUS).first().focus()

    def _begin(self) -> None:
        self.ready = True
        self.begin()
        self.resized()

    def on_screen_resume(self) -> None:
        self._seen_version = -1
        if self._pump is not None:
            self._pump.resume()
        if self.ready:
            self.resumed()
        self.pump()

    def on_screen_suspend(self) -> None:
        if self._pump is not None:
            self._pump.pause()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing of this screen can be done before its body is there."""
        return self.ready or not hasattr(type(self), f"action_{action}") or hasattr(Screen, f"action_{action}")

    def begin(self) -> None:
        """The body was just mounted: titles, columns, timers."""

    def resumed(self) -> None:
        """The screen is shown, for the first time or again."""

    def resized(self) -> None:
        """The terminal has another size; the classes of the screen say how narrow and how low it is."""

    def pump(self) -> None:
        """Look at the hub; redraw in one batch when its version grew."""
        snapshot = self.console_app.hub.snapshot
        if snapshot.version == self._seen_version:
            return
        with self.app.batch_update():
            self.query_one(TopBar).show(snapshot)
            if self.ready:
                self._seen_version = snapshot.version
                self.show_snapshot(snapshot)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Redraw what this screen shows of the snapshot."""
