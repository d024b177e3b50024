"""The layers of a model, from config.json's numbers: names, sizes, how many, how tensor parallelism cuts them.

Pure. Follows the module names that vLLM's own model classes use (fused qkv_proj and gate_up_proj). None where the
config does not say enough; never an average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vq_console.preflight.values import whole

Split = Literal["column", "row", "none"]


@dataclass(frozen=True, slots=True)
class Linear:
    """`count` layers of one name: weight of `out` × `inner` elements each, cut along `split` by tensor parallelism.

    `parts` are the checkpoint's own names that vLLM fuses into it. `kind` is linear or moe; for experts `count`
    counts every expert, of which each decoder layer has `per_layer`.
    """

    name: str
    out: int
    inner: int
    count: int
    split: Split
    parts: tuple[str, ...] = ()
    kind: Literal["linear", "moe"] = "linear"
    bias: bool = False
    per_layer: int = 1

    @property
    def layers(self) -> int:
        """Decoder layers that have it."""
        return self.count // self.per_layer

    @property
    def elements(self) -> int:
        """Weights of all layers of this name."""
        return self.out * self.inner * self.count

    def shard(self, tp: int) -> tuple[int, int]:
        """(out, inner) on one of `tp` GPUs."""
        if self.split == "column":
            return self.out // tp, self.inner
        if self.split == "row":
            return self.out, self.inner // tp
        return self.out, self.inner


@dataclass(frozen=True, slots=True)
class Anatomy:
    """All that fills memory: linear layers, experts, embedding and head (elements), the rest (norms, routers)."""

    linears: tuple[Linear, ...]
    embedding: int
    lm_head: int
    other: int
    layers: int
    attention_layers: int
    sliding_layers: int
    linear_attention_layers: int = 0

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.linears) + self.embedding + self.lm_head + self.other


def anatomy(facts: Mapping[str, Any]) -> Anatomy | None:
    """The anatomy of a decoder, or None where sizes are missing or the architecture is not understood."""
    hidden = whole(facts.get("hidden_size"))
    layers = whole(facts.get("num_hidden_layers"))
    heads = whole(facts.get("num_attention_heads"))
    vocabulary = whole(facts.get("vocab_size"))
    if not (hidden and layers and heads and vocabulary):
        return None
    kinds = layer_kinds(facts, layers)
    full = kinds.count("full")
    sliding = kinds.count("sliding")
    delta = kinds.count("linear")
    linears: list[Linear] = []
    attention = full + sliding
    if whole(facts.get("kv_lora_rank")):
        linears += _mla(facts, hidden, heads, layers)
    else:
        linears += _attention(facts, hidden, heads, attention)
    if delta:
        found = _delta(facts, hidden, delta)
        if found is None:
            return None
        linears += found
    mlp = _mlp(facts, hidden, layers)
    if mlp is None:
        return None
    linears += mlp
    experts = expert_count(facts) or 0
    routed = sum(1 for layer in linears if layer.kind == "moe")
    other = hidden * (2 * layers + 1)
    if routed:
        other += hidden * experts * (layers - (whole(facts.get("first_k_dense_replace")) or 0))
    tied = bool(facts.get("tie_word_embeddings"))
    table = vocabulary * hidden
    return Anatomy(tuple(linears), table, 0 if tied else table, other, layers, full, sliding, delta)


def layer_kinds(facts: Mapping[str, Any], layers: int) -> list[str]:
    """`full`, `sliding` or `linear` for each layer."""
    given = facts.get("layer_types")
    if isinstance(given, list) and given:
        names = [str(name) for name in given]
        return [
            "linear" if "linear" in n or "mamba" in n else "sliding" if "sliding" in n or "chunked" in n else "full"
            for n in names
        ]
    window = whole(facts.get("sliding_window"))
    every = whole(facts.get("full_attention_interval"))
    if every and facts.get("linear_num_value_heads"):
        return ["full" if (index + 1) % every == 0 else "linear" for index in range(layers)]
    pattern = whole(facts.get("sliding_window_pattern"))
    if window and facts.get("use_sliding_window") is not False:
        if pattern and pattern > 1:
            return ["full" if (index + 1) % pattern == 0 else "sliding" for index in range(layers)]
        if pattern == 1 or (facts.get("use_sliding_window") is None and facts.get("model_type") == "mistral"):
            return ["sliding"] * layers
    return ["full"] * layers


def expert_count(facts: Mapping[str, Any]) -> int | None:
    """Routed experts per MoE layer."""
    for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        count = whole(facts.get(key))
        if count and count > 1:
            return count
    return None


def _attention(facts: Mapping[str, Any], hidden: int, heads: int, count: int) -> list[Linear]:
    kv_heads = whole(facts.get("num_key_value_heads")) or heads
    head = whole(facts.get("head_dim")) or hidden // heads
    bias = bool(facts.get("attention_bias") or str(facts.get("model_type")) in {"qwen2", "qwen2_moe", "qwen2_vl"})
    gate = 2 if facts.get("attn_output_gate") else 1
    return [
        Linear(
            "self_attn.qkv_proj",
            (heads * gate + 2 * kv_heads) * head,
            hidden,
            count,
            "column",
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            bias=bias,
        ),
        Linear("self_attn.o_proj", hidden, heads * head, count, "row", ("self_attn.o_proj",)),
    ]


def _mla(facts: Mapping[str, Any], hidden: int, heads: int, count: int) -> list[Linear]:
    rank = whole(facts.get("kv_lora_rank")) or 0
    rope = whole(facts.get("qk_rope_head_dim")) or 0
    nope = whole(facts.get("qk_nope_head_dim")) or 0
    value = whole(facts.get("v_head_dim")) or nope
    query = whole(facts.get("q_lora_rank"))
    result = [
        Linear("self_attn.kv_a_proj_with_mqa", rank + rope, hidden, count, "none", ("self_attn.kv_a_proj_with_mqa",)),
        Linear("self_attn.kv_b_proj", heads * (nope + value), rank, count, "column", ("self_attn.kv_b_proj",)),
        Linear("self_attn.o_proj", hidden, heads * value, count, "row", ("self_attn.o_proj",)),
    ]
    if query:
        result += [
            Linear("self_attn.q_a_proj", query, hidden, count, "none", ("self_attn.q_a_proj",)),
            Linear("self_attn.q_b_proj", heads * (nope + rope), query, count, "column", ("self_attn.q_b_proj",)),
        ]
    else:
        result.append(Linear("self_attn.q_proj", heads * (nope + rope), hidden, count, "column", ("self_attn.q_proj",)))
    return result


def _delta(facts: Mapping[str, Any], hidden: int, count: int) -> list[Linear] | None:
    """Gated delta net layers (Qwen3-Next and later)."""
    key_heads = whole(facts.get("linear_num_key_heads"))
    value_heads = whole(facts.get("linear_num_value_heads"))
    key = whole(facts.get("linear_key_head_dim"))
    value = whole(facts.get("linear_value_head_dim"))
    if not (key_heads and value_heads and key and value):
        return None
    keys, values = key_heads * key, value_heads * value
    return [
        Linear(
            "linear_attn.in_proj_qkvz",
            2 * keys + 2 * values,
            hidden,
            count,
            "column",
            ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
        ),
        Linear(
            "linear_attn.in_proj_ba",
            2 * value_heads,
            hidden,
            count,
            "column",
            ("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
        ),
        Linear("linear_attn.out_proj", hidden, values, count, "row", ("linear_attn.out_proj",)),
    ]


def _mlp(facts: Mapping[str, Any], hidden: int, layers: int) -> list[Linear] | None:
    inner = whole(facts.get("intermediate_size"))
    experts = expert_count(facts)
    if not experts:
        return _dense("mlp", inner, hidden, layers, bool(facts.get("mlp_bias"))) if inner else None
    expert_inner = whole(facts.get("moe_intermediate_size")) or inner
    if not expert_inner:
        return None
    dense = min(whole(facts.get("first_k_dense_replace")) or 0, layers)
    only = facts.get("mlp_only_layers")
    if isinstance(only, list) and only:
        dense = len(only)
    routed = layers - dense
    step = whole(facts.get("decoder_sparse_step")) or 1
    if step > 1:
        routed = routed // step
        dense = layers - routed
    result = [
        Linear(
            "mlp.experts.w13",
            2 * expert_inner,
            hidden,
            routed * experts,
            "column",
            ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj"),
            "moe",
            per_layer=experts,
        ),
        Linear(
            "mlp.experts.w2",
            hidden,
            expert_inner,
            routed * experts,
            "row",
            ("mlp.experts.0.down_proj",),
            "moe",
            per_layer=experts,
        ),
    ]
    if dense and inner:
        result += _dense("mlp", inner, hidden, dense, False)
    shared = whole(facts.get("shared_expert_intermediate_size"))
    if not shared and (number := whole(facts.get("n_shared_experts"))):
        shared = number * expert_inner
    if shared:
        result += _dense("mlp.shared_experts", shared, hidden, routed, False)
    return result


def _dense(name: str, inner: int, hidden: int, count: int, bias: bool) -> list[Linear]:
    return [
        Linear(
            f"{name}.gate_up_proj",
            2 * inner,
            hidden,
            count,
            "column",
            (f"{name}.gate_proj", f"{name}.up_proj"),
            bias=bias,
        ),
        Linear(f"{name}.down_proj", hidden, inner, count, "row", (f"{name}.down_proj",), bias=bias),
    ]
