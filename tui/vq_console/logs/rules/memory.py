"""Causes in memory: GPU memory at start, KV cache, out of memory in each phase, host memory.

Texts: vLLM 0.6 to 0.33 (v1/worker/utils.py, v1/core/kv_cache_utils.py, worker/*), torch, the kernel.
"""

from __future__ import annotations

import math

from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, Rule, rule, say, set_args, set_env


def _utilization(hit: Hit) -> float:
    asked = hit.context.asked("gpu_memory_utilization", "device_memory_utilization")
    return float(asked) if isinstance(asked, int | float) else 0.92


def _busy(hit: Hit) -> tuple[Fix, ...]:
    free, total = hit.number("free"), hit.number("total")
    fixes = [say("See who holds the memory (nvidia-smi) and stop it.")]
    if free and total:
        share = math.floor((free / total - 0.01) * 100) / 100
        if share >= 0.05:
            fixes.insert(
                0,
                set_args(
                    f"gpu_memory_utilization = {share}: {free} of {total} GiB were free.", gpu_memory_utilization=share
                ),
            )
    return tuple(fixes)


def _busy_words(hit: Hit) -> str:
    free, total, share, wanted = (hit.number(name) for name in ("free", "total", "share", "wanted"))
    if None in (free, total, share, wanted):
        return ""
    return f"{free} of {total} GiB were free at start, but a share of {share} asks for {wanted} GiB."


def _stale(hit: Hit) -> bool:
    """Somebody noted an orphaned engine in this log: its process name stands in nvidia-smi or ps output."""
    return any(
        "VLLM::" in line.message and line.level is None and ("MiB" in line.message or "pid" in line.message)
        for line in hit.context.lines
        if line.number < hit.line.number
    )


def _too_small(hit: Hit) -> tuple[Fix, ...]:
    fixes: list[Fix] = []
    estimate = hit.number("estimate")
    if estimate:
        fixes.append(set_args(f"max_model_len = {estimate:.0f}, the most that fits now.", max_model_len=int(estimate)))
    else:
        fixes.append(set_args("max_model_len = -1: vLLM then takes what fits.", max_model_len=-1))
    dtype = hit.context.facts.get("kv_cache_dtype")
    if dtype in (None, "auto", "bfloat16", "float16"):
        fixes.append(set_args("kv_cache_dtype = 'fp8' halves what a token needs.", kv_cache_dtype="fp8"))
    share = _utilization(hit)
    if share < 0.95:
        fixes.append(set_args("Or give it more of the GPU.", gpu_memory_utilization=0.95))
    return tuple(fixes)


def _too_small_words(hit: Hit) -> str:
    need, there, length = hit.number("need"), hit.number("there"), hit.number("length")
    if need is None or there is None or length is None:
        return ""
    estimate = hit.number("estimate")
    rest = f"; about {estimate:.0f} tokens would fit" if estimate else ""
    return f"One request of {length:.0f} tokens needs {need} GiB of KV cache, {there} GiB are left{rest}."


def _no_memory(hit: Hit) -> tuple[Fix, ...]:
    fixes: list[Fix] = []
    facts = hit.context.facts
    share = _utilization(hit)
    if share < 0.95:
        fixes.append(set_args(f"Raise gpu_memory_utilization (now {share}).", gpu_memory_utilization=0.95))
    if not facts.get("quantization") and "engine_line" in hit.context.fact_lines:
        fixes.append(set_args("Quantize the weights on load.", quantization="fp8_per_tensor"))
    fixes.append(
        set_args("Lower max_num_batched_tokens: less is set aside for activations.", max_num_batched_tokens=2048)
    )
    fixes.append(say("Or a smaller or quantized checkpoint, or more GPUs (tensor_parallel_size)."))
    return tuple(fixes)


def _no_memory_words(hit: Hit) -> str:
    kv, weights = hit.context.facts.get("kv_cache_gib"), hit.context.facts.get("model_load_gib")
    parts = []
    if isinstance(weights, float):
        parts.append(f"The weights take {weights} GiB")
    if isinstance(kv, float):
        parts.append(f"{kv} GiB are left for the KV cache")
    if isinstance(kv, float) and isinstance(weights, float) and kv < -weights:
        parts.append("a figure this low means that another server started on the same GPU at the same time")
    return "; ".join(parts) + "." if parts else ""


_LOAD_FRAMES = (
    "load_model",
    "initialize_model",
    "create_weights",
    "load_weights",
    "weight_loader",
    "process_weights_after_loading",
    "model_loader",
    "_weights_iterator",
    "init_model",
)


def _in_sampler(hit: Hit) -> bool:
    return "_dummy_sampler_run" in hit.frames or "warming up sampler" in hit.line.message


def _in_capture(hit: Hit) -> bool:
    if any(
        word in hit.frames for word in ("capture_model", "cuda_graph", "cudagraph", "capture_begin", "torch.cuda.graph")
    ):
        return True
    return not hit.frames and _last_progress(hit).startswith("Capturing CUDA graph")


def _while_serving(hit: Hit) -> bool:
    if not hit.before_ready:
        return True
    serving = ("execute_model", "run_busy_loop", "_process_engine_step", "step_fn", "sample_tokens")
    if any(word in hit.frames for word in serving):
        return "profile_run" not in hit.frames
    after = [line.message for line in hit.context.lines if line.number > hit.line.number]
    lost = any("AsyncLLM output_handler failed" in text or "EngineDeadError" in text for text in after)
    return lost and not any("Engine core initialization failed" in text for text in after)


def _while_loading(hit: Hit) -> bool:
    if any(word in hit.frames for word in _LOAD_FRAMES):
        return True
    return "model_load_gib" not in hit.context.facts and hit.before_ready


def _last_progress(hit: Hit) -> str:
    before = [line.message for line in hit.context.lines if line.number < hit.line.number and "%" in line.message]
    return before[-1].strip() if before else ""


def _fix_capture(hit: Hit) -> tuple[Fix, ...]:
    lower = round(max(0.5, _utilization(hit) - 0.05), 2)
    return (
        set_args(
            f"gpu_memory_utilization = {lower}: graphs need memory beside the KV cache.", gpu_memory_utilization=lower
        ),
        set_args("Fewer and smaller graphs.", max_num_seqs=64),
        set_args("Or none at all (slower decoding).", enforce_eager=True),
    )


def _fix_sampler(hit: Hit) -> tuple[Fix, ...]:
    asked = hit.number("seqs")
    fewer = max(16, int(asked) // 4) if asked else 64
    lower = round(max(0.5, _utilization(hit) - 0.05), 2)
    return (
        set_args(f"max_num_seqs = {fewer}.", max_num_seqs=fewer),
        set_args(f"Or gpu_memory_utilization = {lower}.", gpu_memory_utilization=lower),
    )


def _fix_serving(hit: Hit) -> tuple[Fix, ...]:
    lower = round(max(0.5, _utilization(hit) - 0.05), 2)
    return (
        set_args(f"gpu_memory_utilization = {lower}: more room outside the KV cache.", gpu_memory_utilization=lower),
        set_args("Smaller prefill steps.", max_num_batched_tokens=2048),
        set_env("Less fragmentation.", PYTORCH_ALLOC_CONF="expandable_segments:True"),
    )


def _fix_loading(hit: Hit) -> tuple[Fix, ...]:
    fixes: list[Fix] = []
    if not hit.context.facts.get("quantization"):
        fixes.append(set_args("Quantize the weights on load.", quantization="fp8_per_tensor"))
    size = hit.context.facts.get("tensor_parallel_size")
    more = size * 2 if isinstance(size, int) and size > 0 else 2
    fixes.append(set_args(f"Split the model over {more} GPUs.", tensor_parallel_size=more))
    fixes.append(set_args("Keep part of the weights in host memory (slower).", cpu_offload_gb=8))
    fixes.append(say("Or take a quantized checkpoint (AWQ, GPTQ, FP8)."))
    return tuple(fixes)


def _oom_words(hit: Hit) -> str:
    wanted, total, free = hit.group("wanted"), hit.group("total"), hit.group("free")
    if not wanted or not total:
        return ""
    return (
        f"It wanted {wanted} more; {free or 'little'} of {total} was free."
        if free
        else f"It wanted {wanted} more of {total}."
    )


_OOM = (
    r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)\.(?: GPU \d+ has a total capacity of "
    r"(?P<total>[\d.]+ \w+)"
    r" of which (?P<free>[\d.]+ \w+) is free)?"
)
_OTHER_OOM = (
    r"OutOfMemoryError|(?:HIP|XPU) out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDA driver error: out of memory|CUDA out of memory"
)


_OOM_WORDS = ("out of memory", "OutOfMemoryError", "cudaErrorMemoryAllocation", "CUBLAS_STATUS_ALLOC_FAILED")


def _oom_rules() -> tuple[Rule, ...]:
    made: list[Rule] = []
    for slug, when, fixes, rank in (
        ("cuda-oom-sampler-warmup", _in_sampler, _fix_sampler, 68),
        ("cuda-oom-graph-capture", _in_capture, _fix_capture, 67),
        ("cuda-oom-runtime", _while_serving, _fix_serving, 66),
        ("cuda-oom-load", _while_loading, _fix_loading, 65),
        ("cuda-oom-load", None, _no_memory, 64),
    ):
        made.append(rule(slug, "CUDA out of memory", rank, pattern=_OOM, when=when, fixes=fixes, explain=_oom_words))
        made += [rule(slug, needle, rank - 10, pattern=_OTHER_OOM, when=when, fixes=fixes) for needle in _OOM_WORDS]
    return tuple(made)


def _small_host(_hit: Hit) -> tuple[Fix, ...]:
    return (
        say("Give the host or container more RAM or swap; see `dmesg | grep -i oom`."),
        say("Load fewer models at once; --load-format fastsafetensors needs less host memory."),
    )


RULES = (
    rule(
        "kv-cache-too-small",
        "larger than the available KV cache memory",
        92,
        pattern=(
            r"max seq len \((?P<length>\d+)\),? \(?(?P<need>[\d.]+) GiB KV cache is needed, which is larger than "
            r"the available KV"
            r" cache memory \((?P<there>[\d.]+) GiB\)(?:.*estimated maximum model length is (?P<estimate>\d+))?"
        ),
        fixes=_too_small,
        explain=_too_small_words,
    ),
    rule("kv-cache-too-small", "larger than the available KV cache memory", 91, fixes=_too_small),
    rule(
        "kv-cache-too-small",
        "is larger than the maximum number of tokens that can be stored in KV cache",
        91,
        pattern=(
            r"max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be stored in KV "
            r"cache \((?P<estimate>\d+)\)"
        ),
        fixes=_too_small,
    ),
    rule("kv-cache-too-small", "maximum number of tokens that can be stored in KV cache", 90, fixes=_too_small),
    rule("kv-cache-too-small", "required blocks", 70, pattern=r"(?:does not fit|not enough) .*KV cache"),
    rule(
        "kv-cache-no-memory", "No available memory for the cache blocks", 92, fixes=_no_memory, explain=_no_memory_words
    ),
    rule("kv-cache-no-memory", "leaving none for the KV cache", 91, fixes=_no_memory),
    rule("kv-cache-no-memory", "No available block found", 60, fixes=_no_memory),
    rule(
        "stale-engine-process",
        "on startup is less than desired",
        93,
        pattern=(
            r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired \w+ memory utilization "
            r"\((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
        ),
        when=_stale,
        explain=_busy_words,
        fixes=lambda hit: (
            say(
                "End the VLLM::EngineCore and VLLM::Worker processes that nvidia-smi still shows, by pid, then "
                "start again."
            ),
            *_busy(hit)[:1],
        ),
    ),
    rule(
        "gpu-memory-busy",
        "on startup is less than desired",
        92,
        pattern=(
            r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired \w+ memory utilization "
            r"\((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
        ),
        fixes=_busy,
        explain=_busy_words,
    ),
    rule("gpu-memory-busy", "on startup is less than desired", 91, fixes=_busy),
    rule(
        "memory-profiling-interference",
        "Error in memory profiling",
        92,
        pattern=(
            r"Error in memory profiling\.?(?: Initial free memory (?P<before>[\d.]+)[^,]*, current free memory "
            r"(?P<after>[\d.]+))?"
        ),
        fixes=lambda hit: (
            say("Start again when nothing else starts or stops on this GPU: one start at a time."),
            set_args("Or fix the size of the KV cache, which skips the measurement.", kv_cache_memory_bytes=4 << 30),
        ),
    ),
    rule(
        "cuda-oom-sampler-warmup",
        "occurred when warming up sampler",
        90,
        pattern=r"occurred when warming up sampler with (?P<seqs>\d+) dummy requests",
        fixes=_fix_sampler,
    ),
    *_oom_rules(),
    rule(
        "host-oom-killed",
        "can't allocate memory",
        70,
        pattern=r"DefaultCPUAllocator: can't allocate memory",
        fixes=_small_host,
    ),
    rule(
        "host-oom-killed",
        "Cannot allocate memory",
        68,
        pattern=r"(?:\[Errno 12\] )?Cannot allocate memory",
        fixes=_small_host,
    ),
    rule("host-oom-killed", "Out of memory: Killed process", 88, fixes=_small_host),
    rule("host-oom-killed", "oom-kill", 86, fixes=_small_host),
    rule("host-oom-killed", "oom_reaper", 80, fixes=_small_host),
    rule("host-oom-killed", "OOMKilled", 86, fixes=_small_host),
    rule("host-oom-killed", "MemoryError", 45, pattern=r"^MemoryError\b", fixes=_small_host),
    rule(
        "host-oom-killed",
        "died unexpectedly (exit code: ",
        58,
        pattern=r"died unexpectedly \(exit code: (?:-9|137)\)",
        fixes=_small_host,
        explain=lambda hit: (
            "A worker was killed with SIGKILL and left no traceback; while weights load that is the kernel's "
            "out-of-memory killer."
        ),
    ),
    rule(
        "host-oom-killed",
        "SIGKILL",
        52,
        pattern=r"(?:terminated by signal|exit ?code|died with|killed by).{0,40}SIGKILL",
        fixes=_small_host,
    ),
    rule("host-oom-killed", "exit", 50, pattern=r"(?i)exit[ -]?(?:code|status)[:=]? ?(?:-9|137)\b", fixes=_small_host),
    rule("host-oom-killed", "Killed", 15, pattern=r"^(?:.*: line \d+: +\d+ )?Killed\b(?!.*process)", fixes=_small_host),
)
