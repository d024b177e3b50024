"""Causes around vLLM: NCCL, ports, disks, environment, limits, GPU faults, crashes, signals.

Texts: torch, NCCL, CUDA, the shell and the kernel; vLLM 0.6 to 0.33.
"""

from __future__ import annotations

from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, remove_args, rule, say, set_args, set_env


def _port(hit: Hit) -> tuple[Fix, ...]:
    port = hit.context.asked("port") or 8000
    fixes = [say(f"See who listens on port {port} (`ss -ltnp`) and stop it.")]
    if "port" in hit.context.requested:
        fixes.insert(0, remove_args("Remove port: a free one is then chosen.", "port"))
    elif isinstance(port, int):
        fixes.insert(0, set_args(f"port = {port + 1}.", port=port + 1))
    return tuple(fixes)


def _shared_memory(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Start the container with --ipc=host or --shm-size=16g."),
        say("In Kubernetes mount an emptyDir with medium: Memory at /dev/shm."),
    )


def _nccl(_hit: Hit) -> tuple[Fix, ...]:
    return (
        set_env("Without direct GPU-to-GPU copies.", NCCL_P2P_DISABLE="1"),
        set_env("And let NCCL say why.", NCCL_DEBUG="INFO"),
        say("Update the driver; under WSL also `wsl --update`."),
    )


def _debug(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Upgrade vLLM; force another kernel (moe_backend, linear_backend, attention_backend)."),
        set_env("To find the kernel.", CUDA_LAUNCH_BLOCKING="1"),
    )


def _died(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Read the worker's last lines and `dmesg`; update driver and NCCL."),
        set_args("Try without custom all-reduce.", disable_custom_all_reduce=True),
        set_args("Or without CUDA graphs.", enforce_eager=True),
    )


def _timeout(hit: Hit) -> tuple[Fix, ...]:
    waited = hit.number("waited")
    longer = str(int(max(3600, (waited or 600) * 3)))
    return (
        set_env(f"Wait up to {longer} s.", VLLM_ENGINE_READY_TIMEOUT_S=longer),
        say("Put the weights on a local NVMe disk."),
    )


def _not_ready(hit: Hit) -> bool:
    return hit.before_ready


def _interrupted(_hit: Hit) -> tuple[Fix, ...]:
    return (say("Start again and let it finish; nothing else is wrong."),)


RULES = (
    rule("nccl-shm-error", "Error while creating shared memory segment", 84, fixes=_shared_memory),
    rule(
        "nccl-shm-error",
        "/dev/shm",
        80,
        pattern=(
            r"(?:failed to extend|Call to posix_fallocate|shm_open|unable to (?:open|allocate|write)|[Ii]nsufficient "
            r"space in).{0,80}/dev/shm"
        ),
        fixes=_shared_memory,
    ),
    rule("nccl-shm-error", "Insufficient space in /dev/shm", 86, fixes=_shared_memory),
    rule(
        "nccl-shm-error",
        "No space left on device",
        79,
        pattern=(
            r"(?:/dev/shm|shm_open|shared memory).*No space left on device|No space left on "
            r"device.*(?:/dev/shm|/psm_|torch_shm)"
        ),
        fixes=_shared_memory,
    ),
    rule(
        "nccl-shm-error",
        "shared memory object",
        70,
        pattern=r"unable to (?:open|mmap) shared memory object",
        fixes=_shared_memory,
    ),
    rule("nccl-shm-error", "Bus error", 45, fixes=_shared_memory),
    rule("nccl-shm-error", "insufficient shared memory (shm)", 80, fixes=_shared_memory),
    rule("nccl-error", "NCCL error", 54, pattern=r"NCCL error(?: in|:)", fixes=_nccl),
    rule(
        "nccl-error",
        "nccl",
        46,
        pattern=r"nccl(?:UnhandledCudaError|SystemError|InternalError|RemoteError|InvalidUsage)",
        fixes=_nccl,
    ),
    rule("nccl-error", "DistBackendError", 50, fixes=_nccl),
    rule("nccl-error", "collective operation timeout", 48, fixes=_nccl),
    rule("nccl-error", "DistNetworkError", 44, fixes=_nccl),
    rule("nccl-error", "DistStoreError", 44, fixes=_nccl),
    rule("nccl-error", "peer access is not supported", 50, fixes=_nccl),
    rule("nccl-error", "Error happened when batch testing peer-to-peer access", 48, fixes=_nccl),
    rule("port-in-use", "ddress already in use", 86, fixes=_port),
    rule("port-in-use", "EADDRINUSE", 84, fixes=_port),
    rule("port-in-use", "Errno 98", 84, fixes=_port),
    rule(
        "disk-full",
        "No space left on device",
        76,
        fixes=lambda hit: (say("Free space, or move HF_HOME and VLLM_CACHE_ROOT to a larger volume."),),
    ),
    rule(
        "disk-full",
        "Disk quota exceeded",
        78,
        fixes=lambda hit: (say("Free space, or move HF_HOME and VLLM_CACHE_ROOT to a larger volume."),),
    ),
    rule("disk-full", "Not enough free disk space", 42),
    rule("storage-io-error", "Input/output error", 84),
    rule("storage-io-error", "[Errno 5]", 80),
    rule("storage-io-error", "Stale file handle", 80),
    rule("storage-io-error", "Remote I/O error", 80),
    rule("storage-io-error", "Transport endpoint is not connected", 72),
    rule(
        "engine-ready-timeout",
        "Timed out waiting for engine core processes to start",
        90,
        pattern=r"Timed out waiting for engine core processes to start(?:.*Waited (?P<waited>[\d.]+)s)?",
        fixes=_timeout,
    ),
    rule("engine-ready-timeout", "VLLM_ENGINE_READY_TIMEOUT_S", 80, fixes=_timeout),
    rule("engine-ready-timeout", "did not become ready within", 60, fixes=_timeout),
    rule(
        "env-var-unknown",
        "Unknown vLLM environment variable detected",
        86,
        pattern=r"Unknown vLLM environment variable detected: (?P<name>\w+)",
    ),
    rule(
        "cli-invalid-value", "VLLM_PORT", 80, pattern=r"VLLM_PORT '.*' (?:must be a valid integer|appears to be a URI)"
    ),
    rule("cli-invalid-value", "Valid options:", 70, pattern=r"Invalid value '[^']*' (?:for|in) VLLM_\w+"),
    rule(
        "cuda-fork-reinit",
        "Cannot re-initialize CUDA in forked subprocess",
        86,
        fixes=lambda hit: (
            set_env("Start workers with spawn.", VLLM_WORKER_MULTIPROC_METHOD="spawn"),
            say("In a script guard the entry with `if __name__ == '__main__':`."),
        ),
    ),
    rule(
        "cuda-fork-reinit",
        "finished its bootstrapping phase",
        80,
        fixes=lambda hit: (say("Guard the script's entry with `if __name__ == '__main__':`."),),
    ),
    rule(
        "fd-limit",
        "Too many open files",
        78,
        serving=True,
        fixes=lambda hit: (
            say("ulimit -n 65535 before starting (docker: --ulimit nofile=65535:65535, systemd: LimitNOFILE=)."),
        ),
    ),
    rule(
        "fd-limit",
        "out of system resource",
        79,
        serving=True,
        fixes=lambda hit: (
            say("ulimit -n 65535 before starting (docker: --ulimit nofile=65535:65535, systemd: LimitNOFILE=)."),
        ),
    ),
    rule(
        "gpu-xid-lost",
        "Xid",
        95,
        pattern=r"(?:NVRM: )?Xid \(?PCI\S*\)?:? ?(?P<xid>\d+)",
        explain=lambda hit: f"The driver reported Xid {hit.match['xid']}: a fault of the GPU, its power or its slot.",
    ),
    rule("gpu-xid-lost", "fallen off the bus", 94),
    rule("gpu-xid-lost", "Unable to determine the device handle", 64),
    rule("gpu-xid-lost", "GPU is lost", 80),
    rule("gpu-xid-lost", "uncorrectable ECC error", 84),
    rule("gpu-xid-lost", "NVML_ERROR_GPU_IS_LOST", 80),
    rule(
        "gpu-xid-lost",
        "device is busy or unavailable",
        42,
        pattern=r"CUDA-capable device\(s\) is/are busy or unavailable",
    ),
    rule("illegal-memory-access", "an illegal memory access was encountered", 74, fixes=_debug),
    rule("illegal-memory-access", "misaligned address", 66, fixes=_debug),
    rule("illegal-memory-access", "device-side assert triggered", 56, fixes=_debug),
    rule("illegal-memory-access", "cudaErrorIllegalAddress", 60, fixes=_debug),
    rule("illegal-memory-access", "unspecified launch failure", 44, fixes=_debug),
    rule("illegal-memory-access", "Warp Illegal Address", 66, fixes=_debug),
    rule(
        "cpu-illegal-instruction",
        "llegal instruction",
        76,
        pattern=r"^(?:.*: line \d+: +\d+ )?Illegal instruction\b",
        fixes=lambda hit: (say("Use a build for this CPU (see `lscpu`: AVX2, AVX-512, AMX)."),),
    ),
    rule("cpu-illegal-instruction", "SIGILL", 76),
    rule("cpu-illegal-instruction", "exit code", 74, pattern=r"exit(?:ed with)?(?: code|code)?:? ?(?:-4|132)\b"),
    rule("cpu-illegal-instruction", "exit code: -4", 76),
    rule(
        "worker-died",
        "died unexpectedly (exit code: ",
        57,
        pattern=r"died unexpectedly \(exit code: (?P<code>-\d+|\d+)\)",
        fixes=_died,
        explain=lambda hit: f"A worker ended with exit code {hit.match['code']} and left no Python error.",
    ),
    rule(
        "worker-died",
        "exit",
        38,
        pattern=r"(?i)(?:died|exited|terminated|failed)\b.{0,30}\bexit[ -]?(?:code|status):? ?"
        r"(?:-(?:6|7|8|11)|134|135|136|139)\b",
        fixes=_died,
    ),
    rule("worker-died", "Segfault encountered", 50, fixes=_died),
    rule("worker-died", "Segmentation fault", 50, fixes=_died),
    rule("worker-died", "Fatal Python error", 48, fixes=_died),
    rule("worker-died", "died unexpectedly", 24, fixes=_died),
    rule("worker-died", "core dumped", 30, fixes=_died),
    rule("worker-died", "terminate called after throwing", 34, fixes=_died),
    rule("worker-died", "ActorDiedError", 36, fixes=_died),
    rule("worker-died", "SIGSEGV", 46, fixes=_died),
    rule("worker-died", "SIGABRT", 40, fixes=_died),
    rule("startup-interrupted", "died with <Signals.SIGINT", 88, fixes=_interrupted),
    rule("startup-interrupted", "died with <Signals.SIGTERM", 87, fixes=_interrupted),
    rule(
        "startup-interrupted",
        "KeyboardInterrupt",
        64,
        pattern=r"^(?:\w+\.)*KeyboardInterrupt\b",
        when=_not_ready,
        fixes=_interrupted,
    ),
    rule(
        "startup-interrupted",
        "exit code: -15",
        58,
        pattern=r"died unexpectedly \(exit code: (?:-15|-2|143|130)\)",
        when=_not_ready,
        fixes=_interrupted,
    ),
    rule(
        "startup-interrupted",
        "Received SIG",
        56,
        pattern=r"Received SIG(?:INT|TERM)",
        when=_not_ready,
        fixes=_interrupted,
    ),
    rule(
        "startup-interrupted",
        "keyboard interrupt",
        50,
        pattern=r"(?i)keyboard interrupt",
        when=_not_ready,
        fixes=_interrupted,
    ),
)
