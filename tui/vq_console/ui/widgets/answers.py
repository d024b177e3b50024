"""The answers behind a quality word: flips and first divergences, the two texts side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from vq_console.core.files import read_jsonl
from vq_console.core.text import counted, strip_control
from vq_console.ui.widgets.titles import entitle

Answer = Mapping[str, Any]


def read_answers(run: Path) -> tuple[Answer, ...]:
    """What `checks.quality_answers` kept of a run, read as data so that no numpy comes into this process.

    Empty where the run has none.
    """
    try:
        return tuple(read_jsonl(run / "quality" / "answers.jsonl"))
    except OSError:
        return ()


class AnswersScreen(ModalScreen[None]):
    """A list of differing answers; the one under the cursor is shown below. Model output is never markup."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Close")]

    def __init__(self, pairs: Sequence[Answer], names: tuple[str, str]) -> None:
        super().__init__()
        self._pairs, self._names = tuple(pairs), names

    def compose(self) -> ComposeResult:
        with Vertical(id="answers-box") as box:
            flips = sum(pair["kind"] == "flip" for pair in self._pairs)
            worse = sum(bool(pair.get("worse")) for pair in self._pairs)
            box.border_title = (
                f"{counted(len(self._pairs), 'answer')} differ{'s' if len(self._pairs) == 1 else ''}: "
                f"{counted(flips, 'flip')} ({worse} lost by B), "
                f"{counted(len(self._pairs) - flips, 'parting')}"
            )
            box.border_subtitle = "↑ ↓ next   Esc closes"
            yield DataTable[Text](id="answers-list", cursor_type="row", zebra_stripes=True)
            yield Static(id="answers-prompt")
            with Horizontal():
                for side in ("a", "b"):
                    with VerticalScroll(id=f"answer-{side}", classes="answer"):
                        yield Static(id=f"answer-text-{side}")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("kind", "item", "A", "B")
        for number, pair in enumerate(self._pairs):
            if pair["kind"] == "flip":
                a, b = str(pair.get("a_outcome")), str(pair.get("b_outcome"))
            else:
                at = f"token {(pair.get('index') or 0) + 1}: "
                a = at + _token(pair.get("a_token"), (pair.get("p_a") or {}).get("A"))
                b = _token(pair.get("b_token"), (pair.get("p_b") or {}).get("B"))
            mark, style = ("▲ ", "yellow") if pair.get("worse") else ("", "")
            table.add_row(
                Text(mark + str(pair["kind"]), style=style), Text(str(pair["name"])[:28]), Text(a), Text(b),
                key=str(number),
            )  # fmt: skip
        for side, name in zip("ab", self._names, strict=True):
            entitle(self.query_one(f"#answer-{side}"), f"{side.upper()} {name}")
        table.focus()

    @on(DataTable.RowHighlighted)
    def _moved(self, event: DataTable.RowHighlighted) -> None:
        pair = self._pairs[event.cursor_row]
        prompt = strip_control(str(pair.get("prompt"))).strip().replace("\n", " ")
        self.query_one("#answers-prompt", Static).update(Text(f"asked: {prompt[:300]}", style="dim"))
        for side, whole in (("a", pair.get("a_text")), ("b", pair.get("b_text"))):
            text = Text(strip_control(str(whole)))
            if common := len(str(pair.get("common") or "")):
                text.stylize("dim", 0, common)
                text.stylize("reverse bold", common, common + 1)
            self.query_one(f"#answer-text-{side}", Static).update(text)


def _token(token: str | None, chance: float | None) -> str:
    share = "" if chance is None else f" {chance * 100:.0f} %"
    return f"{token!r}{share}" if token is not None else "ended"
