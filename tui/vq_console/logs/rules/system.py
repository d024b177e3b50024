"""Causes around vLLM: NCCL, ports, disks, drivers, builds, compilers, torch.compile, crashes, packages, signals.

Texts: torch, NCCL, CUDA, Triton, FlashInfer, gcc, nvcc, ninja, pip, the shell and the kernel; vLLM 0.6 to 0.33.
"""

from __future__ import annotations

import re

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


def _driver(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Update the NVIDIA driver (nvidia-smi shows the newest CUDA that it can run)."),
        say("Or install a vLLM build for an older CUDA."),
    )


def _jit(hit: Hit) -> tuple[Fix, ...]:
    fixes = [
        say("Install the CUDA toolkit (nvcc, ninja, headers) and set CUDA_HOME, or run `vllm download-kernels`."),
    ]
    if "sampl" in hit.frames:
        fixes.insert(0, set_env("Do without FlashInfer's sampler.", VLLM_USE_FLASHINFER_SAMPLER="0"))
    return tuple(fixes)


def _about_flashinfer(hit: Hit) -> bool:
    near = [line.message for line in hit.context.lines if abs(line.number - hit.line.number) <= 40]
    return any(re.search(r"flashinfer|nvcc|\.cu\b|cutlass", text, re.IGNORECASE) for text in near)


def _eager(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Remove ~/.cache/vllm/torch_compile_cache and start again."),
        set_args("To see whether compilation is the cause: without it.", enforce_eager=True),
    )


def _other_attention(_hit: Hit) -> tuple[Fix, ...]:
    return (
        set_args("Another attention backend.", attention_backend="FLASHINFER"),
        set_args("Half precision needs smaller tiles.", dtype="half"),
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
        pattern=r"(?:failed to extend|Call to posix_fallocate|shm_open|unable to (?:open|allocate|write)|[Ii]nsufficient space in).{0,80}/dev/shm",
        fixes=_shared_memory,
    ),
    rule("nccl-shm-error", "Insufficient space in /dev/shm", 86, fixes=_shared_memory),
    rule(
        "nccl-shm-error",
        "No space left on device",
        79,
        pattern=r"(?:/dev/shm|shm_open|shared memory).*No space left on device|No space left on device.*(?:/dev/shm|/psm_|torch_shm)",
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
    rule("driver-too-old", "compiled with an unsupported toolchain", 84, fixes=_driver),
    rule("driver-too-old", "cudaErrorUnsupportedPtxVersion", 70, fixes=_driver),
    rule("driver-too-old", "driver version is insufficient", 86, fixes=_driver),
    rule("driver-too-old", "NVIDIA driver on your system is too old", 86, fixes=_driver),
    rule("driver-too-old", "forward compatibility was attempted on non supported HW", 84, fixes=_driver),
    rule("driver-too-old", "unsupported display driver / cuda driver combination", 84, fixes=_driver),
    rule("driver-too-old", "Error 803", 70, fixes=_driver),
    rule("driver-too-old", "Found no NVIDIA driver on your system", 60, fixes=_driver),
    rule("driver-too-old", "No CUDA GPUs are available", 44, fixes=_driver),
    rule("driver-too-old", "Driver/library version mismatch", 74, fixes=_driver),
    rule("no-kernel-image", "no kernel image is available for execution", 82),
    rule("no-kernel-image", "invalid device function", 66),
    rule("no-kernel-image", "is not compatible with the current PyTorch installation", 46),
    rule("no-kernel-image", "has no code for", 50, pattern=r"(?:build|binary|library) has no code for"),
    rule("compiler-missing", "Failed to find C compiler", 86),
    rule("compiler-missing", "Python.h: No such file", 86),
    rule("compiler-missing", "No working C++ compiler found", 84),
    rule("compiler-missing", "InvalidCxxCompiler", 84),
    rule(
        "compiler-missing",
        "No such file or directory: '",
        82,
        pattern=r"No such file or directory: '(?:gcc|g\+\+|cc|c\+\+|clang\+?\+?|/usr/bin/(?:gcc|g\+\+|cc))'",
    ),
    rule("compiler-missing", "not found", 78, pattern=r"(?:gcc|g\+\+|cc1plus|\bcc)\b: (?:command )?not found"),
    rule("compiler-missing", "cannot execute '", 78, pattern=r"cannot execute '?cc1plus"),
    rule("compiler-missing", "cannot find -l", 74, pattern=r"cannot find -l(?:cuda|stdc\+\+|python)"),
    rule(
        "compiler-missing", "Command '['", 58, pattern=r"CalledProcessError: Command '\['[^']*(?:gcc|g\+\+|/cc|clang)'"
    ),
    rule(
        "flashinfer-jit-failed",
        "fatal error: ",
        80,
        pattern=r"fatal error: (?P<header>\S+\.(?:h|cuh|hpp)): No such file",
        when=_about_flashinfer,
        fixes=_jit,
        explain=lambda hit: f"FlashInfer compiles at start and does not find {hit.match['header']}.",
    ),
    rule("compiler-missing", "fatal error: ", 70, pattern=r"fatal error: \S+\.h(?:pp)?: No such file"),
    rule("flashinfer-jit-failed", "Could not find nvcc", 84, fixes=_jit),
    rule("flashinfer-jit-failed", "Ninja build failed", 60, fixes=_jit),
    rule("flashinfer-jit-failed", "ninja: build stopped", 50, fixes=_jit),
    rule(
        "flashinfer-jit-failed",
        "'ninja'",
        78,
        pattern=r"(?:No such file or directory|not found|No module named).{0,12}'ninja'",
        fixes=_jit,
    ),
    rule("flashinfer-jit-failed", "inja is required", 78, fixes=_jit),
    rule(
        "flashinfer-jit-failed",
        "nvcc",
        74,
        pattern=r"nvcc(?:: (?:command )?not found| fatal|.*No such file or directory)|No such file or directory: '[^']*nvcc'",
        fixes=_jit,
    ),
    rule("flashinfer-jit-failed", "Unsupported gpu architecture", 78, fixes=_jit),
    rule("flashinfer-jit-failed", "CUDA_HOME environment variable is not set", 74, fixes=_jit),
    rule("flashinfer-jit-failed", "No supported CUDA architectures found", 76, fixes=_jit),
    rule(
        "flashinfer-jit-failed",
        "rror",
        40,
        pattern=r"^[\w.]*(?:Error|Exception)\b",
        when=lambda hit: hit.spot.raised and "flashinfer/jit" in hit.frames,
        fixes=_jit,
    ),
    rule(
        "flashinfer-version-mismatch",
        "flashinfer-",
        80,
        pattern=r"flashinfer-(?:cubin|jit-cache) version \(?.*does not match",
    ),
    rule(
        "flashinfer-version-mismatch",
        "flashinfer",
        70,
        pattern=r"(?i)flashinfer.{0,40}(?:version mismatch|versions? (?:do|does) not match|do not match flashinfer)",
    ),
    rule("torch-compile-failed", "vLLM failed to compile the model", 78, fixes=_eager),
    rule("torch-compile-failed", "BackendCompilerFailed", 52, fixes=_eager),
    rule("torch-compile-failed", "torch._inductor.exc.", 50, fixes=_eager),
    rule("torch-compile-failed", "InductorError", 50, fixes=_eager),
    rule("torch-compile-failed", "torch._dynamo.exc.", 48, fixes=_eager),
    rule("torch-compile-failed", "LoweringException", 48, fixes=_eager),
    rule("torch-compile-failed", "compiled artifact is not serializable", 60, fixes=_eager),
    rule(
        "torch-compile-failed",
        "torch_compile_cache",
        46,
        pattern=r"(?:Error|corrupt|No such file|failed).*torch_compile_cache|torch_compile_cache.*(?:corrupt|Error|failed)",
        fixes=_eager,
    ),
    rule(
        "torch-compile-failed",
        "rror",
        32,
        pattern=r"^[\w.]*(?:Error|Exception)\b",
        when=lambda hit: (
            hit.spot.raised
            and re.search(
                r"torch/_inductor|torch/_dynamo|vllm/compilation/(?:backends|compiler_interface|piecewise)",
                hit.frames[-1500:],
            )
            is not None
        ),
        fixes=_eager,
    ),
    rule(
        "triton-out-of-resources",
        "out of resource:",
        80,
        pattern=r"out of resource: (?P<what>[\w ]+), Required: (?P<need>\d+), Hardware limit: (?P<limit>\d+)",
        fixes=_other_attention,
        explain=lambda hit: (
            f"A kernel needs {hit.match['need']} bytes of {hit.match['what']}, the GPU has {hit.match['limit']}."
        ),
    ),
    rule("triton-out-of-resources", "OutOfResources", 74, fixes=_other_attention),
    rule("triton-out-of-resources", "out of resource", 72, fixes=_other_attention),
    rule(
        "triton-out-of-resources",
        "exceeds default maximum",
        60,
        pattern=r"shared memory.*exceeds|dynamic shared memory",
        fixes=_other_attention,
    ),
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
    rule("worker-died", "Segfault encountered", 50, fixes=_died),
    rule("worker-died", "Segmentation fault", 50, fixes=_died),
    rule("worker-died", "Fatal Python error", 48, fixes=_died),
    rule("worker-died", "died unexpectedly", 24, fixes=_died),
    rule("worker-died", "core dumped", 30, fixes=_died),
    rule("worker-died", "terminate called after throwing", 34, fixes=_died),
    rule("worker-died", "ActorDiedError", 36, fixes=_died),
    rule("worker-died", "SIGSEGV", 46, fixes=_died),
    rule("worker-died", "SIGABRT", 40, fixes=_died),
    rule(
        "package-env-broken",
        "which is incompatible",
        82,
        pattern=r"(?P<what>\S+ \S+) requires (?P<need>[^,]+), but you have (?P<have>.+) which is incompatible",
    ),
    rule("package-env-broken", "No package metadata was found for", 84),
    rule("package-env-broken", "PackageNotFoundError", 80),
    rule("package-env-broken", "DistributionNotFound", 80),
    rule("package-env-broken", "VersionConflict", 76),
    rule(
        "package-env-broken",
        "undefined symbol",
        80,
        explain=lambda hit: "A compiled part was built for another torch than the one installed.",
    ),
    rule("package-env-broken", "cannot open shared object file", 78),
    rule("package-env-broken", "version `GLIBC", 78, pattern=r"version `(?:GLIBC|CXXABI|GLIBCXX)\w*_[\d.]+' not found"),
    rule(
        "package-env-broken",
        "No module named",
        54,
        pattern=r"(?:ModuleNotFound|Import)Error: No module named '(?P<name>[\w.]+)'",
        explain=lambda hit: (
            f"The Python package {hit.match['name'].split('.')[0]} is missing in the engine's environment."
        ),
        fixes=lambda hit: (
            say(f"Install {hit.match['name'].split('.')[0]} into the engine's environment, or reinstall vLLM there."),
        ),
    ),
    rule(
        "package-env-broken",
        "cannot import name",
        52,
        pattern=r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",
        explain=lambda hit: f"{hit.match['module'].split('.')[0]} is of a version that has no {hit.match['name']}.",
    ),
    rule("package-env-broken", "ImportError", 38, pattern=r"^ImportError: "),
    rule("package-env-broken", "dtype size changed", 70),
    rule("package-env-broken", "partially initialized module", 60),
    rule("package-env-broken", "operator torchvision::nms does not exist", 74),
    rule("package-env-broken", "Failed to infer device type", 62),
    rule("package-env-broken", "ResolutionImpossible", 60),
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
