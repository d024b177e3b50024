"""`vq-console reference record|replay|list|show`: baselines recorded once and replayed on any later arm."""

from __future__ import annotations

import argparse
from typing import Any

from vq_console.commands.common import Subparsers, add_command, emit, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode
from vq_console.core.text import counted


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "reference",
        help=help_of("reference"),
        description="Record a baseline once; replay it on any later arm, also when both never run together.",
    )
    parser.set_defaults(handler=lambda _: _usage(parser))
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")

    record = add_command(actions, "record", "record a running arm as a baseline", _record)
    record.add_argument("arm", metavar="ARM", help="a running server, a profile that runs, or a URL")
    record.add_argument("--out", metavar="FILE", help="where to write it (default: the console's own references)")
    record.add_argument("--name", help="name among the references (default: the arm's)")
    record.add_argument("--prompts", metavar="F.jsonl", help="your own prompts instead of the built-in ones")
    record.add_argument("--force", action="store_true", help="replace a reference of that name")
    replay = add_command(actions, "replay", "measure an arm against a recorded baseline", _replay)
    replay.add_argument("reference", metavar="REF", help="a recorded name, ref:NAME or a .vqref file")
    replay.add_argument("arm", metavar="ARM", help="a running server, a profile that runs, or a URL")
    replay.add_argument("--out", metavar="DIR", help="where raw data goes (default: a new run folder)")
    for command in (record, replay):
        mode = command.add_mutually_exclusive_group()
        mode.add_argument("--quick", dest="mode", action="store_const", const="quick", help="minutes (the default)")
        mode.add_argument("--standard", dest="mode", action="store_const", const="standard", help="with tasks")
        command.add_argument("--minutes", type=float, metavar="M", help="budget of KLD and divergence")
        command.add_argument("--seed", type=int, default=0, help="of prompts and sampling (default 0)")
        command.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the key of a URL")
        command.set_defaults(mode="quick")

    add_command(actions, "list", "show the recorded baselines", _list)
    show = add_command(actions, "show", "show what a recorded baseline holds", _show)
    show.add_argument("reference", metavar="REF")


def _usage(parser: argparse.ArgumentParser) -> ExitCode:
    parser.print_help()
    return ExitCode.WRONG_USE


def _record(args: argparse.Namespace) -> ExitCode:
    import re
    from pathlib import Path

    from vq_console.checks.quality import QualitySettings, record_baseline
    from vq_console.checks.reference import SUFFIX, read_head, save_reference
    from vq_console.commands.words import Words, watched
    from vq_console.compare.arms import resolve_endpoint
    from vq_console.core.errors import UsageError
    from vq_console.core.places import references_dir

    endpoint = resolve_endpoint(args.arm, api_key_env=args.api_key_env)
    name = args.name or re.sub(r"[^A-Za-z0-9._-]+", "-", endpoint.label).strip("-.") or "baseline"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(f"--name {name!r}", "A name has letters, digits, dot, dash and underscore.")
    path = Path(args.out) if args.out else references_dir() / f"{name}{SUFFIX}"
    if path.exists() and not args.force:
        raise UsageError(f"{path} is there already", "Choose another --name or --out, or say --force.")
    settings = QualitySettings.of(args.mode, seed=args.seed, budget_s=args.minutes * 60 if args.minutes else None)
    words = Words()
    with watched(words):
        recording = record_baseline(endpoint, settings, words, prompts=Path(args.prompts) if args.prompts else None)
    save_reference(recording, path)
    say(f"recorded {counted(len(recording.samples), 'text')} and {counted(len(recording.answers), 'answer')}: {path}")
    if args.json:
        emit(
            "vq-console/reference/1",
            {"path": str(path), "name": path.stem, "partial": words.cancelled(), **read_head(path)},
        )
    return ExitCode.PARTIAL if words.cancelled() else ExitCode.DONE


def _replay(args: argparse.Namespace) -> ExitCode:
    import time
    from pathlib import Path

    from vq_console.checks.quality import QualitySettings, replay_baseline
    from vq_console.checks.reference import load_reference, reference_path
    from vq_console.commands.words import Words, watched
    from vq_console.compare.arms import resolve_endpoint
    from vq_console.core.places import runs_dir

    path = reference_path(args.reference)
    recording = load_reference(path)
    endpoint = resolve_endpoint(args.arm, api_key_env=args.api_key_env)
    settings = QualitySettings.of(args.mode, seed=args.seed, budget_s=args.minutes * 60 if args.minutes else None)
    folder = Path(args.out) if args.out else runs_dir() / f"{time.strftime('%Y%m%d-%H%M%S')}-replay-{path.stem}"
    words = Words()
    with watched(words):
        result = replay_baseline(recording, endpoint, settings, folder, words)
    if args.json:
        simulated = recording.arm.simulated or endpoint.simulated
        emit(
            "vq-console/reference/1",
            {"reference": str(path), "folder": str(folder), "simulated": simulated, "quality": result.to_json()},
        )
    else:
        print(result.sentence)
        for flag in result.validity:
            print(f"{flag['flag']}: {flag['detail']}")
        print(f"answers that differ: {folder}")
    return ExitCode.PARTIAL if words.cancelled() else ExitCode.DONE


def _list(args: argparse.Namespace) -> ExitCode:
    import time

    from vq_console.checks.reference import SUFFIX, read_head
    from vq_console.core.errors import CheckError
    from vq_console.core.places import references_dir

    found: list[dict[str, Any]] = []
    for path in sorted(references_dir().glob(f"*{SUFFIX}")):
        try:
            head = read_head(path)
        except CheckError as error:
            found.append({"name": path.stem, "path": str(path), "error": error.message})
            continue
        found.append(
            {
                "name": path.stem,
                "path": str(path),
                "created": head["created"],
                "arm": head["arm"],
                "levels": head["levels"],
                "mode": head["settings"].get("mode"),
                "bytes": path.stat().st_size,
            }
        )
    if args.json:
        emit("vq-console/reference/1", {"references": found})
        return ExitCode.DONE
    rows = [
        (
            str(row["name"]),
            str(row["arm"]["model"]) if "arm" in row else "–",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"])) if "created" in row else "–",
            f"{row['bytes'] / 1e6:.1f} MB" if "bytes" in row else str(row.get("error")),
        )
        for row in found
    ]
    print(table(rows, ("name", "model", "recorded", "size")) if rows else "No baseline is recorded.")
    return ExitCode.DONE


def _show(args: argparse.Namespace) -> ExitCode:
    from vq_console.checks.quality_single import task_shares
    from vq_console.checks.reference import load_reference, read_head, reference_path

    path = reference_path(args.reference)
    head = read_head(path)
    recording = load_reference(path)
    tasks = task_shares(recording)
    if args.json:
        emit("vq-console/reference/1", {"path": str(path), **head, "tasks": [task.to_json() for task in tasks]})
        return ExitCode.DONE
    arm = recording.arm
    print(f"{arm.label}: {arm.model}, vLLM {arm.version or 'unknown'}{', SIMULATED' if arm.simulated else ''}")
    print(f"tokenizer {arm.fingerprint.tokenizer}, template {arm.fingerprint.template}")
    tokens = sum(scored.tokens for scored in recording.scores)
    print(
        f"{counted(len(recording.samples), 'text')} ({counted(tokens, 'token')}), "
        f"{counted(len(recording.greedy), 'greedy answer')}"
    )
    for task in tasks:
        print(f"{task.name}: {task.right} of {task.n} right, level {task.level or '–'}")
    return ExitCode.DONE
