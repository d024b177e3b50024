"""Values of `[args]` as arguments, held against what vLLM's own parser accepts."""

from __future__ import annotations

from typing import Any

import pytest

from vq_console.core.errors import ProfileError
from vq_console.engines.model import Flag
from vq_console.profiles.arguments import serve_arguments

FLAGS = {
    "quantization": Flag("quantization", "str", aliases=("q",)),
    "quantization_config": Flag("quantization_config", "json"),
    "max_model_len": Flag("max_model_len", "int"),
    "enforce_eager": Flag("enforce_eager", "bool", negatable=True),
    "headless": Flag("headless", "bool"),
    "served_model_name": Flag("served_model_name", "str", many=True),
    "cudagraph_capture_sizes": Flag("cudagraph_capture_sizes", "int", many=True),
    "allowed_origins": Flag("allowed_origins", "json"),
    "gpu_memory_utilization": Flag("gpu_memory_utilization", "float", aliases=("device-memory-utilization",)),
    "chat_template": Flag("chat_template", "str"),
}

CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"quantization": "fp8"}, ["--quantization=fp8"]),
    ({"q": "fp8"}, ["--quantization=fp8"]),
    ({"max-model-len": 8192}, ["--max-model-len=8192"]),
    ({"max_model_len": -1}, ["--max-model-len=-1"]),
    ({"gpu_memory_utilization": 0.9}, ["--gpu-memory-utilization=0.9"]),
    ({"device_memory_utilization": 0.9}, ["--gpu-memory-utilization=0.9"]),
    ({"enforce_eager": True}, ["--enforce-eager"]),
    ({"enforce_eager": False}, ["--no-enforce-eager"]),
    ({"headless": True}, ["--headless"]),
    ({"headless": False}, []),
    ({"served_model_name": ["a", "b"]}, ["--served-model-name", "a", "b"]),
    ({"served_model_name": []}, []),
    ({"served_model_name": ["-a"]}, ["--served-model-name=-a"]),
    ({"cudagraph_capture_sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
    ({"allowed_origins": ["*"]}, ['--allowed-origins=["*"]']),
    ({"allowed_origins": []}, ["--allowed-origins=[]"]),
    ({"quantization_config": {"linear": "mxfp8"}}, ['--quantization-config={"linear": "mxfp8"}']),
    ({"quantization_config": '{"linear":"mxfp8"}'}, ['--quantization-config={"linear": "mxfp8"}']),
    ({"quantization_config": "{broken"}, ["--quantization-config={broken"]),
    ({"quantization_config.linear": "mxfp8"}, ["--quantization-config.linear=mxfp8"]),
    ({"kernel-config.linear_backend_per_quant": {"a": 1}}, ['--kernel-config.linear_backend_per_quant={"a": 1}']),
    ({"chat_template": "{{ messages }}"}, ["--chat-template={{ messages }}"]),
    ({"chat_template": '{"a":1}'}, ['--chat-template={"a":1}']),
    ({"middleware": ["a.b", "c.d"]}, ["--middleware=a.b", "--middleware=c.d"]),
    ({"lora_modules": [{"name": "a", "path": "/x"}]}, ["--lora-modules", '{"name": "a", "path": "/x"}']),
    ({"generation_config": ""}, ["--generation-config="]),
    ({"hf_overrides": {"ä": 1}}, ['--hf-overrides={"ä": 1}']),
]


@pytest.mark.parametrize(("args", "expected"), CASES)
def test_values_become_arguments(args: dict[str, Any], expected: list[str]) -> None:
    assert list(serve_arguments(args, FLAGS)) == expected


UNKNOWN = [
    ({"tp": 2}, ["--tensor-parallel-size=2"]),
    ({"compilation_config": '{"mode":3}'}, ['--compilation-config={"mode": 3}']),
    ({"allowed_origins": ["*"]}, ['--allowed-origins=["*"]']),
    ({"enforce_eager": False}, []),
    ({"new_flag": ["a", "b"]}, ["--new-flag", "a", "b"]),
    ({"new_flag": '{"a":1}'}, ['--new-flag={"a": 1}']),
]


@pytest.mark.parametrize(("args", "expected"), UNKNOWN)
def test_without_a_catalogue(args: dict[str, Any], expected: list[str]) -> None:
    assert list(serve_arguments(args, None)) == expected


def test_a_list_value_cannot_smuggle_a_flag() -> None:
    with pytest.raises(ProfileError, match="taken for a flag"):
        serve_arguments({"served_model_name": ["a", "--trust-remote-code"]}, FLAGS)
