"""The starter model: SmolLM2-135M-Instruct as BF16 safetensors, made once, complete or absent.

Its weights come as a package (a GGUF file in 4 bits), so that a machine without a model hub can have them; they are
converted by the compressor's environment. Owns that folder and its manifest; loads no model itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vq_console.core import places
from vq_console.core.errors import EngineError
from vq_console.core.files import file_lock, read_json, write_json
from vq_console.core.text import seconds_text
from vq_console.engines import pins
from vq_console.engines.install import tool_python
from vq_console.engines.job import run_tool, tail
from vq_console.engines.packages import clean_environment, folder_bytes, mib

NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"
MANIFEST = "vq-console.json"
GGUF = f"{NAME}.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SAID = ("reading", "writing", "asking", "it answers")
_MOST_S = 900.0


def starter_folder() -> Path:
    """Where the starter model is, or will be."""
    return places.models_dir() / NAME


def ensure_starter_model(say: Callable[[str], None]) -> Path:
    """The folder of the starter model, made when it is not there whole (about 20 s once its tools are there).

    Raises EngineError when it cannot be made; nothing half-made is left under its name.
    """
    folder = starter_folder()
    if is_whole(folder):
        return folder
    with file_lock(places.models_dir() / f".{NAME}.lock"):
        if is_whole(folder):
            return folder
        _make(folder, say)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether the folder has its manifest and every file in it with the size that was written."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return False
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        return False
    return all(_size(folder / name) == entry.get("bytes") for name, entry in files.items())


def manifest_of(folder: Path, source: dict[str, Any]) -> dict[str, Any]:
    """Sizes and SHA-256 of every file of a model folder, and where it came from."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    return {"source": source, "files": files}


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(2**22):
            digest.update(piece)
    return digest.hexdigest()


def _make(folder: Path, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    python = tool_python("compressor", say=say)
    gguf = _gguf(Path(python))
    part = folder.parent / f".{NAME}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    say(f"making {NAME} as BF16 from {gguf.name}")
    log = folder.parent / f".{NAME}.log"
    log.unlink(missing_ok=True)
    try:
        code = run_tool(
            [python, str(Path(__file__).with_name("make_starter.py")), str(gguf), str(part)],
            log,
            on_line=lambda line: say(f"  {line}") if line.startswith(_SAID) else None,
            env=clean_environment() | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            timeout_s=_MOST_S,
        )
        if code:
            reason = f"it took longer than {_MOST_S:.0f} s" if code == 124 else " ".join(tail(log, 1))
            raise EngineError(f"{NAME} could not be made: {reason}", f"log: {log}")
        source = {
            "model": HUB_ID,
            "package": pins.STARTER_PACKAGE,
            "package_version": dict(pins.pins("compressor").packages)[pins.STARTER_PACKAGE],
            "file": gguf.name,
            "sha256": GGUF_SHA256,
            "note": "4-bit weights (Q4_1) written as BF16: the values are those of the GGUF file",
            "tool": pins.pins("compressor").folder,
        }
        write_json(part / MANIFEST, manifest_of(part, source))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    log.unlink(missing_ok=True)
    say(f"made: {folder}, {mib(folder_bytes(folder))}, {seconds_text(time.monotonic() - started)}")


def _gguf(python: Path) -> Path:
    """The model's file in the tool's environment, checked against its known content."""
    for site in (python.parent.parent / "lib").glob("python3.*/site-packages"):
        path = site / pins.STARTER_PACKAGE.replace("-", "_") / GGUF
        if path.is_file():
            if file_sha256(path) != GGUF_SHA256:
                raise EngineError(
                    f"{path}: is not the file that {pins.STARTER_PACKAGE} was published with",
                    "remove that environment and install it again: vq-console engines install compressor",
                )
            return path
    raise EngineError(
        f"{python}: its environment has no {pins.STARTER_PACKAGE}", "vq-console engines install compressor"
    )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
