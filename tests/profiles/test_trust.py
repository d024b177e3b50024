"""What a profile could do beyond serving, and who has agreed to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vq_console.core.places import profiles_dir
from vq_console.profiles import store, trust
from vq_console.profiles.model import EnvRef, Profile

RISKY: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"trust_remote_code": True}, {}, "args.trust_remote_code", "code"),
    ({"trust-remote": True}, {}, "args.trust-remote", "code"),
    ({"worker_cls": "evil.W"}, {}, "args.worker_cls", "code"),
    ({"tool_parser_plugin": "/tmp/x.py"}, {}, "args.tool_parser_plugin", "code"),
    ({"logits_processors": ["a.B"]}, {}, "args.logits_processors", "code"),
    ({"middleware": ["a.b"]}, {}, "args.middleware", "code"),
    ({"distributed_executor_backend": "evil.Executor"}, {}, "args.distributed_executor_backend", "code"),
    ({"kv_transfer_config": {"kv_connector_module_path": "evil"}}, {}, "kv_connector_module_path", "code"),
    ({"kv_transfer_config": '{"kv_connector_module_path": "evil"}'}, {}, "kv_connector_module_path", "code"),
    ({"kv_transfer_config.kv_connector_module_path": "evil"}, {}, "kv_connector_module_path", "code"),
    ({"compilation_config": {"backend": "evil.b"}}, {}, "args.compilation_config.backend", "code"),
    ({"load_format": "pt"}, {}, "args.load_format", "code"),
    ({"host": "0.0.0.0"}, {}, "args.host", "network"),
    ({"host": "::"}, {}, "args.host", "network"),
    ({"host": "box.lan"}, {}, "args.host", "network"),
    ({"allowed_local_media_path": "/"}, {}, "args.allowed_local_media_path", "files"),
    ({"allowed_origins": ["*"]}, {}, "args.allowed_origins", "network"),
    ({}, {"LD_PRELOAD": "/tmp/x.so"}, "env.LD_PRELOAD", "code"),
    ({}, {"PYTHONPATH": "/tmp"}, "env.PYTHONPATH", "code"),
    ({}, {"PATH": "/tmp"}, "env.PATH", "code"),
    ({}, {"VLLM_PLUGINS": "evil"}, "env.VLLM_PLUGINS", "code"),
    ({}, {"NCCL_NET_PLUGIN": "evil"}, "env.NCCL_NET_PLUGIN", "code"),
    ({}, {"HF_ENDPOINT": "http://evil"}, "env.HF_ENDPOINT", "network"),
    ({}, {"https_proxy": "http://evil"}, "env.https_proxy", "network"),
    ({}, {"VLLM_SERVER_DEV_MODE": "1"}, "env.VLLM_SERVER_DEV_MODE", "network"),
    ({}, {"X": EnvRef("AWS_SECRET_ACCESS_KEY")}, "env.X", "secret"),
]

HARMLESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"quantization": "fp8_per_tensor", "max_model_len": 8192}, {}),
    ({"trust_remote_code": False}, {}),
    ({"host": "127.0.0.1"}, {}),
    ({"host": "localhost"}, {}),
    ({"host": "::1"}, {}),
    ({"load_format": "safetensors"}, {}),
    ({"distributed_executor_backend": "ray"}, {}),
    ({"logging_config": {"formatter": "json"}}, {}),
    ({"compilation_config": {"level": 3}}, {}),
    ({"model_loader_extra_config": {}}, {}),
    ({}, {"HF_TOKEN": EnvRef("HF_TOKEN"), "VLLM_USE_DEEP_GEMM": "0", "PYTHONHASHSEED": "0"}),
]


@pytest.mark.parametrize(("args", "env", "key", "kind"), RISKY)
def test_risks(args: dict[str, Any], env: dict[str, Any], key: str, kind: str) -> None:
    risks = trust.trust_review(Profile("x", "org/m", args=args, env=env))
    assert len(risks) == 1
    assert key in risks[0].key
    assert risks[0].kind == kind
    assert risks[0].why


@pytest.mark.parametrize(("args", "env"), HARMLESS)
def test_no_risks(args: dict[str, Any], env: dict[str, Any]) -> None:
    assert trust.trust_review(Profile("x", "org/m", args=args, env=env)) == ()


def write(name: str, text: str) -> Profile:
    path = profiles_dir() / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'name = "{name}"\nmodel = "org/m"\n{text}')
    return store.read_profile(path)


RISK = "[args]\ntrust_remote_code = true\n"


def test_own_profiles_are_trusted(vq_home: Path) -> None:
    assert trust.is_trusted(write("mine", RISK))


def test_imported_profiles_ask_until_agreed(vq_home: Path) -> None:
    profile = write("theirs", RISK)
    trust.mark_imported(profile)
    assert not trust.is_trusted(profile)
    trust.trust(profile)
    assert trust.is_trusted(profile)
    # Harmless edits ask nothing again, a new risk does, another model too.
    assert trust.is_trusted(write("theirs", RISK + "max_model_len = 1\n"))
    assert not trust.is_trusted(write("theirs", RISK + 'host = "0.0.0.0"\n'))
    store.apply_patch(profiles_dir() / "theirs.toml", {"set_model": "evil/m", "remove_args": ["host"]})
    assert not trust.is_trusted(store.load_profile("theirs"))


def test_harmless_imports_ask_nothing(vq_home: Path) -> None:
    profile = write("theirs", "")
    trust.mark_imported(profile)
    assert trust.is_trusted(profile)


def test_copies_of_imports_ask_too(vq_home: Path) -> None:
    profile = write("theirs", RISK)
    trust.mark_imported(profile)
    assert not trust.is_trusted(store.read_profile(store.copy_profile("theirs", "copy")))
    assert not trust.is_trusted(store.read_profile(store.rename_profile("copy", "third")))


def test_files_from_elsewhere_ask(vq_home: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'model = "org/m"\n{RISK}')
    assert trust.is_trusted(store.read_profile(path))
    path.chmod(0o666)
    assert not trust.is_trusted(store.read_profile(path))
    path.chmod(0o600)
    try:
        os.setxattr(path, "user.xdg.origin.url", b"https://example.org/p.toml")
    except OSError:
        return
    assert not trust.is_trusted(store.read_profile(path))


def test_a_broken_decision_file_trusts_nothing_imported(vq_home: Path) -> None:
    profile = write("theirs", RISK)
    trust.mark_imported(profile)
    trust.trust(profile)
    (vq_home / "state" / "trust.json").write_text('{"trusted": 3, "imported": [], "files": {"x": 1}}')
    trust.mark_imported(profile)
    assert not trust.is_trusted(profile)


def test_shipped_profiles_are_trusted(vq_home: Path) -> None:
    for entry in store.list_profiles():
        assert entry.profile is not None
        assert trust.is_trusted(entry.profile)
