"""The host by psutil and /proc: what decides CPU kernels, whether a model fits on disk and in RAM, and limits."""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vq_console.core.text import strip_control
from vq_console.hardware.model import Host

MIB = 1024 * 1024

X86_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
ARM_FLAGS = ("asimd", "asimddp", "bf16", "i8mm", "sve")


def model_cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    """Where Hugging Face puts models: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME or ~/.cache/huggingface.

    Source: huggingface_hub constants.
    """
    env = os.environ if environment is None else environment
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    home = env.get("HF_HOME")
    if not home:
        home = os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def read_host(root: Path = Path("/")) -> Host:
    """The host now. `root` stands for `/` in tests. Never raises; what cannot be read is None with a reason."""
    import psutil

    missing: dict[str, str] = {}
    cpu_model, flags = parse_cpuinfo(_read(root / "proc/cpuinfo") or "")
    if cpu_model is None:
        missing["cpu_model"] = "/proc/cpuinfo does not say"
    memory = psutil.virtual_memory()
    limit, used = cgroup_memory(root / "sys/fs/cgroup")
    total, available = memory.total, memory.available
    if limit is not None and limit < total:
        total = limit
        available = min(available, limit - used) if used is not None else min(available, limit)
    shm_total, shm_free = _space(root / "dev/shm")
    if shm_total is None:
        missing["shm_total_mib"] = missing["shm_free_mib"] = "there is no /dev/shm"
    cache = model_cache_dir()
    existing = next((part for part in (cache, *cache.parents) if part.is_dir()), Path("/"))
    _, cache_free = _space(existing)
    file_system = file_system_of(existing, _read(root / "proc/self/mountinfo") or "")
    if file_system is None:
        missing["model_cache_fs"] = "/proc/self/mountinfo does not say"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cpu_pct = _cpu_percent(psutil.cpu_percent)
    if cpu_pct is None:
        missing["cpu_pct"] = "needs two readings"
    kernel = platform.release()
    boot_id = _read(root / "proc/sys/kernel/random/boot_id")
    if boot_id is None:
        missing["boot_id"] = "/proc does not say"
    return Host(
        hostname=socket.gethostname(),
        boot_id=boot_id.strip() if boot_id else None,
        os=os_name(_read(root / "etc/os-release") or "") or platform.system(),
        kernel=kernel,
        cpu_model=cpu_model,
        cpu_count=_usable_cpus(root / "sys/fs/cgroup"),
        cpu_isa=flags,
        cpu_pct=cpu_pct,
        ram_total_mib=total // MIB,
        ram_available_mib=max(available, 0) // MIB,
        shm_total_mib=shm_total,
        shm_free_mib=shm_free,
        model_cache=str(cache),
        model_cache_fs=file_system,
        model_cache_free_mib=cache_free,
        open_files_limit=None if soft == resource.RLIM_INFINITY else soft,
        open_files_hard_limit=None if hard == resource.RLIM_INFINITY else hard,
        wsl="microsoft" in kernel.lower(),
        container=container_kind(root, os.environ),
        missing=missing,
    )


def refresh_host(known: Host, root: Path = Path("/")) -> Host:
    """`known` with what changes from second to second: load and memory. Never raises."""
    import psutil

    memory = psutil.virtual_memory()
    limit, used = cgroup_memory(root / "sys/fs/cgroup")
    available = memory.available
    if limit is not None and limit < memory.total:
        available = min(available, limit - used) if used is not None else min(available, limit)
    cpu_pct = _cpu_percent(psutil.cpu_percent)
    missing = {name: why for name, why in known.missing.items() if name != "cpu_pct" or cpu_pct is None}
    return replace(known, cpu_pct=cpu_pct, ram_available_mib=max(available, 0) // MIB, missing=missing)


def parse_cpuinfo(text: str) -> tuple[str | None, tuple[str, ...]]:
    """The CPU's name and those of its instruction sets that decide vLLM's CPU kernels."""
    name = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    if flags is None:
        return (strip_control(name[1]).strip() if name else None), ()
    known = X86_FLAGS if flags[1] == "flags" else ARM_FLAGS
    has = set(flags[2].split())
    return (strip_control(name[1]).strip() if name else None), tuple(flag for flag in known if flag in has)


def os_name(os_release: str) -> str | None:
    """PRETTY_NAME of /etc/os-release."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?', os_release, re.MULTILINE)
    return strip_control(found[1]) if found else None


def file_system_of(path: Path, mountinfo: str) -> str | None:
    """The type of the file system that holds `path`, from the text of /proc/self/mountinfo."""
    best, kind = "", None
    target = os.path.realpath(path)
    for line in mountinfo.split("\n"):
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        at = fields[4].encode().decode("unicode_escape")
        inside = target == at or target.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= len(best):
            best, kind = at, right.split()[0]
    return kind


def container_kind(root: Path, environment: Mapping[str, str]) -> str | None:
    """`docker`, `podman`, `kubernetes` or another name when this process runs in a container."""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    if environment.get("container"):
        return strip_control(environment["container"])[:40]
    groups = _read(root / "proc/1/cgroup") or ""
    found = re.search(r"docker|kubepods|lxc|containerd|libpod", groups)
    return {"kubepods": "kubernetes", "libpod": "podman"}.get(found[0], found[0]) if found else None


def cgroup_memory(base: Path) -> tuple[int | None, int | None]:
    """The container's memory limit and use in bytes; None where there is no limit."""
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit = _number(base / limit_name)
        if limit is not None and limit < 1 << 60:
            return limit, _number(base / used_name)
    return None, None


def _usable_cpus(base: Path) -> int | None:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = (_read(base / "cpu.max") or "").split()
    if count and len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        count = min(count, math.ceil(int(quota[0]) / int(quota[1])))
    return count


_polled = False


def _cpu_percent(measure: object) -> float | None:
    global _polled
    value = measure(None) if callable(measure) else None
    first, _polled = not _polled, True
    return None if first else value


def _space(path: Path) -> tuple[int | None, int | None]:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None, None
    return stat.f_blocks * stat.f_frsize // MIB, stat.f_bavail * stat.f_frsize // MIB


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
