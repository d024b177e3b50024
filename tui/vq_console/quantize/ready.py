"""Checkpoints of the starter model in one scheme or another, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vq_console.core import places
from vq_console.core.files import file_lock, read_json
from vq_console.core.text import seconds_text
from vq_console.engines.packages import mib
from vq_console.engines.starter import MANIFEST, NAME, ensure_starter_model
from vq_console.quantize.model import Request
from vq_console.quantize.run import make, prepare, result_label
from vq_console.quantize.schemes import find_scheme


def ensure_checkpoint(scheme: str, say: Callable[[str], None]) -> Path:
    """The folder of the starter model in that scheme (`bf16`, `fp8`, `w8a8`, `w4a16`, or one that `quantize` takes).

    Made when it is not there whole, in about 10 s; no profile is written. Raises VqError when it cannot be made.
    """
    source = ensure_starter_model(say)
    if scheme.lower() == "bf16":
        return source
    found, method = find_scheme(scheme)
    out = places.models_dir() / f"{NAME}-{found.name}{'' if method == 'rtn' else f'-{method}'}"
    if is_made(out):
        return out
    with file_lock(places.models_dir() / f".{out.name}.lock"):
        if is_made(out):
            return out
        request = Request(model=str(source), scheme=found.name, method=method, out=out, profile=False)
        prepared = prepare(request, plan=False)
        say(f"making {NAME} as {result_label(prepared.judged)} with LLM Compressor")
        result = make(prepared, say)
        say(f"made: {out}, {mib(int(result['size_gib'] * 2**30))}, {seconds_text(result['seconds'])}")
    return out


def is_made(folder: Path) -> bool:
    """Whether a result is there whole: results are renamed into place when verified, description included."""
    try:
        return bool(read_json(folder / MANIFEST).get("scheme")) and any(folder.glob("*.safetensors"))
    except (OSError, ValueError):
        return False
