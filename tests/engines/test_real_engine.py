"""The real CPU engine: what its source says must be what vLLM itself says."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from vq_console.core.text import strip_control
from vq_console.engines.catalogue import read_catalogue
from vq_console.engines.extract import extract
from vq_console.engines.find import engine_at
from vq_console.engines.snapshot import known_versions, snapshot

pytestmark = pytest.mark.engine

CHOICES_DECIDED_AT_RUN_TIME = ("--collect-detailed-traces", "--all2all-backend", "--mm-processor-device")
"""Their choices are changed or computed while the parser is made."""

ASK_VLLM = """
import importlib, json, sys
from typing import get_args
from vllm import envs
from vllm.config import cache, kernel, model, quantization
from vllm.engine import arg_utils
from vllm.model_executor.layers.quantization import DEPRECATED_QUANTIZATION_METHODS, QUANTIZATION_METHODS
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.model_loader import LoadFormats
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.backends.registry import AttentionBackendEnum

for place in ("common", "launchers", "openai"):
    try:
        make = importlib.import_module(f"vllm.entrypoints.{place}.cli_args").make_arg_parser
        break
    except ImportError:
        pass
flags = {}
for action in make(FlexibleArgumentParser())._actions:
    names = [name for name in action.option_strings if not name.startswith("--no-")]
    if names and names != ["-h", "--help"]:
        flags[names[0]] = {
            "names": names,
            "action": type(action).__name__,
            "nargs": action.nargs,
            "choices": [str(item) for item in action.choices if item is not None] if action.choices else None,
            "type": getattr(action.type, "__name__", None),
        }
methods = {name: get_quantization_config(name) for name in QUANTIZATION_METHODS}
json.dump({
    "flags": flags,
    "quantization": QUANTIZATION_METHODS,
    "deprecated": DEPRECATED_QUANTIZATION_METHODS,
    "online": list(quantization._ONLINE_SHORTHANDS),
    "quant_keys": list(quantization.QUANT_KEY_NAMES),
    "kv_cache_dtypes": get_args(cache.CacheDType),
    "linear_backends": get_args(kernel.LinearBackend),
    "moe_backends": get_args(kernel.MoEBackend),
    "attention_backends": list(AttentionBackendEnum.__members__),
    "load_formats": get_args(LoadFormats),
    "dtypes": get_args(model.ModelDType),
    "env": list(envs.environment_variables),
    "min_capability": {name: owner.get_min_capability() for name, owner in methods.items()},
}, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def said(prepared: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM says of itself when it is imported, which takes it half a minute."""
    path = tmp_path_factory.mktemp("vllm") / "said.json"
    done = subprocess.run(
        [prepared.engine, "-c", ASK_VLLM, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, strip_control(done.stdout.decode(errors="replace"))[-2000:]
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def test_the_engine_is_described(prepared: Any) -> None:
    engine = engine_at(prepared.engine)
    assert engine.device == "cpu"
    assert engine.problem is None
    assert engine.vllm_version
    assert engine.installed["torch"].endswith("+cpu")


def test_reading_it_takes_a_moment(prepared: Any) -> None:
    site = Path(str(engine_at(prepared.engine).site))
    spent = []
    for _ in range(3):
        start = time.process_time()
        extract(site, None)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.3


def test_the_catalogue_is_what_vllm_says(prepared: Any, said: dict[str, Any], vq_home: Path) -> None:
    found = read_catalogue(engine_at(prepared.engine))
    assert found.origin == "source"
    assert found.unknown == {}
    for name, value in said.items():
        if name not in ("flags", "min_capability"):
            assert list(getattr(found, name)) == list(value), name
    assert found.min_capability is not None
    assert dict(found.min_capability) == said["min_capability"]


def test_flags_behave_as_vllms_own_parser_has_them(prepared: Any, said: dict[str, Any], vq_home: Path) -> None:
    flags = read_catalogue(engine_at(prepared.engine)).flags
    assert flags is not None
    long = {
        name.removeprefix("--").replace("-", "_")
        for flag in said["flags"].values()
        for name in flag["names"]
        if name.startswith("--")
    }
    assert set(flags) == long
    wrong = []
    for spec in said["flags"].values():
        first = next(name for name in spec["names"] if name.startswith("--"))
        flag = flags[first[2:].replace("-", "_")]
        nargs = spec["nargs"]
        facts = {
            "bool": (flag.kind == "bool", spec["action"] in ("BooleanOptionalAction", "_StoreTrueAction")),
            "negatable": (flag.negatable, spec["action"] == "BooleanOptionalAction"),
            "many": (flag.many, nargs in ("+", "*") or (isinstance(nargs, int) and nargs > 1)),
            "optional": (flag.optional, nargs == "?"),
            "repeat": (flag.repeat, spec["action"] == "_AppendAction"),
        }
        if first not in CHOICES_DECIDED_AT_RUN_TIME:
            facts["choices"] = (sorted(flag.choices or ()), sorted(spec["choices"] or ()))
        if spec["type"] in ("int", "float"):
            facts["kind"] = (flag.kind, spec["type"])
        wrong += [f"{first} {name}: {ours} is {theirs}" for name, (ours, theirs) in facts.items() if ours != theirs]
    assert wrong == []


def test_the_snapshot_of_this_version_agrees(prepared: Any, vq_home: Path) -> None:
    engine = engine_at(prepared.engine)
    if engine.vllm_version not in known_versions():
        pytest.skip("this version is not in the snapshot")
    found, shipped = read_catalogue(engine), snapshot(engine.vllm_version)
    for name in (
        "quantization",
        "online_schemes",
        "kv_cache_dtypes",
        "linear_backend_kernels",
        "kernel_order",
        "min_capability",
    ):
        assert getattr(found, name) == getattr(shipped, name), name
    assert set(found.flags or ()) == set(shipped.flags or ())
