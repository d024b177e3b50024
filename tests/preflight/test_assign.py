"""Layers that do not all get the same scheme: targets, groups of a checkpoint, and what is quantized on top of one."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.judging import plan_of, rules_of

DENSE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
EXPERTS = {**DENSE, "num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1024, "moe": True}
H200 = {"vllm_version": "0.33.0", "gpu_sm": 90, "gpu_mem_gib": 139.8, "gpu_free_gib": 139.2, "model": "/m/x"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def table(asked: dict[str, Any], kind: str = "linear") -> dict[str, int | None]:
    return {row.scheme: row.count for row in plan_of({**H200, **asked}).layers if row.kind == kind}


def online(**config: Any) -> dict[str, Any]:
    return {"quantization": "online", "quantization_config": config}


def test_targets_quantize_what_they_name() -> None:
    targets = {"re:.*mlp.*": "fp8_per_block", "re:.*self_attn.*": "fp8_per_tensor"}
    assert table({"args": online(targets=targets), "checkpoint": DENSE}) == {
        "FP8 W8A8 block 128": 64,
        "FP8 W8A8 per tensor": 64,
    }
    plan = plan_of({**H200, "args": online(targets={"re:.*mlp.*": "fp8_per_tensor"}), "checkpoint": DENSE})
    assert [(row.scheme, row.count, row.grade) for row in plan.layers if row.kind == "linear"] == [
        ("FP8 W8A8 per tensor", 64, "native"),
        ("16-bit", 64, "unquantized"),
    ]
    whole = plan_of({**H200, "args": {}, "checkpoint": DENSE}).fit.weights_gib
    assert plan.fit.weights_gib is not None
    assert whole is not None
    # 32 layers of 3 × 14336 × 4096 weights lose one byte each.
    assert whole - plan.fit.weights_gib == pytest.approx(32 * 3 * 14336 * 4096 / 2**30, rel=0.01)


def test_targets_by_number_and_by_parts_of_a_fused_layer() -> None:
    by_number = {r"re:.*layers\.[0-7]\.mlp\..*": "fp8_per_tensor"}
    assert table({"args": online(targets=by_number), "checkpoint": DENSE}) == {
        "FP8 W8A8 per tensor": 16,
        "16-bit": 112,
    }
    parts = {f"re:.*{name}_proj": "fp8_per_tensor" for name in "qkv"}
    assert table({"args": online(targets=parts), "checkpoint": DENSE})["FP8 W8A8 per tensor"] == 32


def test_targets_for_experts() -> None:
    asked = {"args": online(targets={"*.mlp.experts": "int8_per_channel_weight_only"}), "checkpoint": EXPERTS}
    assert table(asked, "moe") == {"INT8 W8A16": 32 * 64 * 2}
    some = {"args": online(targets={r"re:.*layers\.[0-3]\.mlp\.experts": "fp8_per_tensor"}), "checkpoint": EXPERTS}
    assert table(some, "moe") == {"FP8 W8A8 per tensor": 4 * 64 * 2, "16-bit": 28 * 64 * 2}


@pytest.mark.parametrize(
    ("args", "rule", "words"),
    [
        (online(targets={"re:.*q_proj": "fp8_per_tensor"}), "quant-config-invalid", "only some of the parts"),
        (
            online(targets={"re:.*mlp.*": "fp8_per_tensor", "re:.*gate_up_proj": "fp8_per_block"}),
            "quant-config-invalid",
            "two targets",
        ),
        (
            online(targets={"re:.*mlp.*": "fp8_per_tensor"}, ignore=["re:.*down_proj"]),
            "quant-config-invalid",
            "and ignore",
        ),
        (online(targets={"re:.*mlp.*": "nvfp4_per_token"}), "quant-config-invalid", "has nothing"),
        (online(targets={"re:.*nothing": "fp8_per_tensor"}), "quant-noop", "no pattern of targets"),
        (
            {"quantization": "mxfp8", "quantization_config": {"targets": {"re:.*": "fp8_per_tensor"}}},
            "quant-config-invalid",
            "excludes --quantization mxfp8",
        ),
    ],
)
def test_targets_that_vllm_refuses(args: dict[str, Any], rule: str, words: str) -> None:
    plan = plan_of({**H200, "args": args, "checkpoint": DENSE})
    assert [finding for finding in plan.findings if finding.rule == rule and words in finding.message]


def test_a_pattern_without_a_layer_is_said() -> None:
    targets = {"re:.*mlp.*": "fp8_per_tensor", "re:.*ffn.*": "fp8_per_block"}
    plan = plan_of({**H200, "args": online(targets=targets), "checkpoint": DENSE})
    assert [f.severity for f in plan.findings if "'re:.*ffn.*' matches no layer" in f.message] == ["info"]
    assert rules_of(plan) == []


def _config(**groups: dict[str, Any]) -> dict[str, Any]:
    quantization = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    return {**DENSE, "quantization_config": {**quantization, "ignore": ["lm_head"]}}


def test_groups_of_a_checkpoint_each_have_their_kernel() -> None:
    config = _config(
        group_0={"targets": ["re:.*self_attn.*"], "weights": FP8, "format": "float-quantized",
                 "input_activations": {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}},
        group_1={"targets": ["re:.*mlp.*"], "weights": INT4, "format": "pack-quantized"},
    )  # fmt: skip
    plan = plan_of({**H200, "checkpoint": config})
    assert {(row.scheme, row.count, row.kernel) for row in plan.layers if row.kind == "linear"} == {
        ("FP8 W8A8 per channel", 64, "CutlassFP8ScaledMMLinearKernel"),
        ("W4A16 g128", 64, "MacheteLinearKernel"),
    }
    assert plan.method.resolved == "compressed-tensors"


def test_a_group_that_names_some_layers_leaves_the_others_in_16_bit() -> None:
    only = {"targets": [r"re:.*layers\.(1|2)\.mlp\..*"], "weights": INT4, "format": "pack-quantized"}
    assert table({"checkpoint": _config(group_0=only)}) == {"W4A16 g128": 4, "16-bit": 124}
    every = {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"}
    assert table({"checkpoint": _config(group_0=every)}) == {"W4A16 g128": 128}


def test_layers_that_a_checkpoint_left_alone_can_be_quantized_on_load() -> None:
    checkpoint = {**DENSE, "quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4}
    checkpoint |= {"group_size": 128, "ignore": ["lm_head", "re:.*self_attn.*"], "weights_gib": 7.0}
    args = {"quantization_config": {"targets": {"re:.*self_attn.*": "fp8_per_tensor"}}}
    assert table({"checkpoint": checkpoint}) == {"W4A16 g128": 64, "16-bit": 64}
    assert table({"args": args, "checkpoint": checkpoint}) == {"W4A16 g128": 64, "FP8 W8A8 per tensor": 64}
    before = plan_of({**H200, "checkpoint": checkpoint}).fit.weights_gib
    after = plan_of({**H200, "args": args, "checkpoint": checkpoint}).fit.weights_gib
    assert before is not None
    assert after is not None
    assert before - after == pytest.approx(32 * (6144 + 4096) * 4096 / 2**30, rel=0.01)


def test_experts_of_a_checkpoint_cannot_be_quantized_again() -> None:
    checkpoint = {**EXPERTS, "quant_method": "fp8"}
    args = {"quantization_config": {"moe": "fp8_per_block"}}
    plan = plan_of({**H200, "vllm_version": "0.32.0", "args": args, "checkpoint": checkpoint})
    assert "quant-config-invalid" in [finding.rule for finding in plan.findings if finding.severity == "error"]


def test_a_config_json_as_it_stands_is_understood() -> None:
    config = {**DENSE, "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    plan = plan_of({**H200, "args": {"quantization": "awq"}, "checkpoint": config})
    assert plan.method.checkpoint == "fp8"
    assert "quant-checkpoint-conflict" in rules_of(plan)
    assert plan.target.checkpoint["architecture"] == "LlamaForCausalLM"
