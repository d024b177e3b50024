"""Rules about values that no list tells: numbers, sizes, executors, speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.core.text import nearest
from vq_console.preflight.rules import knowledge
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.values import json_table, whole
from vq_console.preflight.versions import vllm_text


def _dashes(name: str) -> str:
    return name.replace("_", "-")


@rule("cli-invalid-value", "error", source="vLLM source: config/cache.py, config/scheduler.py, config/speculative.py")
def bad_number(context: Context) -> Iterator[Hit]:
    """Numbers outside their range, and pairs that contradict each other."""
    s = context.s
    share = s.number("gpu_memory_utilization")
    if share is not None and not 0 < share <= 1:
        meant = round(share / 100, 2) if 1 < share <= 100 else 0.9
        yield Hit(
            f"--gpu-memory-utilization {share:g} is outside 0 to 1: it is a fraction, not a percentage",
            fix=f"Use {meant}",
            patch=put(gpu_memory_utilization=meant),
        )
    for name, lowest in _LOWEST.items():
        value = s.count(name)
        if value is not None and value < lowest and not (name == "max_model_len" and value == -1):
            yield Hit(
                f"--{_dashes(name)} {value} is below {lowest}",
                fix=f"Use {lowest} or more",
                patch=drop(name) if name == "max_model_len" else put(**{name: lowest}),
            )
    tokens, context_length = s.count("max_num_batched_tokens"), s.count("max_model_len")
    if tokens and context_length and context_length > tokens and _unchunked(context):
        yield Hit(
            f"--max-num-batched-tokens {tokens} is below --max-model-len {context_length} without chunked prefill",
            fix="Raise --max-num-batched-tokens to the context, or leave chunked prefill on",
            patch=put(max_num_batched_tokens=context_length),
        )
    together = s.count("max_num_seqs")
    if tokens and together and tokens < together:
        yield Hit(
            f"--max-num-batched-tokens {tokens} is below --max-num-seqs {together}",
            fix="Raise --max-num-batched-tokens to at least --max-num-seqs",
            patch=put(max_num_batched_tokens=together),
        )
    block = s.count("block_size")
    if block is not None and (block < 1 or block & (block - 1)):
        yield Hit(f"--block-size {block} is no power of two", fix="Use 16, 32, 64 or 128", patch=put(block_size=16))
    port = s.count("port")
    if port is not None and not 0 < port < 65536:
        yield Hit(f"--port {port} is no TCP port", fix="Use 1 to 65535", patch=drop("port"))
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "kv_cache_memory_bytes"):
        given = s.args.get(name)
        if isinstance(given, str) and given.lower() != "auto" and whole(given) is None:
            yield Hit(
                f"--{_dashes(name)} {given!r} is no number",
                evidence="k, m, g count in thousands, K, M, G in 1024; nothing may follow them",
                fix="Use a number, or one such as 8k, 8K or 2G",
                patch=drop(name),
            )


_LOWEST = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "nnodes": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 1,
    "max_logprobs": -1,
    "stream_interval": 1,
}
"""The lowest value that vLLM's config classes take (`Field(ge=…)`); `max_model_len` -1 fits by itself."""


@rule("cli-invalid-value", "error", source="vLLM source: v1/executor/abstract.py get_class (a class by its full name)")
def bad_executor(context: Context) -> Iterator[Hit]:
    """An executor that is neither a known one nor the full name of a class."""
    value = context.s.args.get("distributed_executor_backend")
    known = ("ray", "mp", "uni", "external_launcher")
    if isinstance(value, str) and value and value not in known and "." not in value:
        near = "mp" if value.startswith("multi") else nearest(value, known)
        yield Hit(
            f"--distributed-executor-backend {value!r} is no executor",
            evidence=f"known: {', '.join(known)}, or a class with its module",
            fix=f"Use {near}" if near else "Use mp or ray",
            patch=put(distributed_executor_backend=near) if near else drop("distributed_executor_backend"),
        )


def _unchunked(context: Context) -> bool:
    return context.s.args.get("enable_chunked_prefill") is False


@rule("cli-invalid-value", "error", source="vLLM source: config/speculative.py SpeculativeMethod")
def bad_speculation(context: Context) -> Iterator[Hit]:
    """An unknown speculative method, or a table that lacks what the method needs."""
    table = json_table(context.s.args.get("speculative_config")) or {}
    method = table.get("method") or context.s.args.get("spec_method")
    known = knowledge.speculative_methods(context.s.version)
    if isinstance(method, str) and known and method not in known:
        near = nearest(method, known)
        yield Hit(
            f"{method!r} is no speculative decoding method of {vllm_text(context.s.version)}",
            evidence="known: " + ", ".join(sorted(known)[:20]) + " …",
            fix=f"Use {near}" if near else "Use ngram, eagle3, mtp or another listed method",
            patch=put(speculative_config={**table, "method": near}) if near and table else None,
        )
    if table and method in {"ngram", "eagle", "eagle3", "draft_model"} and "num_speculative_tokens" not in table:
        yield Hit(
            f"--speculative-config for {method} lacks num_speculative_tokens",
            fix="Add num_speculative_tokens, such as 3",
            patch=put(speculative_config={**table, "num_speculative_tokens": 3}),
        )
