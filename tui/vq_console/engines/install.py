"""Making an engine: an environment of its own from exact pins, proven by an import before anyone can find it.

An engine is the folder `kind-version-hash` with the file `engine.json`, which is written last; a folder without it is
a leftover that the next attempt removes. A lock per folder lets one console at a time make it, and is held by the
running pip too, so that a killed console cannot start a second one beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vq_console.core import places
from vq_console.core.errors import EngineError, MissingError, UsageError
from vq_console.core.files import read_json, write_json
from vq_console.core.text import seconds_text
from vq_console.engines import packages, pins
from vq_console.engines.bases import base_python
from vq_console.engines.interpreters import MARKER
from vq_console.engines.job import run_tool, tail
from vq_console.engines.model import Engine
from vq_console.engines.packages import Pip, Say

WITHOUT_GPU = "VQ_ENGINE_WITHOUT_GPU"
_PROOF_S = 600.0
_CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec", "triton")


def install_engine(
    kind: str, *, version: str | None = None, wheelhouse: str | os.PathLike[str] | None = None, say: Say
) -> Engine:
    """Make the engine of that kind (one of `pins.KINDS`), or return it where it is complete already.

    `wheelhouse` is a folder of wheels to take everything from, without a network. `say` gets lines for a person.
    Raises EngineError when it cannot be made (nothing is left that would be offered), UsageError for wrong use.
    """
    house = _wheelhouse(wheelhouse)
    if kind == "cuda" and house is None:
        _check_driver()
    if kind == "cuda" and version is None:
        version = _newest_cuda(house, say)
    wanted = pins.pins(kind, version)
    folder = places.engines_dir() / wanted.folder
    if (folder / MARKER).is_file():
        return _engine(folder, wanted)
    with _locked(folder, say) as lock:
        if (folder / MARKER).is_file():
            return _engine(folder, wanted)
        _make(wanted, folder, house, lock, say)
    return _engine(folder, wanted)


def tool_python(kind: str, *, say: Say | None = None) -> str:
    """The interpreter of a tool's environment (one of `pins.TOOLS`), made when it is not there and `say` is given.

    Raises EngineError, with the command that makes it, when it is not there and may not be made.
    """
    wanted = pins.pins(kind)
    folder = places.engines_dir() / wanted.folder
    if not (folder / MARKER).is_file():
        if say is None:
            raise EngineError(
                f"{kind}: {wanted.main} {wanted.version} is not installed", f"vq-console engines install {kind}"
            )
        install_engine(kind, say=say)
    return str(folder / "bin/python")


def _make(wanted: pins.Pins, folder: Path, house: Path | None, lock: int, say: Say) -> None:
    started = time.monotonic()
    _check_machine(wanted, folder, house)
    python, python_version = base_python(pins.PYTHONS)
    say(f"making {wanted.main} {wanted.version} in {folder} (Python {python_version})")
    if folder.exists():
        say("  removing what an interrupted attempt left")
        shutil.rmtree(folder)
    log = folder.parent / f".{folder.name}.log"
    log.unlink(missing_ok=True)
    wheels, temporary = folder.parent / f".{folder.name}.wheels", folder.parent / f".{folder.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _environment(python, folder, log, lock)
        pip = Pip(str(folder / "bin/python"), log, say, lock, temporary)
        if house is None:
            # Older pips neither resume a download nor say why one failed; without a newer one they still work.
            pip.run("install", "--quiet", f"pip=={pins.PIP}", stage="fetching pip")
        _fill(wanted, pip, house, wheels)
        seconds = _prove(folder, wanted, log, lock, say)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    size = packages.folder_bytes(folder)
    _write_marker(folder, wanted, python, python_version, time.monotonic() - started, size, log, wheelhouse=house)
    shutil.rmtree(wheels, ignore_errors=True)
    say(
        f"made: {folder.name}, {packages.mib(size)}, {seconds_text(time.monotonic() - started)}; "
        f"import of {wanted.module} takes {seconds_text(seconds)}"
    )


def _fill(wanted: pins.Pins, pip: Pip, house: Path | None, wheels: Path) -> None:
    """Put the packages in: pinned ones exactly, without asking pip what else they would like."""
    if wanted.packages:
        requirements = wanted.requirements(without=() if platform.machine() in ("x86_64", "AMD64") else _X86_ONLY)
        if house is None:
            packages.fetch(pip, requirements, wheels)
        else:
            missing = packages.missing_wheels(requirements, house)
            if missing:
                listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
                raise EngineError(
                    f"{house}: lacks {listed}",
                    f"where there is a network: pip download --no-deps -d DIR -r {pins.lock_path(wanted.kind)}",
                )
        packages.install_offline(pip, requirements, house or wheels)
        return
    main = f"{wanted.main}=={wanted.version}"
    if wanted.kind == "cuda":
        packages.install_resolved(pip, [main], wheelhouse=house, what=f"vLLM {wanted.version} and what it needs")
        return
    _fill_other_cpu(pip, main, house, wheels)


_X86_ONLY = ("intel-openmp", "intel-cmplr-lib-ur")


def _fill_other_cpu(pip: Pip, main: str, house: Path | None, wheels: Path) -> None:
    """Another version of the CPU build: the CPU torch that it names first, so that pip takes no CUDA one."""
    if house is None:
        packages.fetch(pip, [main], wheels)
    needed = _torch_of(house or wheels, main)
    if house is None:
        packages.fetch(pip, [f"torch=={needed}"], wheels)
    packages.install_offline(pip, [f"torch=={needed}"], house or wheels)
    packages.install_resolved(pip, [main, f"torch=={needed}"], wheelhouse=house, what=f"{main} and what it needs")
    code = pip.run("uninstall", "--yes", *_CUDA_ONLY)
    if code:
        raise packages.failed(pip.log, "packages made for CUDA could not be removed", code)


def _torch_of(wheels: Path, main: str) -> str:
    """The exact torch that a wheel of the CPU build asks for, as its CPU build."""
    import zipfile

    from packaging.requirements import InvalidRequirement, Requirement

    name, _, version = main.partition("==")
    for file in sorted(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
        with zipfile.ZipFile(file) as wheel:
            metadata = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA"))
            lines = wheel.read(metadata).decode(errors="replace").split("\n")
        for line in lines:
            if not line.startswith("Requires-Dist: torch"):
                continue
            try:
                requirement = Requirement(line.removeprefix("Requires-Dist:").strip())
            except InvalidRequirement:
                continue
            fits = requirement.marker is None or requirement.marker.evaluate()
            exact = [part.version for part in requirement.specifier if part.operator == "=="]
            if requirement.name == "torch" and fits and exact:
                return exact[0] if "+" in exact[0] else f"{exact[0]}+cpu"
    raise EngineError(f"{main}: does not say which torch it needs", "choose the tested version: leave out --version")


def _environment(python: str, folder: Path, log: Path, lock: int) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    code = run_tool(
        [python, "-m", "venv", str(folder)],
        log,
        env=packages.clean_environment(),
        cwd=folder.parent,
        keep_open=(lock,),
        timeout_s=180,
    )
    if code:
        raise EngineError(f"{python} could not make an environment: {' '.join(tail(log, 2))}", f"log: {log}")


def _prove(folder: Path, wanted: pins.Pins, log: Path, lock: int, say: Say) -> float:
    """Import the module that the engine is for, in the engine; seconds that it took. Raises EngineError."""
    say(f"proving that {wanted.module} can be imported")
    started = time.monotonic()
    code = run_tool(
        [str(folder / "bin/python"), "-c", f"import {wanted.module} as m; print('imported', m.__name__)"],
        log,
        env=packages.clean_environment() | {"HF_HUB_OFFLINE": "1"},
        cwd=folder,
        timeout_s=_PROOF_S,
        keep_open=(lock,),
    )
    if code:
        words = tail(log, 1)
        reason = f"took longer than {_PROOF_S:.0f} s" if code == 124 else (words[0] if words else f"exit code {code}")
        raise EngineError(f"{wanted.main} {wanted.version} was installed but does not work: {reason}", f"log: {log}")
    return time.monotonic() - started


def _write_marker(
    folder: Path, wanted: pins.Pins, python: str, python_version: str, seconds: float, size: int, log: Path,
    *, wheelhouse: Path | None,
) -> None:  # fmt: skip
    shutil.move(str(log), folder / "install.log")
    write_json(
        folder / MARKER,
        {
            "kind": wanted.kind,
            "version": wanted.version,
            "python": python_version,
            "base": python,
            "pinned": bool(wanted.packages),
            "wheelhouse": str(wheelhouse) if wheelhouse else None,
            "packages": _installed(folder),
            "seconds": round(seconds, 1),
            "size_mib": round(size / 2**20),
            "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )


def _installed(folder: Path) -> dict[str, str]:
    from importlib.metadata import distributions

    sites = [str(site) for site in folder.glob("lib/python3.*/site-packages")]
    found = {pins.normal(d.metadata["Name"]): d.version for d in distributions(path=sites) if d.metadata["Name"]}
    return dict(sorted(found.items()))


def _check_machine(wanted: pins.Pins, folder: Path, house: Path | None) -> None:
    if platform.system() != "Linux":
        raise EngineError(f"engines are made on Linux only, this is {platform.system()}")
    free = packages.free_gib(folder)
    # Nothing is downloaded where a wheelhouse is given: about a third of the room.
    needs = wanted.needs_gib * (0.7 if house is not None else 1.0)
    if free < needs:
        raise EngineError(
            f"{folder.parent}: {needs:.0f} GiB are needed, {free:.1f} GiB are free",
            f"make room, or choose another disk with {places.ENGINES_VARIABLE}",
        )
    if wanted.kind == "cpu" and platform.machine() == "x86_64" and not _has_avx2():
        raise EngineError("this CPU has no AVX2, which vLLM's CPU build needs", "use another machine or a GPU")


def _check_driver() -> None:
    if not has_nvidia_driver() and not os.environ.get(WITHOUT_GPU):
        raise EngineError(
            "this machine has no NVIDIA driver, and a CUDA engine is several GB to download",
            f"vq-console engines install cpu; for a machine that gets its GPU later set {WITHOUT_GPU}=1",
        )


def has_nvidia_driver() -> bool:
    """Whether the kernel has NVIDIA's driver loaded (WSL brings its own device)."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/dxg").exists()


def _has_avx2() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return True
    return any("avx2" in line.split() for line in text.split("\n") if line.startswith("flags"))


def _engine(folder: Path, wanted: pins.Pins) -> Engine:
    python = str(folder / "bin/python")
    if wanted.kind in pins.TOOLS:
        made: dict[str, Any] = read_json(folder / MARKER)
        return Engine(python, None, None, "console", installed=made.get("packages") or {})
    from dataclasses import replace

    from vq_console.engines.find import engine_at

    return replace(engine_at(python), origin="console")


@contextlib.contextmanager
def _locked(folder: Path, say: Say) -> Iterator[int]:
    """Hold the folder's lock; the descriptor is inherited by tools, and the lock ends with the last of them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "a+b") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    say(f"another process is making {folder.name}: waiting for it")
                waiting = True
                time.sleep(0.3)
        yield file.fileno()


def _wheelhouse(folder: str | os.PathLike[str] | None) -> Path | None:
    if folder is None:
        return None
    house = Path(folder).expanduser().absolute()
    if not house.is_dir():
        raise UsageError(f"{house}: no such folder", "--wheelhouse names a folder of wheels")
    return house


def _newest_cuda(house: Path | None, say: Say) -> str:
    """The newest vLLM: of the wheelhouse, or of the configured package sources."""
    from packaging.version import Version

    if house is not None:
        found = [file.name.split("-")[1] for file in house.glob("vllm-*.whl")]
        if not found:
            raise EngineError(f"{house}: holds no wheel of vllm", "fill it where there is a network: pip download vllm")
        return max(found, key=Version)
    say("asking which vLLM is the newest")
    python, _ = base_python(pins.PYTHONS)
    places.engines_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ask-", dir=places.engines_dir()) as folder:
        log = Path(folder) / "log"
        environment = Path(folder) / "environment"
        env = packages.clean_environment()
        answers: list[str] = []
        code = run_tool([python, "-m", "venv", str(environment)], log, env=env, timeout_s=180)
        if not code:
            argv = [str(environment / "bin/python"), "-m", "pip", "--no-input", "index", "versions", "vllm"]
            code = run_tool(argv, log, env=env, timeout_s=300, on_line=answers.append)
        newest = next((line.split("(")[1].split(")")[0] for line in answers if line.startswith("vllm (")), None)
        if code or newest is None:
            raise MissingError(
                f"the newest vLLM could not be asked for: {' '.join(tail(log, 1))}",
                "name one with --version X.Y.Z, or use --wheelhouse DIR",
            )
    return newest
