"""The other arm of a quantized profile: the same flags on its source, found where it is and written where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vq_console.core.errors import UsageError
from vq_console.profiles.model import Profile
from vq_console.profiles.origin import same_service, source_arm, source_of
from vq_console.profiles.store import load_profile, save_profile
from vq_console.profiles.trust import is_trusted, mark_imported

QUANTIZED = Profile(
    name="smol-w4",
    model="/models/smol-w4",
    args={"kv_cache_dtype": "fp8", "max_model_len": 4096, "hf_overrides": {"a": 1}},
    env={"VLLM_CPU_KVCACHE_SPACE": "2"},
    made_on={"scheme": "W4A16-g64", "source": "acme/smol"},
)


def test_the_source_is_served_with_the_same_flags() -> None:
    source = source_of(QUANTIZED)
    assert (source.name, source.model) == ("smol-w4-source", "acme/smol")
    assert source.args == {"max_model_len": 4096, "hf_overrides": {"a": 1}}
    assert source.env == QUANTIZED.env
    assert source.made_on is None


def test_what_is_quantized_on_load_has_its_own_model_as_source() -> None:
    online = Profile(name="x" * 100, model="acme/smol", args={"quantization": "fp8_per_tensor", "seed": 1})
    source = source_of(online)
    assert (source.model, source.args) == ("acme/smol", {"seed": 1})
    assert len(source.name) <= 100


def test_a_profile_without_a_source_says_so() -> None:
    with pytest.raises(UsageError, match="does not say what it was quantized from"):
        source_of(Profile(name="plain", model="acme/smol"))


def test_the_sources_own_profile_is_taken_where_there_is_one(vq_home: Path) -> None:
    save_profile(QUANTIZED)
    assert source_arm(QUANTIZED) == "smol-w4-source"
    assert source_arm(QUANTIZED) == "smol-w4-source"
    written = load_profile("smol-w4-source")
    assert same_service(written, source_of(QUANTIZED))
    other = replace(QUANTIZED, args={"max_model_len": 128})
    assert source_arm(other) == "smol-w4-source-2"
    mine = Profile(name="my-16bit", model="acme/other", args={"max_model_len": 64})
    save_profile(mine)
    assert source_arm(replace(QUANTIZED, args=mine.args, env={}, made_on={"source": "acme/other"})) == "my-16bit"


def test_the_arm_of_a_profile_that_is_not_agreed_to_asks_as_well(vq_home: Path) -> None:
    risky = replace(QUANTIZED, args={"trust_remote_code": True})
    risky = replace(risky, path=save_profile(risky))
    mark_imported(risky)
    assert not is_trusted(risky)
    assert not is_trusted(load_profile(source_arm(risky)))


def test_on_the_command_line_it_is_source_and_the_name(vq_home: Path) -> None:
    from vq_console.compare.arms import resolve_arm

    save_profile(QUANTIZED)
    spec = resolve_arm("source:smol-w4")
    assert (spec.kind, spec.name) == ("profile", "smol-w4-source")
