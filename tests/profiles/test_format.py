"""The profile format: what is read, what is refused and how the refusal names the place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from vq_console.core.errors import ProfileError
from vq_console.profiles.format import parse_profile, profile_table, profile_toml
from vq_console.profiles.model import EnvRef, Profile

FULL = """
#:schema profile.schema.json
name = "llama31-8b-fp8block-fp8kv"
description = "FP8 on load, one layer kind left alone, FP8 KV cache"
model = "meta-llama/Llama-3.1-8B-Instruct"
tags = ["fp8"]

[args]
quantization = "fp8_per_block"
quantization_config = { ignore = ["re:.*[qkv]_proj"] }
kv-cache-dtype = "fp8"
max_model_len = 8192

[env]
VLLM_USE_DEEP_GEMM = "0"
VLLM_LOG_STATS_INTERVAL = 5
HF_TOKEN = { from_env = "HF_TOKEN" }

[engine]
vllm = ">=0.27"

[placement]
gpu_count = 1

[made_on]
gpu = "NVIDIA H200"
sm = 90
vllm = "0.26.0"
kernels = ["CutlassFP8ScaledMMLinearKernel"]
date = 2026-11-30
"""


def test_reads_every_part() -> None:
    profile = parse_profile(FULL, Path("/p/x.toml"))
    assert profile.name == "llama31-8b-fp8block-fp8kv"
    assert profile.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert list(profile.args) == ["quantization", "quantization_config", "kv_cache_dtype", "max_model_len"]
    assert profile.args["quantization_config"] == {"ignore": ["re:.*[qkv]_proj"]}
    assert profile.env == {
        "VLLM_USE_DEEP_GEMM": "0",
        "VLLM_LOG_STATS_INTERVAL": "5",
        "HF_TOKEN": EnvRef("HF_TOKEN"),
    }
    assert (profile.vllm, profile.gpu_count, profile.tags) == (">=0.27", 1, ("fp8",))
    assert profile.made_on is not None
    assert profile.made_on["date"] == "2026-11-30"
    assert profile.path == Path("/p/x.toml")


def test_round_trip() -> None:
    profile = parse_profile(FULL)
    again = parse_profile(profile_toml(profile))
    assert again == profile
    assert "kv_cache_dtype" in profile_toml(profile)
    assert "kv-cache-dtype" not in profile_toml(profile)


def test_tokens_of_a_tokenizer_are_no_secrets() -> None:
    text = BASE + '[args]\nhf_overrides = { pad_token = "<|pad|>", eos_token = "[EOS]", none_token = "" }'
    assert parse_profile(text).args["hf_overrides"]["eos_token"] == "[EOS]"


def test_name_falls_back_to_the_file() -> None:
    assert parse_profile('model = "m"', Path("/p/small.toml")).name == "small"


BASE = 'name = "x"\nmodel = "org/m"\n'

REFUSED = [
    ("name = 'x'", "model", "is missing"),
    ('name = "-x"\nmodel = "m"', "name", "not a name"),
    (f'name = "{"x" * 101}"\nmodel = "m"', "name", "not a name"),
    ('name = "a/b"\nmodel = "m"', "name", "not a name"),
    ('model = "m"', "name", "is missing"),
    ('name = "x"\nmodel = ""', "model", "hub id"),
    ('name = "x"\nmodel = "--trust-remote-code"', "model", "dash"),
    ('name = "x"\nmodel = 3', "model", "text"),
    ('nmae = "x"\nmodel = "m"', "nmae", "did you mean `name`"),
    (BASE + "[arg]\nx = 1", "arg", "did you mean `args`"),
    (BASE + '[engine]\npython = "/x"', "engine.python", "local choice"),
    (BASE + '[engine]\nvlm = ">=1"', "engine.vlm", "did you mean `vllm`"),
    (BASE + '[engine]\nvllm = "0.27"', "engine.vllm", "version specifier"),
    (BASE + "[placement]\ngpu_cuont = 1", "placement.gpu_cuont", "did you mean `gpu_count`"),
    (BASE + "[placement]\ngpu_count = true", "placement.gpu_count", "whole number"),
    (BASE + "[placement]\ngpu_count = 1.5", "placement.gpu_count", "whole number"),
    (BASE + "[placement]\ngpu_count = -1", "placement.gpu_count", "between 1 and 1024"),
    (BASE + "[placement]\ngpu_count = 0", "placement.gpu_count", "leave it out"),
    (BASE + f"[placement]\ngpu_count = {10**26}", "placement.gpu_count", "between 1 and 1024"),
    (BASE + f"[args]\nx = {'[' * 40}{']' * 40}", "args.x" + "[0]" * 33, "nested too deeply"),
    (BASE + '[made_on]\nvllmm = "1"', "made_on.vllmm", "did you mean `vllm`"),
    (BASE + "args = 3", "args", "table"),
    (BASE + "tags = 'a'", "tags", "list"),
    (BASE + "schema = 2", "schema", "schema 1"),
    (BASE + '[args]\nmodel = "y"', "args.model", "may not stand"),
    (BASE + '[args]\nconfig = "y"', "args.config", "may not stand"),
    (BASE + '[args]\napi-key = "y"', "args.api-key", "may not stand"),
    (BASE + '[args]\napi_ke = "y"', "args.api_ke", "may not stand"),
    (BASE + '[args]\nhf_token = "y"', "args.hf_token", "may not stand"),
    (BASE + "[args]\nmax-model-len = 1\nmax_model_len = 1", "args.max_model_len", "twice"),
    (BASE + '[args]\n"a b" = 1', "args.a b", "not the name of a flag"),
    (BASE + "[args]\nx = 2026-01-01", "args.x", "date cannot become an argument"),
    (BASE + "[args]\nx = nan", "args.x", "finite"),
    (BASE + "[args]\nx = { y = [inf] }", "args.x.y[0]", "finite"),
    (BASE + '[args]\nx = "a\\u0000b"', "args.x", "U+0000"),
    (BASE + '[args]\nx = { y = ["a\\u001b[31mb"] }', "args.x.y[0]", "U+001B"),
    (BASE + '[args]\nx = { "a\\u202eb" = 1 }', "args.x", "not seen"),
    (BASE + '[env]\nX = "a\\u009bb"', "env.X", "U+009B"),
    (BASE + 'description = "ding\\u0007"', "description", "U+0007"),
    ('name = "x"\nmodel = "org/a\\u202eb"', "model", "not seen"),
    ('name = "x"\nmodel = "org/a\\nb"', "model", "hub id"),
    (BASE + '[env]\nX = "sk-abcdefghijklmnopqrst"', "env.X", 'X = { from_env = "X" }'),
    (BASE + '[args]\nx = { api_key = "k" }', "args.x.api_key", "from_env"),
    (BASE + '[made_on]\nrecipe = "ghp_abcdefghijklmnopqrstu"', "made_on.recipe", "secret"),
    (BASE + '[env]\nHF_TOKEN = "hf_1"', "env.HF_TOKEN", "secret"),
    (BASE + '[env]\nVLLM_API_KEY = "k"', "env.VLLM_API_KEY", "secret"),
    (BASE + "[env]\nAWS_SECRET = 1", "env.AWS_SECRET", "secret"),
    (BASE + '[env]\nMY_PASSWORD_FILE = "k"', "env.MY_PASSWORD_FILE", "secret"),
    (BASE + "[env]\nX = true", "env.X", 'use "1"'),
    (BASE + "[env]\nX = []", "env.X", "must be text"),
    (BASE + '[env]\nX = { env = "Y" }', "env.X", "from_env"),
    (BASE + "[env]\nX = { from_env = 3 }", "env.X.from_env", "name of an environment variable"),
    (BASE + '[env]\n"A B" = "1"', "env.A B", "name of an environment variable"),
    ("name = ", "", "not valid TOML"),
    ("x = " + "[" * 5000, "", "TOML"),
    ("x = " + "9" * 5000, "", "TOML"),
]


@pytest.mark.parametrize(("text", "key", "words"), REFUSED)
def test_refusals_name_file_and_key(text: str, key: str, words: str) -> None:
    path = Path("/folder/x.toml") if key != "name" or "name" in text else None
    with pytest.raises(ProfileError) as raised:
        parse_profile(text, path)
    error = raised.value
    assert error.key == key
    assert words in str(error)
    assert error.hint, "an error says what to do"
    assert str(path or "profile") in error.message
    assert not key or key in error.message
    assert "hf_1" not in str(error)


def attempt(text: str) -> Profile | ProfileError:
    try:
        return parse_profile(text)
    except ProfileError as error:
        return error


TOML_VALUE = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("ab_.-", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True), TOML_VALUE, max_size=5))
def test_any_arguments_survive_writing(args: dict[str, object]) -> None:
    profile = attempt(tomli_w.dumps({"name": "x", "model": "m", "args": args}))
    if isinstance(profile, ProfileError):
        assert profile.key.startswith("args.")
        return
    assert parse_profile(profile_toml(profile)) == profile
    assert dict(profile.args) == args


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=80), st.binary(max_size=80).map(lambda raw: raw.decode("latin-1"))))
def test_random_text_is_an_error_and_never_a_traceback(text: str) -> None:
    assert isinstance(attempt(text), ProfileError)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(FULL)), st.integers(0, 12), st.text(max_size=6))
def test_a_damaged_profile_is_a_profile_or_an_error(start: int, length: int, put: str) -> None:
    text = FULL[:start] + put + FULL[start + length :]
    profile = attempt(text)
    if isinstance(profile, ProfileError):
        assert profile.message
        return
    assert tomllib.loads(text.removeprefix("\ufeff"))["model"] == profile.model
    assert profile_table(parse_profile(profile_toml(profile))) == profile_table(profile)
