"""`detect`: GPUs, host and engines of this machine, for people, for programs, or as a target file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, emit, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vq_console.engines.model import Engine
    from vq_console.hardware.model import Gpu, Host, Machine


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(subparsers, "detect", help_of("detect"), run_detect)
    parser.add_argument(
        "--as-target", action="store_true", help="print a target file, for `lint --target` on another machine"
    )
    parser.add_argument(
        "--engine", metavar="PYTHON", help="with --as-target: the vLLM to describe (the best otherwise)"
    )


def run_detect(args: argparse.Namespace) -> ExitCode:
    """Read the machine and print it; a machine without a GPU is an answer too."""
    from vq_console.hardware.probe import read_machine

    machine = read_machine()
    if args.as_target:
        return _print_target(args, machine)
    from vq_console.engines.find import find_engines

    engines = find_engines()
    if args.json:
        emit("vq-console/detect/1", detect_json(machine, engines))
        return ExitCode.DONE
    print(detect_text(machine, engines))
    return ExitCode.DONE


def _print_target(args: argparse.Namespace, machine: Machine) -> ExitCode:
    from vq_console.core.errors import EngineError
    from vq_console.engines.find import choose_engine
    from vq_console.preflight.target import machine_facts

    engine = None
    try:
        engine = choose_engine(python=args.engine)
    except EngineError:
        if args.engine:
            raise
    facts = machine_facts(machine, engine)
    if args.json:
        emit("vq-console/target/1", facts)
    else:
        print(target_toml(facts, machine), end="")
    return ExitCode.DONE


def detect_json(machine: Machine, engines: Sequence[Engine]) -> dict[str, Any]:
    """The keys that stay, and every other field that was read."""
    from dataclasses import asdict

    from vq_console.commands.engines import engine_json

    return {
        "gpus": [gpu_json(gpu) for gpu in machine.gpus],
        "driver": machine.driver,
        "cuda": machine.cuda,
        "gpu_source": machine.gpu_source,
        "gpu_reason": machine.gpu_reason,
        "host": asdict(machine.host),
        "engines": [engine_json(engine) for engine in engines],
    }


def gpu_json(gpu: Gpu) -> dict[str, Any]:
    """One GPU with its derived figures; what is unknown is null, and `missing` says why."""
    from dataclasses import asdict

    return {
        **asdict(gpu),
        "memory_free_mib": gpu.memory_free_mib,
        "memory_bandwidth_gbs": gpu.memory_bandwidth_gbs,
    }


def target_toml(facts: Mapping[str, Any], machine: Machine) -> str:
    """A target file: flat keys, then tables. Says on top what it describes and what a reader may add."""
    import tomli_w

    shown = [gpu for gpu in machine.gpus if gpu.visible]
    lines = [f"# A target for `vq-console lint --target`: {_title(machine)}"]
    if len({gpu.name for gpu in shown}) > 1:
        lines.append("# Different GPUs: the figures are those of the weakest one.")
    lines.append("# A checkpoint may be described too: [checkpoint] with the names of its config.json and weights_gib.")
    flat = {key: value for key, value in facts.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in facts.items() if isinstance(value, dict) and value}
    return "\n".join(lines) + "\n" + tomli_w.dumps({**flat, **tables})


def detect_text(machine: Machine, engines: Sequence[Engine]) -> str:
    """The machine for a person: GPUs, who uses them, host, engines."""
    from vq_console.commands.engines import engines_text

    parts = [_title(machine)]
    if machine.gpus:
        parts += ["", _gpu_table(machine.gpus)]
        notes = [note for gpu in machine.gpus for note in _notes(gpu)]
        users = [line for gpu in machine.gpus for line in _users(gpu)]
        if notes:
            parts += ["", *notes]
        if users:
            parts += ["", "Processes on GPUs:", *users]
    else:
        parts += [
            "",
            f"No GPU: {machine.gpu_reason}",
            "CPU builds of vLLM run here; figures of speed are those of the CPU.",
        ]
    parts += ["", *_host_lines(machine.host), "", "Engines:", engines_text(engines)]
    return "\n".join(parts)


def _title(machine: Machine) -> str:
    names: dict[str, int] = {}
    for gpu in machine.gpus:
        names[gpu.name or "unknown GPU"] = names.get(gpu.name or "unknown GPU", 0) + 1
    gpus = ", ".join(f"{count}x {name}" if count > 1 else name for name, count in names.items()) or "no GPU"
    parts = [machine.host.hostname, gpus]
    if machine.driver:
        parts.append(f"driver {machine.driver}" + (f" (CUDA {machine.cuda})" if machine.cuda else ""))
    if machine.gpu_source == "nvidia-smi":
        parts.append("read by nvidia-smi")
    return " · ".join(parts)


def _gpu_table(gpus: Sequence[Gpu]) -> str:
    rows = [
        [
            str(gpu.index),
            gpu.name or "–",
            gpu.sm or "–",
            _pair(gpu.memory_used_mib, gpu.memory_total_mib),
            _unit(gpu.utilization_pct, "%"),
            _pair_watts(gpu),
            _unit(gpu.temperature_c, "°C"),
            _unit(gpu.sm_clock_mhz, "MHz"),
            gpu.pcie or "–",
            "–" if gpu.nvlinks is None else str(gpu.nvlinks),
            gpu.ecc or "–",
        ]
        for gpu in gpus
    ]
    return table(
        rows, ["#", "GPU", "SM", "used / total GiB", "busy", "power", "temp", "clock", "PCIe", "NVLinks", "ECC"]
    )


def _notes(gpu: Gpu) -> list[str]:
    notes = []
    if not gpu.visible:
        notes.append("hidden by CUDA_VISIBLE_DEVICES")
    held = [word for word in gpu.throttle if word != "idle"]
    if held:
        notes.append("clocks held down by " + ", ".join(held))
    if gpu.display:
        notes.append("drives a display")
    if gpu.mig and gpu.mig != "off":
        notes.append(f"MIG {gpu.mig}")
    reasons: dict[str, list[str]] = {}
    for field, reason in gpu.missing.items():
        reasons.setdefault(reason, []).append(field)
    notes += [
        f"{reason}: {', '.join(fields) if len(fields) <= 6 else f'{len(fields)} readings'}"
        for reason, fields in reasons.items()
        if not reason.startswith("not supported")
    ]
    return [f"GPU {gpu.index}: {note}" for note in notes]


def _users(gpu: Gpu) -> list[str]:
    return [
        f"  GPU {gpu.index}  {process.pid:>8}  {_gib(process.used_mib):>8}  {process.user or '–':<10}  "
        f"{(process.command or '–')[:100]}"
        for process in gpu.processes
    ]


def _host_lines(host: Host) -> list[str]:
    where = ", ".join(part for part in (host.os, host.kernel, "WSL" if host.wsl else "", host.container or "") if part)
    isa = " ".join(host.cpu_isa) or "none of the instruction sets that vLLM's CPU kernels use"
    cores = f"{host.cpu_count or '–'} usable CPUs"
    lines = [
        f"Host:   {where}",
        f"CPU:    {host.cpu_model or '–'}, {cores}; {isa}",
        f"RAM:    {_gib(host.ram_available_mib)} free of {_gib(host.ram_total_mib)}; "
        f"/dev/shm {_gib(host.shm_free_mib)} free of {_gib(host.shm_total_mib)}",
        f"Models: {host.model_cache or '–'} ({host.model_cache_fs or '–'}, {_gib(host.model_cache_free_mib)} free)",
    ]
    if host.open_files_limit is not None and host.open_files_limit < 8192:
        lines.append(f"Limits: {host.open_files_limit} open files (ulimit -n 65535 is safer for a busy server)")
    return lines


def _gib(mib: int | None) -> str:
    return "–" if mib is None else f"{mib / 1024:.1f} GiB"


def _pair(used: int | None, total: int | None) -> str:
    if total is None:
        return "–"
    return f"{'–' if used is None else f'{used / 1024:.1f}'} / {total / 1024:.1f}"


def _pair_watts(gpu: Gpu) -> str:
    if gpu.power_w is None:
        return "–"
    return f"{gpu.power_w:.0f} W" if gpu.power_limit_w is None else f"{gpu.power_w:.0f}/{gpu.power_limit_w:.0f} W"


def _unit(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f} {unit}"
