"""The KV cache: bytes per token and layer kind, tokens in a given size, requests at a context, the longest context.

Pure. Multi-head latent attention keeps one vector per token on every GPU; sliding layers keep their window; layers of
linear attention keep a state that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from vq_console.preflight.shapes import layer_kinds
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import whole
from vq_console.preflight.versions import span

KV_BYTES = {
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "nvfp4": 0.5625,
    "nvfp4_4over6": 0.5625,
}
"""Bytes per element of a KV dtype, scales included where they are fixed (NVFP4: one byte per 16)."""

_PER_HEAD = {"int8_per_token_head": 1.0, "fp8_per_token_head": 1.0, "int4_per_token_head": 0.5}
_TURBO = {
    "turboquant_k8v4": 0.75,
    "turboquant_4bit_nc": 0.5,
    "turboquant_k3v4_nc": 0.4375,
    "turboquant_3bit_nc": 0.375,
    "ultraquant_4bit": 0.5,
}


BLOCK = 16
"""Tokens of a block; a window that begins inside one needs one more."""
IN_FLIGHT = span(">=0.26")
"""Releases that count both batches of asynchronous scheduling (`max_in_flight_tokens`), not one."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """Bytes of one token in one layer of each kind, layers of each kind, and the window of the sliding ones."""

    full_layer: float
    full_layers: int
    sliding_layers: int
    window: int
    """Tokens that a sliding layer holds of a long request, those of the step that is just read included."""
    state_bytes: float = 0.0

    @property
    def growing(self) -> float:
        """Bytes that each further token of a long request adds."""
        return self.full_layer * self.full_layers

    def request(self, context: int) -> float:
        """Bytes of one request of `context` tokens."""
        sliding = min(context, self.window) + BLOCK if self.sliding_layers else 0
        return self.growing * context + self.full_layer * self.sliding_layers * sliding + self.state_bytes

    def tokens(self, size: float, context: int | None, block: int) -> int:
        """Tokens as vLLM prints them: requests at the context times the context (all layers alike: plain division)."""
        if not self.sliding_layers and not self.state_bytes:
            blocks = int(size // (self.growing * block))
            return blocks * block
        length = context or self.window or 4096
        return int(size / self.request(length) * length)

    def requests(self, size: float, context: int) -> float:
        """Requests of the full context that fit at once."""
        return size / self.request(context)

    def longest(self, size: float, block: int) -> int | None:
        """The longest single request that fits, in whole blocks."""
        fixed = self.full_layer * self.sliding_layers * (self.window + BLOCK) + self.state_bytes
        if self.growing <= 0:
            return None
        if size <= fixed:
            alike = self.full_layer * (self.full_layers + self.sliding_layers)
            return int(size // (alike * block)) * block
        return int((size - fixed) // (self.growing * block)) * block


def element_bytes(dtype: str, head_dim: int) -> float | None:
    """Bytes per element of a KV dtype; None for one that is not known."""
    if dtype in KV_BYTES:
        return KV_BYTES[dtype]
    if dtype in _PER_HEAD:
        return _PER_HEAD[dtype] + 4 / head_dim
    return _TURBO.get(dtype)


def resolved_kv_dtype(situation: Situation, dtype: str) -> str:
    """`auto` made plain: FP8 where the checkpoint declares a KV scheme, else the model's 16-bit type."""
    if dtype != "auto":
        return dtype
    scheme = situation.fact("kv_cache_scheme") or situation.fact("kv_cache_quant_algo")
    if scheme and str(scheme).lower() not in {"none", "null", ""}:
        return "fp8"
    wanted = str(situation.args.get("dtype") or situation.fact("dtype") or situation.fact("torch_dtype") or "bfloat16")
    return "float32" if wanted in {"float32", "float"} else "bfloat16"


def kv_shape(situation: Situation, dtype: str | None = None) -> KvShape | None:
    """The KV shape on one GPU, or None where config.json does not say enough."""
    layers = whole(situation.fact("num_hidden_layers"))
    if layers is None:
        return None
    resolved = resolved_kv_dtype(situation, dtype or situation.kv_dtype)
    kinds = layer_kinds(situation.facts, layers)
    per = -(-len(kinds) // situation.pp)
    rank = whole(situation.fact("kv_lora_rank"))
    if rank:
        width = rank + (whole(situation.fact("qk_rope_head_dim")) or 0)
        size = 4.0 if resolved == "float32" else element_bytes(resolved, width)
        return None if size is None else KvShape(width * size, per, 0, 0)
    heads = whole(situation.fact("num_key_value_heads")) or whole(situation.fact("num_attention_heads"))
    head = situation.head_dim
    if not heads or not head or (situation.fact("hybrid") and "linear" not in kinds):
        return None
    size = 4.0 if resolved == "float32" else element_bytes(resolved, head)
    if size is None:
        return None
    local = max(heads // situation.tp, 1)
    layer = 2 * local * head * size
    scale = per / len(kinds)
    full = round(kinds.count("full") * scale)
    sliding = round(kinds.count("sliding") * scale)
    state = _state_bytes(situation) * round(kinds.count("linear") * scale) / situation.tp
    window = whole(situation.fact("sliding_window")) or 0
    if sliding and not window:
        full, sliding = full + sliding, 0
    if sliding:
        # vLLM sets aside the window and what is read before old blocks are freed (v1/kv_cache_interface.py
        # SlidingWindowSpec; measured: H200, vLLM 0.26.0).
        from vq_console.preflight.fit import batched_tokens

        asynchronous = IN_FLIGHT.holds(situation.version) and situation.args.get("async_scheduling") is not False
        window += batched_tokens(situation) * (2 if asynchronous else 1) - 1
    return KvShape(layer, full, sliding, window, state)


def _state_bytes(situation: Situation) -> float:
    """Bytes of one linear-attention layer's state: key × value per head in 32 bit, and the convolution's window."""
    values = whole(situation.fact("linear_num_value_heads")) or 0
    key = whole(situation.fact("linear_key_head_dim")) or 0
    value = whole(situation.fact("linear_value_head_dim")) or 0
    return float(values * key * value * 4)


def bytes_per_token(situation: Situation, dtype: str) -> float | None:
    """Bytes that one token adds on one GPU in all layers, sliding ones included; None where unknown."""
    shape = kv_shape(situation, dtype)
    return None if shape is None else shape.full_layer * (shape.full_layers + shape.sliding_layers)
