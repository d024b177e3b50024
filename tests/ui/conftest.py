"""A console whose hub shows a fixed moment: no polling, no machine, no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ui.moments import FrozenHub
from vq_console.ui.app import VqConsole
from vq_console.ui.hub import Snapshot
from vq_console.ui.settings import UiSettings


@pytest.fixture
def console(vq_home: Path) -> Callable[..., VqConsole]:
    """Make a console that shows `snapshot`."""

    def make(snapshot: Snapshot | None = None, **more: object) -> VqConsole:
        app = VqConsole(settings=UiSettings(), **more)  # type: ignore[arg-type]
        app.hub = FrozenHub(snapshot or Snapshot(version=1))
        app.animation_level = "none"
        return app

    return make
