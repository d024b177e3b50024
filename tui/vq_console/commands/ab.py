"""`ab` and `ask`: two arms compared, measured or just looked at."""

from __future__ import annotations

import argparse

from vq_console.commands.common import Subparsers, add_command, emit, number_of, say
from vq_console.commands.latency_words import add_load_options, load_settings
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode
from vq_console.core.text import counted


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    parser = add_command(subparsers, "ab", help_of("ab"), run_ab_command)
    parser.add_argument(
        "a", metavar="A", help="a profile, server:NAME, ref:NAME, URL or source:NAME (what NAME was quantized from)"
    )
    parser.add_argument("b", metavar="B", help="the other arm")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_const", const="quick", dest="mode", help="minutes (the default)")
    mode.add_argument(
        "--standard", action="store_const", const="standard", dest="mode", help="narrower intervals, tasks"
    )
    parser.add_argument("--latency", action="store_true", help="only latency, unless --quality is given too")
    parser.add_argument("--quality", action="store_true", help="only quality, unless --latency is given too")
    parser.add_argument("--baseline", metavar="ARM", help="judge the quality of both against this 16-bit arm")
    parser.add_argument("--prompts", metavar="F.jsonl", help="your own prompts for the quality check")
    parser.add_argument(
        "--declare", metavar="KEY", action="append", default=[], help="a difference that is the question"
    )
    parser.add_argument("--engine", metavar="PYTHON", help="interpreter of the vLLM to use, or `simulator`")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the key of a URL arm")
    parser.add_argument("--seed", type=int, help="seed of prompts and block order; recorded either way")
    parser.add_argument("--latency-minutes", type=float, metavar="M", help="budget of the latency check")
    parser.add_argument("--quality-minutes", type=float, metavar="M", help="budget of the quality check")
    add_load_options(parser)
    parser.add_argument(
        "--copy-test", action="store_true", help="measure the memory bandwidth with the engine's Python, for the floor"
    )
    parser.add_argument("--keep", action="store_true", help="leave servers running that were started for this")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument(
        "--fail-on",
        metavar="GATE",
        action="append",
        default=[],
        help="exit 1 when: slower, faster, inconclusive, fallback, or a quality word (that one or worse)",
    )
    parser.set_defaults(mode="quick")

    ask = add_command(subparsers, "ask", help_of("ask"), run_ask)
    ask.add_argument("a", metavar="A")
    ask.add_argument("b", metavar="B")
    ask.add_argument("prompt", metavar="PROMPT", help="the user message, or - to read it from standard input")
    ask.add_argument("--max-tokens", metavar="N", type=number_of, default=128, help="tokens of each answer (128)")
    ask.add_argument("--api-key-env", metavar="NAME")


def run_ab_command(args: argparse.Namespace) -> ExitCode:
    """Run the comparison here; 0 for any finished verdict unless a gate was asked for."""
    from pathlib import Path

    from vq_console.compare.comparison import AbSettings
    from vq_console.compare.gates import failed_gates, parse_gates
    from vq_console.compare.run import run_ab
    from vq_console.core.errors import UsageError

    gates = parse_gates(args.fail_on)
    for minutes in (args.latency_minutes, args.quality_minutes):
        if minutes is not None and not 0 < minutes < 1e4:
            raise UsageError(f"a budget of {minutes:g} minutes cannot be meant", "give a number above 0")
    if args.prompts:
        from vq_console.checks.tasks.user_file import read_prompts

        if not Path(args.prompts).is_file():
            raise UsageError(f"{args.prompts}: no such file", "--prompts takes a JSONL file of requests")
        read_prompts(Path(args.prompts))
    both = args.latency == args.quality
    settings = AbSettings(
        mode=args.mode,
        latency=args.latency or both,
        quality=args.quality or both,
        baseline=args.baseline,
        prompts=Path(args.prompts) if args.prompts else None,
        declared=tuple(key.replace("-", "_") for key in args.declare),
        engine=args.engine,
        api_key_env=args.api_key_env,
        seed=args.seed,
        latency_budget_s=args.latency_minutes * 60 if args.latency_minutes else None,
        quality_budget_s=args.quality_minutes * 60 if args.quality_minutes else None,
        keep=args.keep,
        load=load_settings(args),
        copy_test=args.copy_test,
    )
    outcome = run_ab(args.a, args.b, settings, say, run=args.run)
    failed = failed_gates(outcome.summary, gates)
    if args.json:
        emit("vq-console/ab/1", {**outcome.summary, "failed_gates": failed, "report": str(outcome.report)})
    else:
        print_verdict(outcome.summary)
        print(f"report: {outcome.report}")
    for gate in failed:
        say(f"gate failed: {gate}")
    if outcome.partial:
        return ExitCode.PARTIAL
    return ExitCode.NO if failed else ExitCode.DONE


def print_verdict(summary: dict[str, object]) -> None:
    """The sentences and flags of a finished comparison on standard output."""
    from vq_console.core.text import strip_control

    if summary.get("simulated"):
        print("SIMULATED: these figures come from a stand-in engine and say nothing about any hardware.")
    verdict, validity = summary.get("verdict"), summary.get("validity")
    for key, text in (verdict if isinstance(verdict, dict) else {}).items():
        print(f"{key + ':':9}{strip_control(str(text))}")
    for item in validity if isinstance(validity, list) else ():
        print(f"note:    {item['flag']}: {strip_control(str(item['detail']))}")


def run_ask(args: argparse.Namespace) -> ExitCode:
    """Stream both answers and print them side by side with the first difference."""
    import asyncio
    import sys

    from vq_console.checks.live import LiveAnswer, Parting, stream_pair
    from vq_console.compare.arms import resolve_endpoint

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    a = resolve_endpoint(args.a, api_key_env=args.api_key_env)
    b = resolve_endpoint(args.b, api_key_env=args.api_key_env)
    messages = [{"role": "user", "content": prompt}]

    async def collect() -> tuple[LiveAnswer, LiveAnswer, Parting | None]:
        last: tuple[LiveAnswer, LiveAnswer, Parting | None] | None = None
        async for state in stream_pair(a, b, messages, max_tokens=args.max_tokens):
            last = state
        return last or (LiveAnswer(a.label), LiveAnswer(b.label), None)

    left, right, parting = asyncio.run(collect())
    if args.json:
        answers = {
            side: {
                "label": x.label,
                "text": x.text,
                "tokens": len(x.tokens),
                "ttft_s": x.ttft_s,
                "tokens_per_s": x.tokens_per_s,
                "finish": x.finish,
                "error": x.error,
            }
            for side, x in (("A", left), ("B", right))
        }
        simulated = a.simulated or b.simulated
        emit(
            "vq-console/ask/1",
            {
                "simulated": simulated,
                "answers": answers,
                "parting": parting.to_json() if parting else None,
            },
        )
    else:
        for side, answer in (("A", left), ("B", right)):
            rate = f"{answer.tokens_per_s:.1f} tokens/s" if answer.tokens_per_s else "–"
            ttft = f"TTFT {answer.ttft_s * 1000:.0f} ms" if answer.ttft_s is not None else "no token"
            print(f"── {side} {answer.label}: {ttft}, {rate}, {counted(len(answer.tokens), 'token')}")
            print(answer.error or answer.text)
        print(_parting_words(parting) if parting else "── the same tokens as far as both go")
    return ExitCode.NO if left.error or right.error else ExitCode.DONE


def _parting_words(parting: object) -> str:
    from vq_console.checks.live import Parting

    assert isinstance(parting, Parting)

    def chance(value: float | None) -> str:
        return "not among the top 5" if value is None else f"{value * 100:.1f} %"

    return (
        f"── they part at token {parting.index + 1}: A {parting.a_token!r} (A {chance(parting.a_of_a)}, "
        f"B {chance(parting.b_of_a)}), B {parting.b_token!r} (A {chance(parting.a_of_b)}, B {chance(parting.b_of_b)})"
    )
