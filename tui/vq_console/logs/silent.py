"""What a log shows without an error: stalls, settings without effect, known defects, slow kernels, broken output.

Owns the conclusions from facts and from the shape of a log. Version gates name the release with the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from vq_console.logs.lines import is_progress
from vq_console.logs.model import Fix, LogLine
from vq_console.logs.rules.rule import Context, remove_args, say, set_args, set_env


@dataclass(frozen=True, slots=True)
class Finding:
    """A conclusion: slug, the line that hints at it most, how sure and how bad it is."""

    slug: str
    line: int
    severity: str = "warning"
    explanation: str = ""
    fixes: tuple[Fix, ...] = field(default=())


_STALL = "No available shared memory broadcast block found"
_PROMPT = re.compile(r"[\w@:~/.\-()\[\] ]{0,80}[$#%>]")
_IDLE = re.compile(r"Avg generation throughput: 0\.0 tokens/s|\"GET /(?:health|metrics|v1/models)")
_ABOUT_NCCL = re.compile(
    r"vLLM is using nccl==|NCCL (?:INFO|version)|Init (?:START|COMPLETE)|ncclCommInitRank|Found nccl from"
)
_ABOUT_PEERS = re.compile(
    r"[Cc]ustom allreduce|custom_all_reduce|NVLink|P2P access cache|generating GPU P2P|NCCL_\w+ set by environment"
)
_OUTPUT = re.compile(r"Generated response \S+?:? output: (?P<quote>['\"])(?P<text>.*?)(?P=quote), output_token_ids")
_RUNNING = re.compile(r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs")
_WEIGHT_ONLY = re.compile(r"(?:Marlin(?:Mxfp8|MxFp8|NvFp4|MxFp4|FP8)|W4A16Linear|NvFp4W4A16|Emulation)\w*(?:Kernel)?")
_MLA_MODEL = re.compile(r"(?i)deepseek|glm-?4\.[5-9].*flash|glm-?5|kimi|longcat|minicpm3")
_HYBRID = re.compile(r"(?i)qwen3[-_.]?(?:next|5|6|8)|nemotron[-_]?(?:h|3)|jamba|bamba|falcon[-_]?h|granite[-_]?4")


def _of_no_server(line: LogLine) -> bool:
    """Whether the terminal or a broken copy left this line: nothing, `^C`, a shell's prompt, bytes that are no text."""
    message = line.message.strip()
    return message in ("", "^C") or (line.level is None and (bool(_PROMPT.fullmatch(message)) or "\ufffd" in message))


def stalls(context: Context, lines: list[LogLine]) -> Iterator[Finding]:
    """Why what has not failed does not go on, as far as its last lines tell."""
    said = [line for line in lines if not (_IDLE.search(line.message) or _of_no_server(line))]
    if not said:
        return
    waits: list[LogLine] = []
    for line in reversed(said):
        if _STALL in line.message:
            waits.append(line)
        elif not is_progress(line.message):
            break
    waits.reverse()
    if context.ready_line is not None:
        if len(waits) >= 2 and waits[0].number > context.ready_line:
            yield _stalled(waits)
        return
    progress = [line for line in said[-400:] if is_progress(line.message)]
    last_bar = progress[-1] if progress else None
    deep = last_bar is not None and "deepgemm" in last_bar.message.lower().replace("_", "")
    if last_bar is not None and deep and (waits or said[-1].number == last_bar.number):
        yield Finding(
            "startup-hang-deepgemm",
            waits[0].number if waits else last_bar.number,
            "error",
            "The last progress is DeepGEMM compiling its kernels; nothing came after it.",
            (
                say("Wait if the bar still moves: the first start compiles for many minutes."),
                set_env("Or do without DeepGEMM.", VLLM_USE_DEEP_GEMM="0"),
                set_args("Or take another kernel.", linear_backend="cutlass"),
            ),
        )
    elif len(waits) >= 2:
        yield _stalled(waits)
    else:
        last = next((line for line in reversed(said) if not _ABOUT_PEERS.search(line.message)), said[-1])
        if _ABOUT_NCCL.search(last.message) and _several_ranks(context, said):
            yield Finding(
                "nccl-hang",
                last.number,
                "error",
                "The log ends where the GPUs begin to talk to each other. If it stays there for minutes, it hangs.",
                (
                    set_env("Without direct GPU-to-GPU copies.", NCCL_P2P_DISABLE="1"),
                    say("Look at `nvidia-smi topo -p2p r`; IOMMU and ACS in the BIOS disturb GPU-to-GPU copies."),
                ),
            )


def _stalled(waits: list[LogLine]) -> Finding:
    return Finding(
        "shm-broadcast-stall",
        waits[0].number,
        "error",
        f"The engine has waited for a worker {len(waits)} times 60 s and nothing else came.",
        (say("Find the rank that is stuck (py-spy dump on each VLLM::Worker); see NCCL and DeepGEMM."),),
    )


def _several_ranks(context: Context, lines: list[LogLine]) -> bool:
    size = context.facts.get("tensor_parallel_size")
    if isinstance(size, int) and size > 1:
        return True
    workers = {line.process for line in lines if line.process and line.process.startswith(("Worker", "VllmWorker"))}
    return len(workers) > 1 or any(re.search(r"world_size=(?!1\b)\d+", line.message) for line in lines[-50:])


def garbage(text: str) -> bool:
    """Whether an answer is not language: one piece over and over, control characters, scripts and code mixed."""
    plain = text.strip()
    if not plain:
        return False
    if re.search(r"(.)\1{11,}", plain) or re.search(r"(\s?\S{1,40}?)\1{7,}", plain):
        return True
    if len(re.findall(r"\\\\?x[01][0-9a-f]|\\\\?ufffd|\ufffd", plain)) >= 2:
        return True
    decoded = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), plain)
    scripts = {_script(character) for character in decoded if character.isalpha()}
    words = decoded.split()
    code = sum(1 for word in words if re.search(r"\w\.\w|\w_\w", word))
    return len(scripts) >= 3 or (len(scripts) >= 2 and code >= 1 and len(words) <= 12)


def _script(character: str) -> str:
    point = ord(character)
    if point < 0x250:
        return "latin"
    for end, name in ((0x400, "greek"), (0x530, "cyrillic"), (0x700, "semitic"), (0xE00, "indic"), (0xE80, "thai")):
        if point < end:
            return name
    return "cjk" if 0x2E80 <= point < 0xE000 else "other"


def broken_output(context: Context, lines: list[LogLine]) -> Iterator[Finding]:
    """Answers in the log that are no language, or a combination that a release is known to get wrong."""
    shown = [
        match["text"]
        for line in lines
        if "Generated response" in line.message and (match := _OUTPUT.search(line.message))
    ]
    bad = any(garbage(text) for text in shown)
    yield from _known_defects(context, bad)
    quantized = bool(context.facts.get("quantization"))
    if (
        bad
        and str(context.facts.get("kv_cache_dtype") or "").startswith(("fp8", "int", "nvfp4", "turbo"))
        and not quantized
    ):
        yield Finding(
            "kv-fp8-wrong-output",
            context.fact_lines.get("engine_line") or context.fact_lines.get("requested") or 0,
            "error",
            "The server answers, but its answers are no language; only the KV cache is quantized.",
            (set_args("kv_cache_dtype = 'auto'.", kv_cache_dtype="auto"), say("Or upgrade past the fix.")),
        )
    if bad and quantized:
        kernel = context.fact_lines.get("kernels")
        yield Finding(
            "quant-wrong-output",
            kernel or context.fact_lines.get("engine_line", 0) or context.fact_lines.get("requested", 0),
            "error",
            "The server answers, but its answers are no language.",
            (
                set_args("Take another kernel.", linear_backend="marlin"),
                say("Upgrade past the fix, or serve another format of the checkpoint; test with a short fixed prompt."),
            ),
        )


def _known_defects(context: Context, bad: bool) -> Iterator[Finding]:
    facts, lines = context.facts, context.fact_lines
    model = str(facts.get("model") or "")
    method = str(facts.get("quantization") or context.asked("quantization") or "")
    engine = lines.get("engine_line") or lines.get("requested") or 0
    severity = "error" if bad else "warning"
    kv = str(facts.get("kv_cache_dtype") or "")
    attention = str(facts.get("attention_backend") or "")
    mla = "MLA" in attention or bool(_MLA_MODEL.search(model))
    regressed = context.version is not None and context.version[:2] == (0, 18) and re.search(r"(?i)qwen3\.5", model)
    if kv.startswith("fp8") and ((mla and (context.older_than(0, 19) or bad)) or (regressed and bad)):
        yield Finding(
            "kv-fp8-wrong-output",
            engine,
            severity,
            "FP8 KV cache with MLA attention corrupts later turns before vLLM 0.19.",
            (set_args("kv_cache_dtype = 'auto'.", kv_cache_dtype="auto"), say("Or upgrade to 0.19 or newer.")),
        )
    online = method in ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "online")
    old = context.older_than(0, 21) or (context.version is None and bad)
    biased = re.search(r"(?i)qwen-?(?:1\.5|2)", model) and "fp8" not in model.lower()
    if online and old and biased:
        yield Finding(
            "online-quant-bias-dropped",
            lines.get("requested") or engine,
            severity,
            "Online FP8 leaves bias terms at zero before vLLM 0.21, and this model has them.",
            (say("Upgrade to 0.21 or newer."), say("Or serve a checkpoint that is FP8 already.")),
        )
    if bad and method in ("compressed-tensors", "modelopt_fp4", "modelopt") and _HYBRID.search(model):
        yield Finding(
            "quant-ignore-mismatch",
            engine,
            severity,
            (
                "Hybrid models keep some layers in 16 bits; a checkpoint whose ignore list misses them reads them as "
                "quantized."
            ),
            (say("Compare quantization_config.ignore in config.json with the tensors; take a corrected upload."),),
        )
    if re.search(r"(?i)gemma-?4", model) and re.search(r"(?i)fp8[-_]?block", model) and method:
        yield Finding(
            "quant-wrong-output",
            engine,
            severity,
            "Block-FP8 checkpoints of Gemma 4 scale activations twice.",
            (say("Serve a checkpoint with per-tensor or per-channel FP8, or the 16-bit one."),),
        )
    if "gpt-oss" in model.lower() and facts.get("moe_backend") == "MARLIN" and context.older_than(0, 23):
        yield Finding(
            "quant-wrong-output",
            lines.get("moe_backend") or engine,
            severity,
            (
                "MXFP4 through Marlin gives a wrong first token on desktop Blackwell before vLLM 0.23: answers come "
                "back empty."
            ),
            (say("Upgrade to 0.23 or newer."), set_args("Or another MoE backend.", moe_backend="triton")),
        )


def without_effect(context: Context) -> Iterator[Finding]:
    """Settings that changed nothing, as requested and resolved configuration show."""
    facts, lines = context.facts, context.fact_lines
    resolved = facts.get("quantization")
    asked = context.asked("quantization")
    config = context.asked("quantization_config")
    online = {
        "online",
        "fp8_per_tensor",
        "fp8_per_block",
        "fp8_per_channel",
        "mxfp8",
        "int8_per_channel_weight_only",
        "nvfp4_per_token",
    }
    checkpoint = resolved and resolved not in online and asked not in online
    if isinstance(config, dict) and config.get("ignore") and checkpoint:
        yield Finding(
            "quant-ignore-no-effect",
            lines.get("requested", 0),
            "warning",
            f"The checkpoint is quantized already ({resolved}); ignore steers online quantization only.",
            (remove_args("Remove quantization_config.", "quantization_config"),),
        )
    if config and not asked and "quantization" in facts and resolved is None:
        yield Finding(
            "quant-noop",
            lines.get("engine_line", 0),
            "warning",
            "quantization_config alone quantizes nothing; it needs quantization = 'online' (or a shorthand).",
            (set_args("Say that it is online quantization.", quantization="online"),),
        )
    only_moe = asked in ("int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8")
    if only_moe and "model_load_gib" in facts and not facts.get("moe_backend"):
        yield Finding(
            "quant-noop",
            lines.get("model_load_gib", 0),
            "warning",
            f"{asked} quantizes expert layers only; this model shows none, so its weights stay 16-bit "
            f"({facts['model_load_gib']} GiB).",
            (set_args("fp8_per_tensor covers linear layers.", quantization="fp8_per_tensor"),),
        )


def slow_kernels(context: Context) -> Iterator[Finding]:
    """Kernels that read quantized weights and compute in 16 bits, though the method quantizes activations."""
    kernels = context.facts.get("kernels") or []
    for kernel in kernels:
        name = str(kernel.get("kernel"))
        if _WEIGHT_ONLY.search(name):
            yield Finding(
                "kernel-slow-fallback",
                context.fact_lines.get(f"kernel:{name}", 0),
                "warning",
                f"{name} computes in 16 bits: {'emulation' if 'Emulation' in name else 'weights only are quantized'}.",
                (say("Accept it, or choose a format that has a native kernel on this GPU."),),
            )
            return
    backend, scheme = context.facts.get("moe_backend"), context.facts.get("moe_scheme")
    weight_only = backend in ("MARLIN", "BATCHED_MARLIN") and scheme not in (None, "WNA16")
    if weight_only or backend == "EMULATION":
        yield Finding(
            "kernel-slow-fallback",
            context.fact_lines.get("moe_backend", 0),
            "warning",
            f"Expert layers run through {backend}, which computes in 16 bits.",
            (say("Accept it, or choose a format that has a native kernel on this GPU."),),
        )


def large_batch(context: Context, lines: list[LogLine]) -> Iterator[Finding]:
    """INT4 weights at a batch where 16-bit math decides."""
    weight_only = any(
        re.search(r"^(?:Marlin|Machete|Exllama|Conch|AllSpark)LinearKernel|^TritonW4A16", str(kernel.get("kernel")))
        for kernel in context.facts.get("kernels") or []
    )
    if not weight_only:
        return
    for line in lines:
        match = _RUNNING.search(line.message) if "Running:" in line.message else None
        if match and int(match["running"]) >= 32:
            yield Finding(
                "perf-weight-only-large-batch",
                line.number,
                "warning",
                f"{match['running']} requests run at once; there 16-bit math decides and INT4 weights help little.",
                (say("For throughput serve W8A8: INT8 on Ampere, FP8 from 8.9 on."),),
            )
            return
