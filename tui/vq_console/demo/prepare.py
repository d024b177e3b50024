"""Makes what the demo needs and nothing twice: an engine, the starter model, its checkpoints, two profiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vq_console.core.errors import EngineError
from vq_console.demo.pair import DemoArm, DemoPair, demo_pairs
from vq_console.profiles.model import Profile

if TYPE_CHECKING:
    from vq_console.engines.model import Engine


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that was made: the engine, model folders by scheme, the pairs that may be tried."""

    engine: Engine
    models: dict[str, str]
    pairs: tuple[DemoPair, ...]


def prepare(say: Callable[[str], None], *, for_cpu: bool = False, schemes: Sequence[str] = ()) -> Prepared:
    """Make or find the engine for this machine, the starter model and the checkpoints of all pairs.

    `for_cpu` makes the CPU engine although a GPU is there (the tests use it). `schemes` adds checkpoints.
    Raises EngineError when something cannot be made.
    """
    from vq_console.engines.starter import ensure_starter_model
    from vq_console.hardware.probe import read_machine
    from vq_console.quantize.ready import ensure_checkpoint

    machine = read_machine(processes=False)
    gpu = next((g for g in machine.gpus if g.visible and (g.sm_number or 0) >= 75), None)
    device = "cuda" if gpu is not None and not for_cpu else "cpu"
    if device == "cpu":
        isa = ", ".join(machine.host.cpu_isa) or "unknown"
        say(f"this machine: {machine.host.cpu_model or 'a CPU'} ({isa})" + ("" if gpu else ", no usable NVIDIA GPU"))
    elif gpu is not None:
        say(f"this machine: {gpu.name}, SM {gpu.sm}")
    pairs = demo_pairs(device, gpu.sm_number if gpu and device == "cuda" else None, machine.host.cpu_isa)
    engine = _with_tool(device, say)
    models = {"bf16": str(ensure_starter_model(say))}
    for scheme in dict.fromkeys([*(s for pair in pairs for s in pair.schemes), *schemes]):
        if scheme not in models:
            models[scheme] = str(ensure_checkpoint(scheme, say))
    return Prepared(engine, models, pairs)


def _with_tool(device: str, say: Callable[[str], None]) -> Engine:
    """The engine, and LLM Compressor's environment made at the same time: both mostly wait for downloads."""
    from vq_console.engines.install import install_engine, tool_python

    trouble: list[BaseException] = []

    def make_tool() -> None:
        try:
            tool_python("compressor", say=say)
        except BaseException as error:
            trouble.append(error)

    tool = threading.Thread(target=make_tool, name="compressor")
    tool.start()
    try:
        engine = find_engine(device) or install_engine(device, say=say)
    finally:
        tool.join()
    if trouble:
        if isinstance(trouble[0], Exception):
            raise trouble[0]
        raise EngineError("making LLM Compressor's environment was interrupted", "run the same command again")
    return engine


def find_engine(device: str) -> Engine | None:
    """An engine of this device that is here already: one that the console made first, then the newest other."""
    from vq_console.engines.find import find_engines

    fitting = [e for e in find_engines() if e.device == device and not e.simulated and not e.problem and e.vllm_version]
    fitting.sort(key=lambda e: e.origin != "console")
    return fitting[0] if fitting else None


def save_demo_profile(arm: DemoArm, model: str) -> Path:
    """Write the profile of a demo arm among the user's own, replacing the one of an earlier demo."""
    from vq_console.profiles.store import save_profile

    profile = Profile(
        name=arm.name, model=model, description=arm.description, args=dict(arm.args), env=dict(arm.env), tags=("demo",)
    )
    return save_profile(profile)
