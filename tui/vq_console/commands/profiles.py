"""`profiles …` and `pull`: everything that is done to profile files, and fetching of models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands import profiles_travel as travel
from vq_console.commands.common import Subparsers, add_command, confirm, emit, profile_name, say, table
from vq_console.commands.names import help_of
from vq_console.commands.profiles_show import listed_json, newest_flags, plain, profile_json, unknown_flags
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from vq_console.profiles.model import Profile

EXPORT_FORMATS = ("toml", "command", "python", "yaml", "compose", "systemd", "kubernetes", "ray", "multi-node")
ALIASES = {"shell": "command", "k8s": "kubernetes", "docker-compose": "compose", "config": "yaml"}


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    parser = subparsers.add_parser("profiles", help=help_of("profiles"), description="Profiles: how to serve a model.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    add_command(actions, "list", "list your own and the ready profiles", run_list)

    show = add_command(actions, "show", "print one profile", run_show)
    show.add_argument("profile", help="name, or path of a file")

    new = add_command(actions, "new", "make a profile from flags, a command, a process or a log", run_new)
    new.add_argument("name", nargs="?", help="its name; made from the model when left out")
    new.add_argument("--name", dest="named", metavar="NAME", help="the same as an option")
    new.add_argument("--model", help="hub id, path, or repo:quant for GGUF")
    source = new.add_mutually_exclusive_group()
    source.add_argument(
        "--from-command", metavar="COMMAND", help="a quoted `vllm serve …`, `python -m …`, `docker run …`"
    )
    source.add_argument("--from-yaml", metavar="FILE", help="a file for vLLM's --config")
    source.add_argument("--from-pid", metavar="PID", type=int, help="a server that runs on this machine")
    source.add_argument("--from-log", metavar="FILE", help="a log of vLLM")
    _change_options(new)
    new.add_argument("--print", action="store_true", help="print it instead of writing it")

    edit = add_command(actions, "edit", "change a profile, keeping its comments; without options: in $EDITOR", run_edit)
    edit.add_argument("profile")
    edit.add_argument("--model")
    _change_options(edit)
    edit.add_argument("--unset", metavar="KEY", action="append", default=[], help="remove a flag")
    edit.add_argument("--unset-env", metavar="NAME", action="append", default=[], help="remove a variable")

    duplicate = add_command(actions, "duplicate", "copy a profile under a new name", run_duplicate)
    duplicate.add_argument("profile")
    duplicate.add_argument("name")
    rename = add_command(actions, "rename", "give a profile another name", run_rename)
    rename.add_argument("profile")
    rename.add_argument("name")
    delete = add_command(actions, "delete", "delete one of your profiles", run_delete)
    delete.add_argument("profile")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    take = add_command(
        actions, "import", "take over profiles from a file, a folder or an http(s) address", travel.run_import
    )
    take.add_argument("source")
    take.add_argument("--name", help="call it so")
    take.add_argument("--model", help="where its model is on this machine")
    take.add_argument("--trust", action="store_true", help="agree already to what it can do")
    take.add_argument("--yes", action="store_true", help="do not ask")

    export = add_command(actions, "export", "print a profile for others, or as something else", travel.run_export)
    export.add_argument("profile")
    export.add_argument(
        "--format",
        type=lambda word: ALIASES.get(word, word),
        choices=EXPORT_FORMATS,
        default="toml",
        metavar="FORMAT",
        help="one of " + ", ".join(EXPORT_FORMATS),
    )
    export.add_argument("--out", "--output", metavar="FILE", help="write there instead of standard output")

    add_command(actions, "schema", "print the JSON Schema of a profile file", travel.run_schema)

    pull = add_command(subparsers, "pull", help_of("pull"), travel.run_pull)
    pull.add_argument("model", help="hub id, or `smollm2`")
    pull.add_argument("--revision", help="branch, tag or commit; pinned to a commit when fetched")
    pull.add_argument("--to", metavar="FOLDER", help="a folder instead of the Hugging Face cache")
    pull.add_argument("--dry-run", action="store_true", help="say what would be fetched, fetch nothing")


def _change_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="a flag; VALUE as in TOML, or text"
    )
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="a variable; NAME alone is a reference"
    )
    parser.add_argument("--description", help="one sentence")
    parser.add_argument("--vllm", metavar="SPECIFIER", help="versions it is for, such as '>=0.27'")
    parser.add_argument("--gpu-count", type=int, metavar="N")


def run_list(args: argparse.Namespace) -> ExitCode:
    """All profiles; broken ones with their error."""
    from vq_console.profiles.store import list_profiles

    listed = list_profiles()
    if args.json:
        emit("vq-console/profiles/1", {"profiles": [listed_json(entry) for entry in listed]})
        return ExitCode.DONE
    rows = []
    for entry in listed:
        model = entry.profile.model if entry.profile else "✖ unreadable"
        words = entry.profile.description if entry.profile else (entry.error or "")
        rows.append([entry.name, "yours" if entry.origin == "user" else "ready", plain(model), plain(words)])
    print(table(rows, ("name", "origin", "model", "description")))
    return ExitCode.DONE


def run_show(args: argparse.Namespace) -> ExitCode:
    """One profile with what it can do beyond serving."""
    from vq_console.profiles.store import find_profile, read_profile, read_text
    from vq_console.profiles.trust import is_trusted, trust_review

    path = find_profile(args.profile)
    profile = read_profile(path)
    if args.json:
        emit("vq-console/profiles/1", profile_json(profile))
        return ExitCode.DONE
    print(plain(read_text(path)), end="")
    for risk in trust_review(profile):
        say(f"▲ {risk.key} = {plain(risk.value)}: {risk.why}")
    if not is_trusted(profile):
        say("asks before its first launch: it came from elsewhere")
    return ExitCode.DONE


def run_new(args: argparse.Namespace) -> ExitCode:
    """Make a profile; nothing is written when it would be none."""
    from dataclasses import replace

    from vq_console.core.errors import ProfileError
    from vq_console.core.places import profiles_dir
    from vq_console.profiles.edit import patched_text
    from vq_console.profiles.format import parse_profile, profile_toml
    from vq_console.profiles.store import save_profile

    _not_empty(args, "name", "named", "model")
    draft = _draft(args)
    if args.model:
        draft.model = args.model
    profile = draft.profile(profile_name(args.name or args.named), args.description or "")
    text = patched_text(profile_toml(profile), _changes(args))
    profile = parse_profile(text)
    profile = replace(
        profile,
        vllm=args.vllm or draft.vllm,
        gpu_count=args.gpu_count if args.gpu_count is not None else profile.gpu_count,
    )
    parse_profile(profile_toml(profile))
    path = None
    if not args.print:
        path = profiles_dir() / f"{profile.name}.toml"
        if path.exists():
            raise ProfileError(str(path), "", "exists already", "choose another name, or `vq-console profiles edit` it")
        save_profile(profile, path=path)
        profile = replace(profile, path=path)
    if args.json:
        notes = [*draft.notes, *unknown_flags(profile)]
        emit("vq-console/profiles/1", {**profile_json(profile), "notes": notes})
        return ExitCode.DONE
    for note in [*draft.notes, *unknown_flags(profile)]:
        say(f"· {plain(note)}")
    if path is None:
        print(profile_toml(profile), end="")
    else:
        say(f"wrote {path}")
    return ExitCode.DONE


def run_edit(args: argparse.Namespace) -> ExitCode:
    """Change a profile by options, or in the person's editor."""
    from vq_console.profiles.edit import patched_text
    from vq_console.profiles.store import apply_patch, find_profile, read_profile, read_text

    _not_empty(args, "model")
    path = find_profile(args.profile)
    patch = _changes(args)
    _are_there(args, read_profile(path))
    patch["remove_args"] = args.unset
    patch["remove_env"] = args.unset_env
    patch["set_model"] = args.model
    for key, value in (("description", args.description), ("vllm", args.vllm), ("gpu_count", args.gpu_count)):
        if value is not None:
            patch[f"set_{key}"] = value
    before = read_text(path)
    if any(patch.values()) and patched_text(before, patch, path) == before:
        written = path
    else:
        written = apply_patch(path, patch) if any(patch.values()) else _edit_by_hand(path)
    changed = written != path or read_text(path) != before
    profile = read_profile(written)
    if args.json:
        notes = unknown_flags(profile)
        emit("vq-console/profiles/1", {**profile_json(profile), "changed": changed, "notes": notes})
        return ExitCode.DONE
    for note in unknown_flags(profile):
        say(f"· {plain(note)}")
    say(f"wrote {written}" if changed else f"nothing to change: {written} says so already")
    return ExitCode.DONE


def _not_empty(args: argparse.Namespace, *names: str) -> None:
    """Refuse an option that is there and empty; left out it would mean something else."""
    from vq_console.core.errors import UsageError

    for name in names:
        value = getattr(args, name)
        if value is not None and not value.strip():
            raise UsageError(f"the {name.removesuffix('d')} is empty", "leave it out, or write one")


def _are_there(args: argparse.Namespace, profile: Profile) -> None:
    """Refuse to remove what a profile does not have."""
    from vq_console.core.errors import UsageError
    from vq_console.core.text import nearest
    from vq_console.profiles.values import argument_key

    for option, keys, known in (
        ("--unset", [argument_key(key) for key in args.unset], profile.args),
        ("--unset-env", args.unset_env, profile.env),
    ):
        for key in keys:
            if key not in known:
                guess = nearest(key, known)
                hint = f"did you mean {guess}?" if guess else f"it has: {', '.join(known) or 'none'}"
                raise UsageError(f"{option} {key}: {profile.name} has none of that name", hint)


def run_duplicate(args: argparse.Namespace) -> ExitCode:
    """Copy under a new name."""
    from vq_console.profiles.store import copy_profile

    return _written(args, copy_profile(args.profile, str(profile_name(args.name))))


def run_rename(args: argparse.Namespace) -> ExitCode:
    """Change the name."""
    from vq_console.profiles.store import rename_profile

    return _written(args, rename_profile(args.profile, str(profile_name(args.name))))


def run_delete(args: argparse.Namespace) -> ExitCode:
    """Delete after a question."""
    from vq_console.core.errors import UsageError
    from vq_console.profiles.store import delete_profile, find_profile

    path = find_profile(args.profile)
    if not confirm(f"delete {path}?", yes=args.yes):
        raise UsageError(f"{path} was not deleted", "say --yes where no question can be asked")
    delete_profile(args.profile)
    if args.json:
        emit("vq-console/profiles/1", {"deleted": str(path)})
    else:
        say(f"deleted {path}")
    return ExitCode.DONE


def _draft(args: argparse.Namespace) -> Any:
    from pathlib import Path

    from vq_console.profiles import sources
    from vq_console.profiles.draft import Draft

    flags = newest_flags()
    if args.from_command is not None:
        return sources.from_command(args.from_command, flags)
    if args.from_yaml is not None:
        return sources.from_yaml(Path(args.from_yaml), flags)
    if args.from_pid is not None:
        return sources.from_pid(args.from_pid, flags)
    if args.from_log is not None:
        return sources.from_log(Path(args.from_log), flags)
    return Draft()


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    from vq_console.core.errors import UsageError
    from vq_console.profiles.edit import toml_value

    changed: dict[str, Any] = {"set_args": {}, "set_env": {}}
    for pair in args.set:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {pair}: KEY=VALUE was expected", "such as --set max_model_len=8192")
        if not text.strip():
            raise UsageError(
                f"--set {pair}: no value", f"`edit --unset {key.strip()}` removes it; '\"\"' is empty text"
            )
        changed["set_args"][key.strip()] = toml_value(text)
    for pair in args.env:
        name, equals, text = pair.partition("=")
        changed["set_env"][name] = text if equals else {"from_env": name}
    return changed


def _edit_by_hand(path: Path) -> Path:
    import os
    import shlex
    import subprocess
    import sys
    import tempfile

    from vq_console.core.errors import ProfileError, UsageError
    from vq_console.profiles.store import read_text, write_checked

    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not command or not sys.stdin.isatty():
        raise UsageError("nothing to change", "say --set KEY=VALUE, or set EDITOR and call it on a terminal")
    with tempfile.TemporaryDirectory() as folder:
        from pathlib import Path as FilePath

        copy = FilePath(folder) / path.name
        copy.write_text(read_text(path), encoding="utf-8")
        while True:
            if subprocess.call([*command, str(copy)]) != 0:
                raise UsageError("the editor ended with an error; nothing was changed")
            try:
                return write_checked(path, read_text(copy))
            except ProfileError as error:
                say(str(error))
                if not confirm("edit again?", yes=False):
                    raise


def _written(args: argparse.Namespace, path: Path) -> ExitCode:
    from vq_console.profiles.store import read_profile

    if args.json:
        emit("vq-console/profiles/1", profile_json(read_profile(path)))
    else:
        say(f"wrote {path}")
    return ExitCode.DONE
