"""Causes in plugins: quantization methods that live outside of vLLM, and plugins that do not fit it.

Texts: vLLM 0.6 to 0.33 (config/model.py, model_executor/model_loader, plugins), torch.library, the plugins' own.
"""

from __future__ import annotations

import re

from vq_console.logs.model import Fix
from vq_console.logs.rules.rule import Hit, rule, say

_PLUGINS = {
    "gguf": "vllm-gguf-plugin",
    "bitsandbytes": "vllm-bnb-plugin",
}


def _plugin(hit: Hit) -> tuple[Fix, ...]:
    text = hit.line.message.lower()
    package = next((package for name, package in _PLUGINS.items() if name in text), None)
    if package is None:
        asked = re.search(r"`?pip install ([\w.\-\[\]>=]+)", hit.line.message) or re.search(
            r"No module named '([\w.]+)'", hit.line.message
        )
        package = asked[1] if asked else None
    if package is None:
        return ()
    return (
        say(f"pip install {package} into the engine's environment."),
        say(
            "Or take a checkpoint in a format that vLLM has built in (safetensors: AWQ, GPTQ, FP8, compressed-tensors)."
        ),
    )


RULES = (
    rule(
        "quant-plugin-missing",
        "Unknown quantization method:",
        94,
        pattern=r"Unknown quantization method: '?(?P<method>gguf|bitsandbytes|bnb)\b",
        fixes=_plugin,
    ),
    rule(
        "quant-plugin-missing",
        "invalid choice: '",
        97,
        pattern=r"argument --(?:quantization|load-format)\S*: invalid choice: '(?P<method>gguf|bitsandbytes)'",
        fixes=_plugin,
    ),
    rule(
        "quant-plugin-missing",
        "is not a valid JSON file",
        90,
        pattern=r"config file at '[^']*\.gguf' is not a valid JSON file",
        fixes=_plugin,
    ),
    rule(
        "quant-plugin-missing",
        ".gguf",
        74,
        pattern=(
            r"(?:UnicodeDecodeError|Unrecognized model|not a valid model identifier|Repo id must|Can't load the "
            r"configuration).*\.gguf"
        ),
        fixes=_plugin,
    ),
    rule(
        "quant-plugin-missing",
        "oad format `",
        90,
        pattern=r"oad format `(?:gguf|bitsandbytes)` is not supported",
        fixes=_plugin,
    ),
    rule(
        "quant-plugin-missing",
        "nknown load_format:",
        90,
        pattern=r"nknown load_format: (?:gguf|bitsandbytes)",
        fixes=_plugin,
    ),
    rule(
        "quant-plugin-missing",
        "bitsandbytes",
        80,
        pattern=(
            r"(?:[Pp]lease install bitsandbytes|No module named '(?:bitsandbytes|vllm_bnb_plugin)|requires "
            r"bitsandbytes|install the plugin.*bitsandbytes)"
        ),
        fixes=_plugin,
    ),
    rule("quant-plugin-missing", "No module named 'gguf'", 80, fixes=_plugin),
    rule("quant-plugin-missing", "is required to use MX-FP", 80, fixes=_plugin),
    rule("quant-plugin-missing", "Please install torchao", 80, fixes=_plugin),
    rule("quant-plugin-missing", "auto_round_kernel", 70, fixes=_plugin),
    rule(
        "quant-plugin-missing",
        "lease install",
        62,
        pattern=r"lease install (?P<package>[\w\-]+).*(?:quantiz|GPTQ|AWQ|HQQ|AQLM)",
        fixes=_plugin,
    ),
    rule(
        "plugin-version-conflict",
        "with the same name and overload name multiple times",
        84,
        fixes=lambda hit: (
            say("Uninstall the plugin that registers this operator, or take the vLLM version it was made for."),
        ),
    ),
    rule("plugin-version-conflict", "Only a single TORCH_LIBRARY can be used to register the namespace", 80),
    rule(
        "plugin-version-conflict",
        "lugin",
        60,
        pattern=(
            r"(?:Failed to load plugin|[Pp]lugin \S+ (?:requires|needs) vllm|plugin.*(?:incompatible|not compatible) "
            r"with)"
        ),
    ),
    rule(
        "plugin-version-conflict",
        "is already registered",
        58,
        pattern=r"(?:quantization method|operator|custom op|Quantization).{0,80}is already registered",
    ),
    rule("plugin-version-conflict", "Platform plugin", 50, pattern=r"Only one platform plugin can be activated"),
)
