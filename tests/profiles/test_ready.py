"""The ready profiles: valid, trusted by nobody's grace, clean on their target, running the kernels they promise."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from vq_console.core.errors import ProfileError
from vq_console.engines.catalogue import snapshot
from vq_console.preflight.plan import make_plan
from vq_console.preflight.target import read_target
from vq_console.profiles.format import parse_profile
from vq_console.profiles.schema import profile_schema
from vq_console.profiles.store import list_profiles, shipped_dir
from vq_console.profiles.trust import trust_review

READY = sorted(shipped_dir().glob("*.toml"))
SCHEMA = profile_schema(snapshot("0.33.0").flags)


def targets(text: str) -> dict[str, dict[str, str]]:
    """Targets named in the comments, each with the kernels expected there by kind of layer."""
    found: dict[str, dict[str, str]] = {
        name: {} for name in re.findall(r"^# Target: targets/([\w-]+)\.toml$", text, re.M)
    }
    for name, pairs in re.findall(r"^# Expects on ([\w-]+): (.+)$", text, re.M):
        for pair in pairs.split(","):
            kind, kernel = pair.split()
            found.setdefault(name, {})[kind] = kernel
    return found


def test_there_is_one_for_every_kind() -> None:
    assert len(READY) >= 12
    profiles = {path.stem: parse_profile(path.read_text(), path) for path in READY}
    asked = {str(profile.args.get("quantization")) for profile in profiles.values()}
    assert {"fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8", "None"} <= asked
    for word in ("w4a16", "gptq", "awq", "w8a8", "nvfp4", "mxfp4", "gguf", "split", "fp8-checkpoint"):
        assert any(word in name for name in profiles), word
    assert sum("cpu" in profile.tags for profile in profiles.values()) == 2


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_each_is_valid_and_says_when_and_where(path: Path) -> None:
    text = path.read_text()
    profile = parse_profile(text, path)
    assert profile.name == path.stem
    assert profile.description
    assert text.startswith("# When: ")
    assert trust_review(profile) == ()
    jsonschema.Draft202012Validator(SCHEMA).validate(tomllib.loads(text))
    assert max(len(line) for line in text.splitlines()) <= 120
    named = targets(text)
    assert named
    for name in named:
        assert (shipped_dir() / "targets" / f"{name}.toml").is_file()


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_each_is_clean_on_its_targets_and_runs_what_it_promises(path: Path) -> None:
    text = path.read_text()
    profile = parse_profile(text, path)
    for name, kernels in targets(text).items():
        target = read_target(shipped_dir() / "targets" / f"{name}.toml")
        plan = make_plan(profile, target, engine=None, catalogue=snapshot(target.get("vllm_version")))
        assert [finding.message for finding in plan.findings if finding.severity == "error"] == []
        planned = {layer.kind: layer.kernel for layer in plan.layers}
        assert {kind: planned.get(kind) for kind in kernels} == kernels, name
        assert plan.argv[2] == profile.model


def test_all_are_listed_as_shipped() -> None:
    listed = [entry for entry in list_profiles() if entry.origin == "shipped"]
    assert {entry.path for entry in listed} == set(READY)
    assert all(entry.error is None for entry in listed)


REFUSED: list[dict[str, Any]] = [
    {"name": "x"},
    {"model": ""},
    {"model": "-x"},
    {"model": "m", "name": "-x"},
    {"model": "m", "nmae": "x"},
    {"model": "m", "args": {"api_key": "k"}},
    {"model": "m", "args": {"hf-token": "k"}},
    {"model": "m", "args": {"max_model_len": True}},
    {"model": "m", "args": {"enforce_eager": "yes"}},
    {"model": "m", "env": {"HF_TOKEN": "literal"}},
    {"model": "m", "env": {"A": True}},
    {"model": "m", "env": {"A": {"from": "B"}}},
    {"model": "m", "engine": {"python": "/x"}},
    {"model": "m", "placement": {"gpus": [0]}},
    {"model": "m", "made_on": {"odd": 1}},
]


@pytest.mark.parametrize("table", REFUSED, ids=json.dumps)
def test_the_schema_refuses_what_the_parser_refuses(table: dict[str, Any]) -> None:
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(table))


def test_the_schema_itself_is_one_and_agrees_with_the_parser() -> None:
    import tomli_w

    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(profile_schema())
    good = {
        "model": "org/m",
        "args": {"some_flag_of_tomorrow": [1, {"a": 2}], "max_model_len": "8k", "served-model-name": ["a"]},
        "env": {"N": 3, "HF_TOKEN": {"from_env": "HF_TOKEN"}},
    }
    jsonschema.Draft202012Validator(SCHEMA).validate(good)
    parse_profile(tomli_w.dumps({"name": "x", **good}))
    for table in REFUSED:
        if table.get("args", {}).keys() & {"max_model_len", "enforce_eager"}:
            continue
        with pytest.raises(ProfileError):
            parse_profile(tomli_w.dumps({"name": "x", **table} if table != {"name": "x"} else table))
