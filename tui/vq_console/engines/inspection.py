"""What vLLM an environment has: version, device, how to start it, what else is installed. From files alone."""

from __future__ import annotations

import configparser
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vq_console.engines.model import Engine

PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)

DECIDING = (
    "torch",
    "triton",
    "transformers",
    "compressed-tensors",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "humming-kernels",
    "quack-kernels",
    "nvidia-cutlass-dsl",
    "deep-gemm",
    "deep-ep",
    "torchao",
    "llmcompressor",
    "bitsandbytes",
    "gguf",
    "amd-quark",
    "nvidia-modelopt",
    "huggingface-hub",
    "fastsafetensors",
    "runai-model-streamer",
    "lmcache",
    "ray",
    "xgrammar",
    "numpy",
)
"""Distributions whose versions decide what runs; the keys of `Engine.installed`."""


def inspect_environment(python: str, origin: str, folders: Sequence[Path]) -> Engine | None:
    """The engine of an interpreter that sees `folders`, or None when no vLLM is in them."""
    listed = [(folder, _distributions(folder)) for folder in folders]
    package = next((found for folder, names in listed if (found := vllm_package(folder, names)) is not None), None)
    if package is None:
        return None
    distribution, metadata_version = _vllm_distribution(listed)
    version = metadata_version or _source_version(package)
    installed = _installed(listed)
    problem = None
    if "torch" not in installed:
        problem = "no torch beside this vLLM"
    elif version is None:
        problem = "this vLLM does not say its version"
    elif not os.access(python, os.X_OK):
        problem = "the interpreter is gone or not executable"
    return Engine(
        python=python,
        vllm_version=version,
        device=device_of(version, distribution, package, installed.get("torch")),
        origin=origin,
        site=str(package),
        launch=launch_arguments(python, distribution, package),
        plugins=_plugins(listed, distribution),
        installed=installed,
        problem=problem,
        distribution=distribution,
    )


def launch_arguments(python: str, distribution: str | None, package: Path) -> tuple[str, ...]:
    """What comes before the model.

    `vllm serve` asks for the metadata of a distribution named `vllm` and dies without it, so a build under another
    name is started by its API server module. That one parses a positional model and then ignores it (it would serve
    its default), so the model goes by `--model` there. Source: vLLM 0.32 entrypoints/cli/main.py, cli/serve.py.
    """
    if distribution == "vllm":
        return (python, "-m", "vllm.entrypoints.cli.main", "serve")
    module = "vllm.entrypoints.openai.api_server"
    if not (package / "entrypoints/openai/api_server.py").is_file():
        module = "vllm.entrypoints.launchers.api_server.entry"
    return (python, "-m", module, "--model")


def device_of(version: str | None, distribution: str | None, package: Path, torch: str | None) -> str | None:
    """What a build runs on: by its local version, its distribution's name, its libraries, then its torch."""
    local = (version or "").partition("+")[2]
    for text in (local, (distribution or "").removeprefix("vllm-")):
        for start, device in (("cpu", "cpu"), ("cu", "cuda"), ("rocm", "rocm"), ("xpu", "xpu"), ("tpu", "tpu")):
            if text.startswith(start):
                return device
    names = _names(package)
    if any(name.startswith(("_C_AVX", "_C_cpu")) for name in names):
        return "cpu"
    if any(name.startswith("_rocm_C") for name in names):
        return "rocm"
    if any(name.startswith(("_moe_C", "_flashmla_C", "cumem_allocator")) for name in names):
        return "cuda"
    local = (torch or "").partition("+")[2]
    for start, device in (("cpu", "cpu"), ("cu", "cuda"), ("rocm", "rocm"), ("xpu", "xpu")):
        if local.startswith(start):
            return device
    return None


def vllm_package(folder: Path, names: Mapping[str, str] | None = None) -> Path | None:
    """The `vllm` package that this folder provides, itself or as an editable install."""
    if (folder / "vllm/__init__.py").is_file():
        return folder / "vllm"
    for name, directory in (_distributions(folder) if names is None else names).items():
        if name != "vllm" and not name.startswith("vllm-"):
            continue
        try:
            origin = json.loads((folder / directory / "direct_url.json").read_text(errors="replace"))
            url = urlsplit(str(origin["url"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        source = Path(unquote(url.path)) / "vllm"
        if url.scheme == "file" and (source / "__init__.py").is_file() and (source / "version.py").is_file():
            return source
    return None


def _distributions(folder: Path) -> dict[str, str]:
    """The metadata folders of a package folder, by normalized distribution name."""
    found = {}
    for name in _names(folder):
        match = re.fullmatch(r"(.+?)-[^-]+\.dist-info", name)
        if match:
            found[re.sub(r"[-_.]+", "-", match[1]).lower()] = name
    return found


def _vllm_distribution(listed: Iterable[tuple[Path, Mapping[str, str]]]) -> tuple[str | None, str | None]:
    """Name and version of the distribution that vLLM came as; a plugin named `vllm-…` is not it."""
    others = []
    for folder, names in listed:
        if "vllm" in names:
            return "vllm", _version_of(names["vllm"])
        others += [(folder, name, directory) for name, directory in names.items() if name.startswith("vllm-")]
    for folder, name, directory in others:
        try:
            record = (folder / directory / "RECORD").read_bytes()
        except OSError:
            continue
        if b"\nvllm/__init__.py," in b"\n" + record:
            return name, _version_of(directory)
    return None, None


def _version_of(directory: str) -> str:
    return directory.removesuffix(".dist-info").rpartition("-")[2]


def _source_version(package: Path) -> str | None:
    try:
        text = (package / "_version.py").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"""^(?:__version__ = )?version\s*=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
    return found[1] if found else None


def _installed(listed: Iterable[tuple[Path, Mapping[str, str]]]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for folder, names in listed:
        for name in DECIDING:
            if name in names and name not in versions:
                versions[name] = _version_of(names[name])
                if name == "torch":
                    versions[name] = _torch_version(folder) or versions[name]
    return versions


def _torch_version(folder: Path) -> str | None:
    """torch's own version, which names the CUDA version where the metadata of the wheel does not."""
    try:
        text = (folder / "torch/version.py").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"""^__version__ = ['"]([^'"]+)['"]""", text, re.MULTILINE)
    if found is None:
        return None
    cuda = re.search(r"""^cuda\b[^=]*=\s*['"](\d+)\.(\d+)['"]""", text, re.MULTILINE)
    return f"{found[1]}+cu{cuda[1]}{cuda[2]}" if cuda and "+" not in found[1] else found[1]


def _plugins(listed: Iterable[tuple[Path, Mapping[str, str]]], own: str | None) -> tuple[str, ...]:
    plugins: list[str] = []
    for folder, names in listed:
        for name, directory in names.items():
            if name == own or name in plugins:
                continue
            try:
                text = (folder / directory / "entry_points.txt").read_text(errors="replace")
            except OSError:
                continue
            if "vllm." in text and _registers(text):
                plugins.append(name)
    return tuple(sorted(plugins))


def _registers(entry_points: str) -> bool:
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
    try:
        parser.read_string(entry_points)
    except configparser.Error:
        return False
    return any(parser.has_section(group) and parser.options(group) for group in PLUGIN_GROUPS)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def built_for(folder: Path) -> str | None:
    """The Python version that the compiled packages of a folder need, from their wheel tags (`cp312-cp312-…`)."""
    for name in _distributions(folder).values():
        try:
            text = (folder / name / "WHEEL").read_text(errors="replace")
        except OSError:
            continue
        found = re.search(r"^Tag: cp3(\d+)-cp3\1-", text, re.MULTILINE)
        if found:
            return f"3.{found[1]}"
    return None
