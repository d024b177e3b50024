"""Rules about the quantization method: names, plugins, conflicts, deprecations, capability, what it reaches."""

from __future__ import annotations

from collections.abc import Iterator

from vq_console.core.text import nearest
from vq_console.preflight.rules import knowledge
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.rules.capability import method_minimum, scheme_minimum
from vq_console.preflight.scheme import ONLINE
from vq_console.preflight.situation import Situation
from vq_console.preflight.versions import READ, span, vllm_text

VERIFY = "vLLM source: config/model.py _verify_quantization"
PLUGIN_OF = {"gguf": "vllm-gguf-plugin", "bitsandbytes": "vllm-bnb-plugin"}
LEFT_TREE = {"gguf": span(">=0.24"), "bitsandbytes": span(">=0.28")}
"""vLLM release notes 0.24 and 0.28; the catalogues of 0.20.2, 0.24, 0.27.1 and 0.29 hold it."""
STILL_IN_TREE = {"gguf": span("<0.20.3"), "bitsandbytes": span("<0.28")}

_OLD_METHODS = frozenset(
    [
        "aqlm",
        "auto-round",
        "bitblas",
        "cpu_awq",
        "deepspeedfp",
        "gptq_bitblas",
        "gptq_marlin_24",
        "hqq",
        "ipex",
        "marlin",
        "neuron_quant",
        "petit_nvfp4",
        "ptpc_fp8",
        "qqq",
        "rtn",
        "squeezellm",
        "tpu_int8",
    ]
)
"""Methods of releases before 0.20 that are gone now."""

_SINCE_2026 = frozenset(
    [
        "auto_awq",
        "auto_gptq",
        "deepseek_v4_fp8",
        "fp8_per_block",
        "fp8_per_channel",
        "fp8_per_tensor",
        "int8_per_channel_weight_only",
        "nvfp4_per_token",
        "online",
    ]
)
"""Names that no release before 0.14 had; quantizing on load went by `fp8` alone. MXFP8 on load came with 0.19."""

_NOT_METHODS = {
    "w8a8": "W8A8 is a scheme of compressed-tensors checkpoints, which vLLM detects by itself",
    "w4a16": "W4A16 is a scheme of compressed-tensors checkpoints, which vLLM detects by itself",
    "w8a16": "W8A16 is a scheme of compressed-tensors checkpoints, which vLLM detects by itself",
    "w4a8": "W4A8 is a scheme of compressed-tensors checkpoints, which vLLM detects by itself",
    "fp8_w8a8": "fp8_w8a8 names kernel tuning files, not a method",
    "int8_w8a8": "int8_w8a8 names kernel tuning files, not a method",
    "int4": "there is no INT4 on load: it needs a calibrated checkpoint (GPTQ, AWQ, LLM Compressor W4A16)",
    "int8": "there is no INT8 W8A8 on load: it needs a calibrated checkpoint",
    "fp4": "NVFP4 needs a checkpoint (ModelOpt, LLM Compressor)",
    "nvfp4": "NVFP4 needs a checkpoint (ModelOpt, LLM Compressor)",
}


def _methods(situation: Situation) -> frozenset[str]:
    """Every method that this version, or a release around it, knows."""
    if situation.exact and situation.catalogue.quantization:
        return frozenset(situation.catalogue.quantization)
    names: set[str] = set()
    for catalogue in knowledge.around(situation.version):
        names.update(catalogue.quantization or ())
        names.update(catalogue.online or ())
    if situation.version is None or situation.version < READ[0]:
        oldest = knowledge.catalogue_at(READ[0])
        newest = knowledge.catalogue_at(READ[-1])
        for end in (oldest, newest):
            names.update(end.quantization or () if end is not None else ())
        names |= _OLD_METHODS
        if span("<0.14").holds(situation.version):
            names -= _SINCE_2026
        if span("<0.19").holds(situation.version):
            names.discard("mxfp8")
    return frozenset(names)


@rule("quant-method-unknown", "error", source=VERIFY)
def unknown_method(context: Context) -> Iterator[Hit]:
    """`--quantization` names something that is no method of this version."""
    s = context.s
    asked = s.asked
    known = _methods(s)
    if asked is None or asked in PLUGIN_OF or not known or asked in known or asked == "marlin":
        return
    # A plugin may register names that no list of vLLM holds; those two register their own names alone.
    others = {name for name in s.plugins or () if not any(plugin in name for plugin in PLUGIN_OF.values())}
    why = _NOT_METHODS.get(asked.lower().replace("-", "_"), "")
    declared = s.fact("quant_method")
    near = None if why else nearest(asked, known)
    if declared:
        fix = f"Delete --quantization: the checkpoint declares {declared}, and vLLM takes it from there"
    elif near:
        fix = f"Use {near}"
    else:
        fix = "Use a calibrated checkpoint without the flag, or an online shorthand such as fp8_per_tensor"
    patch = drop("quantization") if declared or near is None else put(quantization=near)
    yield Hit(
        f"{asked!r} is no quantization method of {vllm_text(s.version)}" + (f": {why}" if why else ""),
        evidence=f"methods: {', '.join(sorted(known))}",
        fix=fix,
        patch=patch,
        severity="warning" if others and not why else None,
    )


def _is_gguf(situation: Situation) -> bool:
    model = situation.model.lower()
    last = model.rsplit("/", 1)[-1]
    quant = last.partition(":")[2]
    return (
        model.endswith(".gguf")
        or quant.startswith(("q2", "q3", "q4", "q5", "q6", "q8", "iq", "f16", "bf16", "ud-"))
        or str(situation.args.get("load_format")) == "gguf"
    )


@rule("quant-plugin-missing", "error", source="vLLM release notes 0.24 (GGUF) and 0.28 (bitsandbytes); docs")
def plugin_missing(context: Context) -> Iterator[Hit]:
    """GGUF and bitsandbytes left vLLM's tree; without their plugin nothing loads them."""
    s = context.s
    for method, plugin in PLUGIN_OF.items():
        declared = str(s.stated("quant_method") or "") == method
        asked = s.asked == method or str(s.args.get("load_format")) == method
        by_name = (method == "gguf" and _is_gguf(s)) or (
            method == "bitsandbytes" and s.fact("quant_method") == method and not s.checkpoint
        )
        if not (declared or asked or by_name):
            continue
        if LEFT_TREE[method].holds(s.version):
            if s.plugins is not None and any(plugin in name or method in name for name in s.plugins):
                continue
            if s.plugins is None and s.package(plugin):
                continue
            unsure = s.plugins is None
            yield Hit(
                f"{method} is not part of {vllm_text(s.version)}: it needs {plugin} beside the engine",
                evidence="plugins: " + (", ".join(sorted(s.plugins or ())) or ("unknown" if unsure else "none")),
                fix=f"pip install {plugin} there, or use an AWQ, GPTQ or FP8 checkpoint",
                patch=drop("quantization") if asked and declared else None,
                severity="warning" if unsure else None,
            )
        elif (
            method == "bitsandbytes"
            and STILL_IN_TREE[method].holds(s.version)
            and s.installed is not None
            and "bitsandbytes" in s.installed
            and not s.package("bitsandbytes")
        ):
            yield Hit(
                "bitsandbytes itself is not installed in the engine's environment",
                fix="pip install bitsandbytes there",
            )


@rule(
    "plugin-version-conflict", "error", source="vllm-bnb-plugin and vllm-gguf-plugin against vLLM that has them in tree"
)
def plugin_conflict(context: Context) -> Iterator[Hit]:
    """A plugin that registers what this vLLM still contains."""
    s = context.s
    for method, plugin in PLUGIN_OF.items():
        if s.plugins and plugin in s.plugins and STILL_IN_TREE[method].holds(s.version):
            yield Hit(
                f"{plugin} registers {method}, which {vllm_text(s.version)} still has in tree",
                evidence=f"plugins: {', '.join(sorted(s.plugins))}",
                fix=f"Uninstall {plugin}, or move to vLLM {LEFT_TREE[method]}",
            )


@rule("quant-checkpoint-conflict", "error", source=VERIFY, fix="Delete --quantization: the checkpoint decides")
def conflict(context: Context) -> Iterator[Hit]:
    """The flag names one method, config.json another, and no method claims both."""
    s = context.s
    method = context.resolution.method
    if not context.resolution.conflict or s.asked not in _methods(s) | set(ONLINE) | {"online", "fp8"}:
        return
    more = ""
    if method.asked in ONLINE:
        more = ": an online method quantizes 16-bit weights, and these are quantized already"
    yield Hit(
        f"--quantization {method.asked} contradicts the checkpoint, which is {method.checkpoint}{more}",
        evidence="quant_method of config.json" if not context.resolution.presumed else "the model's name",
        patch=drop("quantization"),
        severity="warning" if context.resolution.presumed else None,
    )


@rule("quant-checkpoint-conflict", "warning", source="vLLM source: layers/quantization/modelopt.py")
def overridden(context: Context) -> Iterator[Hit]:
    """ModelOpt's override takes its checkpoints whatever was asked: the flag is ignored without a word."""
    method = context.resolution.method
    if context.resolution.presumed or method.asked is None or method.resolved is None:
        return
    if method.resolved.startswith("modelopt") and method.asked != method.resolved and method.asked not in {"modelopt"}:
        requantizes = context.s.version is not None and context.s.version >= (0, 29, 0) and method.asked in ONLINE
        if requantizes:
            return
        yield Hit(
            f"--quantization {method.asked} is ignored: the checkpoint is taken by {method.resolved}",
            fix="Delete --quantization",
            patch=drop("quantization"),
            severity="info",
        )


@rule("quant-checkpoint-conflict", "error", source="vLLM source: layers/quantization/mxfp4.py, base_config.py (0.32)")
def gpt_oss_overridden(context: Context) -> Iterator[Hit]:
    """gpt-oss is claimed whatever was asked; from 0.32 a shorthand would quantize its MXFP4 experts again."""
    s = context.s
    asked = context.resolution.method.asked
    if context.resolution.method.resolved != "gpt_oss_mxfp4" or asked not in ONLINE or asked in {"mxfp4"}:
        return
    again = span(">=0.32,<0.33").holds(s.version)
    yield Hit(
        f"--quantization {asked} contradicts the checkpoint, whose experts are MXFP4"
        + ("" if again else ": the flag is ignored"),
        evidence="experts that a checkpoint has quantized cannot be quantized again on load" if again else "",
        fix="Delete --quantization",
        patch=drop("quantization"),
        severity=None if again and not context.resolution.presumed else "warning",
    )


@rule("quant-method-deprecated", "error", source=VERIFY)
def deprecated(context: Context) -> Iterator[Hit]:
    """fbgemm_fp8 and fp_quant refuse to load unless allowed."""
    s = context.s
    names = {context.resolution.method.asked, context.resolution.method.checkpoint, context.resolution.method.resolved}
    listed = set(s.catalogue.deprecated or ())
    if not s.exact:
        lists = [set(c.deprecated or ()) for c in knowledge.around(s.version)]
        listed = set.intersection(*lists) if lists else set()
    for name in sorted(filter(None, names)):
        if name in listed and not s.on("allow_deprecated_quantization"):
            yield Hit(
                f"{name} is deprecated: {vllm_text(s.version)} refuses to load it",
                fix="Move to an fp8, compressed-tensors or NVFP4 checkpoint; --allow-deprecated-quantization for now",
                patch=put(allow_deprecated_quantization=True),
            )


@rule("quant-unsupported-sm", "error", source="vLLM source: get_min_capability and _check_scheme_supported")
def too_old_gpu(context: Context) -> Iterator[Hit]:
    """The method or the checkpoint's scheme needs a newer GPU than this one."""
    s = context.s
    if s.sm is None:
        return
    resolved = context.resolution.method.resolved
    scheme = context.resolution.linear
    demands = []
    # mxfp8 and mxfp4 are also names of checkpoint methods, which demand more than quantizing on load.
    on_load = context.resolution.online and resolved in online_names(s) and span(">=0.20").holds(s.version)
    if resolved is not None and (row := method_minimum("online" if on_load else resolved, s)) is not None:
        demands.append((resolved, row))
    if resolved in {"compressed-tensors", "quark"} and scheme is not None:
        row = scheme_minimum(scheme.family, s)
        if row is not None:
            demands.append((f"{resolved} {scheme.label}", row))
    worst = max(demands, key=lambda pair: pair[1].sm, default=None)
    if worst is not None and s.sm < worst[1].sm:
        yield Hit(
            f"{worst[0]} needs SM {worst[1].sm / 10:.1f}; this GPU is SM {s.sm / 10:.1f}",
            evidence=f"minimum capability {worst[1].sm} in {vllm_text(s.version)}",
            fix=_for_old_gpu(s.sm),
            severity="warning" if context.resolution.presumed else None,
        )


def _for_old_gpu(sm: int) -> str:
    if sm >= 80:
        return "Use a W4A16 or INT8 W8A8 checkpoint, or --quantization fp8_per_tensor (runs weight-only)"
    return "Use an AWQ or GPTQ checkpoint with --dtype half"


@rule("quant-unsupported-sm", "error", source="vLLM source: layers/quantization/online, Fp8PtpcOnlineLinearMethod")
def needs_fp8_activations(context: Context) -> Iterator[Hit]:
    """fp8_per_channel refuses the weight-only fallback, and nvfp4_per_token knows one family of GPUs."""
    s = context.s
    if s.sm is None or not context.resolution.online:
        return
    if "fp8_channel" in context.families() and s.sm < 89:
        yield Hit(
            f"fp8_per_channel needs FP8 activations (SM 8.9); SM {s.sm / 10:.1f} only has weight-only FP8",
            fix="Use --quantization fp8_per_tensor, which falls back to weight-only Marlin",
            patch=put(quantization="fp8_per_tensor"),
        )
    if s.asked == "nvfp4_per_token" and s.family != 10:
        blackwell = " (workstation Blackwell is another family)" if s.family in {11, 12} else ""
        yield Hit(
            f"nvfp4_per_token is for the SM 10.x family only; this GPU is SM {s.sm / 10:.1f}{blackwell}",
            fix="Use an NVFP4 checkpoint, or --quantization fp8_per_block",
            patch=put(quantization="fp8_per_block"),
        )


@rule("quant-unsupported-sm", "error", source="vLLM source: platforms supported_quantization")
def platform_refuses(context: Context) -> Iterator[Hit]:
    """ROCm and XPU list the methods that they take."""
    s = context.s
    resolved = context.resolution.method.resolved
    if s.device in {"rocm", "xpu"} and resolved is not None:
        listed = knowledge.platform_methods(s.device, s.version)
        if listed is not None and resolved not in listed and resolved in _methods(s):
            yield Hit(
                f"{resolved} is not supported on {s.device} by {vllm_text(s.version)}",
                evidence="supported: " + ", ".join(sorted(listed)),
                fix="Use a listed method",
            )


@rule(
    "dtype-unsupported-sm",
    "error",
    source="vLLM source: platforms/cuda.py check_if_supports_dtype",
    fix="Use --dtype half",
)
def bfloat16_on_turing(context: Context) -> Iterator[Hit]:
    """bfloat16 asked for where the GPU has none (`auto` falls back by itself)."""
    s = context.s
    if s.sm is not None and s.sm < 80 and str(s.args.get("dtype")) == "bfloat16":
        yield Hit(f"bfloat16 needs SM 8.0; this GPU is SM {s.sm / 10:.1f}", patch=put(dtype="half"))


@rule("cli-invalid-value", "error", source="vLLM source: config/vllm.py _get_quantization_config, supported act dtypes")
def dtype_of_method(context: Context) -> Iterator[Hit]:
    """A dtype that the method cannot compute in."""
    s = context.s
    dtype = {"half": "float16", "float": "float32"}.get(str(s.args.get("dtype")), str(s.args.get("dtype")))
    resolved = context.resolution.method.resolved
    if resolved is None or dtype not in {"float16", "bfloat16", "float32"} or s.device == "cpu":
        return
    only_bfloat = {"mxfp4", "gpt_oss_mxfp4", "modelopt_mxfp8", "fp_quant"}
    wide = {"compressed-tensors", "torchao", "bitsandbytes", "gguf", None}
    if resolved in only_bfloat and dtype != "bfloat16" and s.version is not None and s.version >= READ[0]:
        yield Hit(f"{resolved} computes in bfloat16 only, not in {dtype}", fix="Delete --dtype", patch=drop("dtype"))
    elif dtype == "float32" and resolved not in wide and resolved in _methods(s):
        yield Hit(f"{resolved} computes in 16 bit only, not in float32", fix="Delete --dtype", patch=drop("dtype"))


def online_names(situation: Situation) -> frozenset[str]:
    """Online shorthands of this version."""
    names = set(situation.catalogue.online or ())
    if not situation.exact:
        for catalogue in knowledge.around(situation.version):
            names.update(catalogue.online or ())
    return frozenset(names or ONLINE)
