"""Errors that a person is meant to read, and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class ExitCode(IntEnum):
    """What the process tells its caller; the meaning is the same for every command."""

    DONE = 0
    NO = 1
    """The answer is no: an error finding, an unreadable profile in `lint`, a failed gate, a failing diagnosis."""
    WRONG_USE = 2
    MISSING = 3
    """The machine or the engine lacks something that the command needs."""
    PARTIAL = 130
    """Interrupted; what was measured so far is kept."""


class VqError(Exception):
    """Anything that ends a command with a message instead of a traceback.

    `message` says what is wrong and names the file or key; `hint` says what to do about it.
    """

    exit_code: ExitCode = ExitCode.NO
    more: Mapping[str, object] = {}
    """What else a script may want to know, by the keys that it has elsewhere."""

    def __init__(self, message: str, hint: str = "", *, exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(VqError):
    """The command line asks for something that cannot be meant."""

    exit_code = ExitCode.WRONG_USE


class MissingError(VqError):
    """The machine, engine or an optional package lacks something."""

    exit_code = ExitCode.MISSING


class ProfileError(VqError):
    """A profile cannot be read or used; names the file and the key."""

    def __init__(self, path: str, key: str, message: str, hint: str = "", *, exit_code: ExitCode | None = None) -> None:
        where = f"{path}: {key}: " if key else f"{path}: "
        super().__init__(where + message, hint, exit_code=exit_code)
        self.path = path
        self.key = key


class EngineError(MissingError):
    """No engine fits, or an engine cannot be made or read."""


class LaunchError(VqError):
    """A server could not be started; carries the command, the end of its log and what that means (`more`)."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        argv: tuple[str, ...] = (),
        log_tail: str = "",
        more: Mapping[str, object] | None = None,
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(message, hint, exit_code=exit_code)
        self.more = more or {}
        self.argv = argv
        self.log_tail = log_tail


class CheckError(VqError):
    """A check cannot run or its data cannot support an answer."""
