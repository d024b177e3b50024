"""What a log says happened: versions, settings, kernels, memory, times; as a table of line templates.

Owns the message templates of vLLM 0.6 to 0.33 that carry a fact. A kernel is what its line names; a missing line stays
absent and nothing is concluded from warnings about the hardware.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vq_console.logs.model import Kernel

_SECRET_KEYS = frozenset({"api_key", "hf_token", "watermark_config"})

_MOE_WITH_OWN_FORMAT = frozenset({"NvFp4", "Mxfp4", "MxFp8", "MXFP4", "MXFP8"})
"""Schemes whose expert layers are listed among the kernels too; for all schemes `moe_backend` names the backend."""


Take: TypeAlias = Callable[["FactSheet", "re.Match[str]", int], None]


@dataclass(slots=True)
class FactSheet:
    """Facts of one run, collected line by line; `values` has the keys of `Explanation.facts`."""

    values: dict[str, Any] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    """Which line a fact was read from."""
    later: list[tuple[Take, re.Match[str], int]] = field(default_factory=list)
    """Long lines that are read when somebody asks: a log of many short runs has one of them in each."""

    def put(self, key: str, value: Any, number: int) -> None:
        self.values[key] = value
        self.lines[key] = number

    def first(self, key: str, value: Any, number: int) -> None:
        if self.values.get(key) is None:
            self.put(key, value, number)

    def most(self, key: str, value: float, number: int) -> None:
        """Keep the largest: of several ranks the slowest and the fullest decide."""
        if value > self.values.get(key, float("-inf")):
            self.put(key, value, number)

    def least(self, key: str, value: float, number: int) -> None:
        if value < self.values.get(key, float("inf")):
            self.put(key, value, number)

    def add_kernel(self, module: str, kernel: str, number: int) -> None:
        if not any(known.module == module and known.kernel == kernel for known in self.kernels):
            self.kernels.append(Kernel(module, kernel, number))
            self.lines.setdefault("kernels", number)
            self.lines.setdefault(f"kernel:{kernel}", number)

    def as_mapping(self) -> dict[str, Any]:
        """The facts as JSON-ready values; `kernels` is there, maybe empty, as soon as an engine is seen."""
        later, self.later = self.later, []
        for take, match, number in later:
            take(self, match, number)
        facts = dict(self.values)
        if self.kernels or "engine_line" in self.lines:
            facts["kernels"] = [{"module": kernel.module, "kernel": kernel.kernel} for kernel in self.kernels]
        return facts


@dataclass(frozen=True, slots=True)
class Template:
    """One line template: the word its message begins with, the pattern, and what to do with a match."""

    word: str
    pattern: re.Pattern[str]
    take: Take


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _text(key: str) -> Take:
    return lambda sheet, match, number: sheet.put(key, match[1], number)


def _first(key: str, convert: Callable[[str], Any] = str) -> Take:
    return lambda sheet, match, number: sheet.first(key, convert(match[1]), number)


def _most(key: str) -> Take:
    return lambda sheet, match, number: sheet.most(key, float(match[1]), number)


def _flag(key: str, value: Any = True) -> Take:
    return lambda sheet, _match, number: sheet.first(key, value, number)


def read_arguments(text: str) -> dict[str, Any] | None:
    """The dict that `non-default args:` prints, or None; values that are no literals stay text, secrets are hidden."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = _loose_arguments(text)
    if not isinstance(value, dict):
        return None
    return {
        str(key): "***" if str(key) in _SECRET_KEYS and item else item
        for key, item in value.items()
        if isinstance(key, str)
    }


def _loose_arguments(text: str) -> dict[str, Any]:
    """Read `{'a': 1, 'b': SomeObject(...)}` whose values are not all literals; keeps those values as text."""
    found: dict[str, Any] = {}
    for match in re.finditer(
        r"'(\w+)': ('(?:[^'\\]|\\.)*'|\[[^\]]*\]|True|False|None|-?[\d.]+(?:e-?\d+)?)(?=[,}])", text
    ):
        try:
            found.setdefault(match[1], ast.literal_eval(match[2]))
        except (ValueError, SyntaxError):
            found.setdefault(match[1], match[2])
    return found


def _requested(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    asked = read_arguments(match[1])
    if asked is not None:
        sheet.first("requested", asked, number)
        model = asked.get("model") or asked.get("model_tag")
        if isinstance(model, str):
            sheet.first("model", model, number)


def _namespace(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    """`args: Namespace(model='…', …)` of 0.6 to 0.10: all arguments, so only what a person would set is kept."""
    values: dict[str, Any] = {}
    wanted = (
        "model quantization dtype max_model_len tensor_parallel_size pipeline_parallel_size gpu_memory_utilization"
        " kv_cache_dtype max_num_seqs max_num_batched_tokens enforce_eager trust_remote_code port host"
    )
    for key in wanted.split():
        found = re.search(rf"\b{key}=('(?:[^'\\]|\\.)*'|True|False|None|-?[\d.]+)", match[1])
        if found and found[1] != "None":
            values[key] = ast.literal_eval(found[1])
    if values:
        sheet.first("requested", values, number)
        if isinstance(values.get("model"), str):
            sheet.first("model", values["model"], number)


_CONFIG_KEYS: Mapping[str, str] = {
    "model": "model",
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "load_format": "load_format",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "device_config": "device",
    "seed": "seed",
    "served_model_name": "served_model_name",
    "enable_prefix_caching": "enable_prefix_caching",
    "trust_remote_code": "trust_remote_code",
    "speculative_config": "speculative_config",
}
_CONFIG_VALUE = re.compile(r"(?<![\w.'])(\w+)=('(?:[^'\\]|\\.)*'|\[[^\[\]]*\]|\w+\((?:[^()]|\([^()]*\))*\)|[^,()\s]+)")


def _later(take: Take, line: str) -> Take:
    """Take a match only when the facts are asked for; `line` is known at once."""

    def note(sheet: FactSheet, match: re.Match[str], number: int) -> None:
        sheet.lines.setdefault(line, number)
        sheet.later.append((take, match, number))

    return note


def _engine_config(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    """`Initializing a V1 LLM engine (v0.32.0) with config: model='…', …, quantization=fp8, …`."""
    if match["version"]:
        sheet.first("vllm_version", match["version"], number)
    seen: set[str] = set()
    for found in _CONFIG_VALUE.finditer(match["config"]):
        name = found[1]
        if name not in _CONFIG_KEYS or name in seen:
            continue
        seen.add(name)
        key = _CONFIG_KEYS[name]
        value = _config_value(found[2])
        if key == "max_model_len" or key not in sheet.values:
            sheet.put(key, value, number)
        if len(seen) == len(_CONFIG_KEYS):
            break


def _config_value(text: str) -> Any:
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    if text[0] in "'[":
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text.strip("'")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return text.removeprefix("torch.")


def _model_load(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    sheet.most("model_load_gib", float(match[1]), number)
    if match[2]:
        sheet.most("model_load_s", float(match[2]), number)


def _kv_size(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    sheet.least("kv_cache_tokens", _number(match["tokens"]), number)
    if match["concurrency"]:
        sheet.least("max_concurrency", float(match["concurrency"]), number)


def _blocks(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    """0.6 and 0.7 print blocks instead of tokens; a block holds 16 tokens unless the log says otherwise."""
    sheet.least("kv_cache_blocks", int(match[1]), number)


def _free_memory(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    sheet.first("memory_free_gib", float(match["free"]), number)
    sheet.first("memory_total_gib", float(match["total"]), number)


def _kernel(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    sheet.add_kernel(match["module"], match["kernel"], number)


def _moe(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    backend, scheme = match["backend"].strip("'"), match["scheme"]
    sheet.first("moe_backend", backend, number)
    if scheme in _MOE_WITH_OWN_FORMAT:
        sheet.add_kernel(f"{scheme} MoE", backend, number)
    if scheme:
        sheet.first("moe_scheme", scheme, number)


def _attention(sheet: FactSheet, match: re.Match[str], number: int) -> None:
    name = match["name"].removeprefix("AttentionBackendEnum.").strip("'")
    sheet.first("attention_backend", _OLD_ATTENTION.get(name, name), number)


_OLD_ATTENTION: Mapping[str, str] = {
    "Flash Attention": "FLASH_ATTN",
    "Flash": "FLASH_ATTN",
    "FlashAttention": "FLASH_ATTN",
    "FlashAttention-2": "FLASH_ATTN",
    "FlashInfer": "FLASHINFER",
    "XFormers": "XFORMERS",
    "Triton": "TRITON_ATTN",
    "FlexAttention": "FLEX_ATTENTION",
    "Torch SDPA": "TORCH_SDPA",
    "Triton MLA": "TRITON_MLA",
    "FlashMLA": "FLASHMLA",
    "Cutlass MLA": "CUTLASS_MLA",
}

_CAPTURE = r"(?:(?:\[[^\]]*\] )?)"
_FLOAT = r"([\d.]+)"

TEMPLATES: tuple[Template, ...] = tuple(
    Template(word, re.compile(pattern), take)
    for word, pattern, take in (
        ("vLLM", r"vLLM (?:API )?server version (\S+?)(?:,|$)", _first("vllm_version")),
        ("vLLM", r"vLLM server version \S+, serving model (.+)$", _first("model")),
        ("vLLM", r"vLLM is using nccl==(\S+)", _first("nccl_version")),
        ("non-default", r"non-default args: (\{.*)$", _later(_requested, "requested")),
        ("args:", r"args: Namespace\((.*)$", _later(_namespace, "requested")),
        ("Resolved", r"Resolved architecture: (\S+)", _first("architecture")),
        ("Using", r"Using max model len (\d+)", lambda s, m, n: s.put("max_model_len", int(m[1]), n)),
        (
            "Auto-fit",
            r"Auto-fit max_model_len: (?:reduced from \d+ to|full model context length) (\d+)",
            lambda s, m, n: s.put("max_model_len", int(m[1]), n),
        ),
        (
            "Chunked",
            r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)",
            _first("max_num_batched_tokens", int),
        ),
        (
            "Initializing",
            r"Initializing (?:a V[01] LLM|an LLM) engine(?: \(v?(?P<version>[^)]+)\))? with config: (?P<config>.*)$",
            _later(_engine_config, "engine_line"),
        ),
        (
            "Using",
            r"Using (?P<name>AttentionBackendEnum\.\w+|\w+) (?:attention )?backend(?:\.$| out of potential)",
            _attention,
        ),
        (
            "Using",
            r"Using (?P<name>Flash Attention|FlashInfer|XFormers|FlashMLA|Triton MLA|Cutlass MLA|Torch SDPA|Flex"
            r"Attention|Triton)(?: V1)? backend(?: on V1 engine)?\.",
            _attention,
        ),
        ("Using", r"Using FlashAttention version (\d)", _first("flash_attention_version", int)),
        ("Using", r"Using (\w+) MLA prefill backend", _first("mla_prefill_backend")),
        ("Using", r"Using V(\d) Model Runner", _first("model_runner", int)),
        (
            "Using",
            r"Using (?P<backend>'?\w+'?) (?:(?P<scheme>[\w-]+(?: Int8)?) )?MoE backend(?! priority)",
            _moe,
        ),
        ("Using", r"Using (?P<kernel>\w+(?:Kernel|Linear\w*)) for (?P<module>.+?)\.?$", _kernel),
        (
            "Using",
            r"Using (?P<kernel>(?!FlashInfer |Triton )\w+) for (?P<module>\w*(?:GEMM|MoE)|MXFP4 MoE|NVFP4 GEMM)$",
            _kernel,
        ),
        ("Selected", r"Selected (?P<kernel>\w+) for (?P<module>\S+)", _kernel),
        ("Quantizing", r"Quantizing (\d+) layers of types: .*", _first("quantized_layers", int)),
        (
            "Online",
            rf"Online quantization as part of model loading took {_FLOAT} seconds",
            _most("online_quantization_s"),
        ),
        ("Loading", rf"Loading weights took {_FLOAT} seconds", _most("weights_load_s")),
        ("Loading", r"Loading model weights took ([\d.]+) (?:GB|GiB)()", _model_load),
        ("Model", r"Model loading took ([\d.]+) (?:GiB|GB)(?: memory)? and ([\d.]+) seconds", _model_load),
        ("model", r"model weights take ([\d.]+)GiB()", _model_load),
        ("Dynamo", rf"Dynamo bytecode transform time: {_FLOAT} s", _most("dynamo_s")),
        ("Compiling", rf"Compiling a graph for .* takes {_FLOAT} s", _most("graph_compile_s")),
        ("torch.compile", rf"torch\.compile (?:takes|took) {_FLOAT} s in total", _most("compile_s")),
        (
            "Available",
            r"Available KV cache memory: (-?[\d.]+) GiB",
            lambda s, m, n: s.least("kv_cache_gib", float(m[1]), n),
        ),
        (
            "Initial",
            r"Initial free memory (?P<free>[\d.]+) GiB, reserved ([\d.]+) GiB memory for KV",
            lambda s, m, n: s.first("kv_cache_gib", float(m[2]), n),
        ),
        (
            "Explicitly",
            r"Explicitly set \(([\d.]+)/([\d.]+)\) GiB for KV cache",
            lambda s, m, n: s.first("kv_cache_gib", float(m[1]), n),
        ),
        (
            "Free",
            r"Free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup\. Desired",
            _free_memory,
        ),
        ("#", r"# (?:GPU|cuda|CPU) blocks: (\d+)", _blocks),
        (
            "Maximum",
            r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
            lambda s, m, n: s.least("max_concurrency", float(m[1]), n),
        ),
        ("Estimated", rf"Estimated CUDA graph memory: {_FLOAT} GiB", _most("graph_estimate_gib")),
        (
            "Graph",
            r"Graph capturing finished in (\d+) secs, took (-?[\d.]+) GiB",
            lambda s, m, n: (s.most("graph_capture_s", float(m[1]), n), s.most("graph_gib", float(m[2]), n))[0],
        ),
        (
            "init",
            r"init engine \(profile, create kv.cache, warmup model\) took ([\d.]+) s",
            _first("init_engine_s", float),
        ),
        ("Starting", r"Starting vLLM (?:API )?server(?: \d+)? on (\S+)", _first("url")),
        ("Application", r"Application startup complete", _flag("ready")),
        ("Uvicorn", r"Uvicorn running on (\S+)", _first("url")),
        ("Detected", r"Detected the chat template content format to be '(\w+)'", _first("chat_template_format")),
        ("HF_HUB_OFFLINE", r"HF_HUB_OFFLINE is True", _flag("offline")),
        ("Enforce", r"Enforce eager set", _flag("enforce_eager")),
        ("[shutdown]", r"\[shutdown\] EngineCore: trigger received signal=(\w+)", _first("stopped_by")),
        ("[shutdown]", r"\[shutdown\] API server: shutdown triggered", _flag("stopping")),
        ("[shutdown]", r"\[shutdown\] MPClient: engine core exited unexpectedly", _flag("engine_lost")),
        ("Shutdown", r"Shutdown initiated \(timeout", _flag("stopping")),
        ("Shutting", r"Shutting down$", _flag("stopping")),
        ("Finished", r"Finished server process", _flag("stopping")),
    )
)

_KV_SIZE = re.compile(
    r"(?P<device>[\w+ ]{2,20}?) KV cache size: (?P<tokens>[\d,]+) tokens"
    r"(?:, Maximum concurrency for [\d,]+ tokens per request: (?P<concurrency>[\d.]+)x)?"
)
_LOGO_VERSION = re.compile(r"[▀▄█ ]{6,}.*?version\s+(\S+)")
_LOGO_MODEL = re.compile(r"[▀▄█ ]{6,}.*?model\s+(\S.*?)\s*$")

BY_WORD: Mapping[str, tuple[Template, ...]] = {
    word: tuple(template for template in TEMPLATES if template.word == word)
    for word in {template.word for template in TEMPLATES}
}


def take_message(sheet: FactSheet, message: str, number: int) -> bool:
    """Put what an INFO or WARNING message says into the sheet; True when it said something."""
    if message[:1] == "[" and not message.startswith("[shutdown]"):
        message = message[message.find("] ") + 2 :]
    word = message.partition(" ")[0]
    templates = BY_WORD.get(word)
    if templates is not None:
        for template in templates:
            match = template.pattern.match(message)
            if match:
                template.take(sheet, match, number)
                return True
    if " KV cache size: " in message[:40]:
        match = _KV_SIZE.match(message)
        if match:
            _kv_size(sheet, match, number)
            return True
    if "█" in message[:40]:
        match = _LOGO_VERSION.match(message)
        if match:
            sheet.first("vllm_version", match[1], number)
            return True
        match = _LOGO_MODEL.match(message)
        if match:
            sheet.first("model", match[1], number)
            return True
    return False
