"""Holds the console's load generator against `vllm bench serve` and guidellm.

Agreement, on any vLLM server started with `--no-enable-prefix-caching` (the tools send the same prompts in turn):

    python tests/benchmarks/load_generators.py agree URL MODEL --vllm-python PYTHON --guidellm EXE --tokenizer DIR

Tools are interleaved in random order in every block; the unit is the block, and a tool agrees when the 95 % interval
of its paired difference lies within ±2 % for TPOT and max(5 %, 3 ms) for TTFT; else the line says inconclusive.

Capacity, against a token source that costs almost nothing:

    python tests/benchmarks/load_generators.py capacity --vllm-python PYTHON --guidellm EXE --tokenizer DIR

The highest rate at which TPOT stays within 0.5 % and TTFT within max(2 %, 2 ms) of the source's own log.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vq_console.checks.endpoint import Capabilities, Endpoint, probe
from vq_console.checks.generator import LoadGenerator
from vq_console.checks.measures import geometric_mean, times_of
from vq_console.checks.order import BlockOrder, can_do
from vq_console.checks.prompts import WORDS, PromptPool
from vq_console.checks.records import REQUESTS_FILE, records_by_block
from vq_console.checks.statistics import t_interval
from vq_console.core.http import get

HERE = Path(__file__).parent
WAVES = 4
WITHIN_TPOT, WITHIN_TTFT, FLOOR_TTFT_S = 0.02, 0.05, 0.003


@dataclass(frozen=True)
class Seen:
    """What a tool says of one request, by the console's definitions; seconds."""

    ttft: float
    tpot: float
    tokens: int


@dataclass(frozen=True)
class Load:
    """One block, the same for every tool."""

    block: str
    url: str
    model: str
    prompts: tuple[str, ...]
    tokens: int
    concurrency: int


Tool = Callable[[Load], list[Seen]]


class Console:
    """The console's own generator."""

    def __init__(self, folder: Path, endpoint: Endpoint, able: Capabilities) -> None:
        self._folder, self._able = folder, able
        self._generator = LoadGenerator(folder / "generator.log")
        self._generator.server("A", endpoint)

    def __call__(self, load: Load) -> list[Seen]:
        order = BlockOrder(
            block=load.block,
            server="A",
            model=load.model,
            records=str(self._folder / REQUESTS_FILE),
            concurrency=load.concurrency,
            prompt_tokens=0,
            output_tokens=load.tokens,
            prompt_seed=0,
            prompt_key=load.block,
            pool=PromptPool(()),
            requests_per_stream=len(load.prompts) // load.concurrency,
            requests=tuple({"prompt": prompt} for prompt in load.prompts),
            **can_do(self._able),
        )
        self._generator.block(order)
        out = []
        for record in sorted(records_by_block(self._folder)[load.block], key=lambda record: record.send_ns):
            found = times_of(record)
            if found.ttft is not None and found.tpot is not None and found.tokens is not None:
                out.append(Seen(found.ttft, found.tpot, found.tokens))
        return out

    def close(self) -> None:
        self._generator.close()


class VllmBench:
    """The request function of `vllm bench serve`, kept in one process since importing it takes half a minute."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / "vllm_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
        )
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise RuntimeError("the vLLM child ended")

    def __call__(self, load: Load) -> list[Seen]:
        assert self._process.stdin is not None
        order = {**load.__dict__, "prompts": list(load.prompts)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        rows = self._answer()
        good = [row for row in rows if row["ok"]]
        return [Seen(r["ttft"], (r["e2e"] - r["ttft"]) / (r["tokens"] - 1), r["tokens"]) for r in good]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Guidellm:
    """guidellm as a command; its ITL is the console's TPOT."""

    def __init__(self, exe: str, tokenizer: str, folder: Path) -> None:
        self._exe, self._tokenizer, self._folder = exe, tokenizer, folder

    def __call__(self, load: Load) -> list[Seen]:
        data, out = self._folder / "data.jsonl", self._folder / "guidellm.json"
        rows = [{"prompt": prompt, "output_tokens_count": load.tokens} for prompt in load.prompts]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        out.unlink(missing_ok=True)
        profile = "kind=synchronous" if load.concurrency == 1 else f"kind=concurrent,streams={load.concurrency}"
        options = {
            "backend": f"kind=openai_http,target={load.url},model={load.model},request_format=/v1/completions",
            "profile": profile,
            "constraint": f"kind=max_requests,count={len(rows)}",
            "data": f"kind=json_file,path={data}",
            "tokenizer": f"kind=huggingface_auto,model={self._tokenizer}",
            "output": f"kind=json,path={out}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        subprocess.run(
            [self._exe, "run", "--disable-console", *words],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        found = json.loads(out.read_text())["benchmarks"][0]["requests"]["successful"]
        return [
            Seen(row["time_to_first_token_ms"] / 1000, row["inter_token_latency_ms"] / 1000, row["output_tokens"])
            for row in sorted(found, key=lambda row: row["request_start_time"])
        ]

    def close(self) -> None:
        """Nothing stays open."""


def prompts_of(seed: int, count: int, words: int) -> tuple[str, ...]:
    """Texts that repeat from run to run but not within one."""
    source = random.Random(seed)
    pool = WORDS.split()
    return tuple(" ".join(source.choices(pool, k=words)) for _ in range(count))


def _tools(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    tools: dict[str, Any] = {"vq-console": console}
    if args.vllm_python:
        tools["vllm bench"] = VllmBench(args.vllm_python)
    if args.guidellm:
        tools["guidellm"] = Guidellm(args.guidellm, args.tokenizer, folder)
    return tools


def agree(args: argparse.Namespace) -> dict[str, Any]:
    """Interleaved blocks of one request at a time on a real server."""
    folder = Path(tempfile.mkdtemp(prefix="load-generators-"))
    endpoint = Endpoint("server", args.url.rstrip("/"), args.model)
    console = Console(folder, endpoint, probe(endpoint))
    tools = _tools(args, folder, console)
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in tools}
    counts: dict[str, set[int]] = {name: set() for name in tools}
    source = random.Random(args.seed)
    try:
        for block in range(-1, args.blocks):
            prompts = prompts_of(args.seed * 1000 + block, args.requests + 1, args.words)
            names = list(tools)
            source.shuffle(names)
            for name in names:
                load = Load(f"{name}-{block}", endpoint.url, args.model, prompts, args.tokens, 1)
                # The first request opens the connection in some tools and not in others.
                seen = tools[name](load)[1:]
                if block < 0:
                    continue
                ttft = geometric_mean(one.ttft for one in seen)
                tpot = geometric_mean(one.tpot for one in seen)
                assert ttft is not None
                assert tpot is not None
                values[name].append((ttft, tpot))
                counts[name] |= {one.tokens for one in seen}
            if block >= 0:
                shown = ", ".join(f"{n} {values[n][-1][0] * 1e3:.1f}/{values[n][-1][1] * 1e3:.2f}" for n in tools)
                print(f"block {block + 1}: TTFT/TPOT ms {shown}", file=sys.stderr, flush=True)
    finally:
        for tool in tools.values():
            tool.close()
    return {"blocks": args.blocks, "requests": args.requests, "tokens": args.tokens,
            "rows": agreement(values, counts, args.tokens)}  # fmt: skip


def agreement(
    values: Mapping[str, Sequence[tuple[float, float]]], counts: Mapping[str, set[int]], tokens: int
) -> list[dict[str, Any]]:
    """Paired differences of each other tool to the console's."""
    own = values["vq-console"]
    rows = []
    for name, theirs in values.items():
        row: dict[str, Any] = {"tool": name, "counts_exact": counts[name] == {tokens}}
        row["ttft_ms"] = (geometric_mean(t for t, _ in theirs) or 0.0) * 1000
        row["tpot_ms"] = (geometric_mean(p for _, p in theirs) or 0.0) * 1000
        if name != "vq-console":
            for index, metric in enumerate(("ttft", "tpot")):
                d = [math.log(b[index] / a[index]) for a, b in zip(own, theirs, strict=True)]
                interval = t_interval(d)
                base = geometric_mean(a[index] for a in own) or 1.0
                within = max(WITHIN_TTFT, FLOOR_TTFT_S / base) if metric == "ttft" else WITHIN_TPOT
                row[f"{metric}_ratio"] = math.exp(sum(d) / len(d))
                row[f"{metric}_ci"] = [math.exp(edge) for edge in interval] if interval else None
                low, high = (math.exp(edge) - 1 for edge in interval) if interval else (-math.inf, math.inf)
                row[f"{metric}_word"] = "agrees" if -within < low and high < within else "inconclusive"
                if low > within or high < -within:
                    row[f"{metric}_word"] = "differs"
        rows.append(row)
    return rows


def capacity(args: argparse.Namespace) -> dict[str, Any]:
    """Growing numbers of streams until a tool leaves its error budget."""
    folder = Path(tempfile.mkdtemp(prefix="load-capacity-"))
    log = folder / "source.jsonl"
    port = args.port
    process = subprocess.Popen([sys.executable, str(HERE / "mock_stream.py"), str(port), str(args.tpot_ms), str(log)])
    endpoint = Endpoint("mock", f"http://127.0.0.1:{port}", "mock")
    while not get(endpoint.url + "/v1/models").ok:
        time.sleep(0.05)
    console = Console(folder, endpoint, Capabilities(exact_length=True, stream_usage=True))
    tools = _tools(args, folder, console)
    rows = []
    try:
        for name, tool in tools.items():
            for streams in args.streams:
                prompts = prompts_of(streams, streams * WAVES, 8)
                load = Load(f"{name}-{streams}", endpoint.url, "mock", prompts, args.tokens, streams)
                before = log.stat().st_size if log.exists() else 0
                seen = tool(load)
                time.sleep(0.3)
                with open(log, "rb") as file:
                    file.seek(before)
                    sent = [json.loads(line) for line in file]
                row = _error(name, streams, seen, sent, args.tpot_ms)
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if not row["ok"]:
                    break
    finally:
        for tool in tools.values():
            tool.close()
        process.terminate()
        process.wait()
    best = {name: max((r["tokens_s"] for r in rows if r["tool"] == name and r["ok"]), default=None) for name in tools}
    return {"tpot_ms": args.tpot_ms, "rows": rows, "tokens_per_s": best}


def _error(
    name: str, streams: int, seen: Sequence[Seen], sent: Sequence[Mapping[str, Any]], tpot_ms: float
) -> dict[str, Any]:
    # The first wave goes out all at once and opens connections in some tools; it is not what is asked here.
    seen = seen[streams:]
    sent = sorted(sent, key=lambda row: row["arrival_ns"])[streams:]
    own_ttft = [(row["first_ns"] - row["arrival_ns"]) / 1e9 for row in sent]
    own_tpot = [(row["last_ns"] - row["first_ns"]) / 1e9 / (row["tokens"] - 1) for row in sent]
    if not (own_ttft and seen):
        return {"tool": name, "streams": streams, "tokens_s": None, "ok": False}
    mean_ttft, mean_tpot = sum(own_ttft) / len(own_ttft), sum(own_tpot) / len(own_tpot)
    ttft = sum(one.ttft for one in seen) / len(seen) - mean_ttft
    tpot = sum(one.tpot for one in seen) / len(seen) / mean_tpot - 1
    span = (max(row["last_ns"] for row in sent) - min(row["first_ns"] for row in sent)) / 1e9
    paced = mean_tpot * 1000 < tpot_ms * 1.05
    return {
        "tool": name,
        "streams": streams,
        "tokens_s": round(sum(row["tokens"] for row in sent) / span),
        "ttft_error_ms": round(ttft * 1000, 3),
        "tpot_error_pct": round(tpot * 100, 3),
        "source_kept_pace": paced,
        "ok": paced and abs(tpot) <= 0.005 and abs(ttft) <= max(0.002, 0.02 * mean_ttft),
    }


def table(value: Mapping[str, Any]) -> str:
    """The agreement as Markdown."""
    lines = ["| tool | tokens exact | TTFT ms | TPOT ms | TTFT ratio | TPOT ratio |", "|---|---|---|---|---|---|"]
    for row in value["rows"]:

        def ratio(metric: str, row: Mapping[str, Any] = row) -> str:
            if f"{metric}_ratio" not in row:
                return "—"
            low, high = row[f"{metric}_ci"] or (math.nan, math.nan)
            return f"{row[f'{metric}_ratio']:.3f} ({low:.3f} to {high:.3f}), {row[f'{metric}_word']}"

        exact = "yes" if row["counts_exact"] else "no"
        figures = f"{row['ttft_ms']:.1f} | {row['tpot_ms']:.2f}"
        lines.append(f"| {row['tool']} | {exact} | {figures} | {ratio('ttft')} | {ratio('tpot')} |")
    return "\n".join(lines)


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("agree")
    one.add_argument("url")
    one.add_argument("model")
    one.add_argument("--blocks", type=int, default=12)
    one.add_argument("--requests", type=int, default=4)
    one.add_argument("--words", type=int, default=48)
    one.add_argument("--tokens", type=int, default=24)
    two = commands.add_parser("capacity")
    two.add_argument("--streams", type=int, nargs="+", default=[16, 32, 64, 128, 192, 256, 384, 512])
    two.add_argument("--tpot-ms", type=float, default=20.0)
    two.add_argument("--tokens", type=int, default=100)
    two.add_argument("--port", type=int, default=8737)
    for command in (one, two):
        command.add_argument("--vllm-python", help="an engine's interpreter")
        command.add_argument("--guidellm", help="the guidellm command")
        command.add_argument("--tokenizer", default="", help="a tokenizer folder for guidellm")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--out", type=Path, help="write the result as JSON")
    args = parser.parse_args()
    value = agree(args) if args.command == "agree" else capacity(args)
    if args.out:
        args.out.write_text(json.dumps(value, indent=1) + "\n")
    print(table(value) if args.command == "agree" else json.dumps(value["tokens_per_s"], indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
