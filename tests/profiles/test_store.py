"""The store: finding, listing, writing; comments survive, broken files hide nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from vq_console.core.errors import ProfileError
from vq_console.core.places import profiles_dir
from vq_console.preflight.model import Patch
from vq_console.profiles import store
from vq_console.profiles.format import parse_profile
from vq_console.profiles.model import Profile

TEXT = """# my profile
name = "mine"   # short
model = "org/m"

[args]  # flags
# how long
max-model-len = 8192   # tokens
quantization = "fp8_per_tensor"
kv_cache_dtype = "fp8"

[env]
# keep
VLLM_USE_DEEP_GEMM = "0"
HF_TOKEN = { from_env = "HF_TOKEN" }
"""


@pytest.fixture
def mine(vq_home: Path) -> Path:
    path = profiles_dir() / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    return path


def test_a_name_or_a_path(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.load_profile("mine").model == "org/m"
    assert store.load_profile(str(mine)).path == mine
    monkeypatch.chdir(mine.parent)
    assert store.load_profile("mine.toml").path == mine
    assert store.load_profile("./mine.toml").path == mine


def test_nearest_name(mine: Path) -> None:
    with pytest.raises(ProfileError, match="did you mean `mine`"):
        store.load_profile("mien")
    with pytest.raises(ProfileError, match="no such file"):
        store.load_profile("./absent.toml")


def test_broken_files_are_listed_and_hide_nothing(mine: Path) -> None:
    (mine.parent / "broken.toml").write_text("name = [")
    (mine.parent / "latin.toml").write_bytes(b"name = '\xff'")
    (mine.parent / "folder.toml").mkdir()
    (mine.parent / "huge.toml").write_bytes(b"#" * (1024 * 1024 + 1))
    listed = {entry.name: entry for entry in store.list_profiles() if entry.origin == "user"}
    assert list(listed) == ["broken", "folder", "huge", "latin", "mine"]
    assert listed["mine"].profile is not None
    for name in ("broken", "folder", "huge", "latin"):
        assert listed[name].profile is None
        assert str(mine.parent / f"{name}.toml") in (listed[name].error or "")
    with pytest.raises(ProfileError, match="not valid TOML"):
        store.load_profile("broken")


def test_two_files_of_one_name(mine: Path) -> None:
    (mine.parent / "copy.toml").write_text(TEXT.replace("org/m", "org/other"))
    assert store.load_profile("mine").model == "org/m"
    errors = [entry.error for entry in store.list_profiles() if entry.path.stem == "copy"]
    assert errors[0] is not None
    assert "is that of" in errors[0]
    assert store.load_profile(str(mine.parent / "copy.toml")).model == "org/other"


def test_a_patch_keeps_comments_and_order(mine: Path) -> None:
    patch = Patch(
        set_args={"max_model_len": 4096, "quantization_config": {"ignore": ["lm_head"]}},
        remove_args=("kv-cache-dtype",),
        set_env={"VLLM_LOGGING_LEVEL": "DEBUG"},
        remove_env=("ABSENT",),
    )
    assert store.apply_patch(mine, patch) == mine
    text = mine.read_text()
    assert "max-model-len = 4096 # tokens" in text
    for kept in ("# my profile", "# short", "# flags", "# how long", "# keep", 'HF_TOKEN = { from_env = "HF_TOKEN" }'):
        assert kept in text
    profile = store.read_profile(mine)
    assert list(profile.args) == ["max_model_len", "quantization", "quantization_config"]
    assert profile.env["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_a_patch_that_would_break_the_file_leaves_it(mine: Path) -> None:
    for patch in ({"set_args": {"api_key": "k"}}, {"set_env": {"X_TOKEN": "t"}}, {"set_model": "-x"}):
        with pytest.raises(ProfileError):
            store.apply_patch(mine, patch)
    assert mine.read_text() == TEXT


def test_patching_creates_missing_tables(mine: Path) -> None:
    mine.write_text('name = "mine"\nmodel = "org/m"  # the model\n')
    store.apply_patch(mine, {"set_args": {"dtype": "half"}, "set_env": {"A": "1"}, "set_model": "org/n"})
    assert store.read_profile(mine).args == {"dtype": "half"}
    assert 'model = "org/n" # the model' in mine.read_text()


def test_saving_is_new_or_in_place(mine: Path) -> None:
    fresh = store.save_profile(Profile("fresh", "org/x", args={"dtype": "half"}))
    assert fresh == profiles_dir() / "fresh.toml"
    assert store.read_profile(fresh).args == {"dtype": "half"}
    profile = parse_profile(TEXT)
    store.save_profile(Profile("mine", "org/m", args={**profile.args, "seed": 1}, env=profile.env))
    assert "# how long" in mine.read_text()
    assert store.read_profile(mine).args["seed"] == 1
    mine.write_text("broken = [")
    with pytest.raises(ProfileError):
        store.save_profile(profile)
    assert mine.read_text() == "broken = ["


def test_no_temporary_file_stays(mine: Path) -> None:
    store.apply_patch(mine, {"set_args": {"seed": 2}})
    assert [path.name for path in mine.parent.iterdir()] == ["mine.toml"]


def test_a_linked_profile_stays_a_link(mine: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    mine.rename(real)
    mine.symlink_to(real)
    store.apply_patch(mine, {"set_args": {"seed": 2}})
    assert mine.is_symlink()
    assert "seed = 2" in real.read_text()


def test_text_that_is_not_utf8_is_refused_with_a_way_out(mine: Path) -> None:
    path = mine.with_name("latin.toml")
    path.write_bytes('model = "org/m"\ndescription = "größer"\n'.encode("latin1"))
    with pytest.raises(ProfileError, match="not UTF-8") as raised:
        store.read_profile(path)
    assert "iconv" in raised.value.hint


def test_copy_rename_delete(mine: Path) -> None:
    mine.write_text(TEXT.replace("org/m", "./m"))
    copy = store.copy_profile("mine", "other")
    assert store.read_profile(copy).model == str(mine.parent / "m")
    assert "# how long" in copy.read_text()
    with pytest.raises(ProfileError, match="exists already"):
        store.copy_profile("mine", "other")
    renamed = store.rename_profile("other", "third")
    assert (renamed.stem, copy.exists()) == ("third", False)
    assert store.delete_profile("third") == renamed
    assert not renamed.exists()
    with pytest.raises(ProfileError, match="is not a name"):
        store.copy_profile("mine", "a b")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/m", "org/m"),
        ("org/m:Q4_K_M", "org/m:Q4_K_M"),
        ("/abs/m", "/abs/m"),
        ("./m", "{base}/m"),
        ("../m", "{parent}/m"),
        ("here/there", "{base}/here/there"),
        ("s3://bucket/m", "s3://bucket/m"),
    ],
)
def test_relative_models(tmp_path: Path, model: str, expected: str) -> None:
    base = tmp_path / "base"
    (base / "here" / "there").mkdir(parents=True)
    assert store.resolve_model(model, base) == expected.format(base=base, parent=tmp_path)


def test_ready_profiles_are_copied_before_they_change(
    vq_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "ready"
    shipped.mkdir()
    (shipped / "mine.toml").write_text(TEXT)
    monkeypatch.setattr(store, "shipped_dir", lambda: shipped)
    written = store.apply_patch(shipped / "mine.toml", {"set_args": {"seed": 1}})
    assert written == profiles_dir() / "mine.toml"
    assert (shipped / "mine.toml").read_text() == TEXT
    assert store.load_profile("mine").args["seed"] == 1
    for change in (lambda: store.save_profile(parse_profile(TEXT), path=shipped / "mine.toml"),):
        with pytest.raises(ProfileError, match="duplicate it"):
            change()
    (profiles_dir() / "mine.toml").unlink()
    with pytest.raises(ProfileError, match="cannot be deleted"):
        store.delete_profile("mine")
    with pytest.raises(ProfileError, match="keep their names"):
        store.rename_profile("mine", "b")
