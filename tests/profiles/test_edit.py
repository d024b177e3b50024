"""Edits of files that people wrote in every way TOML allows: the meaning is right, comments stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vq_console.profiles.edit import patched_text, replaced_text, toml_value
from vq_console.profiles.format import parse_profile, profile_table
from vq_console.profiles.model import EnvRef

PATH = Path("/folder/p.toml")
WRITTEN = {
    "plain": 'name="p"\nmodel="m"\n[args]\na=1 # keep\nb=2\n[env]\nX="1"\n',
    "nameless": 'model="m" # keep\n[args]\na=1\nb=2\n',
    "dotted": 'model="m"\nargs.a=1\nargs.b = 2 # keep\nenv.X="1"\n',
    "inline": 'model="m" # keep\nargs = {a=1, b=2}\nenv={X="1"}\n',
    "subtable": 'model="m"\n[args]\na=1 # keep\n[args.b]\nx=1\n[args.b.y]\nz=2\n[env]\nX="1"\n',
    "array of tables": 'model="m"\n[args]\na=1 # keep\n[[args.b]]\nx=1\n[[args.b]]\nx=2\n[env]\nX="1"\n',
    "reference as a table": 'model="m"\n[env]\nX="1" # keep\n[env.HF_TOKEN]\nfrom_env="HF_TOKEN"\n[args]\na=1\nb=2\n',
    "torn table": 'model="m"\n[args]\na=1 # keep\n[env]\nX="1"\n[args.b]\nq=1\n',
    "windows": 'model="m"\r\n[args]\r\na=1 # keep\r\nb=2\r\n[env]\r\nX="1"\r\n',
    "bare": 'model="m" # keep',
    "empty table": 'model="m"\n[args]\n\n# keep\n',
    "many lines": 'model="m"\ndescription="""\nlong\n"""\n[args]\na=[\n 1, # one\n 2,\n]\nb=2 # keep\n[env]\nX="1"\n',
    "quoted": 'model="m"\n[args]\n"a"=1 # keep\n"b"=2\n[env]\n"X"="1"\n',
}
PATCHES: list[dict[str, Any]] = [
    {"set_args": {"n": {"k": [1, {"z": True}]}}, "set_env": {"N": "1", "T_TOKEN": {"from_env": "T"}}},
    {"set_args": {"a": {"t": 1}}},
    {"remove_args": ["b"]},
    {"remove_env": ["X"]},
    {"set_args": {"b": 7.5, "c-d": "x"}, "set_model": "z/z"},
    {"set_description": 'new "d"', "set_vllm": ">=0.3", "set_gpu_count": 2},
]


@pytest.mark.parametrize("patch", PATCHES, ids=str)
@pytest.mark.parametrize("how", WRITTEN)
def test_every_way_of_writing(how: str, patch: dict[str, Any]) -> None:
    text = WRITTEN[how]
    before, after = parse_profile(text, PATH), parse_profile(patched_text(text, patch, PATH), PATH)
    args = {**before.args, **{key.replace("-", "_"): value for key, value in patch.get("set_args", {}).items()}}
    assert after.args == {key: value for key, value in args.items() if key not in patch.get("remove_args", [])}
    env = {**before.env, **patch.get("set_env", {})}
    env = {key: EnvRef(value["from_env"]) if isinstance(value, dict) else value for key, value in env.items()}
    assert after.env == {key: value for key, value in env.items() if key not in patch.get("remove_env", [])}
    assert after.model == patch.get("set_model", before.model)
    assert after.description == patch.get("set_description", before.description)
    assert (
        "# keep" in patched_text(text, patch, PATH)
        or "b" in patch.get("remove_args", [])
        or "X" in patch.get("remove_env", [])
    )


@pytest.mark.parametrize("how", WRITTEN)
def test_nothing_changes_where_nothing_is_asked(how: str) -> None:
    text = WRITTEN[how]
    assert patched_text(text, {}, PATH) == text


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9), st.floats(-5, 5), st.text("ab\"'\\\n#é", max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(WRITTEN)),
    st.dictionaries(st.sampled_from(["a", "b", "n", "long_name"]), VALUES, max_size=3),
    st.lists(st.sampled_from(["a", "b"]), max_size=2),
)
def test_any_patch_means_what_it_says(how: str, values: dict[str, Any], removed: list[str]) -> None:
    before = parse_profile(WRITTEN[how], PATH)
    after = parse_profile(patched_text(WRITTEN[how], {"set_args": values, "remove_args": removed}, PATH), PATH)
    assert after.args == {key: value for key, value in {**before.args, **values}.items() if key not in removed}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(WRITTEN)), st.sampled_from(sorted(WRITTEN)))
def test_one_profile_becomes_another(one: str, other: str) -> None:
    wanted = parse_profile(WRITTEN[other], PATH)
    assert profile_table(parse_profile(replaced_text(WRITTEN[one], wanted, PATH), PATH)) == profile_table(wanted)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8192", 8192),
        ("0.9", 0.9),
        ("true", True),
        ("fp8", "fp8"),
        ('"fp8"', "fp8"),
        ("8k", "8k"),
        ("", ""),
        ("[1, 2]", [1, 2]),
        ('{a = "b"}', {"a": "b"}),
        ('{"a": "b"}', {"a": "b"}),
        ('{"a": {"b": null}}', {"a": {"b": None}}),
        ("nan", "nan"),
        ("2026-01-01", "2026-01-01"),
        ("1\ny = 2", "1\ny = 2"),
        ("{broken", "{broken"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_values_typed_by_a_person(text: str, value: Any) -> None:
    assert toml_value(text) == value
