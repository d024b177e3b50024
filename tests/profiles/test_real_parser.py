"""Arguments and YAML exports through the real vLLM's own parser: both mean the same, and nothing is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from profiles.test_exports import HARD
from vq_console.engines.catalogue import read_catalogue
from vq_console.engines.find import engine_at
from vq_console.profiles.arguments import serve_arguments
from vq_console.profiles.exports import export_profile, server_args
from vq_console.profiles.store import list_profiles

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

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
    profiles = [HARD, *(entry.profile for entry in list_profiles() if entry.profile is not None)]
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
