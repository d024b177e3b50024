"""Judging a quantization on this machine: free disk and memory, earlier runs, and whether the result would run here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vq_console.core.errors import VqError
from vq_console.core.files import read_jsonl
from vq_console.core.places import state_dir
from vq_console.core.text import strip_control
from vq_console.engines.packages import free_gib
from vq_console.quantize.judge import Room, judge
from vq_console.quantize.model import Judged, Note, Request, Source

if TYPE_CHECKING:
    from vq_console.preflight.model import Plan


def judged_here(request: Request, source: Source, *, plan: bool = False) -> Judged:
    """`judge` with what this machine has; with `plan` also whether its GPU or CPU computes in the format."""
    judged = judge(request, source, room_here(request))
    if not plan or judged.errors:
        return judged
    return replace(judged, notes=(*judged.notes, *ready_notes(judged, source), *running_notes(judged, source)))


def room_here(request: Request) -> Room:
    """Free disk where the result goes, available memory, and rates of earlier runs."""
    import psutil

    from vq_console.hardware.host import read_host

    host = read_host()
    available = psutil.virtual_memory().available / 2**30
    if host.ram_available_mib is not None:
        available = min(available, host.ram_available_mib / 1024)
    rates = tuple(read_jsonl(state_dir() / "quantize-rates.jsonl"))
    return Room(free_gib(request.out.parent), available, rates)


_NAMED = {
    "FP8_DYNAMIC": ("fp8-dynamic", "fp8"),
    "FP8_STATIC": ("fp8",),
    "FP8_BLOCK": ("fp8-block",),
    "W8A8": ("w8a8", "int8"),
    "W8A16": ("w8a16",),
    "W4A16": ("w4a16", "int4", "gptq", "awq"),
    "W4A16_ASYM": ("w4a16", "awq"),
    "NVFP4": ("nvfp4",),
    "NVFP4A16": ("nvfp4a16",),
    "MXFP4": ("mxfp4",),
    "MXFP8": ("mxfp8",),
    "MODELOPT_FP8": ("fp8",),
    "MODELOPT_NVFP4": ("nvfp4", "fp4"),
}
"""What published checkpoints of a scheme are called."""


def ready_notes(judged: Judged, source: Source) -> tuple[Note, ...]:
    """Checkpoints of this model in this scheme that are here already: made by the console, or in the hub's cache."""
    from vq_console.core.files import read_json
    from vq_console.core.places import models_dir
    from vq_console.profiles.hubcache import cache_folder
    from vq_console.quantize.schemes import label

    notes = []
    request = judged.request
    kind = label(judged.scheme, request.method, request.group_size, request.kv_cache)
    for path in sorted(models_dir().glob("*/vq-console.json")):
        try:
            made = read_json(path)
        except (OSError, ValueError):
            continue
        made_of = made.get("source")
        if made.get("label") == kind and isinstance(made_of, dict) and made_of.get("model") == source.model:
            notes.append(Note("made-already", "info", f"made already: {path.parent}"))
    name = source.model.rstrip("/").rpartition("/")[2].lower()
    for folder in sorted(cache_folder().glob("models--*")):
        repository = folder.name.removeprefix("models--").replace("--", "/")
        words = repository.rpartition("/")[2].lower()
        if name in words and any(word in words.replace(name, "") for word in _NAMED.get(judged.scheme.name, ())):
            notes.append(Note("ready-in-cache", "info", f"a ready one is in the cache: {strip_control(repository)}"))
    return tuple(notes[:5])


def running_notes(judged: Judged, source: Source) -> tuple[Note, ...]:
    """What preflight expects of the result on this machine: its kernel and whether it computes natively."""
    try:
        plan = _plan(judged, source)
    except VqError as error:
        return (Note("not-judged", "info", f"whether it runs here is not known: {error.message}"),)
    errors = [finding for finding in plan.findings if finding.severity == "error"]
    if errors:
        words = strip_control(errors[0].message)
        return (Note("runs-here", "warning", f"this machine would not serve the result: {words}", errors[0].fix or ""),)
    rows = [row for row in plan.layers if row.kind in ("linear", "moe") and row.grade != "unquantized"]
    if not rows:
        return ()
    worst = rows[0]
    kernel = f" ({worst.kernel})" if worst.kernel else ""
    if worst.grade == "native":
        return (Note("runs-here", "info", f"this machine computes in {judged.scheme.name}{kernel}"),)
    said = {
        "weight-only": f"reads {judged.scheme.name} weights but computes in 16 bits",
        "emulated": f"only emulates {judged.scheme.name}",
        "unsupported": f"has no kernel for {judged.scheme.name}",
    }.get(worst.grade)
    if said is None:
        return (Note("runs-here", "info", f"whether this machine computes in {judged.scheme.name} is not known"),)
    return (Note("runs-here", "warning", f"this machine {said}{kernel}", worst.source),)


def predicted_facts(judged: Judged, source: Source) -> dict[str, Any]:
    """The facts that the result's checkpoint will have, for preflight. Pure."""
    shape = {k: v for k, v in source.facts.items() if k not in {"weights_gib", "size_gib", "parameters"}}
    named: dict[str, Any] = {"quant_method": "compressed-tensors", "format": judged.scheme.format}
    if judged.scheme.maker == "modelopt":
        named = {"quant_method": "modelopt", "quant_algo": judged.scheme.format}
    facts: dict[str, Any] = (
        shape
        | named
        | {
            "bits": int(judged.scheme.bits),
            "size_gib": round(judged.size_gib, 3),
            "weights_gib": round(judged.size_gib, 3),
            "parameters": source.parameters,
        }
    )
    if judged.scheme.name.startswith("FP8"):
        facts["scheme"] = judged.scheme.name
    if judged.request.group_size:
        facts["group_size"] = judged.request.group_size
    return facts


def _plan(judged: Judged, source: Source) -> Plan:
    from vq_console.core.errors import EngineError
    from vq_console.engines.catalogue import read_catalogue, snapshot
    from vq_console.engines.find import choose_engine
    from vq_console.preflight.plan import make_plan
    from vq_console.preflight.target import target_here
    from vq_console.profiles.model import Profile

    facts = predicted_facts(judged, source)
    profile = Profile(name="result", model=str(source.path))
    try:
        engine = choose_engine()
        catalogue = read_catalogue(engine)
    except EngineError:
        engine, catalogue = None, snapshot(None)
    target = target_here(profile, engine=engine, catalogue=catalogue, checkpoint=facts)
    return make_plan(profile, target, engine=engine, catalogue=catalogue, checkpoint_facts=facts)
