"""What the keys of the A/B screen do beside measuring: arms by URL, prompts of a file, export, answers that differ."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from textual import work

from vq_console.compare.report import arm_name
from vq_console.core.errors import VqError
from vq_console.core.text import counted, strip_control
from vq_console.ui.runner import RunTail
from vq_console.ui.screens.base import ConsoleScreen
from vq_console.ui.widgets.answers import AnswersScreen, read_answers
from vq_console.ui.widgets.dialogs import Ask, Choose

FORMATS = (
    ("html", "one page with plots, to share"),
    ("md", "Markdown"),
    ("csv", "the figures as a table"),
    ("json", "the answer of `ab --json`"),
    ("bundle", "profile, kernels, driver, samples: another console imports and analyses it again"),
)
MOST_PROMPTS = 1_000


class AbActions(ConsoleScreen):
    """Actions on the shown run and on the arms."""

    tail: RunTail | None = None
    prompts: tuple[str, ...] = ()
    """Prompts of a file, asked one after another in Live."""
    prompt_at = -1

    def add_url(self, side: str, url: str) -> None:
        """Offer a URL as arm and choose it for `a`, `b` or `baseline`."""
        raise NotImplementedError

    def ask(self, prompt: str) -> None:
        """Send one prompt to both arms."""
        raise NotImplementedError

    @work(exit_on_error=False)
    async def action_url(self) -> None:
        """Take any OpenAI-compatible server as arm."""
        url = await self.app.push_screen_wait(Ask("Address of the server", "http://host:8000"))
        if not url or not url.strip():
            return
        sides = [("A", "first arm"), ("B", "second arm"), ("baseline", "the 16-bit arm that both are judged against")]
        side = await self.app.push_screen_wait(Choose("Which arm is it?", sides))
        if side:
            self.add_url(side.lower(), url.strip() if "//" in url else f"http://{url.strip()}")

    @work(exit_on_error=False)
    async def action_prompts(self) -> None:
        """Read prompts from a file: one a line, or JSONL with `prompt` or `messages`."""
        where = await self.app.push_screen_wait(Ask("File of prompts", "~/prompts.jsonl or .txt, one a line"))
        if not where:
            return
        try:
            self.prompts = await asyncio.to_thread(read_prompts, where)
        except OSError as error:
            self.notify(f"{where}: {error.strerror or error}", severity="error", markup=False)
            return
        self.prompt_at = -1
        self.notify(f"{counted(len(self.prompts), 'prompt')}: n asks the next one.", markup=False)

    def action_next_prompt(self) -> None:
        """Ask the next prompt of the file."""
        if not self.prompts:
            self.notify("No file of prompts yet: P opens one.")
            return
        self.prompt_at = (self.prompt_at + 1) % len(self.prompts)
        self.ask(self.prompts[self.prompt_at])

    @work(exit_on_error=False)
    async def action_answers(self) -> None:
        """Show the answers that differ, side by side."""
        tail = self.tail
        if tail is None:
            self.notify("No run is shown.")
            return
        pairs = await asyncio.to_thread(read_answers, tail.folder)
        if not pairs:
            self.notify("No answers that differ were kept for this run.")
            return
        arms = (tail.summary or {}).get("arms") or {}
        names = arm_name(arms.get("A"), "A"), arm_name(arms.get("B"), "B")
        self.app.push_screen(AnswersScreen(pairs, names))

    @work(exit_on_error=False)
    async def action_export(self) -> None:
        """Write the shown run as a report or bundle into the current folder; its path goes to the clipboard."""
        tail = self.tail
        if tail is None or tail.summary is None:
            self.notify("No finished run is shown.", severity="warning")
            return
        form = await self.app.push_screen_wait(Choose("Export as", FORMATS))
        if not form:
            return
        try:
            target = await asyncio.to_thread(export_run, tail.folder, tail.summary, form, Path.cwd())
        except (VqError, OSError) as error:
            self.notify(str(error), severity="error", timeout=12, markup=False)
            return
        self.app.copy_to_clipboard(str(target))
        self.notify(f"{target} (path copied)", title="Written", timeout=12, markup=False)


def read_prompts(where: str) -> tuple[str, ...]:
    """The prompts of a file, at most MOST_PROMPTS of them. Raises OSError."""
    lines = Path(where).expanduser().read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(prompt for line in lines[:MOST_PROMPTS] if (prompt := prompt_of(line)))


def prompt_of(line: str) -> str:
    """The prompt that a line of a file holds; empty where it holds none. Pure."""
    line = line.strip()
    if not line.startswith("{"):
        return strip_control(line)
    try:
        value: Any = json.loads(line)
    except ValueError:
        return strip_control(line)
    messages = value.get("messages")
    if isinstance(messages, list) and messages:
        value = {"prompt": messages[-1].get("content")}
    found = value.get("prompt") or value.get("question") or value.get("text")
    return strip_control(found) if isinstance(found, str) else ""


def export_run(folder: Path, summary: Any, form: str, into: Path) -> Path:
    """Write one format of a run; the file. Raises VqError or OSError."""
    from vq_console.compare.history import export_bundle, read_run
    from vq_console.compare.report import report_csv, report_markdown
    from vq_console.compare.report_html import report_html
    from vq_console.core.files import write_atomic

    if form == "bundle":
        return export_bundle(read_run(folder), into / f"{folder.name}.tar.gz")
    text = {
        "md": lambda: report_markdown(summary),
        "html": lambda: report_html(summary),
        "csv": lambda: report_csv(summary),
        "json": lambda: json.dumps(summary, ensure_ascii=False, indent=1) + "\n",
    }[form]()
    target = into / f"{folder.name}.{form}"
    write_atomic(target, text)
    return target
