"""What in a profile could run code, open the machine or read files, and whether that has been agreed to.

`trust_review` is pure. The decision is kept by content (model and risks), so that harmless edits ask nothing again and
a risky one does. A profile that was imported, or whose file carries the mark of a download or belongs to somebody
else, is asked about; one written here is its author's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vq_console.core.files import file_lock, read_json, write_json
from vq_console.core.places import state_dir
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.store import is_shipped
from vq_console.profiles.values import argument_key

RiskKind = Literal["code", "network", "files", "secret"]


@dataclass(frozen=True, slots=True)
class Risk:
    """One entry of a profile that a stranger should not decide. `key` is where it stands, `why` what it can do."""

    key: str
    value: str
    kind: RiskKind
    why: str

    def to_json(self) -> dict[str, str]:
        return {"key": self.key, "value": self.value, "kind": self.kind, "why": self.why}


_CODE = "imports and runs Python code that it names"
_ARGS: Mapping[str, tuple[RiskKind, str]] = {
    "trust_remote_code": ("code", "runs Python code from the model's repository"),
    "code_revision": ("code", "chooses which code of the model's repository runs"),
    "hf_overrides": ("code", "can point the model's configuration at other code"),
    "hf_config_path": ("files", "takes the model's configuration from elsewhere"),
    "worker_cls": ("code", _CODE),
    "worker_extension_cls": ("code", _CODE),
    "scheduler_cls": ("code", _CODE),
    "logits_processors": ("code", _CODE),
    "middleware": ("code", _CODE),
    "tool_parser_plugin": ("code", _CODE),
    "reasoning_parser_plugin": ("code", _CODE),
    "io_processor_plugin": ("code", _CODE),
    "model_class_overrides": ("code", _CODE),
    "log_config_file": ("code", "a logging configuration can construct any Python object"),
    "tool_server": ("code", "lets model output run tools"),
    "enable_prompt_embeds": ("code", "unpickles tensors that clients send"),
    "load_format": ("code", "this loader unpickles files of the checkpoint"),
    "trust_request_chat_template": ("code", "renders templates that clients send"),
    "host": ("network", "listens beyond this machine"),
    "allowed_origins": ("network", "lets web pages of other sites talk to the server"),
    "otlp_traces_endpoint": ("network", "sends traces to this address"),
    "kv_events_config": ("network", "publishes events on a socket"),
    "data_parallel_address": ("network", "talks to another machine"),
    "master_addr": ("network", "talks to another machine"),
    "allowed_local_media_path": ("files", "lets clients read files below this folder"),
    "allowed_media_domains": ("network", "lets clients make the server fetch from these hosts"),
    "download_dir": ("files", "writes downloads to this folder"),
    "lora_modules": ("files", "loads further weights from these places"),
    "ssl_keyfile": ("files", "reads this key file"),
    "profiler_config": ("files", "writes traces to a folder"),
}
_MEMBERS: Mapping[str, Mapping[str, tuple[RiskKind, str]]] = {
    "compilation_config": {"inductor_passes": ("code", _CODE), "backend": ("code", "may name a compiler to import")},
    "logging_config": {"pylogging_config_file": ("code", "a logging configuration can construct any Python object")},
    "speculative_config": {"model": ("files", "loads another model")},
}
"""Members of JSON flags that name code or files; members called `…_cls`, `…module_path`, `…_plugin` do everywhere."""

_CODE_MEMBER = re.compile(r"(?:_cls|module_path|_plugin)$")
_HARMLESS_LOADERS = frozenset({
    "auto", "hf", "safetensors", "dummy", "fastsafetensors", "instanttensor", "runai_streamer", "gguf", "bitsandbytes",
    "mistral", "runai_streamer_sharded",
})  # fmt: skip
_ENV_CODE = frozenset({
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP",
    "PYTHONUSERBASE", "PYTHONBREAKPOINT", "PYTHONEXECUTABLE", "PYTHONINSPECT", "PYTHONWARNINGS", "VIRTUAL_ENV",
    "CONDA_PREFIX", "BASH_ENV", "ENV", "CC", "CXX", "NVCC", "CUDA_HOME", "CUDA_PATH", "TRITON_PTXAS_PATH",
    "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "NVCC_PREPEND_FLAGS", "CUDA_INJECTION64_PATH", "VLLM_PLUGINS", "VLLM_LOGGING_CONFIG_PATH", "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT", "VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH", "VLLM_ALLOW_INSECURE_SERIALIZATION",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_TUNED_CONFIG_FOLDER", "VLLM_ENABLE_STARTUP_PLAN", "HF_HUB_CACHE",
    "HF_HOME", "HF_MODULES_CACHE", "TMPDIR", "HOME",
})  # fmt: skip
_ENV_HARMLESS = frozenset({"PYTHONHASHSEED", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8"})
_ENV_NETWORK = frozenset({
    "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "VLLM_SERVER_DEV_MODE", "VLLM_HOST_IP", "VLLM_USE_MODELSCOPE", "VLLM_ASSETS_CACHE", "VLLM_USAGE_STATS_SERVER",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS",
})  # fmt: skip
_OWN_SECRETS = frozenset({"HF_TOKEN", "VLLM_API_KEY", "HUGGING_FACE_HUB_TOKEN"})


def trust_review(profile: Profile) -> tuple[Risk, ...]:
    """Everything in a profile that can run code, reach beyond this machine, read files or pass on a secret. Pure."""
    return (*_model_risks(profile), *_argument_risks(profile.args), *_environment_risks(profile.env))


def trust_key(profile: Profile) -> str:
    """What a decision is about: the model and the risks, not the name and not harmless settings."""
    content = [profile.model, *sorted((risk.key, risk.value) for risk in trust_review(profile))]
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


def is_trusted(profile: Profile) -> bool:
    """Whether this may be launched without asking: no risks, agreed to before, shipped, or written here."""
    if not trust_review(profile):
        return True
    decisions = _decisions()
    key = trust_key(profile)
    if key in decisions["trusted"]:
        return True
    if profile.path is not None and is_shipped(profile.path):
        return True
    if key in decisions["imported"]:
        return False
    return profile.path is None or not (str(profile.path) in decisions["files"] or _from_elsewhere(profile.path))


def trust(profile: Profile) -> None:
    """Remember that the person agreed to what this profile can do."""
    _record("trusted", trust_key(profile))


def mark_imported(profile: Profile) -> None:
    """Remember that this profile came from somebody else, so that its first launch asks, also after it was edited."""
    _record("imported", trust_key(profile))
    if profile.path is not None:
        _record("files", str(profile.path))


def carry_trust(old: Profile, new: Profile) -> None:
    """Let a copy of a profile that is not agreed to ask as well."""
    if not is_trusted(old):
        mark_imported(new)


def _decisions() -> dict[str, dict[str, Any]]:
    try:
        stored = read_json(state_dir() / "trust.json")
    except (OSError, ValueError):
        stored = {}
    parts = {part: stored.get(part) for part in ("trusted", "imported", "files")}
    return {part: dict(kept) if isinstance(kept, dict) else {} for part, kept in parts.items()}


def _record(part: str, key: str) -> None:
    path = state_dir() / "trust.json"
    with file_lock(path.with_suffix(".lock")):
        decisions = _decisions()
        decisions[part][key] = int(time.time())
        write_json(path, decisions, mode=0o600)


def _from_elsewhere(path: Path) -> bool:
    try:
        state = path.stat()
    except OSError:
        return False
    if state.st_uid != os.getuid() or state.st_mode & 0o002:
        return True
    try:
        # Browsers and download tools leave this mark.
        return bool(os.getxattr(path, "user.xdg.origin.url"))
    except OSError:
        return False


def _model_risks(profile: Profile) -> Iterator[Risk]:
    if "://" in profile.model:
        yield Risk("model", profile.model, "network", "fetches the model from this address")


def _argument_risks(args: Mapping[str, Any]) -> Iterator[Risk]:
    for written, value in args.items():
        head, _, rest = argument_key(written).partition(".")
        if value is False or value in ("", [], {}):
            continue
        # argparse takes abbreviations: `trust_remote` reaches --trust-remote-code.
        for name in _meant(head, _ARGS):
            kind, why = _ARGS[name]
            if _matters(name, value):
                yield Risk(f"args.{written}", _text(value), kind, why)
        table = _nested(rest, value)
        for name in _meant(head, _MEMBERS):
            for member, (kind, why) in _MEMBERS[name].items():
                if member in table:
                    yield Risk(f"args.{name}.{member}", _text(table[member]), kind, why)
        yield from _code_members(table, f"args.{head}")
        if head.startswith("distributed_exec") and isinstance(value, str) and "." in value:
            yield Risk(f"args.{written}", value, "code", _CODE)


def _meant(head: str, known: Mapping[str, Any]) -> list[str]:
    if head in known:
        return [head]
    return [name for name in known if len(head) >= 4 and name.startswith(head)]


def _matters(name: str, value: Any) -> bool:
    if name == "host":
        return not is_loopback(str(value))
    if name == "load_format":
        return str(value) not in _HARMLESS_LOADERS
    return True


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine only."""
    import ipaddress

    if host.strip().lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip().strip("[]")).is_loopback
    except ValueError:
        return False


def _nested(path: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and not path:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    for name in reversed(path.split(".") if path else ()):
        value = {name: value}
    return value if isinstance(value, Mapping) else {}


def _code_members(table: Mapping[str, Any], where: str) -> Iterator[Risk]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _code_members(value, f"{where}.{key}")
        elif _CODE_MEMBER.search(key) and value:
            yield Risk(f"{where}.{key}", _text(value), "code", _CODE)


def _environment_risks(env: Mapping[str, str | EnvRef]) -> Iterator[Risk]:
    for name, value in env.items():
        upper = name.upper()
        shown = "$" + value.from_env if isinstance(value, EnvRef) else value
        loads_code = upper in _ENV_CODE or upper.startswith(("LD_", "PYTHON")) or upper.endswith("_PLUGIN")
        if loads_code and upper not in _ENV_HARMLESS:
            yield Risk(f"env.{name}", shown, "code", "chooses code, programs or libraries that the server loads")
        elif upper in _ENV_NETWORK:
            yield Risk(f"env.{name}", shown, "network", "changes where the server connects, or what it offers")
        elif isinstance(value, EnvRef) and value.from_env not in _OWN_SECRETS:
            yield Risk(f"env.{name}", shown, "secret", "hands a variable of your environment to the server")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
