"""What the keeper asks nvidia-smi: samples for the record, free memory before a start, whose memory is still held.

Through a helper process only: NVML in the keeper would cost more memory than the keeper itself.
"""

from __future__ import annotations

import os

from vq_console.serving.keeping.child import Helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIELDS = (
    "uuid",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "power.draw",
    "temperature.gpu",
    "clocks.sm",
    "clocks_throttle_reasons.active",
)
NAMES = ("uuid", "util_pct", "used_mib", "total_mib", "power_w", "temperature_c", "sm_clock_mhz", "throttle")


def find_nvidia_smi() -> str | None:
    """The nvidia-smi of this machine, also where WSL keeps it."""
    for folder in [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/lib/wsl/lib"]:
        path = f"{folder}/nvidia-smi"
        if folder and os.access(path, os.X_OK):
            return path
    return None


def ask_gpus(tool: str, uuids: list[str], now: float, count: int = len(FIELDS)) -> Helper:
    """Start a sample of these GPUs, of the first `count` fields."""
    return Helper(
        [tool, f"--query-gpu={','.join(FIELDS[:count])}", "--format=csv,noheader,nounits", "-i", ",".join(uuids)],
        now=now,
        timeout_s=15,
    )


def read_gpus(text: str | None) -> list[dict[str, Any]]:
    """The sample; a value that the card does not tell is absent."""
    rows = []
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) > 1:
            rows.append(
                {name: value for name, cell in zip(NAMES, cells, strict=False) if (value := _value(cell)) is not None}
            )
    return rows


def _value(cell: str) -> Any:
    if not cell or cell.startswith(("[", "N/A")):
        return None
    try:
        return float(cell) if "." in cell else int(cell)
    except ValueError:
        return cell


def ask_holders(tool: str, uuids: list[str], now: float) -> Helper:
    """Start asking which processes hold memory of these GPUs."""
    return Helper(
        [tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", "-i", ",".join(uuids)],
        now=now,
        timeout_s=15,
    )


def read_holders(text: str | None) -> set[int]:
    """The pids that hold memory."""
    return {int(line.split(",")[0]) for line in (text or "").splitlines() if line.split(",")[0].strip().isdigit()}


def available_ram_gib() -> float | None:
    """Memory that a new program could have, in GiB, as the kernel estimates it."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) / (1024 * 1024)
    except (OSError, ValueError):
        pass
    return None
