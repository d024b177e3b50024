"""Runs the command line as a person does: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def vq(
    *words: str, timeout: float = 120, code: int | None = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `vq-console WORDS` in the current console home; checks the exit code unless it is None."""
    done = subprocess.run(
        [sys.executable, "-m", "vq_console", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )
    if code is not None:
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    return done


def vq_json(*words: str, timeout: float = 120, code: int | None = 0) -> dict[str, Any]:
    """The JSON answer of a command."""
    value = json.loads(vq(*words, "--json", timeout=timeout, code=code).stdout)
    assert value["schema"].startswith("vq-console/")
    return value


def write_profile(folder: Path, name: str, spec: dict[str, Any], **args: Any) -> Path:
    """A profile for the simulator; `spec` is what the stand-in is told to be."""
    lines = [f'name = "{name}"', 'model = "meta-llama/Llama-3.1-8B-Instruct"', "[args]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in {"max_model_len": 8192, **args}.items()]
    lines += ["[env]", f"VQ_SIM_SPEC = '{json.dumps(spec)}'"]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def processes_of(home: Path) -> list[str]:
    """Command lines of live processes that name this console home or have it in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and f"VQ_CONSOLE_HOME={home}".encode() in environment.split(b"\0"):
            found.append(command)
    return found


def cpu_args() -> dict[str, Any]:
    """The demo's arguments for a 16-bit model on this CPU, in the number format that it is fast at."""
    from vq_console.demo.pair import demo_pairs
    from vq_console.hardware.probe import read_machine

    return dict(demo_pairs("cpu", None, read_machine(processes=False).host.cpu_isa)[-1].a.args)
