"""`profiles …` and `pull`: everything that is done to profile files, and fetching of models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, confirm, emit, say, table
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vq_console.engines.model import Flag
    from vq_console.profiles.model import Profile

EXPORT_FORMATS = ("toml", "command", "python", "yaml", "compose", "systemd", "kubernetes", "ray", "multi-node")


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    parser = subparsers.add_parser(
        "profiles", help="list, make, change, share profiles", description="Profiles: how to serve a model."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    add_command(actions, "list", "list your own and the ready profiles", run_list)

    show = add_command(actions, "show", "print one profile", run_show)
    show.add_argument("profile", help="name, or path of a file")

    new = add_command(actions, "new", "make a profile from flags, a command, a process or a log", run_new)
    new.add_argument("name", nargs="?", help="its name; made from the model when left out")
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

    take = add_command(actions, "import", "take over profiles from a file, a folder or an http(s) address", run_import)
    take.add_argument("source")
    take.add_argument("--name", help="call it so")
    take.add_argument("--model", help="where its model is on this machine")
    take.add_argument("--trust", action="store_true", help="agree already to what it can do")
    take.add_argument("--yes", action="store_true", help="do not ask")

    export = add_command(actions, "export", "print a profile for others, or as something else", run_export)
    export.add_argument("profile")
    export.add_argument("--format", choices=EXPORT_FORMATS, default="toml")
    export.add_argument("--out", "--output", metavar="FILE", help="write there instead of standard output")

    add_command(actions, "schema", "print the JSON Schema of a profile file", run_schema)

    pull = add_command(subparsers, "pull", "fetch a model from the hub; `smollm2` makes the starter model", run_pull)
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
        emit("vq-console/profiles/1", {"profiles": [_listed_json(entry) for entry in listed]})
        return ExitCode.DONE
    rows = []
    for entry in listed:
        model = entry.profile.model if entry.profile else "✖ unreadable"
        words = entry.profile.description if entry.profile else (entry.error or "")
        rows.append([entry.name, "yours" if entry.origin == "user" else "ready", _plain(model), _plain(words)])
    print(table(rows, ("name", "origin", "model", "description")))
    return ExitCode.DONE


def run_show(args: argparse.Namespace) -> ExitCode:
    """One profile with what it can do beyond serving."""
    from vq_console.profiles.store import find_profile, read_profile, read_text
    from vq_console.profiles.trust import is_trusted, trust_review

    path = find_profile(args.profile)
    profile = read_profile(path)
    if args.json:
        emit("vq-console/profiles/1", _profile_json(profile))
        return ExitCode.DONE
    print(_plain(read_text(path)), end="")
    for risk in trust_review(profile):
        say(f"▲ {risk.key} = {_plain(risk.value)}: {risk.why}")
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

    draft = _draft(args)
    if args.model:
        draft.model = args.model
    profile = draft.profile(args.name, args.description or "")
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
        emit("vq-console/profiles/1", {**_profile_json(profile), "notes": draft.notes})
        return ExitCode.DONE
    for note in draft.notes:
        say(f"· {_plain(note)}")
    if path is None:
        print(profile_toml(profile), end="")
    else:
        say(f"wrote {path}")
    return ExitCode.DONE


def run_edit(args: argparse.Namespace) -> ExitCode:
    """Change a profile by options, or in the person's editor."""
    from vq_console.profiles.store import apply_patch, find_profile, read_profile

    path = find_profile(args.profile)
    patch = _changes(args)
    patch["remove_args"] = args.unset
    patch["remove_env"] = args.unset_env
    patch["set_model"] = args.model
    for key, value in (("description", args.description), ("vllm", args.vllm), ("gpu_count", args.gpu_count)):
        if value is not None:
            patch[f"set_{key}"] = value
    written = apply_patch(path, patch) if any(patch.values()) else _edit_by_hand(path)
    if args.json:
        emit("vq-console/profiles/1", _profile_json(read_profile(written)))
    else:
        say(f"wrote {written}")
    return ExitCode.DONE


def run_duplicate(args: argparse.Namespace) -> ExitCode:
    """Copy under a new name."""
    from vq_console.profiles.store import copy_profile

    return _written(args, copy_profile(args.profile, args.name))


def run_rename(args: argparse.Namespace) -> ExitCode:
    """Change the name."""
    from vq_console.profiles.store import rename_profile

    return _written(args, rename_profile(args.profile, args.name))


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


def run_import(args: argparse.Namespace) -> ExitCode:
    """Show what comes, say what it can do, then keep it; a broken file of a folder does not stop the others."""
    import sys

    from vq_console.core.errors import UsageError, VqError
    from vq_console.profiles import share
    from vq_console.profiles.store import read_profile
    from vq_console.profiles.trust import trust

    sources = list(share.read_sources(args.source))
    if args.name and len(sources) > 1:
        raise UsageError("--name needs a single profile", f"{args.source} holds {len(sources)}")
    imported: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for source in sources:
        try:
            profile = share.parse_import(source, name=args.name, model=args.model)
            if not args.json:
                _show_import(source.name, profile)
                asks = sys.stdin.isatty() and sys.stderr.isatty()
                if asks and not confirm(f"import it as {profile.name}?", yes=args.yes):
                    say("not imported")
                    continue
            path = share.keep_import(profile)
            if args.trust:
                trust(read_profile(path))
            imported.append(_profile_json(read_profile(path)))
            if not args.json:
                say(f"wrote {path}")
        except VqError as error:
            if len(sources) == 1:
                raise
            failed.append({"source": source.name, "error": error.message, "hint": error.hint})
            if not args.json:
                say(f"✖ {_plain(error.message)}")
    if args.json:
        emit("vq-console/profiles/1", {"imported": imported, "failed": failed})
    return ExitCode.NO if failed else ExitCode.DONE


def run_export(args: argparse.Namespace) -> ExitCode:
    """Print a profile as a shared file, a command, Python, or a deployment."""
    from pathlib import Path

    from vq_console.core.files import write_atomic
    from vq_console.profiles.exports import export_profile
    from vq_console.profiles.remember import with_last_run
    from vq_console.profiles.store import load_profile

    exported = export_profile(with_last_run(load_profile(args.profile)), args.format, _flags())
    if args.out:
        write_atomic(Path(args.out), exported.text)
    if args.json:
        emit(
            "vq-console/profiles/1",
            {"format": args.format, "text": exported.text, "notes": list(exported.notes), "path": args.out},
        )
        return ExitCode.DONE
    for note in exported.notes:
        say(f"· {_plain(note)}")
    if args.out:
        say(f"wrote {args.out}")
    else:
        print(exported.text, end="")
    return ExitCode.DONE


def run_schema(args: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema; the same with and without --json."""
    import json

    from vq_console.profiles.schema import profile_schema

    print(json.dumps(profile_schema(_flags()), ensure_ascii=False, indent=1))
    return ExitCode.DONE


def run_pull(args: argparse.Namespace) -> ExitCode:
    """Fetch a model with its size shown, space checked and its revision pinned."""
    from pathlib import Path

    from vq_console.profiles.pull import pull_model

    pulled = pull_model(
        args.model,
        revision=args.revision,
        folder=Path(args.to) if args.to else None,
        dry_run=args.dry_run,
        say=say,
    )
    if args.json:
        emit("vq-console/pull/1", pulled.to_json())
    else:
        print(pulled.path or "", end="\n" if pulled.path else "")
    return ExitCode.DONE


def _draft(args: argparse.Namespace) -> Any:
    from pathlib import Path

    from vq_console.profiles import sources
    from vq_console.profiles.draft import Draft

    flags = _flags()
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
        emit("vq-console/profiles/1", _profile_json(read_profile(path)))
    else:
        say(f"wrote {path}")
    return ExitCode.DONE


def _show_import(source: str, profile: Profile) -> None:
    import shlex

    from vq_console.profiles.arguments import serve_arguments
    from vq_console.profiles.format import profile_toml
    from vq_console.profiles.trust import trust_review

    say(f"from {_plain(source)}:")
    say()
    say("\n".join("  " + line for line in _plain(profile_toml(profile)).splitlines()))
    say()
    say("would run: " + _plain(shlex.join(["vllm", "serve", profile.model, *serve_arguments(profile.args, _flags())])))
    for risk in trust_review(profile):
        say(f"▲ {risk.key} = {_plain(risk.value)}: {risk.why}")
    if trust_review(profile):
        say("It asks again before its first launch.")


def _listed_json(entry: Any) -> dict[str, Any]:
    base = {"name": entry.name, "path": str(entry.path), "origin": entry.origin, "error": entry.error}
    if entry.profile is None:
        return base
    return {**_profile_json(entry.profile), **base}


def _profile_json(profile: Profile) -> dict[str, Any]:
    from vq_console.profiles.format import profile_table
    from vq_console.profiles.trust import is_trusted, trust_review

    filled: dict[str, Any] = {
        "description": "",
        "tags": [],
        "args": {},
        "env": {},
        "engine": {},
        "placement": {},
        "made_on": None,
    }
    return {
        **filled,
        **profile_table(profile),
        "path": str(profile.path) if profile.path is not None else None,
        "risks": [risk.to_json() for risk in trust_review(profile)],
        "trusted": is_trusted(profile),
    }


def _flags() -> Mapping[str, Flag] | None:
    from vq_console.engines.catalogue import snapshot

    return snapshot(None).flags


def _plain(text: str) -> str:
    from vq_console.core.text import strip_control

    return strip_control(text)
