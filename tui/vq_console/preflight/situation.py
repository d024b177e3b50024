"""One profile on one target, put into the words that rules and formulas ask for.

Owns the merging of profile, target, catalogue and checkpoint facts, and what may be presumed from a model's name.
Pure. Absent stays None: a rule that asks for it then says nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vq_console.engines.model import Catalogue
from vq_console.preflight.model import Target
from vq_console.preflight.names import QUANT_MARKS, Presumed, presume
from vq_console.preflight.values import as_list, json_table, plain_names, real, truthy, whole
from vq_console.preflight.versions import READ, Version, parse_version
from vq_console.profiles.model import EnvRef, Profile

_AMD = (("MI300", "gfx942"), ("MI325", "gfx942"), ("MI350", "gfx950"), ("MI355", "gfx950"), ("MI250", "gfx90a"))
SET_SOMEWHERE = "<set>"
"""Stands for a secret whose value comes from the launching environment."""


@dataclass(frozen=True)
class Situation:
    """Profile, target and catalogue, with the questions that rules ask of them."""

    profile: Profile
    target: Target
    catalogue: Catalogue
    checkpoint: Mapping[str, Any]

    @cached_property
    def version(self) -> Version | None:
        """The version of vLLM, or None."""
        if self.target.get("vllm_version"):
            return parse_version(self.target.get("vllm_version"))
        return parse_version(self.catalogue.vllm_version) if self.catalogue.origin == "source" else None

    @cached_property
    def exact(self) -> bool:
        """Whether the catalogue is of exactly this version, so that what it lacks does not exist."""
        if self.catalogue.origin == "source":
            return True
        return self.version is not None and parse_version(self.catalogue.vllm_version) == self.version

    @property
    def beyond(self) -> bool:
        """Whether the version is newer than every release that was read, and its own source is not at hand."""
        return self.catalogue.origin != "source" and self.version is not None and self.version > READ[-1]

    @cached_property
    def model(self) -> str:
        return self.profile.model

    @cached_property
    def args(self) -> dict[str, Any]:
        """The arguments by full names with underscores."""
        return plain_names(self.profile.args)

    @cached_property
    def env(self) -> dict[str, str]:
        """Environment: what the target states, then what the profile sets."""
        given = self.target.get("env")
        result = {str(k): str(v) for k, v in given.items()} if isinstance(given, Mapping) else {}
        for name, value in self.profile.env.items():
            result[name] = result.get(value.from_env, SET_SOMEWHERE) if isinstance(value, EnvRef) else value
        return result

    @cached_property
    def device(self) -> str:
        """cuda, cpu, rocm, xpu or tpu; cuda where only a compute capability is known; empty where unknown."""
        given = self.target.get("device")
        if given:
            return str(given).lower()
        return "cuda" if self.target.get("gpu_sm") is not None else ""

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @cached_property
    def sm(self) -> int | None:
        """Compute capability as vLLM's integer: 9.0 is 90, 12.1 is 121."""
        if not self.cuda:
            return None
        given = self.target.get("gpu_sm")
        if isinstance(given, str) and "." in given:
            major, _, minor = given.partition(".")
            return int(major) * 10 + int(minor or 0) if major.isdigit() else None
        if isinstance(given, float) and given < 20:
            return round(given * 10)
        return whole(given)

    @property
    def family(self) -> int | None:
        """The first digits of the capability: 9 for Hopper, 10 for B200 class, 12 for workstation Blackwell."""
        return None if self.sm is None else self.sm // 10

    @cached_property
    def gfx(self) -> str | None:
        """The architecture of an AMD GPU, as `gfx942`, stated or by the product's name."""
        given = self.target.get("gpu_gfx") or self.target.get("gfx")
        if given:
            return str(given).lower()
        name = str(self.target.get("gpu_name") or self.target.get("gpu") or "").upper()
        return next((gfx for sign, gfx in _AMD if sign in name), None)

    @cached_property
    def cpu_flags(self) -> frozenset[str] | None:
        given = self.target.get("cpu_flags")
        return frozenset(flag.lower() for flag in as_list(given)) if given is not None else None

    @cached_property
    def presumed(self) -> Presumed:
        """What the model's name says, for facts that no config.json states.

        A config.json that states sizes and no quantization is a 16-bit one, whatever the folder is called.
        """
        found = presume(self.model)
        if self.checkpoint.get("hidden_size") is None or self.checkpoint.get("quant_method"):
            return found
        return Presumed({k: v for k, v in found.facts.items() if k not in QUANT_MARKS}, found.source)

    def fact(self, key: str) -> Any:
        """A fact of the checkpoint, else what is presumed from the model's name, else None."""
        value = self.checkpoint.get(key)
        return value if value is not None else self.presumed.facts.get(key)

    def stated(self, key: str) -> Any:
        """A fact that the checkpoint itself states, or None."""
        return self.checkpoint.get(key)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """All facts of the checkpoint, completed by what is presumed."""
        return {**self.presumed.facts, **{k: v for k, v in self.checkpoint.items() if v is not None}}

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        given = self.fact("architectures") or self.fact("architecture")
        return tuple(as_list(given))

    @cached_property
    def model_type(self) -> str:
        return str(self.fact("model_type") or "")

    @cached_property
    def moe(self) -> bool | None:
        """Whether the model has routed experts; None where nothing says so."""
        given = self.fact("moe")
        if given is not None:
            return bool(given)
        for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
            count = whole(self.fact(key))
            if count is not None:
                return count > 1
        if self.fact("moe_intermediate_size"):
            return True
        if any("moe" in name.lower() or "mixtral" in name.lower() for name in self.architectures):
            return True
        return False if self.fact("hidden_size") and self.fact("intermediate_size") else None

    @cached_property
    def mla(self) -> bool | None:
        """Whether attention is multi-head latent attention."""
        if str(self.fact("attention") or "").lower() == "mla" or self.fact("kv_lora_rank"):
            return True
        return False if self.fact("num_key_value_heads") or self.fact("num_attention_heads") else None

    @cached_property
    def head_dim(self) -> int | None:
        given = whole(self.fact("head_dim"))
        if given:
            return given
        hidden, heads = whole(self.fact("hidden_size")), whole(self.fact("num_attention_heads"))
        return hidden // heads if hidden and heads else None

    def number(self, name: str) -> float | None:
        """A flag as a number."""
        return real(self.args.get(name))

    def count(self, name: str) -> int | None:
        """A flag as an integer, human suffixes understood."""
        return whole(self.args.get(name))

    def on(self, name: str) -> bool:
        """Whether a boolean flag is set."""
        return truthy(self.args.get(name))

    @cached_property
    def tp(self) -> int:
        return max(self.count("tensor_parallel_size") or 1, 1)

    @cached_property
    def pp(self) -> int:
        return max(self.count("pipeline_parallel_size") or 1, 1)

    @cached_property
    def dp(self) -> int:
        return max(self.count("data_parallel_size") or 1, 1)

    @property
    def world(self) -> int:
        """GPUs that one replica needs."""
        return self.tp * self.pp

    @cached_property
    def eager(self) -> bool:
        return self.on("enforce_eager")

    @cached_property
    def kv_dtype(self) -> str:
        return str(self.args.get("kv_cache_dtype") or "auto")

    @cached_property
    def fp8_kv(self) -> bool:
        return self.kv_dtype in {"fp8", "fp8_e4m3", "fp8_e5m2"}

    @cached_property
    def asked(self) -> str | None:
        """The method that `--quantization` names."""
        given = self.args.get("quantization")
        if isinstance(given, list | tuple):  # becomes the same argument
            given = " ".join(map(str, given))
        return str(given) if given not in (None, "", "auto", "None", "none") else None

    @cached_property
    def quant_config(self) -> dict[str, Any] | None:
        """`--quantization-config` as a table; dotted keys are folded in; None where absent or not an object."""
        table = json_table(self.args.get("quantization_config")) if "quantization_config" in self.args else None
        dotted = {
            key.partition(".")[2]: value for key, value in self.args.items() if key.startswith("quantization_config.")
        }
        if dotted:
            return {**(table or {}), **dotted}
        return table

    @cached_property
    def plugins(self) -> frozenset[str] | None:
        given = self.target.get("plugins")
        return frozenset(name.lower().replace("_", "-") for name in as_list(given)) if given is not None else None

    @cached_property
    def installed(self) -> Mapping[str, str] | None:
        """Versions of distributions in the engine's environment; None where that is unknown."""
        given = self.target.get("installed")
        if not isinstance(given, Mapping):
            return None
        return {str(k).lower().replace("_", "-"): "" if v is None else str(v) for k, v in given.items()}

    def package(self, name: str) -> str | None:
        """The version of an installed distribution, or None (absent or unknown)."""
        return (self.installed or {}).get(name) or None

    def tool(self, name: str) -> bool | None:
        """Whether a tool such as nvcc is there; None where unknown."""
        given = self.target.get("tools")
        if not isinstance(given, Mapping) or name not in given:
            return None
        return bool(given[name])

    def deep_gemm_off(self) -> bool:
        """Whether the profile turns DeepGEMM off."""
        return self.env.get("VLLM_USE_DEEP_GEMM") == "0"

    def kernel_disabled(self, pattern: str) -> bool:
        """Whether VLLM_DISABLED_KERNELS names a kernel class that matches `pattern`."""
        return any(fnmatch.fnmatch(name, pattern) for name in as_list(self.env.get("VLLM_DISABLED_KERNELS")))
