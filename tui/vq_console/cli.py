"""The command line: parses, dispatches, turns errors into messages and exit codes.

Without a command it opens the console. Imports neither Textual, numpy nor aiohttp at start (a test proves it).
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys

from vq_console import __version__
from vq_console.commands.names import COMMANDS, module_of
from vq_console.core.errors import ExitCode, VqError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

_STREAMS = frozenset({None, "logs"})
"""What ends when nobody reads it any more; everything else goes on to its answer."""


class _WrongUse(SystemExit):
    """What argparse says of a command line, with the command whose help would help."""

    def __init__(self, code: str | int | None, message: str, command: str) -> None:
        super().__init__(code)
        self.message, self.command = message, command


class _Parser(argparse.ArgumentParser):
    """A parser whose words about wrong use can be told again; those of its commands are of its kind."""

    def error(self, message: str) -> NoReturn:
        try:
            super().error(message)
        except SystemExit as ended:
            raise _WrongUse(ended.code, message, self.prog) from None


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of a command line: the command that `words` names in full, the others by name and help alone.

    With no words, or ones that name no command, every command is there in full.
    """
    parser: argparse.ArgumentParser = _Parser(
        prog="vq-console",
        description="Build, launch, explain and compare quantized vLLM servers. Without a command: open the console.",
    )
    parser.add_argument("--version", action="version", version=f"vq-console {__version__}")
    parser.add_argument("--ascii", action="store_true", help="open the console with ASCII symbols and lines")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    named = module_of(next((word for word in words if not word.startswith("-")), None))
    asked = list(words) in (["--help"], ["-h"])
    loaded: set[str] = set()
    for name, (group, text) in COMMANDS.items():
        if group in loaded:
            continue
        if asked or (named is not None and group != named):
            # What argparse lists in its help; a parser of each command's arguments would cost more than all else.
            subparsers._choices_actions.append(subparsers._ChoicesPseudoAction(name, (), text))
        else:
            importlib.import_module(f"vq_console.commands.{group}").register(subparsers)
            loaded.add(group)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(words)
    try:
        args = parser.parse_args(words)
    except _WrongUse as wrong:
        if "--json" in words:
            command = wrong.command
            if command == parser.prog:  # what no parser knew is left to the first one
                command = " ".join([command, *[word for word in words if word in COMMANDS][:1]])
            _error_json(f"{command}: {wrong.message}", f"`{command} --help` lists what there is")
        raise
    if args.ascii:
        os.environ["VQ_CONSOLE_ASCII"] = "1"
    try:
        if args.command is None:
            from vq_console.ui.app import run_console

            return int(run_console())
        if args.command in _STREAMS:
            return int(args.handler(args))
        from contextlib import redirect_stdout

        with redirect_stdout(_Answer(sys.stdout)):
            code = int(args.handler(args))
            sys.stdout.flush()
            return code
    except VqError as error:
        if getattr(args, "json", False):
            _error_json(error.message, error.hint, error.more)
        print(f"vq-console: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        if getattr(args, "json", False):
            _error_json("interrupted", "a server that was being started goes on starting; `vq-console ps` shows it")
        print("vq-console: interrupted", file=sys.stderr)
        return int(ExitCode.PARTIAL)
    except BrokenPipeError:
        _let_go(sys.stdout)
        return int(ExitCode.DONE)
    except OSError as error:
        message, hint, code = _trouble(error)
        if getattr(args, "json", False):
            _error_json(message, hint)
        print(f"vq-console: {message}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
        return int(code)


_FIXES = {
    errno.EACCES: "choose a place that this user may read and write, or change its permissions",
    errno.EPERM: "choose a place that this user may read and write, or change its permissions",
    errno.EROFS: "that file system is read-only; choose another place",
    errno.ENOSPC: "no space is left there; make room or choose another place",
    errno.EDQUOT: "this user's quota is used up there; make room or choose another place",
    errno.ENOTDIR: "a part of that path is a file; choose another place",
    errno.EEXIST: "a part of that path is a file; choose another place",
    errno.EISDIR: "that is a folder; name a file in it",
    errno.ENOENT: "look at the path's spelling: a relative one starts in the current folder",
}
"""What to do about a file that cannot be read or written, by error number."""


def _trouble(error: OSError) -> tuple[str, str, ExitCode]:
    """What a file could not give or take, in words; the console's own folder is named as such."""
    from pathlib import Path

    from vq_console.core import places
    from vq_console.core.text import strip_control

    if not isinstance(error.filename, str) or not error.strerror:
        return strip_control(str(error)), "", ExitCode.NO
    path, said = Path(error.filename), f"{strip_control(error.filename)}: {error.strerror}"
    homes = (places.config_dir(), places.state_dir(), places.data_dir(), places.cache_dir())
    # Where a folder above it cannot be made, the error names that one.
    own = next((h for h in homes if path.is_relative_to(h) or (h.is_relative_to(path) and not path.is_dir())), None)
    if own is None:
        return said, _FIXES.get(error.errno or 0, ""), ExitCode.NO
    given = os.environ.get(places.HOME_VARIABLE)
    return f"the console's folder {given or own} cannot be used: {said}", places.MEND, ExitCode.MISSING


class _Answer:
    """Standard output of a command whose answer is its exit code too: a reader that went away does not change it."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, text: str) -> int:
        try:
            self._real.write(text)
        except BrokenPipeError:
            _let_go(self._real)
        return len(text)

    def flush(self) -> None:
        try:
            self._real.flush()
        except BrokenPipeError:
            _let_go(self._real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _let_go(stream: Any) -> None:
    """Send to nowhere what nobody reads; what is still held back would fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _error_json(message: str, hint: str, more: Mapping[str, object] | None = None) -> None:
    """An error as the one JSON object on standard output."""
    import json

    value = {"schema": "vq-console/error/1", "error": {"message": message, "hint": hint, **(more or {})}}
    print(json.dumps(value, ensure_ascii=False))


if __name__ == "__main__":
    raise SystemExit(main())
