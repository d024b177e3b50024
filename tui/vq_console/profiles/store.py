"""Profiles on disk: the user's own folder and the ready ones that ship with the console.

Owns finding, listing and writing profile files. Every write is atomic; a broken file is listed with its error, never
hidden, overwritten or deleted by anything but an explicit command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from vq_console.core.errors import ExitCode, ProfileError
from vq_console.core.files import write_atomic
from vq_console.core.places import MEND, profiles_dir
from vq_console.core.text import nearest, strip_control
from vq_console.profiles.format import parse_profile, profile_toml, valid_name
from vq_console.profiles.model import Profile

_MAX_BYTES = 1024 * 1024


class PatchLike(Protocol):
    """What preflight's and the diagnosis's patches offer (`preflight.model.Patch`)."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """One profile file: readable (`profile`), or broken (`error` says why). `name` is the profile's, or the file's."""

    name: str
    path: Path
    profile: Profile | None
    error: str | None
    origin: Literal["user", "shipped"]


def shipped_dir() -> Path:
    """The folder of the ready profiles: inside the installed package, or at the top of the source tree."""
    packaged = Path(__file__).parent / "ready"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "profiles"


def is_shipped(path: Path) -> bool:
    """Whether `path` is one of the ready profiles, which are never changed in place."""
    return path.resolve().parent == shipped_dir().resolve()


def read_text(path: Path) -> str:
    """The text of a profile file. Raises ProfileError when it is absent, unreadable, too large or not UTF-8."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ProfileError(
            str(path),
            "",
            "no such file",
            "`vq-console profiles list` shows what there is",
            exit_code=ExitCode.WRONG_USE,
        ) from error
    except OSError as error:
        raise ProfileError(
            str(path), "", f"cannot be read: {error.strerror or error}", "name a file that you may read"
        ) from error
    if len(raw) > _MAX_BYTES:
        raise ProfileError(str(path), "", "is larger than 1 MiB, which no profile is", "name the profile's TOML file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "save it as UTF-8, such as: iconv -f latin1 -t utf-8 OLD > NEW"
        raise ProfileError(str(path), "", f"is not UTF-8 text (byte {error.start})", hint) from error


def read_profile(path: Path) -> Profile:
    """The profile in one file; raises ProfileError."""
    return parse_profile(read_text(path), path)


def list_profiles() -> tuple[Listed, ...]:
    """All profile files, the user's before the shipped ones, each by name; broken ones carry their error.

    Of two files of one folder that claim one name, the one whose file is called so keeps it; the other is listed with
    an error and can be used by its path.
    """
    return (*_list_folder(profiles_dir(), "user"), *_list_folder(shipped_dir(), "shipped"))


def find_profile(text: str) -> Path:
    """The file that `text` means: a path when it has a slash or ends in `.toml`, else a name (the user's first).

    Raises ProfileError (wrong use) with the nearest name when there is none. The file may be broken.
    """
    if "/" in text or text.endswith(".toml"):
        return Path(os.path.abspath(Path(text).expanduser()))
    if not valid_name(text):
        raise ProfileError(
            strip_control(text) or "''",
            "",
            "is not the name of a profile",
            "a path has a slash in it",
            exit_code=ExitCode.WRONG_USE,
        )
    direct = profiles_dir() / f"{text}.toml"
    listed = list_profiles()
    for entry in listed:
        if entry.name == text and (entry.error is None or entry.path == direct or entry.path.stem == text):
            return entry.path
    guess = nearest(text, [entry.name for entry in listed])
    hint = f"did you mean `{guess}`?" if guess else "`vq-console profiles list` shows what there is"
    raise ProfileError(text, "", "no profile of that name", hint, exit_code=ExitCode.WRONG_USE)


def load_profile(text: str) -> Profile:
    """The profile that a command line means by `text`, a name or a path; raises ProfileError."""
    return read_profile(find_profile(text))


def resolve_model(model: str, base: Path | None) -> str:
    """The model as vLLM may be given it: a relative path becomes absolute against `base` (the profile's folder).

    A path begins with `./`, `../`, `/` or `~`, or names something that exists below `base`; all else is a hub id and
    stays. `base` None means the working folder.
    """
    if model.startswith("~"):
        return str(Path(model).expanduser())
    if model.startswith("/") or "://" in model:
        return model
    joined = Path(os.path.normpath((base or Path.cwd()).absolute() / model))
    if model in (".", "..") or model.startswith(("./", "../")) or joined.exists():
        return str(joined)
    return model


def model_argument(profile: Profile) -> str:
    """What follows `vllm serve` for this profile: its model with a relative path made absolute."""
    return resolve_model(profile.model, profile.path.parent if profile.path is not None else None)


def save_profile(profile: Profile, *, path: Path | None = None) -> Path:
    """Write a profile and return its file: `path`, else the user's file of its name.

    An existing file keeps its comments and order where it stays the same. Raises ProfileError when the existing file
    is broken (it is left alone) or `path` is a shipped profile.
    """
    target = path or profiles_dir() / f"{profile.name}.toml"
    if is_shipped(target):
        raise ProfileError(str(target), "", "ready profiles are not changed in place", "duplicate it first")
    if target.exists():
        from vq_console.profiles.edit import replaced_text

        text = replaced_text(read_text(target), profile, target)
    else:
        text = profile_toml(profile)
        parse_profile(text, target)
    _write(target, text)
    return target


def apply_patch(path: Path, patch: PatchLike | Mapping[str, Any]) -> Path:
    """Apply a patch to a profile file, keeping comments and order; returns the file that was written.

    A ready profile is copied into the user's folder, and the copy is patched. Raises ProfileError when the result
    would be no profile; the file is then untouched.
    """
    from vq_console.profiles.edit import patched_text

    changes = patch if isinstance(patch, Mapping) else patch.to_json()
    target = path
    if is_shipped(path):
        target = profiles_dir() / path.name
        if target.exists():
            raise ProfileError(str(target), "", "your own profile of that name exists", "patch that one")
    text = patched_text(read_text(path), changes, path)
    _write(target, text)
    return target


def write_checked(path: Path, text: str) -> Path:
    """Write text that somebody typed, once it has been read as a profile; a ready profile becomes the user's copy.

    Returns the file that was written; raises ProfileError and writes nothing when it is no profile.
    """
    parse_profile(text, path)
    target = profiles_dir() / path.name if is_shipped(path) else path
    _write(target, text)
    return target


def delete_profile(name: str) -> Path:
    """Delete the user's profile of that name, readable or broken, and return where it was; raises ProfileError."""
    path = find_profile(name)
    if is_shipped(path):
        raise ProfileError(str(path), "", "ready profiles cannot be deleted", "only your own ones can")
    try:
        path.unlink()
    except OSError as error:
        raise ProfileError(
            str(path),
            "",
            f"cannot be deleted: {error.strerror or error}",
            "see who owns its folder",
            exit_code=ExitCode.MISSING,
        ) from error
    return path


def copy_profile(source: str, name: str) -> Path:
    """Write `source` under a new name into the user's folder, comments kept; raises ProfileError when it exists."""
    from vq_console.profiles.edit import replaced_text
    from vq_console.profiles.trust import carry_trust

    path = find_profile(source)
    profile = read_profile(path)
    target = profiles_dir() / f"{_fresh(name, profiles_dir())}.toml"
    # A relative model path means another place once the file moves.
    renamed = replace(profile, name=name, model=model_argument(profile))
    _write(target, replaced_text(read_text(path), renamed, path))
    carry_trust(profile, replace(renamed, path=target))
    return target


def rename_profile(source: str, name: str) -> Path:
    """Give a user's profile another name and file; raises ProfileError."""
    path = find_profile(source)
    if is_shipped(path):
        raise ProfileError(
            str(path), "", "ready profiles keep their names", "`vq-console profiles duplicate` copies it"
        )
    target = copy_profile(str(path), name)
    path.unlink()
    return target


def _fresh(name: str, folder: Path) -> str:
    if not valid_name(name):
        raise ProfileError(
            strip_control(name) or "''", "name", "is not a name", "letters, digits, dot, dash and underscore"
        )
    if (folder / f"{name}.toml").exists():
        raise ProfileError(str(folder / f"{name}.toml"), "", "exists already", "choose another name")
    return name


def _list_folder(folder: Path, origin: Literal["user", "shipped"]) -> list[Listed]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".toml" and not path.name.startswith("."))
    except OSError:
        return []
    entries: list[Listed] = []
    for path in paths:
        try:
            profile = read_profile(path)
        except ProfileError as error:
            entries.append(Listed(path.stem, path, None, error.message, origin))
        else:
            entries.append(Listed(profile.name, path, profile, None, origin))
    holders: dict[str, Path] = {}
    for entry in sorted(entries, key=lambda entry: entry.path.stem != entry.name):
        if entry.profile is not None:
            holders.setdefault(entry.name, entry.path)
    marked = [
        replace(entry, profile=None, error=f"{entry.path}: name: {entry.name!r} is that of {holders[entry.name]}")
        if entry.profile is not None and holders[entry.name] != entry.path
        else entry
        for entry in entries
    ]
    return sorted(marked, key=lambda entry: (entry.name.lower(), str(entry.path)))


def _write(path: Path, text: str) -> None:
    try:
        # A profile may be a link into someone's dotfiles; the link stays.
        write_atomic(path.resolve() if path.is_symlink() else path, text)
    except OSError as error:
        own = path.is_relative_to(profiles_dir())
        hint = MEND if own else "see who owns it, and that its disk has room"
        raise ProfileError(
            str(path), "", f"cannot be written: {error.strerror or error}", hint, exit_code=ExitCode.MISSING
        ) from error
