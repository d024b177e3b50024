"""The command line: parses, dispatches, turns errors into messages and exit codes.

Without a command it opens the console. Imports neither Textual, numpy nor aiohttp at start (a test proves it).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from vq_console import __version__
from vq_console.core.errors import ExitCode, VqError

GROUPS = (
    "detect",
    "engines",
    "profiles",
    "lint",
    "serve",
    "explain",
    "check",
    "ab",
    "reference",
    "tasks",
    "quantize",
    "history",
    "demo",
)


class _Names:
    """Takes commands as subparsers do but keeps name and help only: `--help` does not pay for their arguments."""

    def __init__(self, real: Any = None) -> None:
        self._real = real

    def add_parser(self, name: str, **words: Any) -> _Names:
        if self._real is not None:
            self._real._choices_actions.append(self._real._ChoicesPseudoAction(name, (), words.get("help")))
        return _Names()

    def __getattr__(self, name: str) -> Any:
        return lambda *words, **more: _Names()


def build_parser(*, names_only: bool = False) -> argparse.ArgumentParser:
    """The parser with every command of every group in `commands/`; with their names alone where only help is asked."""
    parser = argparse.ArgumentParser(
        prog="vq-console",
        description="Build, launch, explain and compare quantized vLLM servers. Without a command: open the console.",
    )
    parser.add_argument("--version", action="version", version=f"vq-console {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for group in GROUPS:
        module = importlib.import_module(f"vq_console.commands.{group}")
        module.register(_Names(subparsers) if names_only else subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(names_only=words in (["--help"], ["-h"]))
    try:
        args = parser.parse_args(words)
    except SystemExit as ended:
        if ended.code == ExitCode.WRONG_USE and "--json" in words:
            _error_json(
                "wrong use of the command line", "standard error says what is wrong; --help lists what there is"
            )
        raise
    try:
        if args.command is None:
            from vq_console.ui.app import run_console

            return int(run_console())
        return int(args.handler(args))
    except VqError as error:
        if getattr(args, "json", False):
            _error_json(error.message, error.hint)
        print(f"vq-console: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        if getattr(args, "json", False):
            _error_json("interrupted", "a server that was being started goes on starting; `vq-console ps` shows it")
        print("vq-console: interrupted", file=sys.stderr)
        return int(ExitCode.PARTIAL)
    except BrokenPipeError:
        sys.stderr.close()
        return int(ExitCode.DONE)
    except OSError as error:
        print(f"vq-console: {error}", file=sys.stderr)
        return int(ExitCode.NO)


def _error_json(message: str, hint: str) -> None:
    """An error as the one JSON object on standard output."""
    value = {"schema": "vq-console/error/1", "error": {"message": message, "hint": hint}}
    print(json.dumps(value, ensure_ascii=False))


if __name__ == "__main__":
    raise SystemExit(main())
