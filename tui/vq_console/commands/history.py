"""`history`, `report` and `diff`: runs that were made before."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vq_console.commands.common import Subparsers, add_command, confirm, emit, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode
from vq_console.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    parser = add_command(subparsers, "history", help_of("history"), run_history)
    parser.add_argument("action", nargs="?", default="list", choices=("list", "tag", "note", "import", "delete"))
    parser.add_argument("run", nargs="?", help="a run: name, beginning of it, tag or `last`; for import a bundle")
    parser.add_argument("words", nargs="*", help="tags to add (behind -- also -TAG to remove), or the note")
    parser.add_argument("--filter", metavar="TEXT", help="only runs whose name, arms, tags or machine contain this")
    parser.add_argument("--yes", action="store_true", help="do not ask before deleting")

    report = add_command(subparsers, "report", help_of("report"), run_report)
    report.add_argument("run")
    report.add_argument("--format", choices=("md", "html", "json", "csv", "bundle"), default="md")
    report.add_argument("--out", metavar="FILE", help="write there instead of standard output")

    diff = add_command(subparsers, "diff", help_of("diff"), run_diff)
    diff.add_argument("before")
    diff.add_argument("after")
    diff.add_argument("--fail-on-regression", action="store_true", help="exit 1 when anything got worse")


def run_history(args: argparse.Namespace) -> ExitCode:
    """List, or change what is known of one run."""
    from pathlib import Path

    from vq_console.compare import history
    from vq_console.core.errors import UsageError

    if args.action == "list":
        return _list(args)
    if not args.run:
        raise UsageError(f"history {args.action}: which run?", "name it, or say `last`")
    if args.action == "import":
        imported = history.import_bundle(Path(args.run))
        say(f"imported as {imported.name}")
        if args.json:
            emit("vq-console/history/1", {"runs": [imported.to_json()]})
        return ExitCode.DONE
    if args.action == "tag" and not args.words:
        raise UsageError(
            "history tag: which tag?",
            f"`vq-console history tag {args.run} release` adds one; `… tag {args.run} -- -release` removes it",
        )
    run = history.find_run(args.run)
    if args.action == "delete":
        if not confirm(f"delete {run.name} with its samples?", yes=args.yes):
            raise UsageError(f"{run.name} was not deleted", "say --yes where no question can be asked")
        history.delete_run(run)
    elif args.action == "tag":
        history.tag_run(
            run,
            add=[word for word in args.words if not word.startswith("-")],
            remove=[word[1:] for word in args.words if word.startswith("-")],
        )
    else:
        history.tag_run(run, note=" ".join(args.words))
    if args.json:
        runs = [] if args.action == "delete" else [history.read_run(run.folder).to_json()]
        emit("vq-console/history/1", {"runs": runs})
    return ExitCode.DONE


def _list(args: argparse.Namespace) -> ExitCode:
    import time

    from vq_console.compare.history import list_runs

    every = runs = list_runs()
    if args.filter:
        runs = tuple(r for r in runs if args.filter.lower() in f"{r.name} {r.arms} {r.tags} {r.machine}".lower())
    if args.json:
        emit("vq-console/history/1", {"runs": [run.to_json() for run in runs]})
        return ExitCode.DONE
    if every and not runs:
        say(f"none of {counted(len(every), 'run')} matches {args.filter!r}")
        return ExitCode.DONE
    if not runs:
        say("no runs yet: `vq-console ab A B` makes one, `vq-console demo --simulated` shows how")
        return ExitCode.DONE
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
            run.name,
            ("SIMULATED " if run.simulated else "") + run.state,
            run.quality_word or "–",
            " ".join(run.tags) or "–",
        )
        for run in runs
    ]
    print(table(rows, ("when", "run", "state", "quality", "tags")))
    return ExitCode.DONE


def run_report(args: argparse.Namespace) -> ExitCode:
    """Render a run again from its summary."""
    import json
    from pathlib import Path

    from vq_console.compare.history import export_bundle, find_run, summary_of
    from vq_console.compare.report import report_csv, report_markdown
    from vq_console.compare.report_html import report_html
    from vq_console.core.files import write_atomic

    run = find_run(args.run)
    kind = "json" if args.json else args.format
    if kind == "bundle":
        target = export_bundle(run, Path(args.out or f"{run.name}.tar.gz"))
        say(f"wrote {target}")
        return ExitCode.DONE
    summary = summary_of(run)
    text = {
        "md": lambda: report_markdown(summary),
        "html": lambda: report_html(summary),
        "csv": lambda: report_csv(summary),
        "json": lambda: json.dumps({**summary, "schema": "vq-console/report/1"}, ensure_ascii=False, indent=1) + "\n",
    }[kind]()
    if args.out:
        write_atomic(Path(args.out), text)
        say(f"wrote {args.out}")
    else:
        print(text, end="")
    return ExitCode.DONE


def _pair(arms: Mapping[str, str]) -> str:
    from vq_console.core.text import strip_control

    return strip_control(" against ".join(arms[side] for side in sorted(arms))) or "of unknown arms"


def run_diff(args: argparse.Namespace) -> ExitCode:
    """What changed from one run to another."""
    from vq_console.compare.history import find_run, summary_of
    from vq_console.compare.regression import compare_runs
    from vq_console.compare.report import number

    before, after = find_run(args.before), find_run(args.after)
    if before.folder.resolve() == after.folder.resolve():
        say(f"note: both are the run {before.name}; `vq-console history` lists the others")
    if before.arms != after.arms:
        say(f"note: not the same pair: before {_pair(before.arms)}, after {_pair(after.arms)}")
    changes = compare_runs(summary_of(before), summary_of(after))
    worse = [change for change in changes if change.word == "regression"]
    if args.json:
        emit(
            "vq-console/diff/1",
            {
                "before": before.name,
                "after": after.name,
                "regressions": len(worse),
                "changes": [change.to_json() for change in changes],
            },
        )
    elif changes:
        rows = [(c.what, number(c.before), number(c.after), c.word, c.detail) for c in changes]
        print(table(rows, ("what", "before", "after", "is", "")))
    else:
        print("nothing to compare: the runs share no endpoint")
    return ExitCode.NO if args.fail_on_regression and worse else ExitCode.DONE
