"""What is known before anything runs: schemes by name, groups, layers left alone, room, memory, time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantize.conftest import llama_tensors, write_safetensors
from vq_console.core.errors import MissingError, UsageError
from vq_console.quantize.judge import Room, dividing_groups, expected_seconds, ignored, judge
from vq_console.quantize.model import Layer, Request, Source
from vq_console.quantize.schemes import SCHEMES, find_scheme, label, split_kv_cache
from vq_console.quantize.source import read_source

WIDE = Room(disk_gib=1000, memory_gib=1000)


def source_of(names: dict[str, tuple[int, int]], **facts: Any) -> Source:
    layers = tuple(Layer(name, *shape) for name, shape in names.items())
    stored = {f"{layer.name}.weight": ("BF16", (layer.outputs, layer.inputs), layer.elements * 2) for layer in layers}
    return Source("m", Path("/m"), None, facts, layers, stored)


SMOL = source_of(
    {
        "model.layers.0.self_attn.q_proj": (576, 576),
        "model.layers.0.self_attn.o_proj": (576, 576),
        "model.layers.0.mlp.gate_proj": (1536, 576),
        "model.layers.0.mlp.down_proj": (576, 1536),
    }
)


def request(scheme: str, **more: Any) -> Request:
    found, method = find_scheme(scheme)
    return replace(Request(model="m", scheme=found.name, method=method, out=Path("/out/x")), **more)


@pytest.mark.parametrize(
    ("name", "scheme", "method"),
    [
        ("FP8_DYNAMIC", "FP8_DYNAMIC", "rtn"), ("fp8-dynamic", "FP8_DYNAMIC", "rtn"), ("int8", "W8A8", "rtn"),
        ("fp8", "FP8_DYNAMIC", "rtn"), ("FP8_STATIC", "FP8_STATIC", "rtn"),
        ("W4A16-gptq", "W4A16", "gptq"), ("awq", "W4A16", "awq"), ("w8a8_smoothquant", "W8A8", "smoothquant"),
        ("W8A8-smoothquant-gptq", "W8A8", "smoothquant-gptq"), ("nvfp4a16", "NVFP4A16", "rtn"),
        ("W4A16_ASYM", "W4A16_ASYM", "rtn"),
    ],
)  # fmt: skip
def test_schemes_are_found_by_what_people_call_them(name: str, scheme: str, method: str) -> None:
    found, way = find_scheme(name)
    assert (found.name, way) == (scheme, method)


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("W4A61", None, "W4A16"),
        ("FP8_DYNAMIC", "gptq", "takes rtn"),
        ("W4A16", "magic", "one of rtn"),
        ("", None, "one of"),
    ],
)
def test_unknown_schemes_and_methods_say_what_there_is(name: str, method: str | None, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_scheme(name, method)
    assert words in raised.value.hint


def test_every_scheme_finds_itself_and_its_label_says_what_is_special() -> None:
    for scheme in SCHEMES:
        for method in scheme.methods:
            assert find_scheme(label(scheme, method, None, None)) == (scheme, method)
    four, _ = find_scheme("W4A16")
    assert label(four, "gptq", 64, "fp8") == "W4A16-g64-gptq-fp8kv"
    assert split_kv_cache("FP8_DYNAMIC-fp8kv") == ("FP8_DYNAMIC", "fp8")
    assert split_kv_cache("W4A16") == ("W4A16", None)


@pytest.mark.parametrize(
    ("group", "tensor_parallel", "chosen", "severity"),
    [(None, 1, 64, "warning"), (64, 1, 64, None), (32, 1, 32, None), (16, 1, 16, "warning"), (128, 1, None, "error"),
     (48, 1, 48, "warning"), (0, 1, None, "error"), (None, 2, 32, "warning"), (64, 2, None, "error"),
     (None, 7, None, "error")],
)  # fmt: skip
def test_group_sizes_are_held_against_every_layer(
    group: int | None, tensor_parallel: int, chosen: int | None, severity: str | None
) -> None:
    judged = judge(request("W4A16", group_size=group, tensor_parallel=tensor_parallel), SMOL, WIDE)
    assert judged.request.group_size == chosen
    found = [note for note in judged.notes if note.rule.startswith("group-size")]
    assert [note.severity for note in found] == ([severity] if severity else [])


def test_a_wrong_group_size_names_the_layer_and_the_sizes_that_work() -> None:
    error = judge(request("W4A16", group_size=128), SMOL, WIDE).errors[0]
    assert "model.layers.0.self_attn.q_proj (576 inputs), and 2 more layers" in error.message
    assert "64, 32, 16" in error.message
    assert error.fix == "take --group-size 64"
    split = judge(request("W4A16", group_size=64, tensor_parallel=2), SMOL, WIDE).errors[0]
    assert "o_proj (576 inputs, 288 on each of 2 GPUs)" in split.message


def test_a_broken_pattern_is_wrong_use_and_names_it() -> None:
    with pytest.raises(UsageError) as raised:
        judge(request("W8A8", ignore=("re:.*down_proj$", "re:[")), SMOL, WIDE)
    assert "--ignore re:[:" in raised.value.message
    assert raised.value.hint


def test_a_pattern_that_matches_nothing_is_said() -> None:
    given = ("nosuchlayer", "re:.*down_proj$", "model.layers.0.self_attn.q_proj", "re:down_proj", "lm_head")
    found = [
        note for note in judge(request("W8A8", ignore=given), SMOL, WIDE).notes if note.rule == "ignore-matches-nothing"
    ]
    assert [(note.severity, note.message) for note in found] == [
        ("warning", "--ignore nosuchlayer matches no layer"),
        ("warning", "--ignore re:down_proj matches no layer"),
    ]
    assert all("model.layers.0." in note.fix for note in found)


def test_group_128_is_taken_where_it_divides() -> None:
    wide = source_of({"model.layers.0.mlp.up_proj": (14336, 4096), "model.layers.0.mlp.down_proj": (4096, 14336)})
    judged = judge(request("W4A16"), wide, WIDE)
    assert judged.request.group_size == 128
    assert not [note for note in judged.notes if note.severity != "info"]
    assert dividing_groups(wide.layers, 4) == (256, 128, 64, 32, 16)


@pytest.mark.parametrize(
    ("scheme", "group", "rule"),
    [("FP8_DYNAMIC", 64, "group-size-fixed"), ("NVFP4", 32, "group-size-fixed"), ("W8A8", 128, "group-size-fixed")],
)
def test_formats_without_a_choice_of_groups_say_so(scheme: str, group: int, rule: str) -> None:
    assert [note.rule for note in judge(request(scheme, group_size=group), SMOL, WIDE).errors] == [rule]


def test_fixed_groups_and_blocks_are_checked_too() -> None:
    odd = source_of({"model.layers.0.mlp.up_proj": (100, 40)})
    assert [note.rule for note in judge(request("NVFP4"), odd, WIDE).errors] == ["group-size-divides"]
    blocks = [note for note in judge(request("FP8_BLOCK"), odd, WIDE).notes if note.rule == "block-divides"]
    assert blocks
    assert "100 × 40" in blocks[0].message


def test_sensitive_layers_are_left_alone_where_they_are() -> None:
    hybrid = source_of(
        {
            "model.layers.0.mlp.gate": (64, 2048),
            "model.layers.0.mlp.experts.0.up_proj": (768, 2048),
            "model.layers.0.mlp.shared_expert_gate": (1, 2048),
            "model.layers.0.linear_attn.in_proj_qkvz": (4096, 2048),
            "model.layers.1.self_attn.q_proj": (2048, 2048),
            "model.visual.blocks.0.attn.qkv": (3456, 1152),
            "lm_head": (1000, 2048),
        },
        moe=True,
    )
    judged = judge(request("FP8_DYNAMIC", ignore=("re:.*q_proj$",)), hybrid, WIDE)
    assert [layer.name for layer in judged.quantized] == ["model.layers.0.mlp.experts.0.up_proj"]
    assert {note.rule for note in judged.notes} >= {"layers-left", "moe", "hybrid-attention"}
    patterns, words = ignored((), SMOL)
    assert patterns == ("lm_head",)
    assert words == ()


def test_ignoring_everything_is_an_error() -> None:
    assert "nothing-to-quantize" in [n.rule for n in judge(request("W8A8", ignore=("re:.*",)), SMOL, WIDE).errors]


def test_a_full_disk_and_too_little_memory_are_said_before() -> None:
    judged = judge(request("W8A8"), SMOL, Room(disk_gib=0.3, memory_gib=0.2))
    assert [note.rule for note in judged.errors] == ["disk-full", "memory-too-small"]
    assert not judge(request("W8A8"), SMOL, Room(disk_gib=None, memory_gib=None)).errors


def test_sizes_follow_the_format() -> None:
    elements = sum(layer.elements for layer in SMOL.layers)
    eight = judge(request("W8A8"), SMOL, WIDE).size_gib * 2**30
    four = judge(request("W4A16", group_size=64), SMOL, WIDE).size_gib * 2**30
    assert eight == pytest.approx(elements, rel=0.3)
    assert four < eight


def test_time_comes_from_earlier_runs_of_the_same_kind() -> None:
    rates = [
        {"scheme": "W4A16", "method": "gptq", "parameters": 100, "samples": 32, "seconds": 10.0},
        {"scheme": "W4A16", "method": "rtn", "parameters": 100, "samples": 32, "seconds": 1.0},
        {"scheme": "W4A16", "method": "gptq", "parameters": 0, "seconds": 1.0},
        {"scheme": "W4A16", "method": "gptq"},
    ]
    assert expected_seconds(rates, 200, request("W4A16-gptq", samples=64)) == pytest.approx(40.0)
    assert expected_seconds(rates, 200, request("W4A16-awq")) is None
    rules = {note.rule for note in judge(request("W4A16-awq"), SMOL, WIDE).notes}
    assert {"time-unknown", "data-generated"} <= rules


def test_the_source_is_read_from_headers(tiny: Path) -> None:
    source = read_source(str(tiny))
    assert len(source.layers) == 10
    assert {layer.inputs for layer in source.layers} == {192, 512}
    assert not any("embed" in layer.name or "norm" in layer.name for layer in source.layers)


def test_sources_that_cannot_be_used(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder"):
        read_source(str(tmp_path / "nowhere"))
    with pytest.raises(MissingError, match="not on this machine"):
        read_source("nobody/nothing-of-this-name")
    data = (tiny / "model.safetensors").read_bytes()
    (tiny / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(MissingError, match="cut off"):
        read_source(str(tiny))
    write_safetensors(tiny / "model.safetensors", {"model.norm.weight": ("BF16", (8,))})
    with pytest.raises(MissingError, match="no linear layers"):
        read_source(str(tiny))
    write_safetensors(tiny / "model.safetensors", llama_tensors())
    (tiny / "config.json").write_text('{"quantization_config": {"quant_method": "gptq", "bits": 4}}')
    with pytest.raises(UsageError, match="quantized already"):
        read_source(str(tiny))
