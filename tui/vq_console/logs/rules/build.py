"""Causes in builds: drivers, architectures, compilers, FlashInfer's and torch's compilation, Python packages.

Texts: torch, CUDA, Triton, FlashInfer, gcc, nvcc, ninja, pip; vLLM 0.6 to 0.33.
"""

from __future__ import annotations

import re

from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, rule, say, set_args, set_env


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


RULES = (
    rule("driver-too-old", "compiled with an unsupported toolchain", 84, fixes=_driver),
    rule("driver-too-old", "cudaErrorUnsupportedPtxVersion", 70, fixes=_driver),
    rule("driver-too-old", "driver version is insufficient", 86, fixes=_driver),
    rule("driver-too-old", "NVIDIA driver on your system is too old", 86, fixes=_driver),
    rule("driver-too-old", "forward compatibility was attempted on non supported HW", 84, fixes=_driver),
    rule("driver-too-old", "unsupported display driver / cuda driver combination", 84, fixes=_driver),
    rule("driver-too-old", "Error 803", 70, fixes=_driver),
    rule("driver-too-old", "Found no NVIDIA driver on your system", 60, fixes=_driver),
    rule("driver-too-old", "No CUDA GPUs are available", 44, fixes=_driver),
    rule("driver-too-old", "no CUDA-capable device is detected", 44, fixes=_driver),
    rule("driver-too-old", "CUDA driver initialization failed", 44, fixes=_driver),
    rule("driver-too-old", "CUDA unknown error - this may be due to", 42, fixes=_driver),
    rule("driver-too-old", "Driver/library version mismatch", 74, fixes=_driver),
    rule("no-kernel-image", "no kernel image is available for execution", 82),
    rule("no-kernel-image", "invalid device function", 66),
    rule("no-kernel-image", "device kernel image is invalid", 66),
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
        pattern=(
            r"nvcc(?:: (?:command )?not found| fatal|.*No such file or directory)|No such file or directory: "
            r"'[^']*nvcc'"
        ),
        fixes=_jit,
    ),
    rule("flashinfer-jit-failed", "Unsupported gpu architecture", 78, fixes=_jit),
    rule("flashinfer-jit-failed", "CUDA_HOME environment variable is not set", 74, fixes=_jit),
    rule("flashinfer-jit-failed", "No supported CUDA architectures found", 76, fixes=_jit),
    rule("flashinfer-jit-failed", "requires CUDA >=", 74, pattern=r"(?i)SM ?[\d.]+\w? requires CUDA >=", fixes=_jit),
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
        pattern=(
            r"(?:Error|corrupt|No such "
            r"file|failed).*torch_compile_cache|torch_compile_cache.*(?:corrupt|Error|failed)"
        ),
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
    rule("package-env-broken", "has no attribute", 40, pattern=r"module 'torch[\w.]*' has no attribute"),
    rule("package-env-broken", "Torch not compiled with CUDA enabled", 60),
    rule("package-env-broken", "Failed to infer device type", 62),
    rule("package-env-broken", "ResolutionImpossible", 60),
)
