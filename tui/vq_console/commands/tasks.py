"""`vq-console tasks list|show|run|import`: task items with checkable answers, on one arm or from lm_eval."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vq_console.commands.common import Subparsers, add_command, emit, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from vq_console.checks.tasks.model import Item

_NEEDLE_TOKENS = 1024
"""How long a needle's text is when it is only shown."""


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "tasks",
        help=help_of("tasks"),
        description="Task items made from seeds, with answers that a program checks.",
    )
    parser.set_defaults(handler=lambda _: _usage(parser))
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    add_command(actions, "list", "show the generators", _list)

    show = add_command(actions, "show", "print items of a generator as JSON lines", _show)
    show.add_argument("name", metavar="NAME")
    show.add_argument("--answers", action="store_true", help="print the answer key of a stand-in server instead")

    run = add_command(actions, "run", "run tasks on one arm", _run)
    run.add_argument("arm", metavar="ARM", help="a running server, a profile that runs, or a URL")
    run.add_argument("--task", metavar="NAME", action="append", default=[], help="only this generator (repeatable)")
    run.add_argument("--prompts", metavar="F.jsonl", help="your own items, or a GSM8K file")
    run.add_argument("--needle", metavar="TOKENS", type=int, action="append", default=[], help="needle at this length")
    run.add_argument("--out", metavar="DIR", help="where answers go (default: a new run folder)")
    run.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the key of a URL")
    for command in (show, run):
        command.add_argument("--count", type=int, metavar="N", help="items of each generator")
        command.add_argument("--level", type=int, metavar="L", help="difficulty; without it `run` chooses it by pilot")
        command.add_argument("--seed", type=int, default=0, help="of the items (default 0)")

    lm_eval = add_command(actions, "import", "pair two lm_eval --log_samples outputs", _import)
    lm_eval.add_argument("a", metavar="A", help="folder or samples_*.jsonl of the baseline")
    lm_eval.add_argument("b", metavar="B", help="the same of the other arm")
    lm_eval.add_argument("--metric", help="right-or-wrong metric to use, such as exact_match")


def _usage(parser: argparse.ArgumentParser) -> ExitCode:
    parser.print_help()
    return ExitCode.WRONG_USE


def _list(args: argparse.Namespace) -> ExitCode:
    from vq_console.checks.tasks.registry import GENERATORS

    if args.json:
        emit(
            "vq-console/tasks/1",
            {
                "generators": [
                    {"name": g.name, "title": g.title, "about": g.about, "levels": g.levels, "count": g.count}
                    for g in GENERATORS.values()
                ],
                "needle": {"about": "a number in a long text: --needle TOKENS, five depths, twice"},
            },
        )
        return ExitCode.DONE
    rows = [(g.name, g.about, str(g.levels), str(g.count)) for g in GENERATORS.values()]
    rows.append(("needle", "a number in a long text (--needle TOKENS): five depths, twice", "–", "10"))
    print(table(rows, ("name", "what it asks", "levels", "items")))
    return ExitCode.DONE


def _show(args: argparse.Namespace) -> ExitCode:
    import json

    from vq_console.checks.tasks.answer_key import last_question, right_answer, wrong_answer
    from vq_console.checks.tasks.registry import generator, make_items

    count = _count(10 if args.count is None else args.count)
    if args.name == "needle":
        items = _needles(args)[:count]
    else:
        kind = generator(args.name)
        level = _level((kind.levels + 1) // 2 if args.level is None else args.level, kind.levels)
        items = make_items(kind.name, seed=args.seed, level=level, count=count)
    if args.json:
        emit("vq-console/tasks/1", {"items": [item.to_json() for item in items]})
        return ExitCode.DONE
    for item in items:
        row = item.to_json()
        if args.answers:
            row = {"match": last_question(item), "answer": right_answer(item), "wrong": wrong_answer(item)}
        print(json.dumps(row, ensure_ascii=False))
    return ExitCode.DONE


def _needles(args: argparse.Namespace) -> list[Item]:
    """Needles as long as those of a short run; a run measures how many characters a token of its model has."""
    from vq_console.checks.tasks.context import needles
    from vq_console.core.errors import UsageError

    if args.level is not None:
        raise UsageError("needle has no levels", "`tasks run ARM --needle TOKENS` says how long its text is")
    return needles(args.seed, _NEEDLE_TOKENS, characters_per_token=4.0)


def _level(level: int, levels: int) -> int:
    from vq_console.core.errors import UsageError

    if not 1 <= level <= levels:
        raise UsageError(f"--level {level}", f"This generator has the levels 1 to {levels}.")
    return level


def _count(count: int) -> int:
    from vq_console.core.errors import UsageError

    if not 1 <= count <= 20_000:
        raise UsageError(f"--count {count}", "Between 1 and 20000 items can be made.")
    return count


def _run(args: argparse.Namespace) -> ExitCode:
    import time
    from dataclasses import replace
    from pathlib import Path

    from vq_console.checks.quality import QualitySettings
    from vq_console.checks.quality_single import run_tasks
    from vq_console.checks.tasks.registry import GENERATORS, generator
    from vq_console.commands.words import Words, watched
    from vq_console.compare.arms import resolve_endpoint
    from vq_console.core.errors import UsageError
    from vq_console.core.places import runs_dir

    if "needle" in args.task:
        raise UsageError("a needle is asked for by its length, not with --task", "for example --needle 8192")
    names = [generator(name).name for name in args.task]
    if not names and not args.needle and not args.prompts:
        names = list(GENERATORS)
    counts = {name: _count(args.count) if args.count is not None else GENERATORS[name].count for name in names}
    endpoint = resolve_endpoint(args.arm, api_key_env=args.api_key_env)
    settings = QualitySettings.of("standard", seed=args.seed, tasks=counts, needle_tokens=tuple(args.needle))
    if args.level is not None:
        settings = replace(settings, level=_level(args.level, max(GENERATORS[n].levels for n in names or GENERATORS)))
    folder = Path(args.out) if args.out else runs_dir() / f"{time.strftime('%Y%m%d-%H%M%S')}-tasks"
    words = Words()
    with watched(words):
        result = run_tasks(endpoint, settings, folder, words, prompts=Path(args.prompts) if args.prompts else None)
    if args.json:
        emit("vq-console/tasks/1", {**result.to_json(), "folder": str(folder)})
    else:
        for line in result.lines():
            print(line)
        print(f"answers: {folder}")
    return ExitCode.PARTIAL if words.cancelled() else ExitCode.DONE


def _import(args: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from vq_console.checks.tasks.lm_eval import import_pairs

    results, notes = import_pairs(Path(args.a), Path(args.b), metric=args.metric)
    for note in notes:
        say(note)
    if args.json:
        emit("vq-console/tasks/1", {"tasks": [result.to_json() for result in results], "notes": notes})
        return ExitCode.DONE

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value * 100:.1f} %"

    rows = []
    for result in results:
        low, high = result.interval or (0.0, 0.0)
        rows.append(
            (
                result.name, str(result.n), share(result.a), share(result.b),
                f"{(result.difference or 0) * 100:+.1f} ({low * 100:+.1f} to {high * 100:+.1f})",
                f"{result.p:.3f}" if result.p is not None else "–", share(result.flips), share(result.detectable),
            )
        )  # fmt: skip
    print(table(rows, ("task", "n", "A", "B", "difference, points", "p", "flips", "detectable")))
    return ExitCode.DONE
