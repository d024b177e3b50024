"""Which quantization method a launch ends up with, and who decides it.

Pure. Follows `ModelConfig._verify_quantization` (vLLM 0.32 config/model.py): the checkpoint's config is shown to each
method's `override_quantization_method` in a fixed order, the first that claims it wins; what is then left of
`--quantization` must name the same method, else vLLM refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vq_console.preflight.model import Method
from vq_console.preflight.scheme import NONE, ONLINE, Scheme, checkpoint_scheme, online_schemes
from vq_console.preflight.situation import Situation
from vq_console.preflight.values import as_list
from vq_console.preflight.versions import span

UNIFIED = span(">=0.24")
"""GPTQ and AWQ go by `auto_gptq` and `auto_awq`."""
FP8_IS_PER_TENSOR = span(">=0.31")
DEFERRED = frozenset({"mxfp4", "mxfp8"})
"""Shorthands that are also names of checkpoint methods; online only where the checkpoint declares nothing."""

_GPTQ = frozenset({"gptq", "gptq_marlin", "auto_gptq", "marlin"})
_AWQ = frozenset({"awq", "awq_marlin", "auto_awq", "marlin"})


COMPOSES = span(">=0.32")
"""`targets` exists, and `--quantization-config` beside a quantized checkpoint quantizes further layers on load."""


@dataclass(frozen=True, slots=True)
class Target:
    """A pattern of layers and what quantizing on load makes of them; None where the shorthand has nothing for that
    kind of layer."""

    pattern: str
    shorthand: str
    linear: Scheme | None
    moe: Scheme | None


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a compressed-tensors checkpoint: names and patterns of its layers, or `every` linear layer."""

    scheme: Scheme
    names: tuple[str, ...] = ()
    every: bool = False


@dataclass(frozen=True, slots=True)
class Resolution:
    """The method, the schemes of linear layers and experts, and why a launch would be refused.

    `conflict` is set when vLLM refuses the combination. `presumed` says that the checkpoint's part is a guess from
    the model's name. `targets` are layers that `--quantization-config` quantizes on load, on top of a checkpoint where
    `online` is not set; `groups` are there where a checkpoint does not treat all layers alike. `linear` and `moe` are
    then the first of several schemes.
    """

    method: Method
    linear: Scheme | None
    moe: Scheme | None
    online: bool = False
    conflict: bool = False
    presumed: bool = False
    targets: tuple[Target, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """Every scheme that some layer may have."""
        several = [scheme for target in self.targets for scheme in (target.linear, target.moe)]
        found = (self.linear, self.moe, *several, *(group.scheme for group in self.groups))
        return tuple(dict.fromkeys(scheme for scheme in found if scheme is not None))


def checkpoint_method(facts: object, algo: object = None) -> str | None:
    """The checkpoint's own `quant_method`, by vLLM's names; None where it declares none."""
    text = str(facts or "").strip().lower()
    if not text:
        return None
    if text in {"auto-round", "auto_round", "intel/auto-round"}:
        return "inc"
    if text in {"compressed_tensors"}:
        return "compressed-tensors"
    if text == "modelopt":
        words = str(algo or "").upper()
        if "NVFP4" in words or "FP4" in words.replace("MXFP4", ""):
            return "modelopt_fp4"
        if "MXFP8" in words:
            return "modelopt_mxfp8"
        if "MIXED" in words:
            return "modelopt_mixed"
    return text


def is_online(situation: Situation) -> bool:
    """Whether `--quantization` names an online shorthand of this version (or plain fp8 on a 16-bit checkpoint)."""
    asked = situation.asked
    if asked is None:
        return False
    known = situation.catalogue.online
    if known is not None and asked in known:
        return True
    return asked in ONLINE or asked == "online"


def resolve(situation: Situation) -> Resolution:
    """The resolved method with schemes per kind of layer.

    A checkpoint whose method is unknown (no facts at all) resolves to what was asked; schemes are then None.
    """
    asked = situation.asked
    declared = situation.stated("quant_method")
    presumed = declared is None and situation.fact("quant_method") is not None
    facts = situation.facts
    checkpoint = checkpoint_method(facts.get("quant_method"), facts.get("quant_algo"))
    if checkpoint is None:
        return _without_checkpoint(situation, asked)
    claimed, by = _claim(situation, checkpoint, asked)
    scheme = checkpoint_scheme(facts)
    final = claimed or checkpoint
    conflict = asked is not None and claimed is None and asked != final
    if claimed is None and asked is None:
        by = "config.json"
    method = Method(asked, checkpoint, None if conflict else final, "" if conflict else by)
    linear = scheme
    if scheme is not None and checkpoint in {"mxfp4", "gpt_oss_mxfp4"} and situation.moe is not False:
        # gpt-oss checkpoints keep attention in 16 bit; only experts are MXFP4.
        linear = Scheme("none") if situation.model_type in {"gpt_oss", ""} else scheme
    targets = () if conflict else _targets(situation, on_top=True)
    return Resolution(
        method, linear, scheme, conflict=conflict, presumed=presumed, targets=targets, groups=_groups(facts)
    )


def _groups(facts: Mapping[str, Any]) -> tuple[Group, ...]:
    """The groups of a checkpoint (`quantfacts.py`), where there is more to say than one scheme for all layers."""
    given = facts.get("groups")
    found = []
    for group in given if isinstance(given, list | tuple) else ():
        scheme = checkpoint_scheme({**facts, **group}) if isinstance(group, Mapping) else None
        if scheme is not None:
            names = as_list(group.get("targets"))
            patterns = tuple(name for name in names if name.startswith("re:") or "." in name or name.endswith("_proj"))
            found.append(Group(scheme, patterns, every=len(patterns) < len(names)))
    return tuple(found)


def _targets(situation: Situation, *, on_top: bool = False) -> tuple[Target, ...]:
    """`targets` of `--quantization-config`; `on_top` of a checkpoint also its `linear` and `moe`."""
    table = situation.quant_config
    if not table or not COMPOSES.holds(situation.version):
        return ()
    given = table.get("targets")
    if isinstance(given, Mapping):
        found = []
        for pattern, name in given.items():
            schemes = online_schemes(str(name))
            if schemes is not None:
                linear, moe = (scheme if scheme.quantized else None for scheme in schemes)
                found.append(Target(str(pattern), str(name), linear, moe))
        return tuple(found)
    linear, moe = _config_schemes(situation) if on_top else (None, None)
    return (Target("re:.*", "linear and moe", linear, moe),) if linear or moe else ()


def _claim(situation: Situation, checkpoint: str, asked: str | None) -> tuple[str | None, str]:
    """The method that takes the checkpoint by override, and a phrase that says so."""
    if checkpoint == "gptq" and (asked is None or asked in _GPTQ):
        name = "auto_gptq" if UNIFIED.holds(situation.version) else "gptq_marlin" if asked != "gptq" else "gptq"
        return name, f"{name} claims GPTQ checkpoints"
    if checkpoint == "awq" and (asked is None or asked in _AWQ):
        if situation.device == "cpu":
            return (asked or "awq"), "config.json"
        name = "auto_awq" if UNIFIED.holds(situation.version) else "awq_marlin" if asked != "awq" else "awq"
        return name, f"{name} claims AWQ checkpoints"
    if asked == "moe_wna16" and checkpoint in {"gptq", "awq"}:
        return "moe_wna16", "moe_wna16 takes GPTQ and AWQ checkpoints when asked"
    if asked == "humming":
        return "humming", "humming takes any checkpoint when asked"
    if checkpoint.startswith("modelopt"):
        # These overrides do not look at what the user asked for.
        return checkpoint, f"{checkpoint} claims ModelOpt checkpoints, whatever was asked"
    if checkpoint in {"mxfp4", "gpt_oss_mxfp4"} and situation.model_type == "gpt_oss":
        return "gpt_oss_mxfp4", "gpt_oss_mxfp4 claims gpt-oss checkpoints"
    if checkpoint == "inc":
        return "inc", "inc claims auto-round checkpoints"
    if checkpoint == asked:
        return checkpoint, "config.json and --quantization agree"
    return None, ""


def _without_checkpoint(situation: Situation, asked: str | None) -> Resolution:
    known = situation.stated("hidden_size") is not None or bool(situation.presumed.facts)
    if asked is None:
        plain = Scheme("none") if known else None
        return Resolution(Method(None, None, None), plain, plain)
    name = asked
    if asked == "fp8" and FP8_IS_PER_TENSOR.holds(situation.version):
        name = "fp8_per_tensor"
    if asked == "online":
        linear, moe = _config_schemes(situation)
        targets = _targets(situation)
        if targets:
            linear = next((target.linear for target in targets if target.linear is not None), NONE)
            moe = next((target.moe for target in targets if target.moe is not None), NONE)
        return Resolution(
            Method(asked, None, asked, "--quantization-config"), linear, moe, online=True, targets=targets
        )
    schemes = online_schemes(asked)
    if schemes is None:
        return Resolution(Method(asked, None, asked, "--quantization"), None, None)
    linear, moe = schemes
    override = _config_schemes(situation)
    return Resolution(
        Method(asked, None, name, "--quantization"), override[0] or linear, override[1] or moe, online=True
    )


def _config_schemes(situation: Situation) -> tuple[Scheme | None, Scheme | None]:
    """What `linear` and `moe` of `--quantization-config` name; None where a side is not given."""
    from vq_console.preflight.scheme import KEY_NAMES

    table = situation.quant_config or {}
    result: list[Scheme | None] = []
    for index, kind in enumerate(("linear", "moe")):
        spec = table.get(kind)
        name = spec.get("weight") if isinstance(spec, dict) else spec
        if not isinstance(name, str):
            result.append(None)
        elif (found := online_schemes(name)) is not None:
            result.append(found[index])
        else:
            result.append(KEY_NAMES.get(name))
    return result[0], result[1]
