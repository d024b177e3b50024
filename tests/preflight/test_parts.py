"""The pure parts below the plan: versions, values, schemes, shapes, patterns, KV cache, kernels, matrix."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.judging import plan_of, situation_of
from vq_console.core.errors import ProfileError
from vq_console.preflight.attention import attention_backend, refusal
from vq_console.preflight.ignore import matches, reach
from vq_console.preflight.kernels import Where, linear_kernel, moe_kernel
from vq_console.preflight.kv import bytes_per_token, kv_shape
from vq_console.preflight.matrix import DEVICES, cell_text, cells
from vq_console.preflight.names import is_gated, is_local, presume
from vq_console.preflight.scheme import FP8_BLOCK, FP8_TENSOR, NVFP4, checkpoint_scheme, wna16
from vq_console.preflight.shapes import anatomy, layer_kinds
from vq_console.preflight.values import as_list, json_table, plain_names, sound_facts, whole
from vq_console.preflight.versions import READ, neighbours, number_tuple, parse_version, span
from vq_console.profiles.checkpoint import facts_of

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32, 0)), ("v0.11", (0, 11, 0)), ("0.11.2.dev575+g1", (0, 11, 2)), ("nightly", None), (None, None)],
)
def test_versions(text: str | None, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


def test_spans_hold_both_ways_and_never_the_unknown() -> None:
    middle = span(">=0.24,<0.27")
    assert [middle.holds(parse_version(v)) for v in ("0.23.9", "0.24.0", "0.26.9", "0.27.0")] == [
        False,
        True,
        True,
        False,
    ]
    assert not middle.holds(None)
    assert span("").holds(None)
    assert str(middle) == ">=0.24.0,<0.27.0"
    with pytest.raises(ValueError, match="spans"):
        span("<=0.24")


@pytest.mark.parametrize("args", [{"uds": "/run/vllm.sock"}, {"headless": True}, {"grpc": True}])
def test_what_listens_on_no_http_port_is_refused(args: dict[str, object]) -> None:
    (finding,) = [f for f in plan_of({"vllm_version": "0.32.0", "args": args}).findings if f.rule == "no-http-port"]
    assert finding.severity == "error"
    assert finding.patch is not None
    assert finding.patch.remove_args == tuple(args)
    off = dict.fromkeys(args, False)
    assert "no-http-port" not in {f.rule for f in plan_of({"vllm_version": "0.32.0", "args": off}).findings}


def test_between_two_releases_both_count() -> None:
    assert neighbours((0, 26, 0)) == ((0, 24, 0), (0, 27, 1))
    assert neighbours(READ[-1]) == (READ[-1],)
    assert neighbours((0, 40, 0)) == (READ[-1],)
    assert neighbours((0, 10, 0)) == ()
    assert number_tuple("535.161.08") == (535, 161, 8)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("8k", 8000),
        ("8K", 8192),
        ("2G", 2 * 1024**3),
        ("1m", 1000**2),
        (8192, 8192),
        (1e4, 10000),
        (True, None),
        ("x", None),
    ],
)
def test_human_numbers(value: object, number: int | None) -> None:
    assert whole(value) == number


def test_names_of_flags() -> None:
    assert plain_names({"-q": "fp8", "tensor-parallel-size": 2, "no_enable_prefix_caching": True}) == {
        "quantization": "fp8",
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
    }
    assert json_table('{"a": 1}') == {"a": 1}
    assert json_table("[1]") is None
    assert as_list("a, b") == ["a", "b"]


@pytest.mark.parametrize(
    ("facts", "family"),
    [
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, "wna16"),
        ({"quant_method": "fp8"}, "fp8_tensor"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "strategy": "channel"}, "fp8_channel"),
        ({"quant_method": "compressed-tensors", "format": "naive-quantized", "scheme": "W8A16_FP8"}, "fp8_a16"),
        ({"quant_method": "compressed-tensors", "scheme": "FP8_BLOCK"}, "fp8_block"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized", "bits": 8}, "int8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", "bits": 4, "group_size": 32}, "wna16"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "input_activations": ""},
            "nvfp4_a16",
        ),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "input_activations": "fp4"}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, "mxfp4"),
        ({"quant_method": "compressed-tensors", "scheme": "W4A8", "bits": 4, "input_activations": "fp8"}, "w4a8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "nvfp4_a16"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "mxfp8"),
        ({"quant_method": "mxfp4"}, "mxfp4_a16"),
        ({"quant_method": "something-new"}, "other"),
    ],
)
def test_schemes_of_checkpoints(facts: dict[str, object], family: str) -> None:
    scheme = checkpoint_scheme(facts)
    assert scheme is not None
    assert scheme.family == family


def test_a_checkpoint_without_a_method_has_no_scheme() -> None:
    assert checkpoint_scheme({"hidden_size": 1}) is None


def test_anatomy_counts_every_parameter() -> None:
    shape = anatomy({**LLAMA, "tie_word_embeddings": False})
    assert shape is not None
    assert shape.elements == pytest.approx(8.03e9, rel=0.001)
    moe = anatomy(presume("Qwen/Qwen3-30B-A3B").facts)
    assert moe is not None
    assert moe.elements == pytest.approx(30.5e9, rel=0.01)
    latent = anatomy(presume("deepseek-ai/DeepSeek-V3").facts)
    assert latent is not None
    assert latent.elements == pytest.approx(671e9, rel=0.01)


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 70.6),
        ("Qwen/Qwen2.5-7B-Instruct", 7.62),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.494),
        ("Qwen/Qwen3-14B", 14.77),
        ("Qwen/Qwen3-32B", 32.76),
        ("Qwen/Qwen3-235B-A22B", 235.1),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7.25),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7),
        ("google/gemma-2-9b-it", 9.24),
        ("microsoft/phi-4", 14.7),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.1345),
        ("deepseek-ai/DeepSeek-V2-Lite", 15.7),
    ],
)
def test_published_sizes(model: str, billions: float) -> None:
    shape = anatomy(presume(model).facts)
    assert shape is not None
    assert shape.elements == pytest.approx(billions * 1e9, rel=0.015)


def test_names_say_formats_and_gates() -> None:
    assert presume("x/Qwen3-8B-AWQ").facts["quant_method"] == "awq"
    assert presume("RedHatAI/Qwen3-8B-FP8-dynamic").facts["scheme"] == "FP8_DYNAMIC"
    assert presume("org/unheard-of").facts == {}
    assert is_gated("meta-llama/Llama-3.1-8B")
    assert not is_gated("/models/meta-llama/Llama")
    assert is_local("./x")
    assert not is_local("org/model")


def test_layer_kinds() -> None:
    pattern = {"sliding_window": 1024, "sliding_window_pattern": 6}
    assert layer_kinds(pattern, 12).count("full") == 2
    assert layer_kinds({"layer_types": ["linear_attention", "full_attention"]}, 2) == ["linear", "full"]
    assert layer_kinds({}, 3) == ["full"] * 3


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.0.mlp.down_proj", "mlp.down_proj", True),
        ("model.layers.3.mlp.down_proj", "mlp.down_proj", False),
        ("mlp", "mlp.down_proj", True),
        ("down_proj", "mlp.down_proj", True),
        ("own_proj", "mlp.down_proj", False),
        ("re:.*down_proj$", "mlp.down_proj", True),
        ("re:[", "mlp.down_proj", False),
        ("*.down_proj", "mlp.down_proj", True),
    ],
)
def test_patterns(pattern: str, name: str, hit: bool) -> None:
    assert matches(pattern, name) is hit


def test_fused_layers_must_be_named_whole() -> None:
    shape = anatomy(LLAMA)
    assert shape is not None
    found = reach(["re:.*q_proj", "re:.*gate_proj", "re:.*up_proj", "visual"], shape.linears)
    assert found.torn == ("self_attn.qkv_proj",)
    assert found.skipped == {"mlp.gate_up_proj"}
    assert found.unmatched == ("visual",)


def test_long_ignore_lists_are_quick() -> None:
    import time

    shape = anatomy({**LLAMA, "num_hidden_layers": 96})
    assert shape is not None
    names = [f"model.layers.{n}.{m}" for n in range(96) for m in ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj")]
    started = time.perf_counter()
    found = reach([*names, "re:.*layers\\.(1|2)\\.mlp\\.down_proj"], shape.linears)
    assert time.perf_counter() - started < 1.0
    assert found.skipped == {"mlp.gate_up_proj"}
    assert found.partly == {"mlp.down_proj": 2}


@pytest.mark.parametrize(
    ("facts", "dtype", "expected"),
    [
        (LLAMA, "auto", 131072),
        (LLAMA, "fp8", 65536),
        (LLAMA, "nvfp4", 36864),
        ({**LLAMA, "num_key_value_heads": 32}, "auto", 524288),
        ({**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, "auto", 32 * 576 * 2),
        ({**LLAMA, "kv_cache_scheme": "fp8"}, "auto", 65536),
    ],
)
def test_bytes_per_token(facts: dict[str, object], dtype: str, expected: float) -> None:
    assert bytes_per_token(situation_of({"checkpoint": facts}), dtype) == expected


def test_tensor_parallelism_splits_the_cache_until_heads_run_out() -> None:
    def per_token(tp: int, **facts: object) -> float | None:
        args = {"tensor_parallel_size": tp}
        return bytes_per_token(situation_of({"args": args, "checkpoint": {**LLAMA, **facts}}), "auto")

    assert per_token(4) == 131072 / 4
    assert per_token(16) == 131072 / 8
    assert per_token(4, kv_lora_rank=512, qk_rope_head_dim=64) == 32 * 576 * 2


def test_sliding_layers_keep_their_window_and_linear_ones_a_state() -> None:
    sliding = kv_shape(situation_of({"checkpoint": {**LLAMA, "sliding_window": 1024, "sliding_window_pattern": 4}}))
    assert sliding is not None
    # one step of 2,048 tokens is read before blocks outside the window are free, and a window can begin inside a block
    assert sliding.request(8192) == 4096 * (8 * 8192 + 24 * (1023 + 2048 + 16))
    assert sliding.longest(sliding.request(8192), 16) == 8192
    hybrid = {
        **LLAMA,
        "full_attention_interval": 4,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    mixed = kv_shape(situation_of({"checkpoint": hybrid}))
    assert mixed is not None
    assert mixed.full_layers == 8
    assert mixed.state_bytes == 24 * 32 * 128 * 128 * 4


def test_another_kv_dtype_gives_twice_the_tokens() -> None:
    base = {"vllm_version": "0.33.0", "gpu_sm": 90, "gpu_mem_gib": 80, "checkpoint": LLAMA}
    plain, narrow = plan_of(base).fit, plan_of({**base, "args": {"kv_cache_dtype": "fp8"}}).fit
    assert plain.kv_tokens is not None
    assert narrow.kv_tokens == pytest.approx(2 * plain.kv_tokens, rel=0.001)


def test_online_quantization_peaks_layer_by_layer_now_and_whole_before() -> None:
    asked = {"gpu_sm": 90, "gpu_mem_gib": 80, "checkpoint": LLAMA, "args": {"quantization": "fp8_per_tensor"}}
    now, before = plan_of({**asked, "vllm_version": "0.33.0"}).fit, plan_of({**asked, "vllm_version": "0.19.0"}).fit
    assert now.load_peak_gib is not None
    assert before.load_peak_gib is not None
    assert now.load_peak_gib < 9
    assert before.load_peak_gib == pytest.approx(15.0, abs=0.1)


def test_gates_of_kernels() -> None:
    hopper = Where("cuda", 90, (0, 30, 0))
    assert linear_kernel(wna16(4, 128), hopper).kernel == "MacheteLinearKernel"
    assert linear_kernel(wna16(4, 32), hopper).kernel == "MarlinLinearKernel"
    odd = Where("cuda", 90, (0, 30, 0), shapes=((200, 4096),))
    assert linear_kernel(wna16(4, 128), odd).kernel == "MarlinLinearKernel"
    assert (
        linear_kernel(FP8_BLOCK, Where("cuda", 90, (0, 30, 0), deep_gemm=False)).kernel
        == "CutlassFp8BlockScaledMMKernel"
    )
    invariant = Where("cuda", 86, (0, 33, 0), batch_invariant=True)
    assert linear_kernel(FP8_TENSOR, invariant).kernel != "MarlinFP8ScaledMMLinearKernel"
    bare = Where("cuda", 90, (0, 33, 0), packages=frozenset({"vllm", "torch"}))
    assert linear_kernel(NVFP4, bare).kernel == "MarlinNvFp4LinearKernel"
    disabled = Where("cuda", 90, (0, 33, 0), disabled=frozenset({"MacheteLinearKernel"}))
    assert linear_kernel(wna16(4, 128), disabled).kernel == "HummingLinearKernel"
    assert linear_kernel(wna16(4, 128), Where("cuda", None, (0, 33, 0))).grade == "unknown"
    assert linear_kernel(wna16(4, 128), Where("xpu", None, (0, 33, 0))).grade == "unknown"
    assert moe_kernel(FP8_TENSOR, Where("rocm")).grade == "unknown"


def test_what_two_releases_disagree_on_is_unknown() -> None:
    between = linear_kernel(FP8_BLOCK, Where("cuda", 89, (0, 28, 0)))
    assert between.kernel is None
    assert between.grade == "unknown"
    assert "TritonFp8BlockScaledMMKernel" in between.source


@pytest.mark.parametrize(
    ("facts", "backend"),
    [
        ({"gpu_sm": 90}, "FLASH_ATTN"),
        ({"gpu_sm": 100}, "FLASHINFER"),
        ({"gpu_sm": 75}, "TRITON_ATTN"),
        ({"gpu_sm": 86, "args": {"kv_cache_dtype": "fp8"}}, "FLASHINFER"),
        ({"gpu_sm": 90, "args": {"kv_cache_dtype": "fp8"}}, "FLASH_ATTN"),
        ({"gpu_sm": 120, "args": {"kv_cache_dtype": "fp8"}}, "FLASHINFER"),
        ({"gpu_sm": 89, "args": {"kv_cache_dtype": "int8_per_token_head"}}, "TRITON_ATTN"),
        ({"gpu_sm": 90, "args": {"attention_backend": "flex_attention"}}, "FLEX_ATTENTION"),
        ({"device": "cpu"}, "CPU_ATTN"),
        ({"gpu_sm": 90, "checkpoint": {"kv_lora_rank": 512}}, None),
    ],
)
def test_attention_backends(facts: dict[str, object], backend: str | None) -> None:
    assert attention_backend(situation_of({"vllm_version": "0.33.0", **facts}))[0] == backend


def test_refusals_have_reasons() -> None:
    asked = {"vllm_version": "0.33.0", "gpu_sm": 86, "args": {"kv_cache_dtype": "fp8"}}
    assert "SM 9.0" in (refusal(situation_of(asked), "FLASH_ATTN") or "")
    assert refusal(situation_of(asked), "FLASHINFER") is None


def test_every_cell_says_where_it_comes_from() -> None:
    found = cells(versions=READ)
    assert len(found) == len(READ) * len(cells(devices=("sm90",))) * len(DEVICES)
    assert all(cell.source for cell in found if cell.grade not in {"unknown"} and cell.kernel)
    assert all(cell_text(cell) for cell in found)
    assert {cell.grade for cell in found} == {
        "native", "weight-only", "emulated", "unquantized", "unsupported", "unknown",
    }  # fmt: skip


@given(st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.integers(), st.text(max_size=8), st.booleans())))
def test_any_checkpoint_facts_can_be_planned(facts: dict[str, object]) -> None:
    plan_of({"vllm_version": "0.33.0", "gpu_sm": 90, "gpu_mem_gib": 80, "checkpoint": {**LLAMA, **facts}})


_ODD = [0, -1, 10**30, -(10**30), float("nan"), float("inf"), None, "", [], [None], [[1]], {}, {"a": None}, "8", 2.5]
_DECLARED: dict[str, Any] = {
    "num_experts": 8,
    "layer_types": ["full_attention", "linear_attention"],
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
                "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
                "targets": ["Linear", "re:.*q_proj$"],
                "format": "pack-quantized",
            }
        },
        "ignore": ["lm_head", "re:.*gate$"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    },
}


def _places(value: Any) -> list[tuple[Any, Any]]:
    entries = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    inner = list(entries)
    return [place for key, each in inner for place in ((value, key), *_places(each))]


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(_ODD)), max_size=3), st.sampled_from(["0.20.2", "9.9"]))
def test_a_damaged_config_can_be_planned(damages: list[tuple[int, Any]], version: str) -> None:
    config = copy.deepcopy({**LLAMA, **_DECLARED})
    for where, value in damages:
        places = _places(config)
        holder, key = places[where % len(places)]
        holder[key] = copy.deepcopy(value)
    machine = {"vllm_version": version, "gpu_sm": 90, "gpu_mem_gib": 80}
    plan_of({**machine, "checkpoint": config})
    plan_of({**machine, "checkpoint": facts_of(config, None, None)})


def test_what_cannot_be_computed_counts_as_not_said() -> None:
    said = {"hidden_size": float("nan"), "num_hidden_layers": 10**20, "head_dim": 128, "group_size": -1}
    assert sound_facts({**said, "x": {"y": [1, float("inf")]}}) == {"head_dim": 128, "group_size": -1, "x": {"y": [1]}}


_KEYS = st.sampled_from(
    [
        "quantization",
        "kv_cache_dtype",
        "max_model_len",
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "moe_backend",
        "linear_backend",
        "attention_backend",
        "quantization_config",
        "speculative_config",
        "dtype",
        "port",
        "load_format",
        "max_num_seqs",
        "block_size",
    ]
)
_VALUES = st.one_of(
    st.text(max_size=6),
    st.integers(-3, 200000),
    st.floats(-1, 2),
    st.booleans(),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
)


@given(
    st.dictionaries(_KEYS, _VALUES, max_size=5), st.sampled_from([None, "0.8.5", "0.20.2", "0.26.0", "0.33.0", "9.9"])
)
def test_any_arguments_can_be_judged(args: dict[str, object], version: str | None) -> None:
    try:
        plan = plan_of({"vllm_version": version, "gpu_sm": 90, "gpu_mem_gib": 24, "args": args, "checkpoint": LLAMA})
    except ProfileError:
        # A list value that argparse would take for a flag.
        assert any(isinstance(value, list) and any(text.startswith("-") for text in value) for value in args.values())
        return
    assert all(finding.message and finding.rule for finding in plan.findings)
