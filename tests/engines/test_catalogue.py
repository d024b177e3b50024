"""The extractor on small made-up sources, the cache, the snapshot; the real installation in `test_real_engine.py`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conftest import add_vllm, make_venv
from vq_console.engines.catalogue import catalogue_from_json, catalogue_json, read_catalogue
from vq_console.engines.extract import extract
from vq_console.engines.find import engine_at, simulated_engine
from vq_console.engines.model import Catalogue, Flag
from vq_console.engines.snapshot import known_versions, nearest_version, newest_version, snapshot

EXCERPT = Path(__file__).parents[1] / "data/engines/excerpt"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the excerpt, to be changed."""
    shutil.copytree(EXCERPT, tmp_path / "vllm")
    return tmp_path / "vllm"


def test_every_list_of_the_excerpt(package: Path) -> None:
    found = extract(package, "0.99.0")
    assert found.unknown == {}
    assert found.quantization == ("awq", "fp8", "online", "fp8_per_tensor", "int8_moe")
    assert found.deprecated == ("fbgemm_fp8",)
    assert found.online == ("fp8_per_tensor", "int8_moe")
    assert found.quant_keys == ("fp8_per_tensor_static", "int8_per_channel_static", "fp8_per_token")
    assert found.kv_cache_dtypes == ("auto", "fp8", "nvfp4")
    assert found.kv_cache_dtypes_closed is False
    assert found.linear_backends == ("auto", "marlin", "cutlass")
    assert found.moe_backends == ("auto", "triton")
    assert found.attention_backends == ("FLASH_ATTN", "TORCH_SDPA")
    assert found.load_formats == ("auto", "dummy")
    assert found.dtypes == ("auto", "bfloat16")
    assert found.env == ("VLLM_CACHE_ROOT", "MAX_JOBS")
    assert found.min_capability == {"awq": 75, "fp8": 75, "online": 80, "fp8_per_tensor": 80, "int8_moe": 80}
    assert found.method_classes is not None
    assert found.method_classes["fp8"] == "NewFp8Config"
    assert found.linear_backend_kernels == {"marlin": ("MarlinA", "MarlinB"), "cutlass": ("CutlassA",)}
    assert found.kernel_order == {
        "fp8": {"CUDA": ("CutlassA", "MarlinA"), "CPU": ()},
        "mixed_precision": {"CUDA": ("MarlinB",)},
    }
    assert found.platform_quantization == {"cuda": None, "rocm": ("awq", "fp8")}


def test_online_shorthands_say_what_they_do(package: Path) -> None:
    schemes = extract(package, None).online_schemes
    assert schemes is not None
    per_tensor, moe_only = schemes["fp8_per_tensor"], schemes["int8_moe"]
    assert per_tensor.linear_weight == "fp8_per_tensor_static"
    assert per_tensor.linear_activation == "fp8_per_token or kFp8DynamicTensorSym"
    assert per_tensor.linear_method == "PerTensorMethod"
    assert moe_only.linear_weight is None
    assert moe_only.moe_weight == "int8_per_channel_static"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model", Flag("model", "str", help="Name or path.")),
        ("max_model_len", Flag("max_model_len", "int", suffixes=True)),
        ("seed", Flag("seed", "int")),
        ("quantization", Flag("quantization", "str", aliases=("-q",))),
        ("dtype", Flag("dtype", "choice", choices=("auto", "bfloat16"))),
        ("trust_remote_code", Flag("trust_remote_code", "bool", negatable=True)),
        ("hf_token", Flag("hf_token", "str", optional=True)),
        ("served_model_name", Flag("served_model_name", "str", many=True)),
        ("sizes", Flag("sizes", "int", many=True)),
        ("rank", Flag("rank", "int", choices=("1", "8"))),
        ("overrides", Flag("overrides", "json")),
        ("compilation_config", Flag("compilation_config", "json", aliases=("-cc",))),
        ("kv_cache_dtype", Flag("kv_cache_dtype", "str")),
        (
            "gpu_memory_utilization",
            Flag("gpu_memory_utilization", "float", aliases=("device_memory_utilization",)),
        ),
        ("moe_backend", Flag("moe_backend", "choice", choices=("auto", "triton"))),
        ("speculative_config", Flag("speculative_config", "json")),
        ("device_ids", Flag("device_ids", "str", help="Comma-separated.")),
        ("data_parallel_rank", Flag("data_parallel_rank", "int", aliases=("-dpn",))),
        ("disable_log_stats", Flag("disable_log_stats", "bool")),
        ("level", Flag("level", "choice", choices=("INFO", "DEBUG"))),
        ("enable_log_requests", Flag("enable_log_requests", "bool", negatable=True)),
        ("port", Flag("port", "int", help="Port number.")),
        ("allowed_origins", Flag("allowed_origins", "json")),
        ("middleware", Flag("middleware", "str", repeat=True)),
        ("lora_modules", Flag("lora_modules", "str", many=True)),
        ("response_role", Flag("response_role", "str")),
        ("headless", Flag("headless", "bool")),
        ("config", Flag("config", "str", help="A file.")),
    ],
)
def test_flags_of_the_excerpt(name: str, expected: Flag) -> None:
    flags = extract(EXCERPT, None).flags
    assert flags is not None
    assert flags[name] == expected


def test_a_flags_other_long_name_leads_to_it() -> None:
    flags = extract(EXCERPT, None).flags
    assert flags is not None
    assert flags["device_memory_utilization"] is flags["gpu_memory_utilization"]


@pytest.mark.parametrize(
    ("file", "old", "new", "lost"),
    [
        ("config/cache.py", "CacheDType =", "KVDType =", {"kv_cache_dtypes", "kv_cache_dtypes_closed"}),
        ("config/kernel.py", "LinearBackend =", "LinearChoice =", {"linear_backends"}),
        ("envs.py", "environment_variables", "registry", {"env"}),
        ("envs.py", None, None, {"env"}),
        ("v1/attention/backends/registry.py", "AttentionBackendEnum", "Attention", {"attention_backends"}),
        ("engine/arg_utils.py", "class EngineArgs", "class Arguments", {"flags"}),
        ("entrypoints/common/cli_args.py", "def make_arg_parser", "def build_parser", {"flags"}),
        ("model_executor/layers/quantization/__init__.py", "QuantizationMethods =", "Methods =", {"quantization"}),
        (
            "model_executor/layers/quantization/__init__.py",
            "def get_quantization_config",
            "def config_of",
            {"method_classes", "min_capability"},
        ),
        (
            "model_executor/kernels/linear/__init__.py",
            "_LINEAR_BACKEND_KERNEL_MAP",
            "_KERNELS_OF",
            {"linear_backend_kernels"},
        ),
        ("model_executor/model_loader/__init__.py", 'Literal["auto", "dummy"]', "make_formats()", {"load_formats"}),
        ("config/model.py", "ModelDType = Literal[", "ModelDType = Literal[(", {"dtypes"}),
    ],
)
def test_a_symbol_that_moved_costs_only_its_own_list(
    package: Path, file: str, old: str | None, new: str | None, lost: set[str]
) -> None:
    path = package / file
    if old is None or new is None:
        path.unlink()
    else:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    before, after = extract(EXCERPT, None), extract(package, None)
    assert set(after.unknown) == lost
    assert all(after.unknown.values())
    for field in Catalogue.__slots__:
        if field in lost:
            assert getattr(after, field) is None
        elif field != "unknown" and not (field == "flags" and file.startswith("config/")):
            assert getattr(after, field) == getattr(before, field), field


def test_a_list_that_moved_and_is_imported_back_is_followed(package: Path) -> None:
    path = package / "config/cache.py"
    text = path.read_text()
    (package / "config/kv_types.py").write_text('from typing import Literal\n\nCacheDType = Literal["auto", "int2"]\n')
    start = text.index("CacheDType =")
    path.write_text("from .kv_types import (\n    CacheDType,  # moved\n)\n" + text[text.index("\n\n", start) :])
    assert extract(package, None).kv_cache_dtypes == ("auto", "int2")


def test_frontend_arguments_are_looked_for_when_they_move_again(package: Path) -> None:
    (package / "entrypoints/new").mkdir()
    (package / "entrypoints/common/cli_args.py").rename(package / "entrypoints/new/cli_args.py")
    flags = extract(package, None).flags
    assert flags is not None
    assert "allowed_origins" in flags


def test_source_that_is_never_run(package: Path) -> None:
    marker = package / "ran"
    for path in package.rglob("*.py"):
        path.write_text(path.read_text() + f"\nopen({str(marker)!r}, 'w').close()\n")
    extract(package, None)
    assert not marker.exists()


def test_an_empty_package_is_unknown_and_not_empty(tmp_path: Path) -> None:
    found = extract(tmp_path, "0.1.0")
    fields = [name for name in Catalogue.__slots__ if name not in ("vllm_version", "origin", "unknown")]
    assert {name for name in fields if getattr(found, name) is not None} == set()
    assert set(found.unknown) == set(fields)


def test_json_and_back() -> None:
    found = extract(EXCERPT, "0.99.0")
    assert catalogue_from_json(json.loads(json.dumps(catalogue_json(found)))) == found


def test_the_cache_is_used_and_renewed(machine: Path, vq_home: Path, package: Path) -> None:
    site = make_venv(machine / ".venv")
    add_vllm(site, "0.99.0")
    shutil.copytree(package, site / "vllm", dirs_exist_ok=True)
    engine = engine_at(str(machine / ".venv"))
    first = read_catalogue(engine)
    assert first.origin == "source"
    kept = list((vq_home / "cache/catalogues").iterdir())
    assert len(kept) == 1
    assert read_catalogue(engine) == first
    value = json.loads(kept[0].read_text())
    value["catalogue"]["dtypes"] = ["from the cache"]
    kept[0].write_text(json.dumps(value))
    assert read_catalogue(engine).dtypes == ("from the cache",)
    kept[0].write_text("{broken")
    assert read_catalogue(engine) == first
    cache = site / "vllm/config/cache.py"
    cache.write_text(cache.read_text().replace('"nvfp4"', '"nvfp5"'))
    os.utime(cache, ns=(1, 1))
    assert read_catalogue(engine).kv_cache_dtypes == ("auto", "fp8", "nvfp5")


def test_without_source_it_is_the_snapshot(machine: Path) -> None:
    site = make_venv(machine / ".venv")
    add_vllm(site, "0.27.1")
    engine = engine_at(str(machine / ".venv"))
    found = read_catalogue(engine)
    assert (found.origin, found.vllm_version) == ("snapshot", "0.27.1")
    assert read_catalogue(simulated_engine()).origin == "snapshot"
    assert read_catalogue(replace(engine, site="/gone")).origin == "snapshot"


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("0.32.0", "0.32.0"),
        ("0.32.0+cpu", "0.32.0"),
        ("0.32.5.dev3", "0.32.0"),
        ("0.25.1", "0.24.0"),
        ("0.19.0", "0.20.2"),
        ("0.40.0", "0.33.0"),
        ("dev", "0.33.0"),
        (None, "0.33.0"),
    ],
)
def test_nearest_version(asked: str | None, given: str) -> None:
    assert nearest_version(asked) == given
    assert snapshot(asked).vllm_version == given


def test_the_snapshot_is_complete() -> None:
    assert newest_version() == known_versions()[-1] == "0.33.0"
    for version in known_versions():
        found = snapshot(version)
        assert found.origin == "snapshot"
        absent = {name for name in Catalogue.__slots__ if getattr(found, name) is None}
        early = {"online_schemes", "quant_keys", "linear_backends", "linear_backend_kernels"}
        assert absent == (early if version == "0.20.2" else set()), version
        assert set(found.unknown) == absent
        assert found.flags is not None
        assert not [flag.name for flag in found.flags.values() if flag.kind is None], version


REFERENCE = json.loads((EXCERPT.parent / "vllm-catalog.json").read_text())["versions"]
LISTS = {
    "quantization_methods": "quantization",
    "deprecated": "deprecated",
    "online_shorthands": "online",
    "quant_key_names": "quant_keys",
    "cache_dtypes": "kv_cache_dtypes",
    "linear_backends": "linear_backends",
    "moe_backends": "moe_backends",
    "attention_backends": "attention_backends",
    "load_formats": "load_formats",
    "model_dtypes": "dtypes",
}
"""Lists of the reference, which was read independently, and where the catalogue has them."""


@pytest.mark.parametrize("version", REFERENCE)
def test_the_snapshot_equals_the_reference(version: str) -> None:
    reference, found = REFERENCE[version], snapshot(version)
    assert found.vllm_version == version
    for theirs, ours in LISTS.items():
        given = reference.get(theirs)
        assert sorted(getattr(found, ours) or ()) == sorted(given or ()), theirs
    assert found.kv_cache_dtypes_closed == reference["cache_dtype_is_closed_choices"]
    classes = found.method_classes or {}
    for name, owner in reference["method_to_config_class"].items():
        # The reference has the name of a variable for one class that is chosen at run time.
        assert classes[name] == owner or owner.islower(), name
    assert set(classes) - set(reference["method_to_config_class"]) <= {*(found.online or ()), "online"}
    kernels = {name: sorted(classes) for name, classes in (found.linear_backend_kernels or {}).items()}
    assert kernels == {
        name: sorted(classes) for name, classes in (reference["linear_backend_kernel_map"] or {}).items()
    }
    for platform, given in reference["platform_supported_quantization"].items():
        assert sorted((found.platform_quantization or {})[platform] or ()) == sorted(given or ()), platform
    for name, by_platform in reference["possible_linear_kernels"].items():
        lists = [
            order for order in (found.kernel_order or {}).values() if order.get("CUDA") == tuple(by_platform["CUDA"])
        ]
        assert lists, name
    flags = {f"--{name.replace('_', '-')}" for name in found.flags or ()}
    short = {alias for flag in (found.flags or {}).values() for alias in flag.aliases if alias.startswith("-")}
    assert flags | short == set(reference["serve_flags"])


def test_what_the_versions_differ_in() -> None:
    """Spot checks against what was read by hand in the releases."""
    old, new = snapshot("0.20.2"), snapshot("0.33.0")
    assert old.flags is not None
    assert new.flags is not None
    assert "calculate_kv_scales" in old.flags
    assert "calculate_kv_scales" not in new.flags
    assert "linear_backend" not in old.flags
    assert "gguf" in (old.quantization or ())
    assert "gguf" not in (new.quantization or ())
    assert snapshot("0.32.0").kv_cache_dtypes_closed is True
    assert new.kv_cache_dtypes_closed is False
    assert snapshot("0.24.0").min_capability["modelopt"] == 89  # type: ignore[index]
    assert new.min_capability["modelopt"] == 80  # type: ignore[index]
    assert "octave_k3v4" in (new.kv_cache_dtypes or ())
    assert new.flags["kv_cache_dtype"].choices is None
    assert snapshot("0.32.0").flags["kv_cache_dtype"].choices is not None  # type: ignore[index]
    assert new.online_schemes is not None
    assert new.online_schemes["int8_per_channel_weight_only"].linear_weight is None
