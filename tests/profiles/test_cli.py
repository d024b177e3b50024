"""`vq-console profiles …` and `pull` as a person and as a script call them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from vq_console.cli import main
from vq_console.commands.profiles import EXPORT_FORMATS
from vq_console.core.places import profiles_dir
from vq_console.profiles import store, trust


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Run a command with --json; the JSON object of its answer."""
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    out = capsys.readouterr().out
    value = json.loads(out)
    assert value["schema"].startswith("vq-console/")
    return value


@pytest.fixture(autouse=True)
def home(vq_home: Path) -> Path:
    return vq_home


Capture = pytest.CaptureFixture[str]


def test_list_shows_ready_own_and_broken(capsys: Capture) -> None:
    profiles_dir().mkdir(parents=True)
    (profiles_dir() / "broken.toml").write_text("model = [")
    run(capsys, "profiles", "new", "mine", "--model", "org/m")
    listed = {entry["name"]: entry for entry in run(capsys, "profiles", "list")["profiles"]}
    assert listed["mine"]["origin"] == "user"
    assert listed["mine"]["error"] is None
    assert "not valid TOML" in listed["broken"]["error"]
    assert listed["llama31-8b-w4a16"]["origin"] == "shipped"
    assert main(["profiles", "list"]) == 0
    out = capsys.readouterr().out
    assert "broken" in out
    assert "unreadable" in out


def test_new_edit_show(capsys: Capture) -> None:
    made = run(
        capsys, "profiles", "new", "x", "--model", "org/m", "--set", "max_model_len=8192", "--set", "quantization=fp8",
        "--set", 'quantization_config={"ignore": ["lm_head"]}', "--set", "enforce-eager=true", "--env", "HF_TOKEN",
        "--env", "VLLM_USE_DEEP_GEMM=0", "--vllm", ">=0.27", "--gpu-count", "2", "--description", "d",
    )  # fmt: skip
    assert made["args"] == {
        "max_model_len": 8192,
        "quantization": "fp8",
        "quantization_config": {"ignore": ["lm_head"]},
        "enforce_eager": True,
    }
    assert made["env"] == {"HF_TOKEN": {"from_env": "HF_TOKEN"}, "VLLM_USE_DEEP_GEMM": "0"}
    assert (made["engine"], made["placement"], made["description"]) == ({"vllm": ">=0.27"}, {"gpu_count": 2}, "d")
    path = Path(made["path"])
    path.write_text("# keep me\n" + path.read_text())
    edited = run(
        capsys, "profiles", "edit", "x", "--set", "max_model_len=4096", "--unset", "quantization", "--unset-env",
        "HF_TOKEN", "--model", "org/n", "--vllm", ">=0.30",
    )  # fmt: skip
    assert "quantization" not in edited["args"]
    assert (edited["args"]["max_model_len"], edited["model"], edited["env"]) == (
        4096,
        "org/n",
        {"VLLM_USE_DEEP_GEMM": "0"},
    )
    assert path.read_text().startswith("# keep me\n")
    shown = run(capsys, "profiles", "show", "x")
    assert shown["args"] == edited["args"]
    assert (shown["risks"], shown["trusted"]) == ([], True)
    capsys.readouterr()
    assert main(["profiles", "show", "x"]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_new_does_not_overwrite_and_refuses_secrets(capsys: Capture) -> None:
    run(capsys, "profiles", "new", "--name", "x", "--model", "org/m")
    assert "exists already" in run(capsys, "profiles", "new", "x", "--model", "org/m", code=1)["error"]["message"]
    wrong = run(capsys, "profiles", "new", "y", "--model", "org/m", "--set", "api_key=sk-1", code=1)
    assert "args.api_key" in wrong["error"]["message"]
    assert run(capsys, "profiles", "new", "y", code=2)["error"]["message"] == "no model was named"
    assert run(capsys, "profiles", "new", "y", "--model", "m", "--set", "novalue", code=2)
    assert not (profiles_dir() / "y.toml").exists()


def test_new_from_a_command(capsys: Capture) -> None:
    command = (
        "VLLM_API_KEY=sk-verysecret vllm serve org/Model-7B -tp 2 --quantization fp8_per_block --api-key sk-verysecret"
    )
    made = run(capsys, "profiles", "new", "--from-command", command, "--set", "seed=1")
    assert made["name"] == "model-7b-fp8-per-block"
    assert made["args"] == {"tensor_parallel_size": 2, "quantization": "fp8_per_block", "seed": 1}
    assert made["placement"] == {"gpu_count": 2}
    assert "verysecret" not in Path(made["path"]).read_text() + json.dumps(made)
    assert made["notes"]
    capsys.readouterr()
    assert main(["profiles", "new", "--print", "--from-command", command]) == 0
    assert 'quantization = "fp8_per_block"' in capsys.readouterr().out


def test_new_from_yaml_and_log(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: org/m\nmax-model-len: 1024\n")
    assert run(capsys, "profiles", "new", "a", "--from-yaml", str(tmp_path / "c.yaml"))["args"] == {
        "max_model_len": 1024
    }
    (tmp_path / "log").write_text("INFO non-default args: {'model_tag': 'org/m', 'dtype': 'half'}\n")
    assert run(capsys, "profiles", "new", "b", "--from-log", str(tmp_path / "log"))["args"] == {"dtype": "half"}
    assert run(capsys, "profiles", "new", "c", "--from-pid", str(os.getpid()), code=2)


@pytest.mark.parametrize("name", ["../../x", "a/b", "a b", "-x"])
def test_a_bad_name_is_wrong_use_for_every_command(capsys: Capture, tmp_path: Path, name: str) -> None:
    run(capsys, "profiles", "new", "mine", "--model", "org/m")
    shared = tmp_path / "shared.toml"
    shared.write_text('name = "s"\nmodel = "org/m"\n')
    for words in (
        ("new", f"--name={name}", "--model", "org/m"),
        ("duplicate", "mine", "--", name),
        ("rename", "mine", "--", name),
        ("import", str(shared), f"--name={name}", "--yes"),
    ):
        capsys.readouterr()
        assert main(["profiles", words[0], "--json", *words[1:]]) == 2
        told = json.loads(capsys.readouterr().out)["error"]
        assert told["message"] == f"{name}: is not the name of a profile"
        assert "letters, digits" in told["hint"]
    assert [path.name for path in profiles_dir().iterdir()] == ["mine.toml"]


def test_duplicate_rename_delete(capsys: Capture) -> None:
    assert run(capsys, "profiles", "duplicate", "llama31-8b-w4a16", "copy")["name"] == "copy"
    assert "# When:" in (profiles_dir() / "copy.toml").read_text()
    assert run(capsys, "profiles", "rename", "copy", "other")["name"] == "other"
    assert not (profiles_dir() / "copy.toml").exists()
    assert "--yes" in run(capsys, "profiles", "delete", "other", code=2)["error"]["hint"]
    assert run(capsys, "profiles", "delete", "other", "--yes")["deleted"].endswith("other.toml")
    assert run(capsys, "profiles", "delete", "llama31-8b-w4a16", "--yes", code=1)
    assert run(capsys, "profiles", "show", "other", code=2)["error"]["message"]


def test_editing_a_ready_profile_makes_your_own(capsys: Capture) -> None:
    edited = run(capsys, "profiles", "edit", "llama31-8b-w4a16", "--set", "max_model_len=1024")
    assert edited["path"] == str(profiles_dir() / "llama31-8b-w4a16.toml")
    assert store.load_profile("llama31-8b-w4a16").args["max_model_len"] == 1024


def test_edit_without_anything_to_do(capsys: Capture) -> None:
    run(capsys, "profiles", "new", "x", "--model", "org/m")
    assert "nothing to change" in run(capsys, "profiles", "edit", "x", code=2)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["edit", "x", "--unset", "quantizatoin"], "--unset quantizatoin: x has none of that name"),
        (["edit", "x", "--unset-env", "NOPE"], "--unset-env NOPE: x has none of that name"),
        (["edit", "x", "--set", "quantization="], "no value"),
        (["edit", "x", "--model", " "], "the model is empty"),
        (["new", "", "--model", "org/m"], "the name is empty"),
        (["new", "y", "--model", ""], "the model is empty"),
        (["import", "x.toml", "--name", ""], "the name is empty"),
    ],
)
def test_what_would_change_nothing_is_wrong_use(capsys: Capture, words: list[str], message: str) -> None:
    run(capsys, "profiles", "new", "x", "--model", "org/m", "--set", "quantization=fp8")
    before = (profiles_dir() / "x.toml").read_text()
    assert message in run(capsys, "profiles", *words, code=2)["error"]["message"]
    assert (profiles_dir() / "x.toml").read_text() == before
    assert [path.name for path in profiles_dir().iterdir()] == ["x.toml"]


def test_an_edit_that_says_the_same_is_no_change(capsys: Capture) -> None:
    run(capsys, "profiles", "new", "x", "--model", "org/m", "--set", "quantization=fp8")
    assert run(capsys, "profiles", "edit", "x", "--set", "quantization=fp8")["changed"] is False
    capsys.readouterr()
    assert main(["profiles", "edit", "x", "--set", "quantization=fp8"]) == 0
    assert "nothing to change" in capsys.readouterr().err
    assert run(capsys, "profiles", "edit", "x", "--set", "quantization=mxfp8")["changed"] is True


KEY = "hf_abcdefghijklmnopqrst"


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("env.ODD", ["--env", f"ODD={KEY}"]),
        ("env.PROXY", ["--env", "PROXY=http://me:geheim@host/"]),
        ("args.hf_overrides.x", ["--set", f'hf_overrides={{x = "{KEY}"}}']),
        ("args.chat_template", ["--set", f"chat_template=Bearer {KEY}"]),
        ("description", ["--description", f"needs {KEY}"]),
    ],
)
def test_a_secret_under_a_harmless_name_is_refused(
    capsys: Capture, tmp_path: Path, label: str, words: list[str]
) -> None:
    run(capsys, "profiles", "new", "x", "--model", "org/m")
    for action in (["new", "y", "--model", "org/m"], ["edit", "x"]):
        error = run(capsys, "profiles", *action, *words, code=1)["error"]
        assert f"{label}: " in error["message"]
        assert "secret" in error["message"]
        assert "from_env" in error["hint"]
        assert KEY not in json.dumps(error)
    source = tmp_path / "theirs.toml"
    source.write_text(f'model = "org/m"\n[env]\nODD = "{KEY}"\n')
    error = run(capsys, "profiles", "import", str(source), "--yes", code=1)["error"]
    assert error["message"].startswith(f"{source}: env.ODD: ")
    assert error["hint"] == 'use ODD = { from_env = "ODD" }'


def test_what_is_not_seen_never_reaches_the_terminal(capsys: Capture) -> None:
    run(
        capsys,
        "profiles",
        "new",
        "x",
        "--model",
        "org/m",
        "--description",
        "a\u202eb",
        "--set",
        "served_model_name=c\u200bd",
    )
    for words in (["list"], ["show", "x"], *(["export", "x", "--format", form] for form in EXPORT_FORMATS)):
        capsys.readouterr()
        assert main(["profiles", *words]) == 0
        out = capsys.readouterr().out
        assert not set(out) & {"\u202e", "\u200b"}, words
    capsys.readouterr()
    assert main(["profiles", "show", "x", "--json"]) == 0
    out = capsys.readouterr().out
    assert "\u202e" not in out
    assert json.loads(out)["description"] == "a\u202eb"


def test_a_flag_that_nobody_knows_is_said(capsys: Capture) -> None:
    made = run(capsys, "profiles", "new", "x", "--model", "org/m", "--set", "quantizaton=fp8", "--set", "tp=2")
    assert made["notes"] == ["the newest vLLM that is known here has no flag quantizaton; did you mean quantization?"]
    assert run(capsys, "profiles", "edit", "x", "--unset", "quantizaton")["notes"] == []


def test_editing_by_hand(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(capsys, "profiles", "new", "x", "--model", "org/m")
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\nsed -i s,org/m,org/edited, "$2"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", f"'{editor}' --wait")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert run(capsys, "profiles", "edit", "x")["model"] == "org/edited"
    editor.write_text('#!/bin/sh\necho "broken = [" > "$2"\n')
    assert run(capsys, "profiles", "edit", "x", code=1)
    assert store.load_profile("x").model == "org/edited"


def test_import_shows_and_marks(capsys: Capture, tmp_path: Path) -> None:
    source = tmp_path / "theirs.toml"
    source.write_text(
        'name = "theirs"\nmodel = "org/m"\n[args]\ntrust_remote_code = true\nhost = "0.0.0.0"\n'
        '[made_on]\ngpu = "NVIDIA H200"\nkernels = ["MacheteLinearKernel"]\n'
    )
    assert main(["profiles", "import", str(source)]) == 2
    said = capsys.readouterr().err
    assert "say --yes" in said
    assert not (profiles_dir() / "theirs.toml").exists()
    waiting = run(capsys, "profiles", "import", str(source), "--trust", code=2)
    assert waiting["imported"] == []
    assert "--trust-remote-code" in waiting["shown"][0]["here"]["argv"]
    assert main(["profiles", "import", str(source), "--yes"]) == 0
    assert "would run here: " in capsys.readouterr().err
    assert "would run here: " in said
    assert "org/m --trust-remote-code" in said
    assert "there: NVIDIA H200, MacheteLinearKernel" in said
    assert "runs Python code from the model's repository" in said
    shown = run(capsys, "profiles", "show", "theirs")
    assert [risk["key"] for risk in shown["risks"]] == ["args.trust_remote_code", "args.host"]
    assert shown["trusted"] is False
    agreed = run(capsys, "profiles", "import", str(source), "--name", "again", "--trust", "--yes")
    assert agreed["imported"][0]["trusted"] is True
    assert "--trust-remote-code" in agreed["imported"][0]["here"]["argv"]
    assert trust.is_trusted(store.load_profile("again"))


WATCHED = """
import os, sys
started = []
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn"}
sys.addaudithook(lambda event, args: started.append((event, args)) if event in STARTS else None)
from vq_console.cli import main
ways = [], ["--yes"], ["--name", "again", "--yes", "--json"]
codes = [main(["profiles", "import", sys.argv[1], *more]) for more in ways]
foreign = [name for name in sys.modules if "evil" in name]
# A machine without NVML is asked for its GPUs by this program, and by nothing that a profile names.
ours = [entry for entry in started if "nvidia-smi" not in repr(entry)]
print(codes, foreign, ours, file=open(sys.argv[2], "w"))
"""


def test_a_hostile_import_runs_nothing(home: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    evil = f"open({str(marker)!r}, 'w').close()\n"
    model = tmp_path / "evil_model"
    model.mkdir()
    config = {"architectures": ["Evil"], "auto_map": {"AutoConfig": "evil_config.Evil"}, "hidden_size": 64}
    (model / "config.json").write_text(json.dumps(config))
    for name in ("evil_config.py", "evil_plugin.py", "sitecustomize.py", "conftest.py"):
        (model / name).write_text(evil)
    (model / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n" * 20)
    touch = f"$(touch {marker})`touch {marker}`;touch {marker}|"
    source = tmp_path / "evil.toml"
    source.write_text(
        f'name = "evil"\ndescription = {json.dumps(touch)}\nmodel = "./evil_model"\n[args]\ntrust_remote_code = true\n'
        f'worker_cls = "evil_plugin.Worker"\nmiddleware = ["evil_plugin.run"]\nchat_template = {json.dumps(touch)}\n'
        f'logits_processors = ["evil_plugin:run"]\ntool_parser_plugin = "{model}/evil_plugin.py"\n'
        f'hf_overrides = {{ cmd = {json.dumps(touch)}, y = "!!python/object/apply:os.system [touch {marker}]" }}\n'
        f'[env]\nLD_PRELOAD = "{model}/x.so"\nPYTHONPATH = "{model}"\nPYTHONSTARTUP = "{model}/evil_plugin.py"\n'
        f"CC = {json.dumps(touch)}\n"
    )
    answer = tmp_path / "answer"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(source), str(answer)],
        capture_output=True, text=True, env=environment, cwd=model, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert answer.read_text() == "[2, 0, 0] [] []\n", done.stderr[-2000:]
    assert not marker.exists()
    assert "▲ args.worker_cls" in done.stderr


def test_import_of_a_folder_keeps_what_works(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('model = "org/a"')
    (tmp_path / "b.toml").write_text("broken = [")
    answer = run(capsys, "profiles", "import", str(tmp_path), "--yes", code=1)
    assert [entry["name"] for entry in answer["imported"]] == ["a"]
    assert "b.toml" in answer["failed"][0]["error"]
    assert run(capsys, "profiles", "import", str(tmp_path), "--name", "x", code=2)
    assert run(capsys, "profiles", "import", str(tmp_path / "none.toml"), code=2)


def test_export(capsys: Capture, tmp_path: Path) -> None:
    run(capsys, "profiles", "new", "x", "--model", "org/m", "--set", "port=8001", "--set", "dtype=half")
    shared = run(capsys, "profiles", "export", "x")
    assert "port" not in shared["text"]
    assert any("args.port" in note for note in shared["notes"])
    target = tmp_path / "x.yaml"
    assert run(capsys, "profiles", "export", "x", "--format", "compose", "--out", str(target))["path"] == str(target)
    assert "services:" in target.read_text()
    capsys.readouterr()
    assert main(["profiles", "export", "x", "--format", "command"]) == 0
    assert "--port=8001" in capsys.readouterr().out
    assert run(capsys, "profiles", "export", "x", "--format", "k8s")["format"] == "kubernetes"
    with pytest.raises(SystemExit) as left:
        main(["profiles", "export", "x", "--format", "nomad"])
    assert left.value.code == 2


def test_schema(capsys: Capture) -> None:
    assert main(["profiles", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "quantization" in schema["properties"]["args"]["properties"]


def test_what_a_pull_would_fetch_is_its_answer(capsys: Capture) -> None:
    assert main(["pull", "smollm2", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "270 MB" in out
    assert err == ""
    assert run(capsys, "pull", "smollm2", "--dry-run")["schema"] == "vq-console/pull/1"


def test_pull_says_what_is_missing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in run(capsys, "pull", "org/m", code=3)["error"]["message"]
    assert run(capsys, "pull", "./m", code=2)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "vq-console[hub]" in run(capsys, "pull", "org/m", code=3)["error"]["hint"]


def test_help_is_cheap() -> None:
    code = (
        "import sys; import vq_console.commands.profiles; "
        "heavy = {'tomlkit', 'yaml', 'jsonschema', 'huggingface_hub', 'packaging', 'tomli_w', 'urllib.request'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
