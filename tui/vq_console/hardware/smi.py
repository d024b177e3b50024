"""nvidia-smi as the second source, for machines where NVML cannot be opened by this Python. Parses its CSV only."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from vq_console.hardware.gpus import MIB
from vq_console.hardware.raw import LOST, NoGpuSourceError, UnreadableError

QUERY = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "mig.mode.current",
    "ecc.mode.current",
    "display_active",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)
_WSL = "/usr/lib/wsl/lib/nvidia-smi"
_MISSING = re.compile(r"^\[?(N/A|Not Supported|Unknown Error|GPU is lost|Insufficient Permissions|[^\]]*)\]$")
_REASONS = {"GPU is lost": LOST, "Insufficient Permissions": "this user may not read it"}

Runner = Callable[[Sequence[str]], tuple[int, str]]


def run_smi(arguments: Sequence[str]) -> tuple[int, str]:
    """Run nvidia-smi (10 s at most); gives its exit code and what it printed. Raises NoGpuSourceError without it."""
    path = shutil.which("nvidia-smi") or (_WSL if os.access(_WSL, os.X_OK) else None)
    if path is None:
        raise NoGpuSourceError("nvidia-smi is not installed")
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=10,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoGpuSourceError("nvidia-smi did not answer within 10 s") from error
    except OSError as error:
        raise NoGpuSourceError(f"nvidia-smi cannot be run ({error})") from error
    return done.returncode, done.stdout.decode(errors="replace")


class SmiSource:
    """One answer of nvidia-smi, read field by field. Raises NoGpuSourceError when it has none."""

    label = "nvidia-smi"

    def __init__(self, run: Runner = run_smi) -> None:
        self._run = run
        self._rows: list[dict[str, str]] = []
        self._used: dict[str, list[list[Any]]] | None = None
        self._used_reason = "nvidia-smi does not list processes here"
        self.refresh()

    def refresh(self) -> None:
        """Ask again: one process, tens to hundreds of milliseconds."""
        fields = list(QUERY)
        while True:
            code, text = self._run([f"--query-gpu={','.join(fields)}", "--format=csv,nounits"])
            unknown = re.search(r'Field "([^"]+)" is not a valid field', text)
            if code == 0 or unknown is None or unknown.group(1) not in fields:
                break
            fields.remove(unknown.group(1))
        self._rows = _rows(text, fields) if code == 0 else []
        if not self._rows:
            raise NoGpuSourceError(f"nvidia-smi: {' '.join(text.split())[:200] or f'exit code {code}'}")
        code, text = self._run(["--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,nounits"])
        self._used = None if code else _processes(text)

    def system(self, field: str) -> str:
        if field == "driver":
            return str(self._text(0, "driver_version"))
        code, text = self._run(["--version"])
        found = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", text) if code == 0 else None
        if found is None:
            raise UnreadableError("this nvidia-smi does not print it")
        return found.group(1)

    def count(self) -> int:
        return len(self._rows)

    def read(self, index: int, field: str) -> Any:
        if field in _NUMBERS:
            return round(self._number(index, _NUMBERS[field]))
        if field in ("power", "power_limit"):
            return round(1000 * self._number(index, "power.draw" if field == "power" else "power.limit"))
        if field in ("name", "uuid"):
            return self._text(index, field)
        if field == "capability":
            major, _, minor = self._text(index, "compute_cap").partition(".")
            return [int(major), int(minor or 0)]
        if field == "memory":
            total = self._number(index, "memory.total")
            try:
                used = total - self._number(index, "memory.free")
            except UnreadableError:
                used = self._number(index, "memory.used")
            return [round(total * MIB), round(used * MIB)]
        if field == "pcie":
            names = ("gen.current", "width.current", "gen.max", "width.max")
            return [round(self._number(index, f"pcie.link.{name}")) for name in names]
        if field == "throttle":
            newer = "clocks_event_reasons.active" in self._rows[index]
            return int(
                self._text(index, "clocks_event_reasons.active" if newer else "clocks_throttle_reasons.active"), 16
            )
        if field == "mig":
            return {"enabled": self._text(index, "mig.mode.current") == "Enabled", "devices": []}
        if field == "ecc":
            return {"enabled": self._text(index, "ecc.mode.current") == "Enabled", "uncorrected": None}
        if field == "display":
            return self._text(index, "display_active") == "Enabled"
        if field == "processes":
            if self._used is None:
                raise UnreadableError(self._used_reason)
            return self._used.get(self._text(index, "uuid"), [])
        raise UnreadableError("nvidia-smi does not say; NVML would")

    def close(self) -> None:
        return None

    def _text(self, index: int, name: str) -> str:
        value = self._rows[index].get(name)
        if value is None:
            raise UnreadableError("this nvidia-smi does not know it")
        missing = _MISSING.match(value)
        if missing or value in ("N/A", ""):
            text = missing.group(1) if missing else "N/A"
            reason = _REASONS.get(text, "not supported by this GPU or driver")
            raise UnreadableError(reason, lost=reason == LOST)
        return value

    def _number(self, index: int, name: str) -> float:
        text = self._text(index, name)
        try:
            return float(text.split()[0])
        except ValueError as error:
            raise UnreadableError(f"nvidia-smi says {text!r}") from error


_NUMBERS = {
    "utilization": "utilization.gpu",
    "temperature": "temperature.gpu",
    "sm_clock": "clocks.sm",
    "sm_clock_max": "clocks.max.sm",
    "memory_clock": "clocks.mem",
    "memory_clock_max": "clocks.max.mem",
}


def _rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    lines = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    return [
        {name: cell.strip() for name, cell in zip(fields, line, strict=True)}
        for line in lines[1:]
        if len(line) == len(fields)
    ]


def _processes(text: str) -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = {}
    for line in list(csv.reader(io.StringIO(text), skipinitialspace=True))[1:]:
        if len(line) == 3 and line[1].strip().isdigit():
            used = line[2].strip()
            amount = round(float(used) * MIB) if re.fullmatch(r"\d+(\.\d+)?", used) else None
            found.setdefault(line[0].strip(), []).append([int(line[1]), amount, "compute"])
    return found
