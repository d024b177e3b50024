"""Exports, each judged by the parser or the schema of what reads it."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from vq_console.core.errors import UsageError
from vq_console.engines.catalogue import snapshot
from vq_console.profiles import sources
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.command import read_command, read_words
from vq_console.profiles.exports import export_profile
from vq_console.profiles.exports_deploy import dns_name
from vq_console.profiles.model import EnvRef, Profile
from vq_console.profiles.store import list_profiles

FLAGS = snapshot("0.33.0").flags
DATA = Path(__file__).parent.parent / "data" / "profiles"

HARD = Profile(
    name="Hard_one.v1",
    description="Odd characters: 'quotes' \"double\" $HOME %h",
    model="org/m",
    args={
        "quantization": "fp8_per_block",
        "quantization_config": {"ignore": ["re:.*[qkv]_proj$", "it's", 'say "x"']},
        "max_model_len": "8k",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": ["a b", "c"],
        "allowed_origins": ["*"],
        "chat_template": "{{ a }}\n$(x) %i \\ `id`",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.85,
        "hf_overrides": '{"rope": {"factor": 2.0}}',
        "kernel_config.linear_backend": "triton",
    },
    env={"VLLM_USE_DEEP_GEMM": "0", "ODD": "a b'c$d%e", "HF_TOKEN": EnvRef("HF_TOKEN"), "X": EnvRef("MY_X")},
    vllm=">=0.27",
    made_on={"vllm": "0.33.0", "gpu": "NVIDIA H200"},
)
PLAIN = Profile(name="plain", model="org/m", args={"max_model_len": 8192})
READY = [entry.profile for entry in list_profiles() if entry.origin == "shipped"]
ALL = [HARD, PLAIN, *(profile for profile in READY if profile is not None)]
SECRET = Profile(
    name="leaky",
    model="org/m",
    args={
        "otlp_traces_endpoint": "https://me:geheim123@host/",
        "model_loader_extra_config": {"aws_secret": "geheim123"},
    },
    env={"A": "hf_abcdefghijklmnopqrst", "B": "ok"},
)
FORMS = ["toml", "command", "python", "yaml", "compose", "systemd", "kubernetes", "ray", "multi-node"]


def expected_args(profile: Profile, **more: Any) -> list[str]:
    args = {**profile.args}
    args.setdefault("served_model_name", profile.name)
    return list(serve_arguments({**args, **more}, FLAGS))


def read_back(profile: Profile) -> dict[str, Any]:
    """What the profile's own arguments are read as."""
    return read_words(["vllm", "serve", "m", *expected_args(profile, host="127.0.0.1")], FLAGS).args


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_command(profile: Profile, tmp_path: Path) -> None:
    script = export_profile(profile, "command", FLAGS).text
    path = tmp_path / "run.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", str(path)], check=True)
    (tmp_path / "vllm").write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
    (tmp_path / "vllm").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HF_TOKEN": "t", "MY_X": "x"}
    out = subprocess.run(["bash", str(path)], env=environment, capture_output=True, check=True).stdout
    words = out.decode().split("\0")[:-1]
    assert words[:2] == ["serve", profile.model]
    assert sorted(words[2:]) == sorted(expected_args(profile, host=profile.args.get("host", "127.0.0.1")))


def test_a_command_says_which_variable_is_missing(tmp_path: Path) -> None:
    script = export_profile(HARD, "command", FLAGS).text
    ended = subprocess.run(["bash", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=False)
    assert ended.returncode != 0
    assert b"set HF_TOKEN first" in ended.stderr


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_a_command_comes_back_as_the_same_profile(profile: Profile) -> None:
    draft = read_command(export_profile(profile, "command", FLAGS).text, FLAGS)
    assert set(draft.env) == set(profile.env)
    assert draft.args == read_back(profile)


def keywords(source: str) -> dict[str, Any]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    call = next(node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "LLM")
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_python(profile: Profile) -> None:
    exported = export_profile(profile, "python", FLAGS)
    compile(exported.text, "export.py", "exec")
    found = keywords(exported.text)
    assert found["model"] == profile.model
    for key in ("quantization", "quantization_config", "kv_cache_dtype", "tensor_parallel_size"):
        if key in profile.args:
            assert found[key] == profile.args[key]
    assert not {"host", "port", "served_model_name", "allowed_origins"} & set(found)


def test_python_values() -> None:
    found = keywords(export_profile(HARD, "python", FLAGS).text)
    assert found["max_model_len"] == 8000
    assert found["hf_overrides"] == {"rope": {"factor": 2.0}}
    assert found["kernel_config"] == {"linear_backend": "triton"}
    assert found["enable_prefix_caching"] is False
    assert "os.environ['X'] = os.environ['MY_X']" in export_profile(HARD, "python", FLAGS).text


def config_file_words(text: str) -> list[str]:
    """What vLLM's `load_config_file` makes of the file (its rules: bool, list, table, scalar)."""
    words: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if isinstance(value, bool):
            flag = (FLAGS or {}).get(key.replace("-", "_"))
            words += [f"--{key}"] if value else [f"--no-{key}"] if flag is not None and flag.negatable else []
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value)]
        else:
            words += [f"--{key}", str(value)]
    return words


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_yaml(profile: Profile, tmp_path: Path) -> None:
    text = export_profile(profile, "yaml", FLAGS).text
    by_vllm = read_words(["vllm", "serve", *config_file_words(text)], FLAGS)
    assert by_vllm.model == profile.model
    assert by_vllm.args == read_back(profile)
    path = tmp_path / "c.yaml"
    path.write_text(text)
    draft = sources.from_yaml(path, FLAGS)
    assert read_words(["vllm", "serve", "m", *serve_arguments(draft.args, FLAGS)], FLAGS).args == read_back(profile)


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_compose(profile: Profile) -> None:
    text = export_profile(profile, "compose", FLAGS).text
    document = yaml.safe_load(text)
    schema = json.loads((DATA / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(document)
    service = document["services"][dns_name(profile.name)]
    words = [word.replace("$$", "$") for word in service["command"]]
    assert words[0] == profile.model
    assert sorted(words[1:]) == sorted(expected_args(profile, host="0.0.0.0", port=8000))
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert "$" not in "".join(service["command"]).replace("$$", "")


def test_compose_of_a_local_model_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    document = yaml.safe_load(export_profile(Profile("x", str(tmp_path / "m")), "compose", FLAGS).text)
    service = document["services"]["x"]
    assert service["command"][0] == "/models/m"
    assert f"{tmp_path / 'm'}:/models/m:ro" in service["volumes"]


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_kubernetes(profile: Profile) -> None:
    exported = export_profile(profile, "kubernetes", FLAGS)
    schema = json.loads((DATA / "kubernetes-1.37.json").read_text())
    documents = {document["kind"]: document for document in yaml.safe_load_all(exported.text)}
    for kind, document in documents.items():
        jsonschema.Draft202012Validator(
            {"$ref": f"#/$defs/{schema['kinds'][kind]}", "$defs": schema["$defs"]}
        ).validate(document)
    pod = documents["Deployment"]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    words = [word.replace("$$(", "$(") for word in container["args"]]
    assert words[0] == profile.model
    assert sorted(words[1:]) == sorted(expected_args(profile, host="0.0.0.0", port=8000))
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["startupProbe"]["httpGet"]["path"] == "/health"
    references = [
        entry["valueFrom"]["secretKeyRef"]["key"] for entry in container.get("env", []) if "valueFrom" in entry
    ]
    assert references == [key for key, value in profile.env.items() if isinstance(value, EnvRef)]
    assert documents["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert documents["Deployment"]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]


@pytest.mark.parametrize("profile", [HARD, PLAIN], ids=lambda profile: profile.name)
def test_systemd(profile: Profile, tmp_path: Path) -> None:
    text = export_profile(profile, "systemd", FLAGS).text
    assert text.count("[Service]") == 1
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    unit = tmp_path / "vllm-x.service"
    unit.write_text(text)
    (tmp_path / "h").mkdir()
    checked = subprocess.run(
        [analyze, "verify", "--user", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in checked.stderr.splitlines() if "vllm-x.service" in line]
    assert complaints == []


@pytest.mark.parametrize("form", ["ray", "multi-node"])
@pytest.mark.parametrize("profile", [HARD, PLAIN], ids=lambda profile: profile.name)
def test_several_nodes(profile: Profile, form: str, tmp_path: Path) -> None:
    exported = export_profile(profile, form, FLAGS)
    path = tmp_path / "run.sh"
    path.write_text(exported.text)
    for program in ("vllm", "ray"):
        (tmp_path / program).write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
        (tmp_path / program).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HF_TOKEN": "t", "MY_X": "x"}

    def run(*words: str) -> list[str]:
        out = subprocess.run(["bash", str(path), *words], env=environment, capture_output=True, check=True).stdout
        return out.decode().split("\0")[:-1]

    if form == "ray":
        assert run("head") == ["start", "--head", "--port=6379"]
        assert run("worker", "h") == ["start", "--address=h:6379"]
        words = run("serve")
        assert words[0] == "status"
        assert "--distributed-executor-backend=ray" in words
    else:
        assert {"--nnodes=2", "--node-rank=0", "--master-addr=h"} <= set(run("0", "h"))
        assert "--headless" not in run("0", "h")
        assert "--headless" in run("1", "h")
    if profile is PLAIN:
        assert any("one GPU" in note for note in exported.notes)


@pytest.mark.parametrize("form", FORMS)
def test_no_export_holds_a_secret(form: str) -> None:
    exported = export_profile(SECRET, form, FLAGS)
    assert "geheim123" not in exported.text
    assert "hf_abcdefghijklmnopqrst" not in exported.text
    assert any("secret" in note for note in exported.notes)


@pytest.mark.parametrize(("name", "expected"), [("Hard_one.v1", "hard-one-v1"), ("3B", "m-3b"), ("a" * 80, "a" * 50)])
def test_names_for_clusters(name: str, expected: str) -> None:
    assert dns_name(name) == expected


def test_unknown_format() -> None:
    with pytest.raises(UsageError, match="no such format"):
        export_profile(PLAIN, "nomad", FLAGS)
