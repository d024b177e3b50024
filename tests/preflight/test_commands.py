"""`lint`, `suggest` and `matrix` as commands: JSON, text, exit codes, speed."""

from __future__ import annotations

import argparse
import importlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from vq_console.commands import lint
from vq_console.core.errors import VqError

H200 = """
vllm_version = "0.33.0"
gpu_sm = 90
gpu_count = 1
gpu_mem_gib = 139.8
gpu_free_gib = 139.2
"""
SOUND = 'name = "sound"\nmodel = "Qwen/Qwen3-8B"\n[args]\nquantization = "fp8_per_channel"\nmax_model_len = 8192\n'
BROKEN = 'name = "broken"\nmodel = "Qwen/Qwen3-8B"\n[args]\nquantization = "w8a8"\n'


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    lint.register(parser.add_subparsers())
    args = parser.parse_args(words)
    return int(args.handler(args))


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "h200.toml"
    path.write_text(H200)
    return str(path)


def _profile(folder: Path, text: str) -> str:
    path = folder / "profile.toml"
    path.write_text(text)
    return str(path)


def test_a_sound_profile(vq_home: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("lint", _profile(tmp_path, SOUND), "--target", target, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "vq-console/lint/1"
    assert value["findings"] == []
    assert value["plan"]["layers"][0]["kernel"] == "CutlassFP8ScaledMMLinearKernel"
    assert value["plan"]["fit"]["weights_gib"] == pytest.approx(8.8, abs=0.1)


def test_an_error_is_a_no(vq_home: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("lint", _profile(tmp_path, BROKEN), "--target", target, "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in value["findings"]] == ["quant-method-unknown"]
    assert value["findings"][0]["patch"]["remove_args"] == ["quantization"]


def test_an_unknown_method_is_named_where_the_version_is_not_known(
    vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = tmp_path / "some.toml"
    machine.write_text("gpu_sm = 90\n")
    listed = BROKEN.replace('"w8a8"', '["nosuch"]')
    assert _run("lint", _profile(tmp_path, listed), "--target", str(machine), "--json") == 1
    value = json.loads(capsys.readouterr().out)
    (found,) = [item for item in value["findings"] if item["rule"] == "quant-method-unknown"]
    assert found["message"] == "'nosuch' is no quantization method of vLLM"
    assert value["plan"]["method"]["asked"] == "nosuch"
    assert "vLLM unknown" not in json.dumps(value)


@pytest.mark.parametrize("words", [(), ("--engine", "simulator")])
def test_a_fixed_port_that_another_program_has_is_said(
    vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    def rules() -> set[str]:
        _run("lint", _profile(tmp_path, fixed), *words, "--json")
        return {finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]}

    with socket.create_server(("127.0.0.1", 0)) as other:
        fixed = SOUND + f"port = {other.getsockname()[1]}\n"
        assert "port-in-use" in rules()
    assert "port-in-use" not in rules()


def test_words_for_a_person(vq_home: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("lint", _profile(tmp_path, BROKEN), "--target", target) == 1
    text = capsys.readouterr().out
    assert "✖ error  quant-method-unknown" in text
    assert "vllm serve Qwen/Qwen3-8B --quantization=w8a8" in text
    _run("lint", _profile(tmp_path, SOUND), "--target", target)
    assert "nothing to object" in capsys.readouterr().out


def test_an_unreadable_profile_is_a_no(
    vq_home: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("lint", _profile(tmp_path, 'modell = "x"\n'), "--target", target, "--json") == 1
    out = capsys.readouterr()
    value = json.loads(out.out)
    assert [finding["rule"] for finding in value["findings"]] == ["profile-unreadable"]
    assert value["plan"] is None
    assert "modell" in out.err


@pytest.mark.parametrize(
    "words", [("lint",), ("lint", "x", "--all"), ("matrix", "--sm", "x"), ("matrix", "--vllm", "new")]
)
def test_wrong_use(words: tuple[str, ...], vq_home: Path) -> None:
    with pytest.raises(VqError) as caught:
        _run(*words)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("= 1", "not valid TOML"),
        ("checkpoint = 3", "checkpoint: must be a table"),
        ("", "says nothing"),
        ("# nothing", "says nothing"),
        ("gpu_smm = 90", "gpu_smm: unknown key\n  did you mean `gpu_sm`?"),
        ("gpu_sm = 90\nquux = 1", "quux: unknown key\n  known keys: "),
        ('gpu_sm = "ninety"', "gpu_sm: 'ninety' is no compute capability"),
        ("gpu_mem_gib = nan", "gpu_mem_gib: nan cannot be"),
        ("gpu_count = -1", "gpu_count: -1 cannot be\n  a number from 0 on, such as gpu_count = 24"),
        ("vllm_version = 0.32", 'vllm_version: must be text\n  such as vllm_version = "0.32.0"'),
        ('gpu_mem_gib = "24 GB"', "gpu_mem_gib: must be a number"),
        ("plugins = 1", "plugins: must be a list"),
    ],
)
def test_a_broken_target_is_wrong_use(vq_home: Path, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(VqError) as caught:
        _run("lint", _profile(tmp_path, SOUND), "--target", str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    with pytest.raises(VqError, match=r"absent\.toml"):
        _run("lint", _profile(tmp_path, SOUND), "--target", str(tmp_path / "absent.toml"))


def test_an_empty_token_in_a_profile_can_be_judged(
    vq_home: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'model = "meta-llama/Llama-3.1-8B-Instruct"\n[env]\nHF_TOKEN = ""\n'
    assert _run("lint", _profile(tmp_path, text), "--target", target, "--json") == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "hf-gated-repo"


def test_all_profiles(vq_home: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    mine = vq_home / "config" / "profiles"
    mine.mkdir(parents=True)
    (mine / "broken.toml").write_text(BROKEN)
    (mine / "torn.toml").write_text("model = ")
    assert _run("lint", "--all", "--target", target, "--json") == 1
    found: dict[str, Any] = {item["name"]: item for item in json.loads(capsys.readouterr().out)["profiles"]}
    assert found["broken"]["findings"][0]["rule"] == "quant-method-unknown"
    assert found["torn"]["findings"][0]["rule"] == "profile-unreadable"
    assert found["torn"]["plan"] is None
    assert found["llama31-8b-fp8kv"]["plan"]["argv"]
    assert _run("lint", "--all", "--target", target) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("torn") and "unreadable" in line for line in lines)


def test_an_engine_upgrade_shows_what_breaks(vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _profile(tmp_path, 'model = "org/m"\n[args]\nkv_cache_dtype = "fp8"\ncalculate_kv_scales = true\n')
    codes = []
    for version in ("0.27.1", "0.33.0"):
        target = tmp_path / f"{version}.toml"
        target.write_text(H200.replace("0.33.0", version))
        codes.append(_run("lint", path, "--target", str(target), "--json"))
        capsys.readouterr()
    assert codes == [0, 1]


def test_suggest_ranks_what_the_machine_can_run(vq_home: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("suggest", "meta-llama/Llama-3.1-8B-Instruct", "--target", target, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    best = value["choices"][0]
    assert set(best) >= {"profile", "grade", "fit", "regime", "why"}
    assert best["profile"]["args"]["quantization"].startswith("fp8_per_")
    assert best["grade"] == "native"
    grades = [choice["grade"] for choice in value["choices"]]
    assert grades.index("unquantized") > grades.index("weight-only")
    assert {item["way"] for item in value["refused"]} == set()
    assert _run("suggest", "meta-llama/Llama-3.1-8B-Instruct", "--target", target) == 0
    assert "small and large batches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "best", "refused"),
    [
        ("gpu_sm = 86\ngpu_mem_gib = 23.7\ngpu_free_gib = 23", "W4A16", "fp8_per_channel"),
        ("gpu_sm = 100\ngpu_mem_gib = 178\ngpu_free_gib = 177", "NVFP4", "INT8 W8A8 checkpoint"),
        ("gpu_sm = 120\ngpu_mem_gib = 31\ngpu_free_gib = 30", "FP8", "INT8 W8A8 checkpoint"),
        ('device = "cpu"\nhost_ram_gib = 64\ncpu_flags = ["avx2"]', "W8A8", "W4A16 checkpoint"),
    ],
)
def test_the_answer_depends_on_the_machine(
    vq_home: Path, tmp_path: Path, facts: str, best: str, refused: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(f'vllm_version = "0.33.0"\n{facts}\n')
    assert _run("suggest", "Qwen/Qwen3-8B", "--target", str(path), "--json") == 0
    value = json.loads(capsys.readouterr().out)
    first = value["choices"][0]
    assert best in f"{first['make']} {first['profile']['args']}".upper()
    assert refused in {item["way"] for item in value["refused"]}


def test_suggest_prints_commands_that_quantize_takes(
    vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    from vq_console.commands import quantize
    from vq_console.quantize.schemes import GROUP_SIZES, find_scheme

    path = tmp_path / "b200.toml"
    path.write_text('vllm_version = "0.33.0"\ngpu_sm = 100\ngpu_mem_gib = 178\ngpu_free_gib = 177\n')
    assert _run("suggest", "HuggingFaceTB/SmolLM2-135M-Instruct", "--target", str(path)) == 0
    made = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("to make ")]
    assert len(made) >= 3
    assert any("--group-size 64" in command for command in made)
    parser = argparse.ArgumentParser()
    quantize.register(parser.add_subparsers())
    for command in made:
        args = parser.parse_args(shlex.split(command)[1:])
        find_scheme(args.scheme, args.method)
        assert args.group_size in {None, *GROUP_SIZES}
        assert args.model == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_suggest_for_a_quantized_checkpoint_keeps_it(
    vq_home: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("suggest", "Qwen/Qwen3-8B-AWQ", "--target", target, "--json")
    choices = json.loads(capsys.readouterr().out)["choices"]
    assert all("quantization" not in choice["profile"]["args"] for choice in choices)
    assert all(choice["make"] is None for choice in choices)


def test_suggest_makes_room_for_others(vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "busy.toml"
    path.write_text(H200.replace("gpu_free_gib = 139.2", "gpu_free_gib = 70"))
    assert _run("suggest", "Qwen/Qwen3-8B", "--target", str(path), "--json") == 0
    args = json.loads(capsys.readouterr().out)["choices"][0]["profile"]["args"]
    assert args["gpu_memory_utilization"] == 0.48


def test_nothing_fits_is_a_no(vq_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text('vllm_version = "0.33.0"\ngpu_sm = 86\ngpu_mem_gib = 8\ngpu_free_gib = 7.8\n')
    assert _run("suggest", "meta-llama/Llama-3.3-70B-Instruct", "--target", str(path), "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert value["choices"] == []
    assert value["refused"]


def test_matrix(vq_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("matrix", "--sm", "9.0", "--sm", "86", "--vllm", "0.26.0", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["devices"] == ["sm90", "sm86"]
    found = {(cell["method"], cell["kind"], cell["device"]): cell for cell in value["cells"]}
    cell = found["fp8_per_tensor (online)", "linear", "sm86"]
    assert (cell["kernel"], cell["grade"]) == ("MarlinFP8ScaledMMLinearKernel", "weight-only")
    assert cell["source"]
    assert _run("matrix", "--method", "nvfp4") == 0
    text = capsys.readouterr().out
    assert "vLLM 0.33.0" in text
    assert "Humming ◐" in text
    assert "cpu amx" in text
    assert max(len(line) for line in text.splitlines()) < 160
    assert "fp8_per_block" not in text


def test_lint_is_quick_once_warm(vq_home: Path, tmp_path: Path, target: str) -> None:
    """The budget is 100 ms; a busy machine may take three times that."""
    from vq_console.preflight.check import plan_json, plan_profile
    from vq_console.preflight.target import read_target
    from vq_console.profiles.store import load_profile

    path = _profile(tmp_path, SOUND)
    times = []
    for _ in range(6):
        started = time.process_time()
        plan_json(plan_profile(load_profile(path), target=read_target(target)))
        times.append(time.process_time() - started)
    assert min(times[1:]) < 0.1
    assert sorted(times[1:])[2] < 0.3


def test_registering_loads_no_knowledge() -> None:
    import subprocess
    import sys

    code = (
        "import sys, argparse; from vq_console.commands import lint; "
        "lint.register(argparse.ArgumentParser().add_subparsers()); "
        "print([m for m in sys.modules if m.startswith('vq_console.preflight') or m in {'numpy', 'textual'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
    assert importlib.import_module("vq_console.commands.lint") is lint
