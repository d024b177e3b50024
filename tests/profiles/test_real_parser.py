"""Arguments and YAML exports through the real vLLM's own parser: both mean the same, and nothing is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from profiles.test_exports import HARD
from vq_console.engines.catalogue import read_catalogue
from vq_console.engines.find import engine_at
from vq_console.engines.model import Flag
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.exports import export_profile, server_args
from vq_console.profiles.store import list_profiles
from vq_console.profiles.values import RESERVED

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

EVERY = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
answers = {}
for name, words in json.load(open(sys.argv[1])).items():
    try:
        answers[name] = repr(vars(parser.parse_args(["m", *words])).get(name.partition(" ")[0]))
    except SystemExit:
        answers[name] = "refused"
json.dump(answers, open(sys.argv[2], "w"))
"""

PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
answers = {}
for name, (words, config) in json.load(open(sys.argv[1])).items():
    parsed = []
    for given in (words, ["--config", config]):
        try:
            parsed.append(vars(make_arg_parser(FlexibleArgumentParser()).parse_args(given)))
        except SystemExit:
            parsed.append(None)
    one, other = parsed
    if one is None or other is None:
        answers[name] = "refused: " + ("arguments" if one is None else "config")
        continue
    answers[name] = {key: [repr(value), repr(other.get(key))] for key, value in one.items()
                     if repr(value) != repr(other.get(key)) and key not in ("config", "model", "model_tag")}
json.dump(answers, open(sys.argv[2], "w"))
"""


def test_the_real_parser_takes_every_profile(engine_python: str, tmp_path: Path) -> None:
    flags = read_catalogue(engine_at(engine_python)).flags
    listed = (entry.profile for entry in list_profiles() if entry.origin == "shipped")
    profiles = [HARD, *(profile for profile in listed if profile is not None)]
    cases = {}
    for profile in profiles:
        config = tmp_path / f"{profile.name}.yaml"
        config.write_text(export_profile(profile, "yaml", flags).text)
        cases[profile.name] = ([profile.model, *serve_arguments(server_args(profile), flags)], str(config))
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    answers = tmp_path / "answers.json"
    subprocess.run(
        [engine_python, "-c", PARSE, str(tmp_path / "cases.json"), str(answers)],
        check=True,
        capture_output=True,
        timeout=250,
    )
    assert json.loads(answers.read_text()) == {profile.name: {} for profile in profiles}


_GIVEN: dict[str, list[tuple[Any, str]]] = {
    "device_ids": [("0,1", "[0, 1]")],
    "lora_modules": [(["a=/x"], "[LoRAModulePath(name='a', path='/x'")],
    "mm_processor_device": [("cpu", "'cpu'")],
}
"""Flags that parse their text further, or whose choices are made at run time."""


def _values(flag: Flag) -> list[tuple[Any, str]]:
    """Values of a profile for one flag, and what vLLM's parser must make of each (its repr)."""
    if flag.name in _GIVEN:
        return _GIVEN[flag.name]
    number = {"int": 3, "float": 0.5}.get(flag.kind or "")
    if flag.kind == "bool":
        return [(True, "True"), *([(False, "False")] if flag.negatable else [])]
    if flag.choices:
        found = [(choice, repr(int(choice) if flag.kind == "int" else choice)) for choice in flag.choices[:2]]
    elif number is not None:
        found = [(number, repr(number)), (str(number), repr(number))]
    elif flag.kind == "json":
        return []
    else:
        found = [("some text, of 'two' kinds", repr("some text, of 'two' kinds"))]
    return [([value], f"[{said}]") for value, said in found] if flag.many or flag.repeat else found


def test_a_value_of_every_flag_comes_through_the_real_parser(engine_python: str, tmp_path: Path) -> None:
    flags = read_catalogue(engine_at(engine_python)).flags
    assert flags is not None
    cases, expected = {}, {}
    for key, flag in flags.items():
        if key in RESERVED or key != flag.name:
            continue
        for number, (value, said) in enumerate(_values(flag)):
            cases[f"{key} {number}"] = list(serve_arguments({key: value}, flags))
            expected[f"{key} {number}"] = said
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    answers = tmp_path / "answers.json"
    subprocess.run(
        [engine_python, "-c", EVERY, str(tmp_path / "cases.json"), str(answers)],
        check=True,
        capture_output=True,
        timeout=250,
    )
    given = json.loads(answers.read_text())
    assert len(given) > 250
    assert {name: said for name, said in given.items() if not said.startswith(expected[name])} == {}
