"""Two answers side by side, the first differing token marked in both with each side's probability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from vq_console.core.text import counted, strip_control
from vq_console.ui.widgets.titles import entitle

if TYPE_CHECKING:
    from vq_console.checks.live import LiveAnswer, Parting

EMPTY = (
    "One prompt, both answers side by side.\n\n"
    "Choose two arms that run, type a prompt below, Enter sends it.\n"
    "Arms on the same device answer one after the other, so that the figures under each are its own."
)


ENDS = {"length": "cut at the limit", "stop": "ended by itself"}


class LivePane(Vertical):
    """Shows what it is given; asks nobody."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="live-answers"):
            for side in ("a", "b"):
                with VerticalScroll(id=f"live-{side}", classes="answer"):
                    yield Static("", id=f"live-text-{side}")
        yield Static("", id="live-figures-a", classes="figures")
        yield Static("", id="live-figures-b", classes="figures")
        yield Static("", id="live-parting", classes="figures")

    def on_mount(self) -> None:
        self.query_one("#live-text-a", Static).update(Text(EMPTY, style="dim"))
        self.query_one("#live-a").border_title = "A"
        self.query_one("#live-b").border_title = "B"

    def begin(self, prompt: str) -> None:
        """Clear both columns for a new prompt."""
        for side in ("a", "b"):
            self.query_one(f"#live-text-{side}", Static).update("")
            self.query_one(f"#live-figures-{side}", Static).update("")
        self.query_one("#live-parting", Static).update(Text(f"asked: {prompt[:200]}", style="dim"))

    def show(self, left: LiveAnswer, right: LiveAnswer, parting: Parting | None) -> None:
        """Draw both answers as far as they are."""
        for side, answer in (("a", left), ("b", right)):
            entitle(self.query_one(f"#live-{side}"), f"{side.upper()} {answer.label}")
            self.query_one(f"#live-text-{side}", Static).update(answer_text(answer, parting.index if parting else None))
            self.query_one(f"#live-figures-{side}", Static).update(Text(figures(side.upper(), answer)))
        if parting is not None:
            self.query_one("#live-parting", Static).update(Text(parting_words(parting)))
        elif left.done and right.done and left.tokens and right.tokens:
            self.query_one("#live-parting", Static).update(Text("the same tokens as far as both go"))


def answer_text(answer: LiveAnswer, mark: int | None) -> Text:
    """The answer with token `mark` highlighted; text from the model is never markup.

    A token that ends the answer and is not in its text, such as `<|im_end|>`, is shown only where it is the mark.
    """
    if answer.error:
        return Text(strip_control(answer.error), style="bold red")
    if mark is None or mark >= len(answer.tokens):
        return Text(answer.text)
    text = Text()
    tokens = answer.tokens
    if answer.finish == "stop" and mark < len(tokens) - 1 and not answer.text.endswith(strip_control(tokens[-1].text)):
        tokens = tokens[:-1]
    for index, token in enumerate(tokens):
        text.append(strip_control(token.text), style="reverse bold" if index == mark else "")
    return text


def figures(side: str, answer: LiveAnswer) -> str:
    """`A  TTFT 41 ms  120.3 tokens/s  64 tokens  ended by itself`; a dash for what is not known yet."""
    ttft = f"{answer.ttft_s * 1000:.0f} ms" if answer.ttft_s is not None else "–"
    rate = f"{answer.tokens_per_s:.1f}" if answer.tokens_per_s is not None else "–"
    going = "" if answer.done else "…" if answer.tokens else "waiting"
    end = ENDS.get(answer.finish or "", answer.finish) or going
    return f"{side}  TTFT {ttft}   {rate} tokens/s   {counted(len(answer.tokens), 'token')}   {end}"


def parting_words(parting: Parting) -> str:
    """Where they part, and how likely each arm held both tokens."""

    def chance(value: float | None) -> str:
        return "<top 5" if value is None else f"{value * 100:.1f} %"

    return (
        f"part at token {parting.index + 1}: A says {parting.a_token!r} ({chance(parting.a_of_a)} in A, "
        f"{chance(parting.b_of_a)} in B), B says {parting.b_token!r} ({chance(parting.a_of_b)} in A, "
        f"{chance(parting.b_of_b)} in B)"
    )
