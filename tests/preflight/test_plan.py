"""The plan: exact arguments, environment, method, layers, and the JSON that stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.judging import plan_of
from vq_console.engines.catalogue import snapshot
from vq_console.engines.model import Engine
from vq_console.hardware.model import Gpu, GpuProcess, Host, Machine
from vq_console.preflight.check import plan_json, plan_profile
from vq_console.preflight.model import Plan, Target
from vq_console.preflight.plan import make_plan
from vq_console.preflight.target import TARGET_KEYS, free_port, machine_facts, port_is_taken, target_here
from vq_console.profiles.format import parse_profile
from vq_console.profiles.model import EnvRef, Profile

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
ENGINE = Engine("/env/bin/python", "0.33.0", "cuda", "given", launch=("/env/bin/python", "-m", "vllm.x", "serve"))
H200 = {"gpu_sm": 90, "gpu_count": 1, "gpu_mem_gib": 139.8, "gpu_free_gib": 139.2}


def _plan(profile: Profile, target: dict[str, Any] | None = None, **choices: Any) -> Plan:
    return make_plan(
        profile,
        Target(H200 if target is None else target),
        engine=choices.pop("engine", ENGINE),
        catalogue=snapshot("0.33.0"),
        checkpoint_facts=choices.pop("facts", {}),
        **choices,
    )


def test_argv_is_launch_model_flags_and_the_launchers_choices() -> None:
    profile = Profile("llama-fp8", LLAMA, args={"quantization": "fp8_per_block", "max_model_len": 8192})
    plan = _plan(profile, port=8123)
    assert plan.argv == (
        *ENGINE.launch,
        LLAMA,
        "--quantization=fp8_per_block",
        "--max-model-len=8192",
        "--host=127.0.0.1",
        "--port=8123",
        "--served-model-name=llama-fp8",
        "--disable-access-log-for-endpoints=/health,/metrics",
    )
    assert (plan.host, plan.port, plan.served_model) == ("127.0.0.1", 8123, "llama-fp8")


def test_what_the_profile_says_of_host_port_and_name_wins() -> None:
    args = {"host": "0.0.0.0", "port": 9000, "served_model_name": ["a", "b"]}
    plan = _plan(Profile("p", LLAMA, args=args), port=8123, name="p-2")
    assert (plan.host, plan.port, plan.served_model) == ("0.0.0.0", 9000, "a")
    assert "--port=9000" in plan.argv
    assert "--host=0.0.0.0" in plan.argv
    position = plan.argv.index("--served-model-name")
    assert plan.argv[position + 1 : position + 3] == ("a", "b")
    assert sum(item.startswith("--port") for item in plan.argv) == 1


@pytest.mark.parametrize(
    "args",
    [
        {"disable-access-log-for-endpoints": "/v1/models"},
        {"disable_uvicorn_access_log": True},
        {"log_config_file": "/etc/log.json"},
    ],
)
def test_a_profile_that_speaks_of_its_access_log_is_left_alone(args: dict[str, Any]) -> None:
    assert not any("/health" in item for item in _plan(Profile("p", LLAMA, args=args)).argv)


def test_an_old_vllm_without_the_flag_does_not_get_it() -> None:
    catalogue = replace(snapshot("0.33.0"), flags={"port": snapshot("0.33.0").flags["port"]})
    plan = make_plan(Profile("p", LLAMA), Target(H200), engine=ENGINE, catalogue=catalogue)
    assert not any("access-log" in item for item in plan.argv)


def test_a_second_server_has_its_own_name() -> None:
    assert _plan(Profile("p", LLAMA), name="p-2").served_model == "p-2"


def test_without_engine_the_command_is_that_of_the_documentation() -> None:
    assert _plan(Profile("p", LLAMA), engine=None).argv[:3] == ("vllm", "serve", LLAMA)


def test_chosen_gpus_are_pinned_by_bus_order_and_secrets_are_only_named() -> None:
    profile = Profile("p", LLAMA, env={"VLLM_USE_DEEP_GEMM": "0", "HF_TOKEN": EnvRef("MY_TOKEN")})
    plan = _plan(profile, gpus=[1, 3])
    assert plan.env == {
        "VLLM_USE_DEEP_GEMM": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1,3",
    }
    assert plan.secret_env == {"HF_TOKEN": "MY_TOKEN"}
    assert plan.gpus == (1, 3)
    assert "MY_TOKEN" not in " ".join(plan.argv)


def test_a_profile_that_pins_gpus_itself_is_left_alone() -> None:
    plan = _plan(Profile("p", LLAMA, env={"CUDA_VISIBLE_DEVICES": "GPU-1"}), gpus=[0])
    assert plan.env == {"CUDA_VISIBLE_DEVICES": "GPU-1"}


def test_gpus_follow_the_parallel_sizes() -> None:
    assert _plan(Profile("p", LLAMA, args={"tensor_parallel_size": 2, "pipeline_parallel_size": 2})).gpus == (
        0,
        1,
        2,
        3,
    )
    assert _plan(Profile("p", LLAMA), {"device": "cpu"}).gpus == ()


def test_short_forms_and_dashes_mean_the_same() -> None:
    long = _plan(Profile("p", LLAMA, args={"tensor_parallel_size": 2, "quantization": "w8a8"}))
    short = _plan(Profile("p", LLAMA, args={"tp": 2, "q": "w8a8"}))
    assert [finding.rule for finding in long.findings] == [finding.rule for finding in short.findings]
    assert short.gpus == (0, 1)


def test_layer_table_names_what_ignore_leaves_alone() -> None:
    args = {"quantization": "fp8_per_tensor", "quantization_config": {"ignore": ["re:.*[qkv]_proj", "mlp.nothing"]}}
    facts = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    facts |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256}
    plan = _plan(Profile("p", LLAMA, args=args), facts=facts)
    linear = {(row.count, row.scheme, row.grade) for row in plan.layers if row.kind == "linear"}
    assert linear == {(96, "FP8 W8A8 per tensor", "native"), (32, "16-bit", "unquantized")}
    assert any("mlp.nothing" in finding.message for finding in plan.findings)


def test_one_layer_by_number_is_one_layer() -> None:
    facts = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    facts |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "quant_method": "compressed-tensors"}
    facts |= {"format": "pack-quantized", "bits": 4, "group_size": 128}
    facts |= {"ignore": ["lm_head", "model.layers.0.mlp.down_proj", "model.layers.31.mlp.down_proj"]}
    plan = _plan(Profile("p", "org/m"), facts=facts)
    counts = {row.scheme: row.count for row in plan.layers if row.kind == "linear"}
    assert counts == {"W4A16 g128": 126, "16-bit": 2}
    assert not [finding for finding in plan.findings if finding.severity != "info"]


@pytest.mark.parametrize(
    ("args", "checkpoint", "resolved", "claim"),
    [
        ({}, None, None, ""),
        ({"quantization": "fp8"}, None, "fp8_per_tensor", "--quantization"),
        ({}, {"quant_method": "gptq", "bits": 4}, "auto_gptq", "auto_gptq claims GPTQ checkpoints"),
        ({"quantization": "marlin"}, {"quant_method": "awq"}, "auto_awq", "auto_awq claims AWQ checkpoints"),
        ({"quantization": "moe_wna16"}, {"quant_method": "awq"}, "moe_wna16", "moe_wna16 takes"),
        ({"quantization": "humming"}, {"quant_method": "fp8"}, "humming", "humming takes any checkpoint"),
        ({"quantization": "fp8"}, {"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt", "modelopt claims"),
        ({}, {"quant_method": "auto-round"}, "inc", "inc claims"),
        ({}, {"quant_method": "mxfp4", "model_type": "gpt_oss"}, "gpt_oss_mxfp4", "gpt_oss_mxfp4 claims"),
        (
            {"quantization": "mxfp8"},
            {"quant_method": "modelopt", "quant_algo": "MXFP8"},
            "modelopt_mxfp8",
            "modelopt_mxfp8",
        ),
        ({"quantization": "fp8"}, {"quant_method": "compressed-tensors"}, None, ""),
    ],
)
def test_method_and_who_claims_it(
    args: dict[str, Any], checkpoint: dict[str, Any] | None, resolved: str | None, claim: str
) -> None:
    plan = _plan(Profile("p", "org/m", args=args), facts=checkpoint or {})
    assert plan.method.resolved == resolved
    assert plan.method.claimed_by.startswith(claim)
    assert plan.method.asked == args.get("quantization")


def test_json_keys_that_stay() -> None:
    plan = _plan(Profile("p", LLAMA, args={"quantization": "w8a8"}, env={"K": EnvRef("SECRET_K")}), port=1)
    value = json.loads(json.dumps(plan_json(plan)))
    assert set(value) >= {"findings", "plan"}
    assert set(value["findings"][0]) >= {"rule", "severity", "message", "fix", "evidence", "patch"}
    assert set(value["plan"]) >= {"argv", "env", "gpus", "method", "layers", "fit"}
    assert set(value["plan"]["method"]) >= {"asked", "checkpoint", "resolved"}
    assert set(value["plan"]["layers"][0]) >= {"kind", "count", "scheme", "kernel", "grade"}
    keys = {"weights_gib", "kv_gib", "kv_tokens", "requests_at_context", "max_context", "load_peak_gib"}
    assert set(value["plan"]["fit"]) >= keys
    assert value["findings"][0]["patch"]["remove_args"] == ["quantization"]


def test_unknown_stays_unknown() -> None:
    plan = make_plan(
        Profile("p", "org/unheard-of"), Target({}), engine=None, catalogue=snapshot(None), checkpoint_facts={}
    )
    assert [finding.rule for finding in plan.findings] == ["engine-unknown"]
    assert plan.fit.weights_gib is None
    assert plan.fit.kv_tokens is None
    assert plan.method.resolved is None


def _machine() -> Machine:
    gpus = (
        Gpu(
            0, "NVIDIA H200", "GPU-0", "9.0", 143155, 137000, processes=(GpuProcess(7, 5000, "u", "VLLM::EngineCore"),)
        ),
        Gpu(1, "NVIDIA H200", "GPU-1", "9.0", 143155, 600),
        Gpu(2, "NVIDIA A10", "GPU-2", "8.6", 23000, 0, visible=False),
    )
    host = Host("box", ram_total_mib=131072, ram_available_mib=90000, shm_total_mib=64, kernel="6.8.0", wsl=False)
    return Machine(host, gpus, driver="580.65.06", cuda="13.0", gpu_source="nvml")


def test_this_machine_as_a_target(vq_home: Path) -> None:
    profile = Profile("p", LLAMA, args={"tensor_parallel_size": 2})
    facts = target_here(profile, machine=_machine(), engine=ENGINE).facts
    assert facts["gpu_sm"] == 90
    assert facts["gpu_count"] == 2
    assert facts["gpu_mem_gib"] == pytest.approx(139.8, abs=0.01)
    assert facts["gpu_free_gib"] == pytest.approx(6.01, abs=0.01)
    assert facts["host_ram_gib"] == 128
    assert facts["shm_mib"] == 64
    assert facts["vllm_version"] == "0.33.0"
    assert facts["env"]["HF_TOKEN"] == ""
    assert facts["model_cached"] is False
    assert "VLLM::EngineCore" in facts["gpu_processes"][0]


def test_only_the_chosen_gpus_count(vq_home: Path) -> None:
    facts = target_here(Profile("p", LLAMA), machine=_machine(), engine=ENGINE, gpus=(1,)).facts
    assert facts["gpu_free_gib"] == pytest.approx(139.2, abs=0.1)
    assert "gpu_processes" not in facts


def test_without_a_choice_the_first_gpus_count(vq_home: Path) -> None:
    plan = plan_profile(Profile("p", LLAMA), engine=ENGINE, machine=_machine())
    assert "gpu_mem_gib" in plan.target.facts
    assert "gpu-memory-busy" in {finding.rule for finding in plan.findings}


def test_machine_facts_have_no_model(vq_home: Path) -> None:
    facts = machine_facts(_machine(), ENGINE)
    assert set(facts) <= set(TARGET_KEYS)
    assert facts["driver"] == "580.65.06"
    assert "checkpoint" not in facts


def test_ports() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert port_is_taken("127.0.0.1", taken.getsockname()[1]) is True
    port = free_port()
    assert port is not None
    assert port_is_taken("127.0.0.1", port) is False


def test_a_relative_model_is_relative_to_its_profile(vq_home: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 8}')
    path = tmp_path / "p.toml"
    profile = parse_profile('name = "p"\nmodel = "./model"\n', path)
    plan = plan_profile(profile, engine=ENGINE, machine=_machine())
    assert str(tmp_path / "model") in plan.argv
    assert plan.target.facts["model_dir_files"] == ["config.json"]
    assert "weights-missing" in {finding.rule for finding in plan.findings}


def test_a_target_file_does_not_look_at_this_machine(vq_home: Path) -> None:
    plan = plan_profile(Profile("p", "/models/somewhere-else"), target=Target({"vllm_version": "0.33.0", **H200}))
    assert not [finding for finding in plan.findings if finding.severity == "error"]


def test_repair_by_patch_is_silent() -> None:
    asked = {
        "vllm_version": "0.33.0",
        "gpu_sm": 86,
        "model": "Qwen/Qwen3-8B",
        "args": {"quantization": "fp8_per_channel"},
    }
    finding = next(f for f in plan_of(asked).findings if f.rule == "quant-unsupported-sm")
    assert finding.patch is not None
    repaired = {**asked, "args": {**asked["args"], **finding.patch.set_args}}
    assert "quant-unsupported-sm" not in {f.rule for f in plan_of(repaired).findings}


def test_a_profile_for_another_engine() -> None:
    profile = Profile("p", LLAMA, vllm=">=0.34")
    assert [finding.rule for finding in _plan(profile).findings if finding.severity == "warning"] == [
        "engine-not-wanted"
    ]
    assert not _plan(Profile("p", LLAMA, vllm=">=0.30")).findings


def test_there_machete_here_marlin() -> None:
    made_on = {"gpu": "NVIDIA H200", "kernels": ["MacheteLinearKernel"]}
    profile = Profile("p", "RedHatAI/Qwen3-8B-quantized.w4a16", made_on=made_on)
    ampere = _plan(profile, {"gpu_sm": 86})
    assert [finding.message for finding in ampere.findings if finding.rule == "runs-other-kernels"] == [
        "made on NVIDIA H200 with MacheteLinearKernel; here MarlinLinearKernel"
    ]
    assert not [finding for finding in _plan(profile).findings if finding.rule == "runs-other-kernels"]


def test_placement_below_the_parallel_sizes() -> None:
    profile = Profile("p", LLAMA, args={"tensor_parallel_size": 2}, gpu_count=1)
    target = {"gpu_sm": 90, "gpu_count": 4}
    assert "too-few-gpus" in {finding.rule for finding in _plan(profile, target).findings}


def test_what_another_kv_dtype_would_give() -> None:
    fit = _plan(Profile("p", LLAMA, args={"max_model_len": 8192})).fit
    assert set(fit.kv_tokens_by_dtype) == {"auto", "fp8", "fp8_per_token_head", "nvfp4"}
    assert fit.kv_tokens_by_dtype["auto"] == fit.kv_tokens
    assert fit.kv_tokens_by_dtype["fp8"] == pytest.approx(2 * fit.kv_tokens_by_dtype["auto"], rel=0.001)
    old = _plan(Profile("p", LLAMA, args={"dtype": "half"}), {"gpu_sm": 75, "gpu_mem_gib": 24}).fit
    assert set(old.kv_tokens_by_dtype) == {"auto"}


def test_damaged_weights_are_found_before_the_launch(vq_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8, "architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    plan = plan_profile(Profile("p", str(folder)), engine=ENGINE, machine=_machine())
    assert "checkpoint-corrupt" in {finding.rule for finding in plan.findings}
    dummy = Profile("p", str(folder), args={"load_format": "dummy"})
    rules = {finding.rule for finding in plan_profile(dummy, engine=ENGINE, machine=_machine()).findings}
    assert "checkpoint-corrupt" not in rules


def test_an_engine_beside_a_target_decides_the_version(vq_home: Path) -> None:
    target = Target({"vllm_version": "0.27.1", **H200})
    profile = Profile("p", LLAMA, args={"calculate_kv_scales": True})
    assert not [f for f in plan_profile(profile, target=target).findings if f.severity == "error"]
    plan = plan_profile(profile, target=target, engine=ENGINE)
    assert plan.target.facts["vllm_version"] == "0.33.0"
    assert [f.rule for f in plan.findings if f.severity == "error"] == ["cli-unrecognized-argument"]


def test_a_release_newer_than_all_lists_may_contain_more() -> None:
    asked = {"gpu_sm": 90, "model": "org/m", "args": {"brand_new_flag": 1, "quantization": "int3_per_tile"}}
    severities = {}
    for version in ("0.33.0", "0.34.0"):
        found = plan_of({**asked, "vllm_version": version}).findings
        severities[version] = {finding.rule: finding.severity for finding in found}
    assert set(severities["0.33.0"].values()) == {"error"}
    assert set(severities["0.34.0"].values()) == {"warning"}
    assert set(severities["0.34.0"]) == {"cli-unrecognized-argument", "quant-method-unknown"}
