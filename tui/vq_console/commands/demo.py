"""`demo`: the main job from nothing, on the real engine or simulated."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vq_console.commands.common import Subparsers, add_command, emit, say
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from vq_console.compare.run import AbOutcome


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(subparsers, "demo", help_of("demo"), run_demo_command)
    parser.add_argument("--simulated", action="store_true", help="no download, no GPU: a stand-in engine, in seconds")
    parser.add_argument(
        "--prepare", action="store_true", help="only make the engine and the models, and say where they are"
    )
    parser.add_argument("--for-cpu", action="store_true", help="take the CPU engine although there is a GPU")
    parser.add_argument("--headless", action="store_true", help="do not offer to open the console")


def run_demo_command(args: argparse.Namespace) -> ExitCode:
    """Prepare, compare, print the verdict, offer the console."""
    import os
    import sys

    if args.simulated:
        return _simulated(args)
    from vq_console.demo.prepare import prepare
    from vq_console.demo.run import run_demo

    if args.prepare:
        made = prepare(say, for_cpu=args.for_cpu, schemes=("w8a8", "w4a16", "fp8") if args.for_cpu else ())
        pair = made.pairs[0]
        value = {
            "engine": made.engine.python,
            "models": made.models,
            "pair": [pair.a.scheme, pair.b.scheme],
            "why": pair.why,
        }
        emit("vq-console/demo/1", value)
        return ExitCode.DONE
    code = _show(args, run_demo(say, prepared=prepare(say, for_cpu=args.for_cpu)))
    if code is not ExitCode.DONE:
        return code
    if not args.headless and not args.json and _has_screen() and not os.environ.get("CI"):
        print("\nOpen the result in the console? [Y/n] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in {"", "y", "yes"}:
            from vq_console.compare.history import find_run
            from vq_console.ui.app import run_console

            return run_console(open_run=find_run("last").folder)
    return ExitCode.DONE


def _simulated(args: argparse.Namespace) -> ExitCode:
    """The tour on the screen, or its comparison where there is none."""
    from vq_console.demo.simulated import compare_simulated, simulated_tour

    with simulated_tour(say):
        if args.headless or args.json or not _has_screen():
            return _show(args, compare_simulated(say))
        from vq_console.ui.app import run_console

        return run_console(simulated=True)


def _show(args: argparse.Namespace, outcome: AbOutcome) -> ExitCode:
    """Print the verdict and where the report lies."""
    from vq_console.commands.ab import print_verdict

    if args.json:
        emit("vq-console/demo/1", {**outcome.summary, "report": str(outcome.report)})
    else:
        print()
        print_verdict(outcome.summary)
        print(f"report:  {outcome.report}")
    return ExitCode.PARTIAL if outcome.partial else ExitCode.DONE


def _has_screen() -> bool:
    import os
    import sys

    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
