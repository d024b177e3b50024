"""What is known of the machine, as frozen values. Absent is None; `missing` says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that holds memory of a GPU; user and command are None where this user may not see them."""

    pid: int
    used_mib: int | None = None
    user: str | None = None
    command: str | None = None
    kind: str | None = None
    """`compute`, `graphics` or `both`."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One slice of a GPU in MIG mode; CUDA_VISIBLE_DEVICES takes its UUID."""

    uuid: str | None = None
    profile: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. `sm` is the compute capability as `9.0`; `missing` maps a field to the reason.

    `memory_used_mib` is everything that a new process cannot have, what the driver reserves included.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    sm: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None
    """What the driver keeps for itself: no process can have it, CUDA does not count it, nvidia-smi's `used` neither."""
    utilization_pct: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    memory_bus_bits: int | None = None
    throttle: tuple[str, ...] = ()
    pcie: str | None = None
    nvlinks: int | None = None
    mig: str | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    ecc: str | None = None
    display: bool | None = None
    """Drives a display, whose memory and load come and go."""
    visible: bool = True
    """False where CUDA_VISIBLE_DEVICES hides it."""
    processes: tuple[GpuProcess, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def sm_number(self) -> int | None:
        """The capability as vLLM's integers have it: `9.0` is 90, `12.1` is 121."""
        if self.sm is None:
            return None
        major, _, minor = self.sm.partition(".")
        return int(major) * 10 + int(minor or 0)

    @property
    def memory_usable_mib(self) -> int | None:
        """The total as CUDA and vLLM's `--gpu-memory-utilization` count it."""
        return None if self.memory_total_mib is None else self.memory_total_mib - (self.memory_reserved_mib or 0)

    @property
    def memory_free_mib(self) -> int | None:
        if self.memory_total_mib is None or self.memory_used_mib is None:
            return None
        return self.memory_total_mib - self.memory_used_mib

    @property
    def memory_bandwidth_gbs(self) -> float | None:
        """Peak memory bandwidth in GB/s from bus width and highest memory clock (both edges carry data)."""
        if self.memory_bus_bits is None or self.memory_clock_max_mhz is None:
            return None
        return 2 * self.memory_clock_max_mhz * self.memory_bus_bits / 8 / 1000


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the GPUs. Sizes in MiB; `cpu_isa` holds those of avx2, avx512f, avx512_bf16,
    avx512_vnni, avx_vnni, amx_tile, amx_int8, amx_bf16 (on Arm: asimd, asimddp, bf16, i8mm, sve) that the kernel
    reports. CPU count and RAM are what this process may use, where a container sets limits."""

    hostname: str
    boot_id: str | None = None
    os: str | None = None
    kernel: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    cpu_isa: tuple[str, ...] = ()
    cpu_pct: float | None = None
    ram_total_mib: int | None = None
    ram_available_mib: int | None = None
    shm_total_mib: int | None = None
    shm_free_mib: int | None = None
    model_cache: str | None = None
    model_cache_fs: str | None = None
    model_cache_free_mib: int | None = None
    open_files_limit: int | None = None
    open_files_hard_limit: int | None = None
    wsl: bool = False
    container: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that `detect` shows. `gpu_source` is `nvml`, `nvidia-smi` or None; `gpu_reason` why there is none."""

    host: Host
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    gpu_source: str | None = None
    gpu_reason: str | None = None
