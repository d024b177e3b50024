"""Questions: yes or no, one of many. Each returns its answer through `push_screen_wait`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from vq_console.core.text import strip_control


class Confirm(ModalScreen[bool]):
    """A question with what follows from yes; Escape and `n` say no."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,n", "answer(False)", "No"), ("y", "answer(True)", "Yes")]

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._question, self._detail = question, detail

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(strip_control(self._question), style="bold"))
            with VerticalScroll(classes="dialog-text"):
                yield Static(Text(strip_control(self._detail)))
            with Horizontal(classes="buttons"):
                yield Button("Yes (y)", id="yes", variant="warning", compact=True)
                yield Button("No (n)", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Choose(ModalScreen[str | None]):
    """One of many, filtered while typing; Escape chooses none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss(None)", "Cancel"),
        ("down", "cursor(1)", "Down"),
        ("up", "cursor(-1)", "Up"),
    ]

    def __init__(
        self, question: str, options: Sequence[tuple[str, str]], *, free: bool = False, placeholder: str = ""
    ) -> None:
        """`free` also takes what was typed when it fits no option."""
        super().__init__()
        self._placeholder = placeholder or "type to filter, ↑ ↓ move, Enter chooses"
        self._question, self._options, self._free = question, tuple(options), free

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(strip_control(self._question), style="bold"))
            yield Input(placeholder=self._placeholder, compact=True)
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(Input).focus()

    def _fill(self, part: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        for name, detail in self._options:
            if part.lower() in f"{name} {detail}".lower():
                text = Text(strip_control(name), style="bold")
                if detail:
                    text.append(f"  {strip_control(detail)}", style="not bold dim")
                options.add_option(Option(text, id=name))
        if options.option_count:
            options.highlighted = 0

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def action_cursor(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    @on(Input.Submitted)
    def _submit(self) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            self.dismiss(options.get_option_at_index(options.highlighted).id)
        elif self._free and self.query_one(Input).value.strip():
            self.dismiss(self.query_one(Input).value.strip())

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


class Ask(ModalScreen[str | None]):
    """One line of text; Enter takes it, Escape leaves everything as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, placeholder: str = "", value: str = "") -> None:
        super().__init__()
        self._question, self._placeholder, self._value = question, placeholder, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(strip_control(self._question), style="bold"))
            yield Input(self._value, placeholder=self._placeholder, compact=True)

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
