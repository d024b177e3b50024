"""Rules about memory: what is free, what the weights and the KV cache need, what graphs and sampler want on top."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.preflight.fit import (
    GIB,
    batched_tokens,
    context_length,
    explicit_kv_gib,
    graph_gib,
    sampler_gib,
    sequences,
    utilization,
)
from vq_console.preflight.kv import bytes_per_token, kv_shape
from vq_console.preflight.model import Patch
from vq_console.preflight.rules.base import Context, Hit, put, rule
from vq_console.preflight.values import as_list, real
from vq_console.preflight.versions import span

STARTUP = "vLLM source: v1/worker/utils.py request_memory; measured: H200, vLLM 0.26.0"
FORMULA = "formulas of this console, held to real runs; vLLM source: v1/core/kv_cache_utils.py"


@rule("gpu-memory-busy", "error", source=STARTUP)
def busy(context: Context) -> Iterator[Hit]:
    """Free memory at start must reach total × utilization, also when the KV size is given."""
    s = context.s
    share = utilization(s)
    if s.device == "cpu":
        yield from _busy_host(context, share)
        return
    total, free = real(s.target.get("gpu_mem_gib")), real(s.target.get("gpu_free_gib"))
    if share is None or total is None or free is None or not 0 < share <= 1 or s.device not in {"cuda", "rocm"}:
        return
    if free < total * share:
        fits = _floor(free / total)
        orphans = as_list(s.target.get("gpu_processes"))
        evidence = f"wanted {total * share:.2f} GiB ({share:g} of {total:g})"
        yield Hit(
            f"{free:g} of {total:g} GiB are free on the GPU, less than the utilization of {share:g} asks for",
            evidence=evidence + (f"; held by {', '.join(orphans)}" if orphans else ""),
            fix=f"Stop what holds the memory (nvidia-smi), or use --gpu-memory-utilization {fits:.2f}"
            if fits > 0.02
            else "Stop what holds the memory (nvidia-smi), or use another GPU",
            patch=put(gpu_memory_utilization=fits) if fits > 0.02 else None,
        )


def _floor(share: float) -> float:
    return int(share * 100 - 1) / 100


def _busy_host(context: Context, share: float | None) -> Iterator[Hit]:
    s = context.s
    total = real(s.target.get("host_ram_gib"))
    free = real(s.target.get("host_free_gib"))
    if free is None:
        free = real(s.target.get("host_ram_free_gib"))
    if share is None or total is None or free is None or explicit_kv_gib(s) is not None or not 0 < share <= 1:
        return
    if free < total * share:
        fits = _floor(free / total)
        yield Hit(
            f"{free:g} of {total:g} GiB RAM are available, less than the utilization of {share:g} asks for",
            evidence="on the CPU engine --gpu-memory-utilization is the fraction of RAM",
            fix=f"Use --gpu-memory-utilization {fits:.2f}, or VLLM_CPU_KVCACHE_SPACE",
            patch=put(gpu_memory_utilization=fits) if fits > 0 else None,
        )


@rule("stale-engine-process", "error", source="vLLM issue 55510; measured: the API server's death leaves EngineCore")
def orphan(context: Context) -> Iterator[Hit]:
    """A VLLM:: process of no running server holds the GPU."""
    s = context.s
    total, free = real(s.target.get("gpu_mem_gib")), real(s.target.get("gpu_free_gib"))
    share = utilization(s)
    orphans = as_list(s.target.get("orphans"))
    if orphans and total and free is not None and share is not None and free < total * share:
        yield Hit(
            "an engine process without a server holds GPU memory",
            evidence=", ".join(orphans),
            fix="End it by pid (vq-console reap)",
        )


@rule("cuda-oom-load", "error", source=FORMULA)
def weights_too_big(context: Context) -> Iterator[Hit]:
    """Weights, or the peak while they load, above the whole GPU."""
    s = context.s
    total = real(s.target.get("gpu_mem_gib"))
    weights, peak = context.fit.weights_gib, context.fit.load_peak_gib
    if total is None or weights is None or not s.cuda or s.number("cpu_offload_gb"):
        return
    if max(weights, peak or 0) > total:
        while_loading = weights <= total
        what = "the peak while quantizing on load" if while_loading else "the weights"
        yield Hit(
            f"{what} ({(peak or 0) if while_loading else weights:.1f} GiB per GPU) exceed the GPU's {total:g} GiB",
            fix=_smaller(context),
            patch=_smaller_patch(context),
        )


def _smaller(context: Context) -> str:
    parts = []
    if context.resolution.method.checkpoint is None and not context.resolution.online:
        parts.append("--quantization fp8_per_tensor")
    parts += ["a quantized checkpoint", "more GPUs (--tensor-parallel-size)", "--cpu-offload-gb"]
    return "Use " + ", ".join(parts[:-1]) + " or " + parts[-1]


def _smaller_patch(context: Context) -> Patch | None:
    s = context.s
    if context.resolution.method.checkpoint is None and not context.resolution.online:
        known = s.catalogue.online
        if known is None or "fp8_per_tensor" in known:
            return put(quantization="fp8_per_tensor")
    return None


@rule("kv-cache-no-memory", "error", source=FORMULA)
def nothing_left(context: Context) -> Iterator[Hit]:
    """Weights and activations use the whole budget."""
    s = context.s
    fit = context.fit
    total = real(s.target.get("gpu_mem_gib"))
    if fit.weights_gib is None or fit.budget_gib is None or explicit_kv_gib(s) is not None:
        return
    if s.cuda and total is not None and max(fit.weights_gib, fit.load_peak_gib or 0) > total:
        return
    left = fit.kv_gib if fit.kv_gib is not None else fit.budget_gib - fit.weights_gib
    if left <= 0:
        yield Hit(
            f"nothing is left for the KV cache: weights {fit.weights_gib:.1f} GiB and activations fill the budget of "
            f"{fit.budget_gib:.1f} GiB",
            fix=_smaller(context) + ", or raise --gpu-memory-utilization",
            patch=_smaller_patch(context),
        )


@rule("kv-cache-too-small", "error", source=FORMULA)
def context_too_long(context: Context) -> Iterator[Hit]:
    """One request of the full context needs more KV memory than is left."""
    s = context.s
    fit = context.fit
    shape = kv_shape(s)
    length = context_length(s)
    if shape is None or length is None or fit.kv_gib is None or fit.kv_gib <= 0:
        return
    if str(s.args.get("max_model_len")) in {"auto", "-1"}:
        return
    need = shape.request(length) / GIB
    # Estimates of what is left are good to some per cent only, and a wrong refusal is worse than a late one.
    margin = 1.0 if explicit_kv_gib(s) is not None else 1.05
    if need <= fit.kv_gib * margin:
        return
    longest = fit.max_context
    yield Hit(
        f"a request of {length:,} tokens needs {need:.1f} GiB of KV cache, and {fit.kv_gib:.1f} GiB are left",
        evidence=f"{bytes_per_token(s, s.kv_dtype) or 0:,.0f} bytes per token on each GPU",
        fix=f"Use --max-model-len {longest} or below, --kv-cache-dtype fp8, or -1 to fit by itself"
        if longest
        else "Lower --max-model-len",
        patch=put(max_model_len=longest) if longest else None,
    )


@rule("cuda-oom-sampler-warmup", "error", source="vLLM source: v1/worker gpu_model_runner, sampler warm-up")
def sampler_warmup(context: Context) -> Iterator[Hit]:
    """Logits of all dummy requests must fit outside the budget: the KV cache has taken the rest by then."""
    s = context.s
    share, total = s.number("gpu_memory_utilization"), real(s.target.get("gpu_mem_gib"))
    need = sampler_gib(s)
    if share is None or total is None or need is None or not s.cuda or share < 0.93 or not share <= 1:
        return
    outside = total * (1 - share)
    if need > outside and _sampler_first(context):
        yield Hit(
            f"warming up the sampler with {sequences(s)} requests needs about {need:.1f} GiB, and the budget leaves "
            f"{outside:.1f} GiB",
            fix="Lower --max-num-seqs (64 to 256) or --gpu-memory-utilization",
            patch=put(max_num_seqs=64, gpu_memory_utilization=0.9),
        )


def _sampler_first(context: Context) -> bool:
    """Whether the sampler rather than the graphs is what breaks: many requests at once, or no graphs at all."""
    return sequences(context.s) >= 512 or context.s.eager


@rule("cuda-oom-graph-capture", "warning", source="vLLM source: CUDA graphs are captured outside the KV reservation")
def graphs_outside_budget(context: Context) -> Iterator[Hit]:
    """CUDA graphs need memory beyond the KV reservation; a utilization near 1 leaves none."""
    s = context.s
    share, total = s.number("gpu_memory_utilization"), real(s.target.get("gpu_mem_gib"))
    if share is None or total is None or not s.cuda or s.eager or not 0.93 <= share <= 1:
        return
    need = graph_gib(s, context.shape)
    outside = total * (1 - share)
    sampler = sampler_gib(s)
    if sampler is not None and sampler > outside and _sampler_first(context):
        return
    if (need or 0.75) > outside or share > 0.97:
        yield Hit(
            f"--gpu-memory-utilization {share:g} leaves {outside:.1f} GiB for CUDA graphs, which need about "
            f"{need or 1:.1f} GiB",
            fix="Lower it to 0.92, cap --max-num-seqs, or --enforce-eager",
            patch=put(gpu_memory_utilization=0.92),
        )


@rule("cuda-oom-runtime", "warning", source="vLLM source: profiling covers max_num_batched_tokens")
def huge_steps(context: Context) -> Iterator[Hit]:
    """Very large steps whose activations alone take a third of the GPU."""
    s = context.s
    total = real(s.target.get("gpu_mem_gib"))
    activation = context.fit.activation_gib
    if total is None or activation is None or not s.cuda or not s.count("max_num_batched_tokens"):
        return
    if activation > total / 3:
        yield Hit(
            f"steps of {batched_tokens(s)} tokens take about {activation:.1f} GiB for activations",
            fix="Lower --max-num-batched-tokens to 8192",
            patch=put(max_num_batched_tokens=8192),
        )


@rule(
    "host-oom-killed", "warning", source="report: workers killed (-9) while loading; safetensors are read through RAM"
)
def host_memory(context: Context) -> Iterator[Hit]:
    """Weights larger than the host's RAM, read by several workers."""
    s = context.s
    ram = real(s.target.get("host_ram_gib"))
    stored = real(s.fact("weights_gib") or s.fact("size_gib"))
    if ram is None or stored is None or s.device == "cpu":
        return
    if stored > ram and str(s.args.get("load_format")) not in {"dummy", "fastsafetensors", "runai_streamer"}:
        yield Hit(
            f"the weights ({stored:g} GiB) are larger than the host's RAM ({ram:g} GiB): loading may be killed",
            fix="Give the host or container more RAM or swap, or use --load-format fastsafetensors",
            patch=put(load_format="fastsafetensors"),
        )


@rule("host-oom-killed", "error", source="vLLM source: v1/worker/cpu_worker.py")
def cpu_weights(context: Context) -> Iterator[Hit]:
    """On the CPU engine weights and KV cache share the RAM."""
    s = context.s
    ram = real(s.target.get("host_ram_gib"))
    weights = context.fit.weights_gib
    kv = explicit_kv_gib(s)
    if s.device != "cpu" or ram is None or weights is None:
        return
    if weights + (kv or 0) > ram:
        yield Hit(
            f"weights ({weights:.1f} GiB)" + (f" and KV cache ({kv:g} GiB)" if kv else "") + f" exceed {ram:g} GiB RAM",
            fix="Use a smaller or quantized checkpoint, or a smaller KV cache",
        )


@rule("memory-profiling-interference", "info", source="measured: several servers started at once on one H200")
def several_at_once(context: Context) -> Iterator[Hit]:
    """Given KV sizes do not lift the start-up check."""
    s = context.s
    if s.count("kv_cache_memory_bytes") and "gpu_memory_utilization" not in s.args and s.cuda:
        total, free = real(s.target.get("gpu_mem_gib")), real(s.target.get("gpu_free_gib"))
        if total and free is not None and free >= total * 0.92 and span(">=0.20").holds(s.version):
            yield Hit(
                "--kv-cache-memory-bytes does not lift the start-up check of --gpu-memory-utilization (0.92)",
                fix="Set --gpu-memory-utilization to what this server really takes, if others share the GPU",
            )
