"""A profile as something else that starts the same server: command, Python, YAML, and the deployments.

Pure apart from making a relative model path absolute. No export ever holds a secret: variables are named, and literal
values that look like keys are left out with a note. Sources: vLLM 0.32 `entrypoints/llm.py`, `utils/argparse_utils.py`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.engines.model import Flag
from vq_console.profiles.arguments import serve_arguments, takes_json_value
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.share import kept_args, seen, shared_profile, shared_toml, without_secret
from vq_console.profiles.store import model_argument
from vq_console.profiles.values import argument_key

_FRONTEND = frozenset({
    "allow_credentials", "allowed_headers", "allowed_methods", "allowed_origins", "anthropic_disabled_thinking_effort",
    "api_server_count", "chat_template_content_format", "cohere_format", "cohere_is_reasoning_model",
    "data_parallel_supervisor_port", "default_chat_template_kwargs", "disable_access_log_for_endpoints",
    "disable_fastapi_docs", "disable_uvicorn_access_log", "enable_auto_tool_choice", "enable_flash_late_interaction",
    "enable_force_include_usage", "enable_log_deltas", "enable_log_outputs", "enable_log_requests",
    "enable_offline_docs", "enable_per_request_metrics", "enable_prompt_tokens_details", "enable_request_id_headers",
    "enable_scale_out", "enable_server_load_tracking", "enable_ssl_refresh", "enable_tokenizer_info_endpoint",
    "exclude_tools_when_tool_choice_none", "fingerprint_mode", "fingerprint_value", "grpc", "grpc_port",
    "h11_max_header_count", "h11_max_incomplete_event_size", "headless", "host", "log_config_file", "log_error_stack",
    "lora_modules", "max_log_len", "middleware", "port", "response_role", "return_tokens_as_token_ids", "root_path",
    "sse_keep_alive_interval", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_ciphers", "ssl_keyfile",
    "tokens_only", "tool_call_parser", "tool_parser_plugin", "tool_server", "tool_strict_level",
    "trust_request_chat_template", "trust_request_mm_kwargs", "uds", "uvicorn_log_level", "served_model_name",
})  # fmt: skip
"""Flags of the HTTP server, which `LLM(…)` does not take."""

_HUMAN = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([kKmMgGtT])")


@dataclass(frozen=True, slots=True)
class Exported:
    """The text to write, and sentences about what could not be taken along."""

    text: str
    notes: tuple[str, ...] = ()


def export_profile(profile: Profile, form: str, flags: Mapping[str, Flag] | None = None) -> Exported:
    """The profile in one of the formats toml, command, python, yaml, compose, systemd, kubernetes, ray, multi-node.

    Raises UsageError for another format, ProfileError for values that no command line can carry.
    """
    from vq_console.profiles import exports_deploy, exports_nodes

    if form == "toml":
        return Exported(shared_toml(profile), shared_profile(profile)[1])
    makers = {
        "command": export_command,
        "python": export_python,
        "yaml": export_yaml,
        "compose": exports_deploy.export_compose,
        "systemd": exports_deploy.export_systemd,
        "kubernetes": exports_deploy.export_kubernetes,
        "ray": exports_nodes.export_ray,
        "multi-node": exports_nodes.export_multi_node,
    }
    if form not in makers:
        raise UsageError(f"{form}: no such format", f"one of toml, {', '.join(makers)}")
    return makers[form](profile, flags)


def without_secrets(profile: Profile) -> tuple[Profile, tuple[str, ...]]:
    """The profile for use on this machine: paths and addresses stay, literal values that look like keys go."""
    notes: list[str] = []

    args = kept_args(profile.args, notes)
    env = {
        key: value if isinstance(value, EnvRef) else without_secret(value, f"env.{key}", notes)
        for key, value in profile.env.items()
    }
    env = {key: value for key, value in env.items() if value is not None}
    description = seen(profile.description, "description", notes)
    return replace(
        profile, description=description, args=args, env=env, model=model_argument(profile), path=None
    ), tuple(notes)


def server_args(profile: Profile, *, host: str = "127.0.0.1") -> dict[str, Any]:
    """`[args]` completed by what the console decides at launch: address and served name."""
    args = dict(profile.args)
    args.setdefault("host", host)
    args.setdefault("served_model_name", profile.name)
    return args


def undotted(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with `kernel_config.linear_backend = x` as members of the table `kernel_config`, as vLLM joins them."""
    joined: dict[str, Any] = {}
    for key, value in args.items():
        head, *path = argument_key(key).split(".")
        for name in reversed(path):
            value = {name: value}
        old = joined.get(head)
        joined[head] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return joined


def shell_words(arguments: Sequence[str]) -> list[str]:
    """Arguments quoted for a shell, an option and its values together."""
    lines: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if word.startswith("--") and equals and re.fullmatch(r"--[\w.+-]+", option):
            lines.append(f"{option}={shlex.quote(value)}")
        elif word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return lines


def shell_environment(env: Mapping[str, str | EnvRef]) -> list[str]:
    """Assignments for a shell; a reference ends the command with a message when its variable is not set."""
    return [
        f'{name}="${{{value.from_env}:?set {value.from_env} first}}"'
        if isinstance(value, EnvRef)
        else f"{name}={shlex.quote(value)}"
        for name, value in env.items()
    ]


def comment(text: str, sign: str = "#") -> str:
    """Text as comment lines; an empty text gives nothing."""
    return "".join(f"{sign} {line}".rstrip() + "\n" for line in text.splitlines())


def export_command(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """One command for a POSIX shell."""
    safe, notes = without_secrets(profile)
    lines = [
        *shell_environment(safe.env),
        f"vllm serve {shlex.quote(safe.model)}",
        *("  " + word for word in shell_words(serve_arguments(server_args(safe), flags))),
    ]
    return Exported(" \\\n".join(lines) + "\n", notes)


def export_python(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """A script with `LLM(…)`, which takes the engine's flags and none of the HTTP server's."""
    safe, notes = without_secrets(profile)
    left: list[str] = []
    arguments: dict[str, Any] = {"model": safe.model}
    for key, value in undotted(safe.args).items():
        if key in _FRONTEND:
            left.append(key)
        else:
            arguments[key] = _python_value(value, key, (flags or {}).get(key))
    if left:
        notes = (*notes, f"left out, for they belong to the HTTP server: {', '.join(left)}")
    lines = [f'"""{_docstring(safe)}"""', "", "import os", ""]
    for name, text in safe.env.items():
        source = f"os.environ[{text.from_env!r}]" if isinstance(text, EnvRef) else repr(text)
        lines.append(f"os.environ[{name!r}] = {source}")
    lines += ["", "from vllm import LLM, SamplingParams  # noqa: E402  (reads the environment when imported)", ""]
    lines += ['if __name__ == "__main__":', "    llm = LLM("]
    lines += [f"        {key}={value!r}," for key, value in arguments.items() if key.isidentifier()]
    lines += [
        "    )",
        '    answers = llm.generate(["The capital of France is"], SamplingParams(max_tokens=16))',
        "    print(answers[0].outputs[0].text)",
    ]
    if not safe.env:
        lines = [line for line in lines if line != "import os"]
    return Exported(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n", notes)


def export_yaml(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """A file for vLLM's own `vllm serve --config FILE`; the environment stands above it as comments."""
    import yaml

    safe, notes = without_secrets(profile)
    table: dict[str, Any] = {"model": safe.model}
    for key, value in undotted(server_args(safe)).items():
        written = key.replace("_", "-")
        if isinstance(value, list | tuple) and takes_json_value(key, (flags or {}).get(key)):
            table[written] = json.dumps(list(value), ensure_ascii=False)
        elif isinstance(value, list | tuple):
            table[written] = [json.dumps(item) if isinstance(item, dict) else item for item in value]
            if key == "middleware" and len(value) > 1:
                notes = (*notes, "vLLM's --config takes one middleware only; give the others on the command line")
        else:
            table[written] = value
    head_lines = f"{safe.name}: vllm serve --config THIS_FILE\n"
    assignments = shell_environment(safe.env)
    if assignments:
        head_lines += "with this environment:\n" + "\n".join(f"  {line}" for line in assignments)
    body = yaml.safe_dump(table, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000)
    return Exported(comment(head_lines) + body, notes)


def _python_value(value: Any, head: str, flag: Flag | None) -> Any:
    if isinstance(value, str):
        if takes_json_value(head, flag) and value.lstrip()[:1] in ("{", "["):
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                return value
        if head == "max_model_len" and value == "auto":
            return -1
        human = _HUMAN.fullmatch(value)
        if human and (flag is None or flag.suffixes):
            # vLLM's own rule: small letters count in thousands, capitals in 1024.
            power = "kmgt".index(human[2].lower()) + 1
            return int(float(human[1]) * (1000 if human[2].islower() else 1024) ** power)
    return value


def _docstring(profile: Profile) -> str:
    text = f"{profile.name}: {profile.description}" if profile.description else profile.name
    return text.replace("\\", "/").replace('"', "'").replace("\n", " ")
