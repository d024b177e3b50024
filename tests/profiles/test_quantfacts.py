"""What quantization metadata says, format by format, in the words that preflight judges by."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.checkpoints import compressed, group
from vq_console.preflight.scheme import checkpoint_scheme
from vq_console.profiles.quantfacts import quantization_facts

INT4 = {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group", "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "group_size": None, "strategy": "channel", "symmetric": True}
TOKEN8 = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP8_TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
FP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True}
BLOCK8 = {**FP8, "strategy": "block", "block_structure": [128, 128]}
FP8_KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}

QUANTIZED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "w4a16",
        compressed("pack-quantized", group_0=group(INT4)),
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4, "group_size": 128,
         "scheme": "W4A16", "input_activations": "", "ignore": ["lm_head"], "kv_cache_scheme": "", "sym": True},
    ),
    (
        "w8a8",
        compressed("int-quantized", group_0=group(INT8, TOKEN8)),
        {"format": "int-quantized", "bits": 8, "scheme": "W8A8", "input_activations": "int8", "strategy": "channel"},
    ),
    (
        "fp8 dynamic",
        compressed("float-quantized", group_0=group(FP8, FP8_TOKEN)),
        {"format": "float-quantized", "bits": 8, "scheme": "FP8_DYNAMIC", "input_activations": "fp8"},
    ),
    ("fp8 static", compressed("float-quantized", group_0=group(FP8_TENSOR, FP8_TENSOR)), {"scheme": "FP8"}),
    (
        "fp8 block",
        compressed(
            "float-quantized",
            group_0=group(BLOCK8, {**FP8_TOKEN, "group_size": 128}),
        ),
        {"scheme": "FP8_BLOCK", "weight_block_size": [128, 128]},
    ),
    (
        "fp8 weight-only",
        compressed("naive-quantized", group_0=group(FP8)),
        {"scheme": "FP8A16", "input_activations": ""},
    ),
    (
        "nvfp4",
        compressed("nvfp4-pack-quantized", group_0=group(FP4, {**FP4, "dynamic": "local"})),
        {"format": "nvfp4-pack-quantized", "scheme": "NVFP4", "bits": 4, "group_size": 16, "input_activations": "fp4"},
    ),
    (
        "nvfp4a16",
        compressed("nvfp4-pack-quantized", group_0=group(FP4)),
        {"scheme": "NVFP4A16", "input_activations": ""},
    ),
    (
        "mxfp4",
        compressed("mxfp4-pack-quantized", group_0=group({**FP4, "group_size": 32}, {**FP4, "group_size": 32})),
        {"scheme": "MXFP4", "group_size": 32},
    ),
    (
        "w4afp8",
        compressed("pack-quantized", group_0=group(INT4, FP8_TOKEN)),
        {"scheme": "W4A8", "input_activations": "fp8"},
    ),
    (
        "two groups",
        compressed(
            "mixed-precision",
            group_1=group(INT4, targets=["re:.*mlp.*"], format="pack-quantized"),
            group_0=group(FP8, FP8_TOKEN, format="float-quantized"),
        ),
        {"scheme": "FP8_DYNAMIC", "schemes": ["FP8_DYNAMIC", "W4A16"], "format": "mixed-precision"},
    ),
    (
        "attention group is not a weight group",
        compressed(
            "float-quantized",
            attention=group({}, FP8_KV, targets=["LlamaAttention"]),
            linear=group(FP8, FP8_TOKEN, targets=["re:.*proj"]),
        )
        | {"kv_cache_scheme": FP8_KV},
        {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": "fp8"},
    ),
    (
        "gptq",
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "kv_cache_scheme": ""},
    ),
    ("gptq channel", {"quant_method": "GPTQ", "bits": 8, "group_size": -1}, {"quant_method": "gptq", "group_size": -1}),
    (
        "awq",
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True, "modules_to_not_convert": ["x"]},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "ignore": ["x"]},
    ),
    (
        "fp8 of the model's maker",
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "bits": 8, "activation_scheme": "dynamic"},
    ),
    ("gpt-oss", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, {"quant_method": "mxfp4", "bits": 4}),
    ("bnb", {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "bitsandbytes", "bits": 4}),
    (
        "modelopt in config.json",
        {"quant_method": "modelopt", "quant_algo": "nvfp4", "kv_cache_scheme": FP8_KV, "ignore": ["lm_head"],
         "config_groups": {"group_0": group({"num_bits": 4, "type": "float", "group_size": 16})}},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "bits": 4, "kv_cache_scheme": "fp8",
         "ignore": ["lm_head"]},
    ),
    ("nothing known", {"something": 1}, {"quant_method": "unknown"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "declared", "expected"), QUANTIZED, ids=[case[0] for case in QUANTIZED])
def test_quantization(name: str, declared: dict[str, Any], expected: dict[str, Any]) -> None:
    facts = quantization_facts({"quantization_config": declared})
    assert {key: facts.get(key) for key in expected} == expected


FAMILIES = {
    "w4a16": "wna16",
    "w8a8": "int8",
    "fp8 dynamic": "fp8_channel",
    "fp8 static": "fp8_tensor",
    "fp8 block": "fp8_block",
    "fp8 weight-only": "fp8_a16",
    "nvfp4": "nvfp4",
    "nvfp4a16": "nvfp4_a16",
    "mxfp4": "mxfp4",
    "w4afp8": "w4a8",
    "gptq": "wna16",
    "awq": "wna16",
    "fp8 of the model's maker": "fp8_block",
    "gpt-oss": "mxfp4_a16",
    "modelopt in config.json": "nvfp4",
}


@pytest.mark.parametrize(("name", "declared", "expected"), QUANTIZED, ids=[case[0] for case in QUANTIZED])
def test_preflight_understands_these_facts(name: str, declared: dict[str, Any], expected: dict[str, Any]) -> None:
    scheme = checkpoint_scheme(quantization_facts({"quantization_config": declared}))
    assert scheme is not None
    assert scheme.family == FAMILIES.get(name, scheme.family)


def test_modelopt_in_its_own_file() -> None:
    separate = {
        "producer": {"name": "modelopt", "version": "0.29"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    facts = quantization_facts({}, separate)
    assert facts == {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "bits": 4,
        "ignore": ["lm_head"],
        "kv_cache_scheme": "fp8",
    }
    assert quantization_facts({}) == {}
    multimodal = {"text_config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}
    assert quantization_facts(multimodal)["quant_method"] == "gptq"
