"""Profiles made from what runs or was written elsewhere: names, references instead of secrets, notes.

Pure. Owns the rule that a key or token is never taken over: it becomes a reference to an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.core.text import holds_secret
from vq_console.profiles.format import profile_from, valid_name
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.values import argument_key, is_secret_name

_SECRET_ARGS = {"api_key": "VLLM_API_KEY", "hf_token": "HF_TOKEN"}
_DROPPED_ARGS = frozenset({"model", "model_tag", "config", "subparser", "dispatch_function"})
_ENV_PREFIXES = (
    "VLLM_",
    "NCCL_",
    "PYTORCH_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "FLASHINFER_",
    "DG_",
    "CUBLAS_",
    "GLOO_",
)
_ENV_NAMES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "HF_HUB_OFFLINE",
        "HF_HUB_ENABLE_HF_TRANSFER",
        "HF_TOKEN",
        "OMP_NUM_THREADS",
        "PYTHONHASHSEED",
        "TRANSFORMERS_OFFLINE",
    }
)
_LOCAL_ENV = re.compile(r"(?:_ROOT|_PATH|_DIR|_FOLDER|_HOST_IP)$|^VLLM_(?:PROCESS_NAME_PREFIX|HOST_IP|PORT)$")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-?+=][^}]*)?\}|([A-Za-z_]\w*))")


@dataclass(slots=True)
class Draft:
    """A profile in the making. `notes` say what was left out or changed, for the person who asked."""

    model: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | EnvRef] = field(default_factory=dict)
    vllm: str | None = None
    gpu_count: int | None = None
    notes: list[str] = field(default_factory=list)

    def set_arg(self, key: str, value: Any) -> None:
        """Take over one flag; a secret becomes a reference, what the console decides itself is left out."""
        key = argument_key(key)
        if key in _SECRET_ARGS:
            variable = _SECRET_ARGS[key]
            self.env[variable] = EnvRef(variable)
            self.notes.append(f"--{key.replace('_', '-')} was not taken over; at launch {variable} is read instead")
        elif key == "model":
            self.model = str(value)
        elif key not in _DROPPED_ARGS:
            self.args[key] = value

    def set_env(self, name: str, value: str) -> None:
        """Take over one environment variable that was given on purpose."""
        variable = _VARIABLE.fullmatch(value)
        if name == "CUDA_VISIBLE_DEVICES":
            self.gpu_count = len([part for part in value.split(",") if part.strip()]) or None
            self.notes.append(f"{name}={value} was left out: which GPUs run it is a local choice (--gpus)")
        elif variable or is_secret_name(name) or holds_secret(value):
            self.env[name] = EnvRef((variable[1] or variable[2]) if variable else name)
            if not variable:
                self.notes.append(f"the value of {name} was not taken over; it is read at launch")
        else:
            self.env[name] = value

    def take_environment(self, environment: Mapping[str, str]) -> None:
        """Take over what concerns vLLM from a whole environment; paths and addresses are local and stay out."""
        for name, value in sorted(environment.items()):
            if name == "CUDA_VISIBLE_DEVICES" or (
                (name.startswith(_ENV_PREFIXES) or name in _ENV_NAMES) and not _LOCAL_ENV.search(name)
            ):
                self.set_env(name, value)

    def profile(self, name: str | None = None, description: str = "") -> Profile:
        """The finished profile; raises UsageError without a model, ProfileError for what no profile may hold."""
        if not self.model:
            raise UsageError("no model was named", "say it with --model")
        from vq_console.profiles.share import kept_args

        if self.gpu_count is None:
            self.gpu_count = _gpus_by_parallelism(self.args)
        self.args = kept_args(self.args, self.notes)
        draft = Profile(
            name=name or suggested_name(self.model, self.args),
            model=self.model,
            description=description,
            args=self.args,
            env=self.env,
            vllm=self.vllm,
            gpu_count=self.gpu_count,
        )
        from vq_console.profiles.format import profile_table

        return profile_from(profile_table(draft), None, draft.name)


def suggested_name(model: str, args: Mapping[str, Any]) -> str:
    """A name made of the model's and what the flags quantize, such as `qwen3-8b-fp8-per-block-fp8kv`."""
    tail, _, file = PurePosixPath(model.rstrip("/")).name.partition(":")
    parts = [tail.removesuffix(".gguf"), file]
    quantization, kv = args.get("quantization"), args.get("kv_cache_dtype")
    if isinstance(quantization, str):
        parts.append(quantization)
    if isinstance(kv, str) and kv != "auto":
        parts.append(kv.removesuffix("_e4m3") + "kv")
    name = re.sub(r"[^a-z0-9.-]+", "-", "-".join(part for part in parts if part).lower()).strip("-._")[:80]
    return name if valid_name(name) else "profile"


def _gpus_by_parallelism(args: Mapping[str, Any]) -> int | None:
    count = 1
    for key in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = args.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return None
        count *= value
    return count if count > 1 else None
