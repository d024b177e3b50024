"""A command that takes minutes, run as a process of its own with its words on a modal; it can be cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import RichLog, Static

from vq_console.core.text import redact, seconds_text, strip_control
from vq_console.ui.widgets.titles import entitle

CANCEL_GRACE_S = 10.0


class JobScreen(ModalScreen[int | None]):
    """Shows the output of `argv`; returns its exit code. Its process group is ended with the modal, never orphaned."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "Cancel"),
        Binding("escape,q", "close", "Close"),
    ]

    def __init__(self, title: str, argv: Sequence[str]) -> None:
        super().__init__()
        self._title, self._argv = title, tuple(argv)
        self._process: asyncio.subprocess.Process | None = None
        self._began = time.monotonic()
        self._code: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog job") as box:
            entitle(box, self._title)
            yield RichLog(wrap=True, markup=False, highlight=False, max_lines=5_000)
            yield Static(id="job-state")

    def on_mount(self) -> None:
        self._run()
        self._tell()
        self.set_interval(1.0, self._tell)

    def _tell(self) -> None:
        spent = seconds_text(time.monotonic() - self._began)
        if self._code is None:
            words = f"running for {spent}   c cancel"
        else:
            words = ("done" if self._code == 0 else f"ended with exit code {self._code}") + "   Esc closes"
        self.query_one("#job-state", Static).update(Text(words, style="bold"))

    @work(exit_on_error=False)
    async def _run(self) -> None:
        log = self.query_one(RichLog)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            log.write(Text(f"{self._argv[0]}: {error.strerror or error}", style="red"))
            self._code = 3
            return
        self._process = process
        assert process.stdout is not None
        rest = b""
        while block := await process.stdout.read(16_384):
            *lines, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
            if words := [line for line in lines if line.strip()]:
                log.write(Text(redact(strip_control(b"\n".join(words).decode("utf-8", "replace")))))
            rest = rest[-8_192:]
        self._code = await process.wait()
        self._tell()

    def action_cancel(self) -> None:
        """Ask the process to end; it is killed when it does not within ten seconds."""
        self._end()

    @work(group="end", exit_on_error=False)
    async def _end(self) -> None:
        process = self._process
        if process is None or self._code is not None:
            return
        self.query_one("#job-state", Static).update(Text("ending …", style="bold"))
        for number in (signal.SIGINT, signal.SIGKILL):
            if process.returncode is None:
                os.killpg(process.pid, number)
                try:
                    await asyncio.wait_for(process.wait(), CANCEL_GRACE_S)
                except TimeoutError:
                    continue
            return

    def action_close(self) -> None:
        """Close once the process has ended; while it runs, say how it is ended."""
        if self._code is None:
            self.notify("It still runs: c cancels it.", severity="warning")
        else:
            self.dismiss(self._code)

    def on_unmount(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
