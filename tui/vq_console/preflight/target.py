"""The target that a profile is judged against: this machine, or one described in a file.

Touches files; reads machine and engine only through what `hardware` and `engines` offer. A fact that cannot be read
is absent, never guessed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError, VqError
from vq_console.core.text import nearest, strip_control
from vq_console.engines.model import Catalogue, Engine
from vq_console.hardware.model import Gpu, Machine
from vq_console.preflight.model import Target
from vq_console.preflight.names import is_local
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import as_list
from vq_console.profiles.model import Profile

_TOOLS = ("gcc", "g++", "nvcc", "ninja")
_ENVIRONMENT = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME")


_NUMBERS = frozenset({
    "gpu_count", "gpu_mem_gib", "gpu_free_gib", "host_ram_gib", "host_free_gib", "host_ram_free_gib", "shm_mib",
    "disk_free_gib", "disk_mib_s", "nofile_soft", "nofile_hard",
})  # fmt: skip
_MOST = 1 << 53
_TABLES = frozenset({"checkpoint", "args", "env", "installed", "tools"})
_LISTS = frozenset({
    "cpu_flags", "plugins", "model_dir_files", "gpu_processes", "orphans", "checkpoint_problems",
    "supported_architectures",
})  # fmt: skip
_WORDS = frozenset({
    "vllm_version", "device", "gpu_sm", "gpu_name", "gpu", "gpu_gfx", "gfx", "driver", "torch_cuda",
    "triton_ptxas_cuda", "kernel", "platform", "wsl", "hf_token", "model", "model_cached", "path_exists", "port_open",
})  # fmt: skip
TARGET_KEYS = tuple(sorted(_NUMBERS | _TABLES | _LISTS | _WORDS))
"""What a target file may say. `checkpoint` is open: it holds config.json's own names."""


def read_target(path: str | Path) -> Target:
    """The target that a TOML file describes: a flat table with the keys of `detect --as-target`.

    Raises UsageError naming file and key when it cannot be read, is no TOML, says nothing or something unknown.
    """
    where = Path(path)
    try:
        facts = tomllib.loads(where.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}", "give a target file, or leave --target out") from error
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{where}: not valid TOML: {strip_control(str(error))}",
            "`vq-console detect --as-target` prints a whole one",
        ) from error
    if isinstance(facts.get("lint_input"), dict):
        facts = facts["lint_input"]
    _check(facts, where)
    return Target(facts, origin=str(where))


def _check(facts: Mapping[str, Any], where: Path) -> None:
    if not facts:
        raise UsageError(f"{where}: says nothing of a machine", f"known keys: {', '.join(TARGET_KEYS)}")
    for key, value in facts.items():
        label = f"{where}: {strip_control(key)}"
        if key not in TARGET_KEYS:
            guess = nearest(key, TARGET_KEYS)
            hint = f"did you mean `{guess}`?" if guess else f"known keys: {', '.join(TARGET_KEYS)}"
            raise UsageError(f"{label}: unknown key", hint)
        if key in _TABLES and not isinstance(value, dict):
            raise UsageError(f"{label}: must be a table", 'such as checkpoint = {quant_method = "fp8"}')
        if key in _LISTS and not isinstance(value, list | str):
            raise UsageError(f"{label}: must be a list", 'such as plugins = ["vllm-gguf-plugin"]')
        if key in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"{label}: must be a number", f"such as {key} = 24")
            if not 0 <= value <= _MOST:
                raise UsageError(f"{label}: {value} cannot be", f"a number from 0 on, such as {key} = 24")
        if key == "vllm_version" and not isinstance(value, str):
            raise UsageError(f"{label}: must be text", 'such as vllm_version = "0.32.0"')
        if key == "gpu_sm" and not re.fullmatch(r"\d{1,2}\.\d|\d{2,3}", str(value)):
            raise UsageError(f"{label}: {value!r} is no compute capability", "such as 90 or 9.0")


def target_here(
    profile: Profile,
    *,
    machine: Machine | None = None,
    engine: Engine | None = None,
    catalogue: Catalogue | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    problems: tuple[str, ...] = (),
    gpus: tuple[int, ...] | None = None,
) -> Target:
    """This machine as a target for `profile`: GPUs that it would use, host, engine and checkpoint facts.

    Reads the machine when `machine` is not given. `problems` is what reading the checkpoint's files found wrong.
    `gpus` restricts memory figures to the GPUs that will be used.
    """
    if machine is None:
        from vq_console.hardware.probe import read_machine

        machine = read_machine()
    facts: dict[str, Any] = {}
    _engine_facts(facts, engine)
    facts["checkpoint"] = dict(checkpoint or {})
    facts["checkpoint_problems"] = list(problems) or None
    facts["supported_architectures"] = _architectures(engine, as_list(facts["checkpoint"].get("architectures")))
    situation = Situation(profile, Target({}), catalogue or Catalogue(None, "none"), facts["checkpoint"])
    # Without a choice vLLM takes the first GPUs that it sees.
    _gpu_facts(facts, machine, engine, gpus, profile.gpu_count or situation.world * situation.dp)
    _host_facts(facts, machine)
    _model_facts(facts, profile)
    facts["port_open"] = _fixed_port_is_taken(situation)
    return Target({key: value for key, value in facts.items() if value is not None})


def with_engine(target: Target, engine: Engine) -> Target:
    """A described machine with an engine that was named beside it: the engine's version and packages win."""
    facts = {**target.facts, "vllm_version": engine.vllm_version or target.get("vllm_version")}
    if engine.installed:
        facts["installed"] = dict(engine.installed)
        facts["plugins"] = list(engine.plugins)
    facts.setdefault("device", engine.device)
    return Target({key: value for key, value in facts.items() if value is not None}, target.origin)


def simulated_target(engine: Engine, checkpoint: Mapping[str, Any], profile: Profile | None = None) -> Target:
    """The machine that the stand-in engine pretends to be: one idle H200, whose recorded logs it replays.

    Its ports are this machine's: where `profile` fixes one, it must be free here.
    """
    facts = {
        "vllm_version": engine.vllm_version,
        "device": "cuda",
        "gpu_sm": 90,
        "gpu_count": 1,
        "gpu_mem_gib": 139.8,
        "gpu_free_gib": 139.2,
        "checkpoint": dict(checkpoint),
    }
    if profile is not None:
        facts["port_open"] = _fixed_port_is_taken(Situation(profile, Target({}), Catalogue(None, "none"), {}))
    return Target({key: value for key, value in facts.items() if value is not None}, origin="SIMULATED H200")


def machine_facts(machine: Machine, engine: Engine | None = None) -> dict[str, Any]:
    """The facts of machine and engine alone, as a target file holds them (`detect --as-target`)."""
    facts: dict[str, Any] = {}
    _engine_facts(facts, engine)
    _gpu_facts(facts, machine, engine, None)
    _host_facts(facts, machine)
    return {key: value for key, value in facts.items() if value is not None}


def _fixed_port_is_taken(situation: Situation) -> bool | None:
    """Whether the port that a profile fixes is taken on this machine; None where it fixes none."""
    port = situation.count("port")
    return port_is_taken(str(situation.args.get("host") or "127.0.0.1"), port) if port else None


def port_is_taken(host: str, port: int) -> bool | None:
    """Whether something is bound to the port already; None where that cannot be tried."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return True if error.errno == errno.EADDRINUSE else None
    return False


def free_port(host: str = "127.0.0.1") -> int | None:
    """A port that is free at this moment; None where the host cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError:
        return None


def _engine_facts(facts: dict[str, Any], engine: Engine | None) -> None:
    if engine is None:
        return
    facts["vllm_version"] = engine.vllm_version
    facts["device"] = engine.device
    facts["plugins"] = list(engine.plugins)
    if engine.installed:
        facts["installed"] = dict(engine.installed)
        from vq_console.engines.find import torch_cuda

        facts["torch_cuda"] = torch_cuda(engine)


def _architectures(engine: Engine | None, wanted: list[str]) -> list[str] | None:
    """The model classes of this engine's registry, read as text, where the shipped list lacks the wanted one."""
    from vq_console.preflight.rules import knowledge

    if engine is None or engine.site is None or not wanted or set(wanted) & knowledge.architectures():
        return None
    try:
        text = (Path(engine.site) / "model_executor/models/registry.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    known, _, _ = text.partition("_PREVIOUSLY_SUPPORTED_MODELS")
    return sorted(set(re.findall(r'^ +"([A-Z]\w+)": \(', known, re.MULTILINE))) or None


def _gpu_facts(
    facts: dict[str, Any],
    machine: Machine,
    engine: Engine | None,
    gpus: tuple[int, ...] | None,
    wanted: int | None = None,
) -> None:
    if engine is not None and engine.device not in (None, "cuda", "rocm"):
        return
    seen = [gpu for gpu in machine.gpus if gpu.visible]
    usable = [gpu for gpu in machine.gpus if gpu.index in gpus] if gpus else seen[: wanted or None]
    if not usable:
        return
    facts["gpu_count"] = len([gpu for gpu in machine.gpus if gpu.visible])
    numbers = [gpu.sm_number for gpu in usable if gpu.sm_number is not None]
    facts["gpu_sm"] = min(numbers) if numbers else None
    facts["gpu_mem_gib"] = _least(usable, lambda gpu: gpu.memory_usable_mib)
    facts["gpu_free_gib"] = _least(usable, lambda gpu: gpu.memory_free_mib)
    facts["gpu_name"] = usable[0].name
    facts["driver"] = machine.driver
    orphans = [
        f"{process.pid} {process.command}"
        for gpu in usable
        for process in gpu.processes
        if process.command and "VLLM::" in process.command
    ]
    if orphans:
        facts["gpu_processes"] = orphans


def _least(gpus: list[Gpu], of: Any) -> float | None:
    known = [of(gpu) for gpu in gpus if of(gpu) is not None]
    return round(min(known) / 1024, 2) if known else None


_NODE = Path("/sys/devices/system/node/node0/meminfo")


def _node_memory() -> dict[str, float]:
    """Memory of the first NUMA node in GiB as the CPU engine counts it (vLLM utils/cpu_resource_utils.py)."""
    try:
        pairs = [line.split()[2:4] for line in _NODE.read_text().splitlines()]
        values = {name.rstrip(":"): int(amount) / 1024**2 for name, amount in pairs}
        free = values["MemFree"] + values["Active(file)"] + values["Inactive(file)"] + values["SReclaimable"]
        return {"host_ram_gib": round(values["MemTotal"], 2), "host_free_gib": round(free, 2)}
    except (OSError, ValueError, KeyError, IndexError):
        return {}


def _host_facts(facts: dict[str, Any], machine: Machine) -> None:
    host = machine.host
    facts["host_ram_gib"] = round(host.ram_total_mib / 1024, 2) if host.ram_total_mib else None
    facts["host_free_gib"] = round(host.ram_available_mib / 1024, 2) if host.ram_available_mib else None
    if facts.get("device") == "cpu":
        facts.update(_node_memory())
    facts["cpu_flags"] = list(host.cpu_isa) or None
    facts["shm_mib"] = host.shm_total_mib
    facts["disk_free_gib"] = round(host.model_cache_free_mib / 1024, 2) if host.model_cache_free_mib else None
    facts["kernel"] = host.kernel
    facts["platform"] = "wsl2" if host.wsl else None
    facts["nofile_soft"] = host.open_files_limit
    facts["nofile_hard"] = host.open_files_hard_limit

    facts["tools"] = {tool: shutil.which(tool) is not None for tool in _TOOLS}
    compiler = os.environ.get("CC")
    if compiler and shutil.which(compiler):
        facts["tools"]["gcc"] = True
    if not facts["tools"]["gcc"] and any(shutil.which(other) for other in ("cc", "clang")):
        facts["tools"]["gcc"] = True
    if not facts["tools"]["nvcc"]:
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        facts["tools"]["nvcc"] = os.access(os.path.join(home, "bin", "nvcc"), os.X_OK)
    facts["env"] = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    token = _has_token()
    if not token:
        facts["env"]["HF_TOKEN"] = ""


def _has_token() -> bool:
    """Whether the Hugging Face library would find a token; its value is never read into anything."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "huggingface"
    )
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    return os.path.isfile(path)


def _model_facts(facts: dict[str, Any], profile: Profile) -> None:
    """Whether the model is there: a path that exists and its files, or a snapshot in the hub's cache."""
    model = os.path.expanduser(profile.model)
    if is_local(profile.model) or os.path.isdir(model):
        facts["path_exists"] = os.path.exists(model)
        if os.path.isdir(model):
            try:
                facts["model_dir_files"] = sorted(os.listdir(model))
            except OSError:
                pass
        return
    home = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME")
        or os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "huggingface"),
        "hub",
    )
    folder = os.path.join(home, "models--" + profile.model.partition(":")[0].replace("/", "--"), "snapshots")
    try:
        facts["model_cached"] = any(os.scandir(folder))
    except OSError:
        facts["model_cached"] = False


def checkpoint_here(profile: Profile) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """(facts, problems) of the profile's model as far as this machine holds it; empty where it does not."""
    from vq_console.profiles.checkpoint import read_checkpoint

    try:
        found = read_checkpoint(profile.model, base=profile.path.parent if profile.path else None)
    except (VqError, OSError, ValueError):
        return {}, ()
    return found.facts, found.problems
