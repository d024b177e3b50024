"""`detect` and `engines` as a person and a program see them."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vq_console.commands import detect, engines
from vq_console.core.errors import EngineError, ExitCode, UsageError
from vq_console.hardware import probe
from vq_console.hardware.host import read_host
from vq_console.hardware.model import Machine
from vq_console.hardware.probe import machine_from
from vq_console.hardware.raw import RecordedSource

DATA = Path(__file__).parents[1] / "data/hardware"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    detect.register(subparsers)
    engines.register(subparsers)
    args = parser.parse_args(arguments)
    return int(args.handler(args))


def recorded(name: str) -> Machine:
    source = RecordedSource(json.loads((DATA / f"{name}.json").read_text()))
    return machine_from(source, read_host(), {}, names=lambda pid: ("ana", f"python serve --pid {pid}", None))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch, vq_home: Path, tmp_path: Path) -> Any:
    """Puts the commands at a recorded machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def put(name: str) -> None:
        monkeypatch.setattr(probe, "read_machine", lambda: recorded(name))

    return put


@pytest.mark.parametrize(
    "name", ["2x3090", "4090-display", "8xh100-nvlink", "mig", "wsl", "container", "mixed", "no-driver"]
)
def test_every_recorded_machine_can_be_shown(at: Any, capsys: pytest.CaptureFixture[str], name: str) -> None:
    at(name)
    assert run("detect", "--json") == ExitCode.DONE
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "vq-console/detect/1"
    assert len(value["gpus"]) == len(recorded(name).gpus)
    for gpu in value["gpus"]:
        assert {"index", "name", "uuid", "sm", "memory_total_mib", "memory_used_mib", "processes"} <= set(gpu)
    assert {"driver", "cuda", "host", "engines"} <= set(value)
    assert run("detect") == ExitCode.DONE
    text = capsys.readouterr().out
    for gpu in recorded(name).gpus:
        assert gpu.name is None or gpu.name in text
    assert "None" not in text


def test_what_a_person_is_told(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    at("8xh100-nvlink")
    run("detect")
    text = capsys.readouterr().out
    assert "7x NVIDIA H100 80GB HBM3" in text
    assert "GPU 7: the GPU is lost (it fell off the bus)" in text
    assert "3 uncorrected" in text
    at("2x3090")
    run("detect")
    text = capsys.readouterr().out
    assert "GPU 0: clocks held down by power cap, software thermal limit" in text
    assert "python serve --pid 41021" in text
    at("mig")
    run("detect")
    assert "MIG on, 1x 3g.40gb, 2x 2g.20gb" in capsys.readouterr().out


def test_a_machine_without_gpu_is_an_answer(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    at("no-driver")
    assert run("detect") == ExitCode.DONE
    assert "No GPU: " in capsys.readouterr().out


def test_a_target_file_reads_back(at: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from vq_console.preflight.target import read_target

    at("2x3090")
    assert run("detect", "--as-target") == ExitCode.DONE
    text = capsys.readouterr().out
    (tmp_path / "target.toml").write_text(text)
    target = read_target(tmp_path / "target.toml")
    assert (target.get("gpu_sm"), target.get("gpu_count"), target.get("gpu_mem_gib")) == (86, 2, 24.0)
    assert target.get("driver") == "550.144.03"
    assert isinstance(target.get("tools"), dict)
    assert tomllib.loads(text)["host_ram_gib"] > 0
    at("mixed")
    run("detect", "--as-target")
    mixed = capsys.readouterr().out
    assert "weakest" in mixed
    assert tomllib.loads(mixed)["gpu_sm"] == 75


def test_as_target_of_an_engine_that_is_not_there(at: Any) -> None:
    at("2x3090")
    with pytest.raises(EngineError):
        run("detect", "--as-target", "--engine", "/nonexistent/python")


def test_catalogue_of_a_shipped_version(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engines", "catalog", "--version", "0.32.0", "--json") == ExitCode.DONE
    value = json.loads(capsys.readouterr().out)
    keys = {
        "quantization",
        "deprecated",
        "online",
        "kv_cache_dtypes",
        "linear_backends",
        "moe_backends",
        "flags",
        "env",
    }
    assert keys <= set(value)
    assert value["flags"]["kv_cache_dtype"]["kind"] == "choice"
    run("engines", "catalog", "--version", "0.32.0")
    text = " ".join(capsys.readouterr().out.split())
    assert "fbgemm_fp8 (deprecated)" in text
    assert "int8_per_channel_weight_only (MoE only" in text
    run("engines", "catalog", "--version", "0.20.2")
    assert "Linear backends: unknown: LinearBackend is not in config/kernel.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("flags", "--kv-cache-dtype"),
        ("env", "VLLM_CACHE_ROOT"),
        ("kernel_order", "fp8.CUDA: "),
        ("min_capability", "fp8: 75"),
        ("vllm_version", "0.32.0"),
    ],
)
def test_one_list_alone(vq_home: Path, capsys: pytest.CaptureFixture[str], name: str, line: str) -> None:
    assert run("engines", "catalog", name, "--version", "0.32.0") == ExitCode.DONE
    assert any(shown.startswith(line) for shown in capsys.readouterr().out.splitlines())


def test_a_list_that_does_not_exist(vq_home: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run("engines", "catalog", "flag", "--version", "0.32.0")
    assert "flags" in caught.value.hint


def test_engines_list(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engines", "list", "--json") == ExitCode.DONE
    value = json.loads(capsys.readouterr().out)
    assert all({"python", "vllm_version", "device", "origin"} <= set(engine) for engine in value["engines"])
    assert run("engines", "list") == ExitCode.DONE
    assert capsys.readouterr().out
