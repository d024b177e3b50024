"""What a checkpoint's own quantization metadata says, as flat facts.

Pure. Understands `quantization_config` of compressed-tensors, GPTQ, AWQ, FP8, MXFP4 and the rest, and ModelOpt's
`hf_quant_config.json`. Keys are those of `checkpoint` in a target file: quant_method, quant_algo, format, scheme, bits,
group_size, strategy, input_activations, sym, desc_act, zero_point, weight_block_size, ignore, kv_cache_scheme; and
`groups` (each with its `targets`) where not all linear layers are treated alike.
Source: vLLM 0.32 `model_executor/layers/quantization/` (`compressed_tensors.py`, `modelopt.py`, `fp8.py`, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PASSED = (
    "activation_scheme",
    "desc_act",
    "fmt",
    "quant_type",
    "sym",
    "version",
    "weight_type",
    "zero_point",
)


def quantization_facts(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Facts of `quantization_config` (or `compression_config`), else of ModelOpt's own file; empty for a 16-bit one."""
    inner = _mapping(config.get("text_config"))
    places = (config.get("quantization_config"), config.get("compression_config"), inner.get("quantization_config"))
    declared: Mapping[str, Any] = next((_mapping(place) for place in places if _mapping(place)), {})
    if not declared and modelopt:
        declared = {"quant_method": "modelopt", **modelopt}
    if not declared:
        return {}
    facts: dict[str, Any] = {"quant_method": _method(declared)}
    method = facts["quant_method"]
    for key in _PASSED:
        value = declared.get(key)
        if key in declared and isinstance(value, bool | int | float | str) and key != "version":
            facts[key] = value
    if method == "compressed-tensors":
        facts.update(_compressed_tensors(declared))
    elif method.startswith("modelopt"):
        facts.update(_modelopt(declared, modelopt))
    else:
        facts.update(_plain(declared, method))
    facts["kv_cache_scheme"] = _kv_scheme(declared)
    return {key: value for key, value in facts.items() if value is not None}


def _method(declared: Mapping[str, Any]) -> str:
    method = declared.get("quant_method")
    if not isinstance(method, str) or not method:
        producer = _mapping(declared.get("producer"))
        return "modelopt" if producer.get("name") == "modelopt" or "quantization" in declared else "unknown"
    # vLLM 0.32 config/model.py `_parse_quant_hf_config` lower-cases; compressed-tensors has two spellings.
    method = method.lower()
    return "compressed-tensors" if method == "compressed_tensors" else method


def _compressed_tensors(declared: Mapping[str, Any]) -> dict[str, Any]:
    groups = [
        group
        for group in map(_mapping, _mapping(declared.get("config_groups")).values())
        if not _only_attention(group.get("targets"))
    ]
    # The group that reaches most layers speaks for the checkpoint: `Linear` before single names.
    groups.sort(key=lambda group: "Linear" not in _texts(group.get("targets")))
    facts: dict[str, Any] = {"ignore": _texts(declared.get("ignore"))}
    formats = {str(group["format"]) for group in groups if isinstance(group.get("format"), str)}
    facts["format"] = next(iter(formats)) if len(formats) == 1 else declared.get("format")
    if groups:
        facts.update(_group(groups[0], str(facts["format"] or "")))
        schemes = {_group(group, str(group.get("format") or facts["format"] or "")).get("scheme") for group in groups}
        if len(schemes) > 1:
            facts["schemes"] = sorted(str(scheme) for scheme in schemes if scheme)
        if len(groups) > 1 or _texts(groups[0].get("targets")) != ["Linear"]:
            facts["groups"] = [_targeted(group, str(facts["format"] or "")) for group in groups]
    return facts


def _targeted(group: Mapping[str, Any], form: str) -> dict[str, Any]:
    """One group with the names, patterns and classes of layers that it is for."""
    form = str(group.get("format") or form)
    found = {"targets": _texts(group.get("targets")), "format": form, **_group(group, form)}
    return {key: value for key, value in found.items() if value is not None}


def _group(group: Mapping[str, Any], form: str) -> dict[str, Any]:
    weights, inputs = _mapping(group.get("weights")), _mapping(group.get("input_activations"))
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    strategy = weights.get("strategy")
    facts: dict[str, Any] = {
        "bits": bits if isinstance(bits, int) else None,
        "group_size": size if isinstance(size, int) and not isinstance(size, bool) else None,
        "strategy": strategy if isinstance(strategy, str) else None,
        "sym": weights.get("symmetric") if isinstance(weights.get("symmetric"), bool) else None,
        "input_activations": _activations(inputs),
    }
    if weights.get("actorder"):
        facts["desc_act"] = weights["actorder"] in (True, "group")
    block = weights.get("block_structure")
    if isinstance(block, list) and len(block) == 2:
        facts["weight_block_size"] = block
    facts["scheme"] = _scheme(bits, str(kind or ""), size, str(strategy or ""), inputs, form)
    return facts


def _activations(inputs: Mapping[str, Any]) -> str:
    """`fp8`, `int8`, `fp4` …; empty where activations stay in 16 bit."""
    bits = inputs.get("num_bits")
    if not isinstance(bits, int):
        return ""
    return f"{'int' if inputs.get('type') == 'int' else 'fp'}{bits}"


def _scheme(bits: Any, kind: str, size: Any, strategy: str, inputs: Mapping[str, Any], form: str) -> str | None:
    """The preset of LLM Compressor that these numbers are (`quant_scheme.py` of compressed-tensors)."""
    acts = _activations(inputs)
    if kind == "float" and bits == 4:
        family = "MXFP4" if form.startswith("mxfp4") or size == 32 else "NVFP4"
        return family if acts else f"{family}A16"
    if kind == "float" and bits == 8:
        if form.startswith("mxfp8") or (size == 32 and strategy == "group"):
            return "MXFP8" if acts else "MXFP8A16"
        if strategy == "block":
            return "FP8_BLOCK"
        if not acts:
            return "FP8A16"
        return "FP8_DYNAMIC" if inputs.get("dynamic") and strategy == "channel" else "FP8"
    if kind == "int" and isinstance(bits, int):
        if acts == "int8" and bits == 8:
            return "W8A8"
        if acts:
            return "W4A8" if bits == 4 else f"W{bits}A8"
        return f"W{bits}A16"
    return None


def _modelopt(declared: Mapping[str, Any], separate: Mapping[str, Any] | None) -> dict[str, Any]:
    inner = _mapping(declared.get("quantization")) or _mapping(_mapping(separate or {}).get("quantization")) or declared
    algorithm = inner.get("quant_algo") or declared.get("quant_algo")
    facts: dict[str, Any] = {"quant_algo": str(algorithm).upper() if isinstance(algorithm, str) else None}
    size = inner.get("group_size")
    groups = list(_mapping(declared.get("config_groups")).values())
    if size is None and groups:
        size = _mapping(_mapping(groups[0]).get("weights")).get("group_size")
    facts["group_size"] = size if isinstance(size, int) and not isinstance(size, bool) else None
    facts["ignore"] = _texts(inner.get("exclude_modules") or declared.get("ignore"))
    if facts["quant_algo"]:
        facts["bits"] = 4 if "FP4" in facts["quant_algo"] or "W4" in facts["quant_algo"] else 8
    if facts["quant_algo"] and facts["quant_algo"].startswith("NVFP4"):
        facts["group_size"] = facts["group_size"] or 16
    return facts


def _plain(declared: Mapping[str, Any], method: str) -> dict[str, Any]:
    bits = declared.get("bits", declared.get("w_bit", declared.get("num_bits", declared.get("weight_bits"))))
    size = declared.get("group_size", declared.get("q_group_size"))
    facts: dict[str, Any] = {
        "bits": bits if isinstance(bits, int) and not isinstance(bits, bool) else None,
        "group_size": size if isinstance(size, int) and not isinstance(size, bool) else None,
    }
    block = declared.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2:
        facts["weight_block_size"] = block
    if method in {"fp8", "fbgemm_fp8", "deepseek_v4_fp8"}:
        facts["bits"] = 8
        facts["input_activations"] = "fp8"
    elif method in {"mxfp4", "gpt_oss_mxfp4"}:
        facts["bits"], facts["group_size"] = 4, facts["group_size"] or 32
    elif method == "bitsandbytes":
        facts["bits"] = 4 if declared.get("load_in_4bit") else 8
    left_alone = declared.get("modules_to_not_convert") or declared.get("ignored_layers") or declared.get("ignore")
    if left_alone:
        facts["ignore"] = _texts(left_alone)
    dynamic = declared.get("dynamic")
    if method == "gptq" and isinstance(dynamic, dict) and dynamic:
        facts["dynamic"] = True
    return facts


def _kv_scheme(declared: Mapping[str, Any]) -> str:
    """`fp8`, `nvfp4`, `int8` … where the checkpoint declares a quantized KV cache, else empty."""
    inner = _mapping(declared.get("quantization"))
    named = inner.get("kv_cache_quant_algo") or declared.get("kv_cache_quant_algo")
    if isinstance(named, str) and named:
        return named.lower()
    scheme = _mapping(declared.get("kv_cache_scheme"))
    bits = scheme.get("num_bits")
    if isinstance(bits, int):
        return f"{'int' if scheme.get('type') == 'int' else 'fp'}{bits}"
    return ""


def _only_attention(targets: Any) -> bool:
    names = _texts(targets)
    return len(names) == 1 and names[0].endswith("Attention")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
