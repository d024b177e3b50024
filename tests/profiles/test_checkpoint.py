"""Facts of checkpoints: the keys that preflight judges by, sizes, and every way in which files can be broken."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.checkpoints import LLAMA, compressed, gguf_bytes, group, safetensors_bytes, write_model
from profiles.test_quantfacts import INT4, QUANTIZED
from vq_console.profiles import checkpoint_cache
from vq_console.profiles.checkpoint import count_parameters, facts_of, read_checkpoint
from vq_console.profiles.configfacts import model_facts
from vq_console.profiles.gguf import read_gguf
from vq_console.profiles.hubcache import cache_folder, find_cached
from vq_console.profiles.safetensors import Tensor, parse_header, read_header


def test_shape_facts() -> None:
    facts = model_facts(LLAMA)
    assert facts["head_dim"] == 64
    assert (facts["dtype"], facts["attention"], facts["moe"]) == ("bfloat16", "gqa", False)
    assert "torch_dtype" not in facts


SHAPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"hidden_size": 8, "num_attention_heads": 2}, {"head_dim": 4, "num_key_value_heads": 2, "attention": "mha"}),
    ({"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}, {"attention": "mqa"}),
    ({"hidden_size": 8, "num_attention_heads": 2, "kv_lora_rank": 512}, {"attention": "mla"}),
    ({"hidden_size": 8, "num_local_experts": 8, "experts_per_token": 2},
     {"num_experts": 8, "num_experts_per_tok": 2, "moe": True}),
    ({"hidden_size": 8, "n_routed_experts": 256}, {"num_experts": 256, "moe": True}),
    ({"hidden_size": 8, "num_attention_heads": 2, "layer_types": ["linear_attention"]}, {"attention": "hybrid"}),
    ({"text_config": {"hidden_size": 8, "dtype": "torch.float16"}, "vision_config": {"hidden_size": 3}},
     {"hidden_size": 8, "dtype": "float16", "multimodal": True}),
    ({"auto_map": {"AutoModel": "x.Y"}, "hidden_size": 4}, {"auto_map": True}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), SHAPES)
def test_shapes(config: dict[str, Any], expected: dict[str, Any]) -> None:
    facts = model_facts(config)
    assert {key: facts.get(key) for key in expected} == expected


def test_the_keys_of_the_cases_are_produced(tmp_path: Path) -> None:
    """`keys.toml` lists every key under `checkpoint` of the recorded failure cases and logs."""
    wanted = set(tomllib.loads((Path(__file__).parent.parent / "data/profiles/keys.toml").read_text())["checkpoint"])
    config = LLAMA | {"auto_map": {"a": "b"}, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
    produced: set[str] = set()
    for name, declared, _ in QUANTIZED:
        folder = write_model(
            tmp_path / name.replace(" ", "-"),
            config | {"quantization_config": declared},
            {"model.layers.0.self_attn.q_proj.bias": ("BF16", [8]), "a.weight": ("BF16", [4, 4])},
        )
        produced |= set(read_checkpoint(str(folder)).facts)
    assert wanted - produced == set()


def test_sizes_and_parameters(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": ("BF16", [16, 8]),
        "model.layers.0.q_proj.weight_packed": ("I32", [8, 1]),
        "model.layers.0.q_proj.weight_scale": ("BF16", [8, 1]),
        "model.layers.0.q_proj.weight_shape": ("I64", [2]),
    }
    folder = write_model(
        tmp_path / "m", LLAMA | {"quantization_config": compressed("pack-quantized", group_0=group(INT4))}, tensors
    )
    found = read_checkpoint("./m", base=tmp_path)
    assert found.path == folder
    assert (found.origin, found.problems) == ("folder", ())
    assert found.parameters == 16 * 8 + 8 * 8
    assert found.bytes_by_dtype == {"BF16": 16 * 8 * 2 + 16, "I32": 32, "I64": 16}
    assert found.facts["chat_template"] is False
    assert found.facts["weights_gib"] == round(sum(found.bytes_by_dtype.values()) / 2**30, 3)


@pytest.mark.parametrize(
    ("name", "dtype", "bits", "count"),
    [
        ("a.weight", "BF16", None, 8),
        ("a.weight", "F8_E4M3", 8, 8),
        ("a.qweight", "I32", 4, 64),
        ("a.qweight", "I32", 8, 32),
        ("a.weight_packed", "U8", 4, 16),
        ("experts.gate_up_proj_blocks", "U8", 4, 16),
        ("experts.gate_up_proj_scales", "U8", 4, 0),
        ("a.weight_scale_inv", "F32", 8, 0),
        ("a.qzeros", "I32", 4, 0),
    ],
)
def test_parameters_before_packing(name: str, dtype: str, bits: int | None, count: int) -> None:
    assert count_parameters({name: Tensor(dtype, (4, 2), 0)}, bits) == count


def test_facts_that_only_tensors_tell() -> None:
    base = {"a.weight": Tensor("BF16", (2, 2), 8)}
    without = {key: value for key, value in LLAMA.items() if key not in ("tie_word_embeddings", "torch_dtype")}
    assert facts_of(without, None, base)["tie_word_embeddings"] is True
    assert facts_of(without, None, base)["dtype"] == "bfloat16"
    tensors = base | {
        "lm_head.weight": base["a.weight"],
        "l.0.k_scale": base["a.weight"],
        "l.q_proj.bias": base["a.weight"],
    }
    facts = facts_of(without, None, tensors)
    assert (facts["tie_word_embeddings"], facts["kv_scales"], facts["attention_bias"]) == (False, True, True)


def damage(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    actions = {
        "cut": lambda: weights.write_bytes(weights.read_bytes()[:-8]),
        "cut-header": lambda: weights.write_bytes(weights.read_bytes()[:20]),
        "tiny": lambda: weights.write_bytes(b"abc"),
        "empty": lambda: weights.write_bytes(b""),
        "noise": lambda: weights.write_bytes(b"\x80\x02" * 50),
        "bad-json": lambda: weights.write_bytes((8).to_bytes(8, "little") + b"{broken}"),
        "list": lambda: weights.write_bytes((2).to_bytes(8, "little") + b"[]"),
        "pointer": lambda: weights.write_bytes(pointer),
        "absent": weights.unlink,
        "config-pointer": lambda: (folder / "config.json").write_bytes(pointer),
        "config-broken": lambda: (folder / "config.json").write_text('{"a":'),
        "config-list": lambda: (folder / "config.json").write_text("[]"),
        "config-absent": (folder / "config.json").unlink,
        "shards": lambda: (folder / "model.safetensors.index.json").write_text(
            json.dumps(
                {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors", "c": "../evil.safetensors"}}
            )
        ),
        "dangling": lambda: (weights.unlink(), weights.symlink_to("../../blobs/gone")),
    }
    actions[how]()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "cut off"),
        ("cut-header", "cut off"),
        ("tiny", "cut off"),
        ("empty", "cut off"),
        ("noise", "no safetensors"),
        ("bad-json", "damaged header"),
        ("list", "damaged header"),
        ("pointer", "Git LFS pointer"),
        ("absent", "no weights"),
        ("config-pointer", "Git LFS pointer"),
        ("config-broken", "not valid JSON"),
        ("config-list", "JSON object"),
        ("config-absent", "is missing"),
        ("shards", "1 of 2 weight files are missing"),
        ("dangling", "missing"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, how: str, words: str) -> None:
    folder = write_model(tmp_path / "m")
    damage(folder, how)
    found = read_checkpoint(str(folder))
    assert any(words in problem and str(folder) in problem for problem in found.problems), found.problems
    assert bool(found.facts) == (not how.startswith("config"))


def test_consolidated_copies_do_not_count(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    once = read_checkpoint(str(folder)).facts["weights_gib"]
    (folder / "consolidated.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert read_checkpoint(str(folder)).facts["weights_gib"] == once


def test_large_checkpoints_are_kept(tmp_path: Path, vq_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_cache, "WORTH_KEEPING", 2)
    folder = write_model(tmp_path / "m")
    first = read_checkpoint(str(folder))
    monkeypatch.setattr("vq_console.profiles.checkpoint.read_header", None)
    assert read_checkpoint(str(folder)) == first
    monkeypatch.undo()
    monkeypatch.setenv("VQ_CONSOLE_HOME", str(vq_home))
    (folder / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 72}))
    assert read_checkpoint(str(folder)).facts["hidden_size"] == 72
    for file in (vq_home / "cache" / "checkpoints").iterdir():
        file.write_text('{"facts": 3}')
    assert read_checkpoint(str(folder)).facts["hidden_size"] == 72


def test_old_weights_have_a_size(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x" * 4_000_000)
    found = read_checkpoint(str(folder))
    assert found.facts["size_gib"] == found.facts["weights_gib"] == 0.004
    assert found.problems == ()


def test_absent_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert read_checkpoint("./none", base=tmp_path).problems == (f"{tmp_path / 'none'}: no such folder",)
    hub = read_checkpoint("org/none")
    assert (hub.facts, hub.problems, hub.here) == ({}, (), False)
    for odd in ("../../etc", "a/../b", "org/na me", "a/b/c", ":", ""):
        assert read_checkpoint(odd or ".", base=tmp_path / "x").facts == {}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


def test_the_hub_cache(cache: Path) -> None:
    repository = cache / "models--org--m"
    first, second = "a" * 40, "b" * 40
    write_model(repository / "snapshots" / first, LLAMA | {"hidden_size": 72})
    write_model(repository / "snapshots" / second)
    os.utime(repository / "snapshots" / first, (1, 1))
    assert cache_folder() == cache
    newest = find_cached("org/m")
    assert newest is not None
    assert newest.revision == second
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(first)
    found = read_checkpoint("org/m")
    assert (found.origin, found.revision, found.facts["hidden_size"]) == ("cache", first, 72)
    assert read_checkpoint("org/m", revision=second).facts["hidden_size"] == 576
    assert read_checkpoint("org/m", revision="absent").facts == {}
    (repository / "blobs").mkdir()
    (repository / "blobs" / "x.incomplete").write_bytes(b"")
    assert read_checkpoint("org/m").problems == ()
    (repository / "snapshots" / first / "model.safetensors").unlink()
    assert "begun and not ended" in read_checkpoint("org/m").problems[0]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
    ],
)
def test_cache_places(environment: dict[str, str], expected: str) -> None:
    assert cache_folder(environment) == Path(expected)


GGUF = gguf_bytes(
    {
        "general.architecture": "qwen3",
        "qwen3.block_count": 36,
        "qwen3.context_length": 40960,
        "qwen3.embedding_length": 4096,
        "qwen3.attention.head_count": 32,
        "qwen3.attention.head_count_kv": 8,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
    },
    {"token_embd.weight": [4096, 3], "blk.0.attn_q.weight": [4096, 4096]},
)


def test_gguf(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "Qwen3-8B-Q4_K_M.gguf"
    path.write_bytes(GGUF)
    facts = read_checkpoint(str(path)).facts
    expected = {"quant_method": "gguf", "format": "Q4_K_M", "model_type": "qwen3", "num_hidden_layers": 36,
                "max_position_embeddings": 40960, "hidden_size": 4096, "num_key_value_heads": 8, "vocab_size": 3,
                "moe": False, "parameters": 4096 * 3 + 4096 * 4096}  # fmt: skip
    assert {key: facts.get(key) for key in expected} == expected
    snapshot = cache / "models--org--G" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "G-Q4_K_M.gguf").write_bytes(GGUF)
    assert read_checkpoint("org/G:Q4_K_M").facts["num_hidden_layers"] == 36
    assert read_checkpoint("org/G:Q8_0").facts == {}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "cut off"),
        (GGUF[:100], "cut off"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"PK\x03\x04" * 20, "no GGUF file"),
        (GGUF[:4] + b"\x09\0\0\0" + GGUF[8:], "version 9"),
        (GGUF[:8] + b"\xff" * 16 + GGUF[24:], "damaged"),
    ],
)
def test_broken_gguf(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    found = read_checkpoint(str(path))
    assert words in found.problems[0]
    assert str(path) in found.problems[0]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
KEYS = st.sampled_from([
    "quantization_config", "config_groups", "weights", "input_activations", "num_bits", "type", "targets", "bits",
    "text_config", "architectures", "hidden_size", "num_attention_heads", "num_experts", "kv_cache_scheme", "ignore",
    "layer_types", "dtype", "torch_dtype", "quantization", "quant_algo", "group_size", "strategy", "quant_method",
    "kv_lora_rank",
])  # fmt: skip
CONFIG = st.recursive(
    JSON, lambda inner: st.one_of(st.dictionaries(KEYS, inner, max_size=5), st.lists(inner, max_size=3)), max_leaves=25
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(KEYS, CONFIG, max_size=6), st.one_of(st.none(), st.dictionaries(KEYS, CONFIG, max_size=4)))
def test_any_configuration_gives_facts(config: dict[str, Any], modelopt: dict[str, Any] | None) -> None:
    facts = facts_of(config, modelopt, {"x": Tensor("BF16", (2,), 4)})
    assert "weights_gib" in facts
    assert all(value is not None for value in facts.values())


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.binary(max_size=120), JSON.map(lambda value: json.dumps(value).encode())), st.integers(0, 500))
def test_any_header_gives_a_message(raw: bytes, size: int) -> None:
    header = parse_header(raw, size)
    assert header.problem or all(tensor.nbytes >= 0 for tensor in header.tensors.values())


WHOLE = safetensors_bytes({"a": ("BF16", [4, 4]), "b": ("F32", [2])})


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(WHOLE)), st.binary(max_size=16))
def test_a_damaged_file_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, at: int, put: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(WHOLE[:at] + put + WHOLE[at + len(put) :])
    header = read_header(path)
    assert header.problem is None or header.problem
    if path.read_bytes() == WHOLE:
        assert header.problem is None


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(GGUF)), st.binary(max_size=16))
def test_a_damaged_gguf_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, at: int, put: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(GGUF[:at] + put + GGUF[at + len(put) :])
    facts, problem = read_gguf(path)
    assert facts["quant_method"] == "gguf"
    assert problem is None or problem
