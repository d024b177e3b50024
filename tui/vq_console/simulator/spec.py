"""What a simulated engine is told to be: timing, distribution, log and faults, from `VQ_SIM_SPEC` and serve flags.

Only reads and checks values; starts nothing. Times are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError
from vq_console.core.text import nearest

SPEC_VARIABLE = "VQ_SIM_SPEC"

H200_TPOT_MS: Mapping[str, Mapping[int, float]] = {
    "h200-bf16": {1: 4.58, 8: 4.78, 32: 5.40, 64: 6.41},
    "h200-fp8": {1: 3.18, 8: 3.35, 32: 4.58, 64: 4.87},
    "h200-fp8-block": {1: 3.30, 8: 3.50, 32: 4.60, 64: 5.00},
    "h200-w4a16": {1: 3.52, 8: 3.71, 32: 4.56, 64: 6.31},
}
"""Milliseconds per decode step by batch, recorded on one H200 with an 8B shape (FP8 per block is a guess)."""

CPU_TPOT_MS: Mapping[int, float] = {1: 110.0, 4: 150.0, 16: 330.0}


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Off is None or False; a number says after how many tokens, requests or seconds."""

    die_loading: bool = False
    """Replays a failing log and exits 1."""
    die_first_token: bool = False
    """Says ready, then the engine dies at the first request and the process ends as vLLM does."""
    ignore_sigterm: bool = False
    hang_after: int | None = None
    """After so many requests no token comes any more, while /health still answers."""
    exit_zero_after: int | None = None
    """The engine process dies after so many requests; the server then ends with exit code 0."""
    grandchild: bool = False
    """A descendant in a session of its own ignores SIGTERM and outlives the server."""
    orphan_engine: bool = False
    """The engine process stays when the API server is killed, as vLLM's does."""
    flood_lines_s: float | None = None
    """So many extra log lines each second."""
    loops_after: int | None = None
    """From this output token on the last four tokens repeat for ever."""
    needle_beyond: int | None = None
    """Scripted answers are wrong when the prompt is longer than this many tokens."""
    multi_turn_garbage: bool = False
    """From the second user turn on the answer is garbage."""
    flip: float | None = None
    """This share of the scripted answers is the opposite of what it would be without the fault."""
    slow_first_token_s: float | None = None
    """The very first request waits so long, as a kernel that compiles does."""
    short: float | None = None
    """This share of requests ends before its length is reached."""
    error: float | None = None
    """This share of requests is answered with HTTP 500."""
    preempt: float | None = None
    """This share of requests is preempted once: counted, and its prefill done again."""


@dataclass(frozen=True, slots=True)
class SimSpec:
    """Everything programmable. `tpot_ms` is one figure or a table from batch size to figure, interpolated."""

    script: str = "h200-fp8"
    version: str | None = None
    """The vLLM version to claim; None is the one of the log script."""
    startup_s: float | None = 3.0
    """Seconds until ready; None keeps the pace of the recorded log."""
    seed: int = 0
    """Of the timing."""
    ttft_ms: float = 20.0
    prefill_ms_per_1k: float = 12.0
    """Added to TTFT for each 1,000 prompt tokens that are not cached."""
    ttft_sd: float = 0.05
    """Standard deviation of ln TTFT between requests."""
    tpot_ms: float | Mapping[int, float] | None = None
    """None is the table of the script."""
    tpot_factor: float = 1.0
    tpot_request_sd: float = 0.02
    """Standard deviation of ln TPOT between requests."""
    tpot_token_sd: float = 0.05
    """Standard deviation of ln of single gaps within a request."""
    hiccup_share: float = 0.0
    hiccup_ms: float = 0.0
    drift_per_minute: float = 0.0
    """Relative slow-down of TTFT and TPOT per minute since ready."""
    keepalive_stall_ms: float = 0.0
    """Added to TTFT of every request but the first of a connection, as Nagle and delayed ACK do."""
    tokens_per_chunk: int = 1
    kv_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Replacements in the log, from a recorded kernel class to the one to show."""
    prefix_caching: bool = True
    vllm_fields: bool = True
    """False refuses vLLM-only request fields and routes, as another server would."""
    usage: bool = True
    """False leaves the usage out of streams."""
    vocabulary_seed: int = 0
    """Two servers with the same seed share tokenizer and base distribution."""
    kl: float = 0.0
    """Mean KL divergence in nats per token between the base distribution and the one of this server."""
    kl_spread: float = 1.0
    """Standard deviation of ln of the per-position divergence."""
    kl_seed: int = 1
    jitter_kl: float = 0.0
    """Divergence of a random part that differs from request to request: what batching does to real engines."""
    answers: str | None = None
    """JSONL of scripted answers: `{"match": text in the last user turn, "answer": …, "wrong": …}`."""
    accuracy: float = 1.0
    """Share of scripted answers that are right before any fault."""
    send_log: str | None = None
    """Where to write send times, one JSON object per request."""
    engine_process: bool = True
    """Start a child that looks like VLLM::EngineCore."""
    worker_process: bool | None = None
    """Start a VLLM::Worker below it; None does so for the CPU scripts, as vLLM does."""
    shm: bool = False
    """Keep a small /dev/shm segment mapped in the engine process."""
    access_log: bool = True
    stats_interval_s: float = 10.0
    ready_delay_s: float = 0.0
    faults: Faults = field(default_factory=Faults)

    @property
    def device(self) -> str:
        """`CPU` or `GPU`, as vLLM's own lines say it."""
        return "CPU" if self.script.startswith("cpu") else "GPU"

    def tpot_at(self, batch: int) -> float:
        """Milliseconds per token with `batch` requests decoding: linear between the table's points, flat outside."""
        table = self.tpot_ms
        if table is None:
            table = H200_TPOT_MS.get(self.script, CPU_TPOT_MS if self.device == "CPU" else H200_TPOT_MS["h200-fp8"])
        if not isinstance(table, Mapping):
            return table * self.tpot_factor
        points = sorted(table.items())
        if batch <= points[0][0]:
            return points[0][1] * self.tpot_factor
        for (low, at_low), (high, at_high) in itertools.pairwise(points):
            if batch <= high:
                return (at_low + (at_high - at_low) * (batch - low) / (high - low)) * self.tpot_factor
        return points[-1][1] * self.tpot_factor


def _checked(kind: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {item.name for item in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            hint = nearest(key, known)
            raise UsageError(f"{where}: unknown key {key!r}", f"Did you mean {hint!r}?" if hint else "")
    return dict(values)


def spec_from(values: Mapping[str, Any], where: str = SPEC_VARIABLE) -> SimSpec:
    """A specification from a mapping; unknown keys raise UsageError with the nearest spelling."""
    fields = _checked(SimSpec, values, where)
    if "faults" in fields:
        fields["faults"] = Faults(**_checked(Faults, fields["faults"], f"{where}: faults"))
    if isinstance(fields.get("tpot_ms"), Mapping):
        fields["tpot_ms"] = {int(batch): float(value) for batch, value in fields["tpot_ms"].items()}
    spec = SimSpec(**fields)
    if spec.faults.die_loading and "script" not in fields:
        spec = dataclasses.replace(spec, script="fail-kv-too-small")
    if spec.faults.die_first_token and "script" not in fields:
        spec = dataclasses.replace(spec, script="cpu-w4a16-kernel-absent")
    return spec


def read_spec(text: str | None) -> dict[str, Any]:
    """The mapping behind `VQ_SIM_SPEC`: inline JSON, or the path of a TOML or JSON file. Raises UsageError."""
    if not text:
        return {}
    try:
        if text.lstrip().startswith("{"):
            value = json.loads(text)
        elif text.endswith(".json"):
            value = json.loads(Path(text).read_text())
        else:
            value = tomllib.loads(Path(text).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{SPEC_VARIABLE}: {error}", "Give inline JSON or the path of a TOML or JSON file.") from error
    if not isinstance(value, dict):
        raise UsageError(f"{SPEC_VARIABLE}: an object was expected")
    return value


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """What `vllm serve` was asked: the model and every flag by name with underscores."""

    model: str
    flags: Mapping[str, Any]

    def text(self, name: str, default: str) -> str:
        """A flag's first value as text."""
        value = self.flags.get(name, default)
        return str(value[0] if isinstance(value, list) else value)

    def number(self, name: str) -> int | None:
        """A flag's value as a whole number, with vLLM's k and K suffixes; None where absent or `auto`."""
        if name not in self.flags:
            return None
        text = self.text(name, "")
        scale = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}.get(text[-1:], 1)
        try:
            return int(float(text.rstrip("kKmM")) * scale)
        except ValueError:
            return None


_FLAG = re.compile(r"--|-[A-Za-z]")


def parse_serve(argv: Sequence[str]) -> ServeArguments:
    """Flags as vLLM writes them (`--a=b`, `--a b c`, bare, `--no-a`), every name accepted. Raises UsageError."""
    flags: dict[str, Any] = {}
    free: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if not word.startswith("-") or word == "-":
            free.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = {"tp": "tensor_parallel_size", "q": "quantization"}.get(name, name).replace("-", "_")
        if equals:
            flags[name] = value
            continue
        values: list[str] = []
        while index < len(argv) and not _FLAG.match(argv[index]):
            values.append(argv[index])
            index += 1
        if not values:
            flags[name.removeprefix("no_")] = not name.startswith("no_")
        else:
            flags[name] = values[0] if len(values) == 1 else values
    model = free[0] if free else flags.get("model")
    if not isinstance(model, str):
        raise UsageError("serve: a model is missing", "python -m vq_console.simulator serve MODEL [flags]")
    return ServeArguments(model, flags)


def guess_script(arguments: ServeArguments) -> str:
    """The log that fits the model's name and flags best, for a server started without a specification."""
    words = f"{arguments.model} {arguments.text('quantization', '')}".lower()
    if "cpu" in words or "int8" in words or "w8a8" in words:
        return "cpu-int8"
    if any(word in words for word in ("w4a16", "int4", "awq", "gptq")):
        return "h200-w4a16"
    if "block" in words:
        return "h200-fp8-block"
    return "h200-fp8" if "fp8" in words else "h200-bf16"


def spec_for(arguments: ServeArguments, environment: Mapping[str, str] = os.environ) -> SimSpec:
    """The specification of one server: environment first, then what the flags say about limits and caching."""
    values = read_spec(environment.get(SPEC_VARIABLE))
    faults = values.get("faults") or {}
    if "script" not in values and not (faults.get("die_loading") or faults.get("die_first_token")):
        values["script"] = guess_script(arguments)
    spec = spec_from(values)
    changes: dict[str, Any] = {}
    if (length := arguments.number("max_model_len")) is not None and spec.max_model_len is None:
        changes["max_model_len"] = length
    if (sequences := arguments.number("max_num_seqs")) is not None:
        changes["max_num_seqs"] = sequences
    if arguments.flags.get("enable_prefix_caching") is False:
        changes["prefix_caching"] = False
    if (interval := arguments.number("stream_interval")) is not None:
        changes["tokens_per_chunk"] = interval
    return dataclasses.replace(spec, **changes)
