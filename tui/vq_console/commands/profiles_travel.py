"""`profiles import|export|schema` and `pull`: what comes from elsewhere and goes there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import confirm, emit, profile_name, say
from vq_console.commands.profiles_show import newest_flags, plain, profile_json
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from vq_console.profiles.model import Profile


def run_import(args: argparse.Namespace) -> ExitCode:
    """Show what comes and what it would run here, ask, then keep it; a broken file of a folder does not stop the
    others. Where nobody can be asked, nothing is kept without --yes."""
    import sys

    from vq_console.core.errors import UsageError, VqError
    from vq_console.profiles import share

    for name in ("name", "model"):
        if getattr(args, name) is not None and not getattr(args, name).strip():
            raise UsageError(f"the {name} is empty", "leave it out, or write one")
    profile_name(args.name)
    sources = list(share.read_sources(args.source))
    if args.name and len(sources) > 1:
        raise UsageError("--name needs a single profile", f"{args.source} holds {len(sources)}")
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    imported: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for source in sources:
        try:
            profile = share.parse_import(source, name=args.name, model=args.model)
            here = _here(profile)
            if not args.json or (can_ask and not args.yes):
                _show_import(source.name, profile, here)
            if not args.yes and not can_ask:
                waiting.append({**profile_json(profile), "here": here})
            elif confirm(f"import it as {profile.name}?", yes=args.yes):
                imported.append({**_keep(profile, trusted=args.trust), "here": here})
                if not args.json:
                    say(f"wrote {imported[-1]['path']}")
            else:
                say("not imported")
        except VqError as error:
            if len(sources) == 1:
                raise
            failed.append({"source": source.name, "error": error.message, "hint": error.hint})
            if not args.json:
                say(f"✖ {plain(error.message)}")
    refused = UsageError("nothing was imported: nobody can be asked here", "say --yes to import what was shown")
    if args.json:
        answer: dict[str, Any] = {"imported": imported, "failed": failed, "shown": waiting}
        if waiting:
            answer["error"] = {"message": refused.message, "hint": refused.hint}
        emit("vq-console/profiles/1", answer)
    if waiting:
        say(f"vq-console: {refused}")
        return ExitCode.WRONG_USE
    return ExitCode.NO if failed else ExitCode.DONE


def _keep(profile: Profile, *, trusted: bool) -> dict[str, Any]:
    from vq_console.profiles.share import keep_import
    from vq_console.profiles.store import read_profile
    from vq_console.profiles.trust import trust

    path = keep_import(profile)
    if trusted:
        trust(read_profile(path))
    return profile_json(read_profile(path))


def run_export(args: argparse.Namespace) -> ExitCode:
    """Print a profile as a shared file, a command, Python, or a deployment."""
    from pathlib import Path

    from vq_console.core.files import write_atomic
    from vq_console.profiles.exports import export_profile
    from vq_console.profiles.remember import with_last_run
    from vq_console.profiles.store import load_profile

    exported = export_profile(with_last_run(load_profile(args.profile)), args.format, newest_flags())
    if args.out:
        write_atomic(Path(args.out), exported.text)
    if args.json:
        emit(
            "vq-console/profiles/1",
            {"format": args.format, "text": exported.text, "notes": list(exported.notes), "path": args.out},
        )
        return ExitCode.DONE
    for note in exported.notes:
        say(f"· {plain(note)}")
    if args.out:
        say(f"wrote {args.out}")
    else:
        print(exported.text, end="")
    return ExitCode.DONE


def run_schema(args: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema; the same with and without --json."""
    import json

    from vq_console.profiles.schema import profile_schema

    print(json.dumps(profile_schema(newest_flags()), ensure_ascii=False, indent=1))
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
        say=print if args.dry_run and not args.json else say,  # then what would be fetched is the answer
    )
    if args.json:
        emit("vq-console/pull/1", pulled.to_json())
    elif pulled.path:
        print(pulled.path)
    return ExitCode.DONE


def _show_import(source: str, profile: Profile, here: dict[str, Any]) -> None:
    import shlex

    from vq_console.profiles.format import profile_toml
    from vq_console.profiles.trust import trust_review

    say(f"from {plain(source)}:")
    say()
    say("\n".join("  " + line for line in plain(profile_toml(profile)).splitlines()))
    say()
    say("would run here: " + plain(shlex.join(here["argv"])))
    if profile.made_on:
        say("there: " + plain(", ".join(_words(value) for value in profile.made_on.values())))
    for layer in here["layers"]:
        if layer["kernel"]:
            say(f"here: {layer['kind']} {layer['kernel']} ({layer['grade']})")
    for finding in here["findings"]:
        say(f"{'✖' if finding['severity'] == 'error' else '▲'} {plain(finding['message'])}")
    for risk in trust_review(profile):
        say(f"▲ {risk.key} = {plain(risk.value)}: {risk.why}")
    if trust_review(profile):
        say("It asks again before its first launch.")


def _here(profile: Profile) -> dict[str, Any]:
    """What a launch on this machine would be; where that cannot be told, the bare command."""
    from vq_console.core.errors import VqError
    from vq_console.profiles.arguments import serve_arguments

    try:
        from vq_console.preflight.check import plan_json, plan_profile

        planned = plan_json(plan_profile(profile))
    except VqError as error:
        argv = ["vllm", "serve", profile.model, *serve_arguments(profile.args, newest_flags())]
        return {"argv": argv, "layers": [], "findings": [{"severity": "error", "message": error.message}]}
    findings = [finding for finding in planned["findings"] if finding["severity"] != "info"]
    return {"argv": planned["plan"]["argv"], "layers": planned["plan"]["layers"], "findings": findings}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
