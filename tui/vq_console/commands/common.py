"""What all commands share: JSON to standard output, words to standard error, tables, questions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from vq_console.core.errors import ExitCode

Handler: TypeAlias = Callable[[argparse.Namespace], ExitCode]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(subparsers: Subparsers, name: str, help_text: str, handler: Handler) -> argparse.ArgumentParser:
    """Add a command whose handler returns an exit code; every command takes `--json`."""
    parser = subparsers.add_parser(name, help=help_text, description=help_text)
    parser.add_argument("--json", action="store_true", help="print one JSON object to standard output")
    parser.set_defaults(handler=handler)
    return parser


def count(text: str) -> int:
    """An argument that is a whole number from 0 on."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def number_of(text: str) -> int:
    """An argument that is a whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def amount(text: str) -> float:
    """An argument that is a number from 0 on, such as seconds or GiB."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no amount from 0 on")
    return value


def profile_name(name: str | None) -> str | None:
    """The name that was given for a profile; raises UsageError for one that no profile can have."""
    from vq_console.core.errors import UsageError
    from vq_console.core.text import strip_control
    from vq_console.profiles.format import valid_name

    if name is not None and not valid_name(name):
        raise UsageError(
            f"{strip_control(name) or repr(name)}: is not the name of a profile",
            "letters, digits, dot, dash and underscore; a letter or digit first; at most 100",
        )
    return name


def emit(schema: str, value: Mapping[str, Any]) -> None:
    """Print the JSON answer of a command; `schema` is `vq-console/<command>/1`."""
    from vq_console.core.text import escape_hidden

    text = json.dumps({"schema": schema, **value}, ensure_ascii=False, indent=1, default=str)
    print(escape_hidden(text), flush=True)  # a web server that goes on has answered, too


def say(message: str = "") -> None:
    """Words for a person; kept off standard output so that JSON and data stay clean there."""
    print(message, file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """A plain aligned table; right-aligns columns whose cells all look like numbers."""
    cells = [list(head), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def number(text: str) -> bool:
        return text == "–" or text.replace(",", "").replace(".", "").lstrip("-+").isdigit()

    right = [bool(rows) and all(number(row[i]) for row in cells[1:]) for i in range(len(head))]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on a terminal; without one the answer is no unless `--yes` was given."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
