"""Deployments of a profile: Docker Compose, a systemd unit, Kubernetes.

Pure text. Sources: the Compose Specification, systemd.service(5) and systemd.syntax(7), the Kubernetes API reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from vq_console.engines.model import Flag
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.exports import Exported, comment, server_args, without_secrets
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.trust import is_loopback

CONTAINER_PORT = 8000
_ADDRESS = ("host", "port", "uds", "device_ids")


def export_compose(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """A `compose.yaml` with one service on the NVIDIA runtime, health check, shared memory and the hub's cache."""
    safe, notes = without_secrets(profile)
    image, notes = _image(safe, notes)
    model, volumes = _mounted(safe)
    port = safe.args.get("port", CONTAINER_PORT)
    host = str(safe.args.get("host", "127.0.0.1"))
    published = f"{port}:{CONTAINER_PORT}" if not is_loopback(host) else f"127.0.0.1:{port}:{CONTAINER_PORT}"
    service: dict[str, Any] = {
        "image": image,
        "command": [_dollars(word) for word in (model, *_container_arguments(safe, flags))],
        "environment": {
            name: f"${{{value.from_env}:?set it first}}" if isinstance(value, EnvRef) else _dollars(value)
            for name, value in safe.env.items()
        },
        "ports": [published],
        "volumes": ["${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface", *volumes],
        "ipc": "host",
        "ulimits": {"nofile": {"soft": 65536, "hard": 65536}},
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        "healthcheck": {
            "test": ["CMD-SHELL", f"curl -fsS http://localhost:{CONTAINER_PORT}/health"],
            "interval": "10s",
            "timeout": "5s",
            "retries": 6,
            "start_period": "20m",
        },
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": gpus_of(safe), "capabilities": ["gpu"]}]}
            }
        },
    }
    if not service["environment"]:
        del service["environment"]
    text = comment(safe.description) + _yaml({"services": {dns_name(safe.name): service}})
    return Exported(text, notes)


def export_kubernetes(profile: Profile, flags: Mapping[str, Flag] | None = None) -> Exported:
    """A claim for the model cache, a Deployment and a Service; secrets come from a Secret that is only named."""
    safe, notes = without_secrets(profile)
    image, notes = _image(safe, notes)
    name = dns_name(safe.name)
    model = safe.model
    if model.startswith("/"):
        model = f"/root/.cache/huggingface/models/{PurePosixPath(model).name}"
        notes = (*notes, f"the model is a folder of this machine: copy it to {model} on the volume {name}-cache")
    secret = f"{name}-secrets"
    env: list[dict[str, Any]] = []
    for key, value in safe.env.items():
        if isinstance(value, EnvRef):
            env.append({"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
        else:
            env.append({"name": key, "value": _dollar_parentheses(value)})
    references = [key for key, value in safe.env.items() if isinstance(value, EnvRef)]
    if references:
        literals = " ".join(f'--from-literal={key}="${key}"' for key in references)
        notes = (*notes, f"create the secret first: kubectl create secret generic {secret} {literals}")
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "vllm"}
    probe = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
    container: dict[str, Any] = {
        "name": "vllm",
        "image": image,
        "args": [_dollar_parentheses(word) for word in (model, *_container_arguments(safe, flags))],
        "ports": [{"name": "http", "containerPort": CONTAINER_PORT}],
        "env": env,
        "resources": {"limits": {"nvidia.com/gpu": str(gpus_of(safe))}},
        # Loading, compiling and capturing may take long; the other probes begin after this one.
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "cache", "mountPath": "/root/.cache/huggingface"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if not env:
        del container["env"]
    documents = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"{name}-cache", "labels": labels},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Gi"}}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                # Two pods would want the same GPUs: the old one goes first.
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "terminationGracePeriodSeconds": 60,
                        # Kubernetes would set VLLM_PORT and others for a service whose name begins with vllm.
                        "enableServiceLinks": False,
                        "containers": [container],
                        "volumes": [
                            {"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}},
                            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
                        ],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": CONTAINER_PORT, "targetPort": "http"}]},
        },
    ]
    return Exported(comment(safe.description) + "---\n".join(_yaml(document) for document in documents), notes)


def export_systemd(
    profile: Profile, flags: Mapping[str, Flag] | None = None, launch: Sequence[str] = ("/usr/bin/env", "vllm", "serve")
) -> Exported:
    """A user unit. `launch` is what stands before the model: the program must be an absolute path for systemd."""
    safe, notes = without_secrets(profile)
    words = [*launch, safe.model, *serve_arguments(server_args(safe), flags)]
    references = [value for value in safe.env.values() if isinstance(value, EnvRef)]
    lines = [
        "[Unit]",
        f"Description=vLLM: {_unit_text(safe.name)}",
        "After=network-online.target",
        "Wants=network-online.target",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        "ExecStart=" + " \\\n  ".join(_unit_word(word) for word in words),
    ]
    for name, value in safe.env.items():
        if not isinstance(value, EnvRef):
            lines.append(f"Environment={_unit_word(f'{name}={value}', dollars=False)}")
    if references:
        file = f"%h/.config/vq-console/{dns_name(safe.name)}.env"
        lines.append(f"EnvironmentFile={file}")
        names = [name for name, value in safe.env.items() if isinstance(value, EnvRef)]
        pairs = " and ".join(f"{name}=…" for name in names)
        notes = (*notes, f"write {pairs} into {file.replace('%h', '~')}, readable by you alone")
    lines += [
        "# An engine that dies can end with exit code 0, so on-failure would not start it again.",
        "Restart=always",
        "RestartSec=10",
        "TimeoutStopSec=60",
        "KillMode=mixed",
        "LimitNOFILE=65536",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    place = f"~/.config/systemd/user/vllm-{dns_name(safe.name)}.service"
    return Exported(comment(safe.description) + "\n".join(lines) + "\n", (*notes, f"goes to {place}"))


def gpus_of(profile: Profile) -> int:
    """How many GPUs the profile needs: as it says, else by its parallel sizes."""
    if profile.gpu_count is not None:
        return max(profile.gpu_count, 1)
    return world_size(profile.args)


def world_size(args: Mapping[str, Any]) -> int:
    """GPUs of all replicas: tensor × pipeline × data parallel size."""
    count = 1
    for key in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = args.get(key, 1)
        count *= value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
    return count


def dns_name(name: str) -> str:
    """A profile's name as Kubernetes and Compose take it: lower case, a letter first, then letters,
    digits and dashes, about 50 at most."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:50].strip("-") or "profile"
    return plain if plain[0].isalpha() else f"m-{plain}"


def _container_arguments(profile: Profile, flags: Mapping[str, Flag] | None) -> tuple[str, ...]:
    args = {key: value for key, value in server_args(profile).items() if key not in _ADDRESS}
    return serve_arguments({"host": "0.0.0.0", "port": CONTAINER_PORT, **args}, flags)


def _image(profile: Profile, notes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    version = (profile.made_on or {}).get("vllm")
    exact = re.fullmatch(r"==\s*(\d+\.\d+\.\d+)", profile.vllm or "")
    if exact:
        version = exact[1]
    if isinstance(version, str) and re.fullmatch(r"\d+\.\d+\.\d+", version):
        return f"vllm/vllm-openai:v{version}", notes
    wanted = f" (it needs vLLM {profile.vllm})" if profile.vllm else ""
    return "vllm/vllm-openai:latest", (*notes, f"pin the image to the version you tested{wanted}")


def _mounted(profile: Profile) -> tuple[str, list[str]]:
    if not profile.model.startswith("/"):
        return profile.model, []
    inside = f"/models/{PurePosixPath(profile.model).name}"
    return inside, [f"{_dollars(profile.model)}:{inside}:ro"]


def _yaml(document: Mapping[str, Any]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=1000))


def _dollars(text: str) -> str:
    """Compose expands variables in values."""
    return text.replace("$", "$$")


def _dollar_parentheses(text: str) -> str:
    """Kubernetes expands `$(NAME)` in arguments and values."""
    return text.replace("$(", "$$(")


def _unit_text(text: str) -> str:
    return text.replace("%", "%%")


def _unit_word(word: str, *, dollars: bool = True) -> str:
    escaped = word.replace("\\", "\\\\").replace("%", "%%")
    if dollars:
        escaped = escaped.replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", escaped):
        return escaped
    escaped = escaped.replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
