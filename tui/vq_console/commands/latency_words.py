"""What `check latency` and `ab` both let a person say of the load, and what it means for the settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Streams, lengths, own requests, objective and price."""
    parser.add_argument("--levels", metavar="C,C", help="streams of the latency check, such as 1,8,32,64")
    parser.add_argument("--lengths", metavar="IN/OUT", help="prompt and output tokens of your own, such as 512/128")
    parser.add_argument("--requests", metavar="F.jsonl", help="replay your own requests instead of made prompts")
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    parser.add_argument("--slo", metavar="TTFT/TPOT", help="objective in milliseconds (default 2000/100)")
    parser.add_argument("--price", type=float, metavar="P", help="price of the device per hour, for cost per token")


def load_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of LatencySettings that the options change. Raises UsageError naming the option, the file and line."""
    from vq_console.checks.latency_settings import LatencySettings, own_requests

    changed: dict[str, Any] = {}
    if args.levels:
        changed["levels"] = LatencySettings().with_levels(*_numbers(args.levels, ",", "--levels", "1,8,32")).levels
    if args.lengths:
        lengths = _numbers(args.lengths, "/", "--lengths", "512/128")
        if len(lengths) != 2 or lengths[0] < 1 or lengths[1] < 2:
            raise UsageError(f"--lengths {args.lengths}: at least 1 token in and 2 out", "such as --lengths 512/128")
        changed["prompt_tokens"], changed["output_tokens"] = lengths
    if args.slo:
        times = _numbers(args.slo, "/", "--slo", "2000/100")
        if len(times) != 2 or min(times) < 1:
            raise UsageError(f"--slo {args.slo}: milliseconds to the first token and per token", "such as 2000/100")
        changed["slo_ttft_s"], changed["slo_tpot_s"] = times[0] / 1000, times[1] / 1000
    if args.price is not None:
        if not 0 < args.price < 1e9:
            raise UsageError(f"--price {args.price:g}: a price per hour above 0 was expected")
        changed["price_per_hour"] = args.price
    if args.requests:
        changed["requests_file"] = str(Path(args.requests).absolute())
        own_requests(LatencySettings(requests_file=changed["requests_file"]))
    if args.chat:
        changed["chat"] = True
    return changed


def _numbers(text: str, between: str, option: str, example: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(between))
    except ValueError:
        raise UsageError(f"{option} {text!r}: numbers were expected", f"for example {option} {example}") from None
