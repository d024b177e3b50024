"""What `serve --wait` and `logs` print: phases with seconds, the facts of a ready server, log lines made safe."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator

from vq_console.commands.common import say
from vq_console.core.errors import MissingError
from vq_console.core.text import redact, seconds_text, strip_control
from vq_console.serving.control import reread, wait_ready
from vq_console.serving.model import LIVE, ServerRecord, ServerState
from vq_console.serving.view import read_log, server_json


def follow_start(name: str) -> ServerRecord:
    """Wait for the first token, saying each phase once it is over. Raises LaunchError with the diagnosis."""
    began = time.monotonic()
    phase, since, looked, from_log = "", began, 0.0, ""

    def tell(record: ServerRecord) -> None:
        nonlocal phase, since, looked, from_log
        now = time.monotonic()
        if record.state is ServerState.STARTING and now - looked >= 0.5:
            seen = read_log(record)
            looked, from_log = now, seen.phase if seen else ""
        present = record.phase or record.state.value
        if record.state is ServerState.STARTING and record.phase == "loading" and from_log:
            present = "listening" if from_log == "ready" else from_log
        if present != phase:
            if phase and now - since >= 0.05:
                say(f"  {now - since:6.1f} s  {strip_control(phase)}")
            phase, since = present, now
            if phase.startswith("waiting"):
                say(f"            {strip_control(phase)}")

    try:
        record = wait_ready(name, on_progress=tell)
    except KeyboardInterrupt:
        say(f"{name} goes on starting: `vq-console logs {name} -f` follows it, `vq-console stop {name}` ends it")
        raise
    say(f"ready after {seconds_text(time.monotonic() - began)}: one token came out")
    return record


def summary(record: ServerRecord) -> str:
    """What a ready server runs: address, method, kernels, attention, KV cache, start-up time."""
    seen = read_log(record)
    facts = dict(seen.facts) if seen else {}
    rows = [("address", f"{record.url}/v1   model {record.model}")]
    if facts.get("quantization"):
        rows.append(("method", str(facts["quantization"])))
    rows += [("kernel", f"{kernel['kernel']} for {kernel['module']}") for kernel in facts.get("kernels") or []]
    rows += [
        (
            "expected",
            f"{row['expected'] or 'nothing'} for {row['kind']}, runs {row['selected'] or 'unknown'}: {row['detail']}",
        )
        for row in server_json(record)["asked_vs_runs"]
        if row["alarm"]
    ]
    for key, label in (("attention_backend", "attention"), ("moe_backend", "MoE")):
        if facts.get(key):
            rows.append((label, str(facts[key])))
    if facts.get("kv_cache_tokens"):
        more = f", {facts['max_concurrency']:g} requests at full length" if facts.get("max_concurrency") else ""
        kind = f" ({facts['kv_cache_dtype']})" if facts.get("kv_cache_dtype") else ""
        rows.append(("KV cache", f"{facts['kv_cache_tokens']:,} tokens{kind}{more}"))
    if facts.get("model_load_gib"):
        rows.append(("weights", f"{facts['model_load_gib']:g} GiB"))
    if seen and seen.phases:
        rows.append(("start-up", ", ".join(f"{phase.name} {phase.seconds:.0f} s" for phase in seen.phases)))
    if seen and seen.diagnosis.severity == "warning":
        rows.append(("warning", f"{seen.diagnosis.slug}: {seen.diagnosis.title}"))
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label.ljust(width)}  {strip_control(text)}" for label, text in rows)


def safe(line: str) -> str:
    """A log line as it may be shown: no control sequences, no secrets."""
    return redact(strip_control(line))


def log_lines(record: ServerRecord, *, head: int | None, tail: int | None) -> Iterator[str]:
    """The wanted lines (all without `head` and `tail`), safe to show. Raises MissingError when there is no log."""
    if tail is not None:
        from vq_console.logs.tail import TailIndex

        try:
            lines: Iterable[str] = TailIndex(_path(record)).last(tail).lines
        except OSError as error:
            raise _absent(record, error) from error
    else:
        lines = itertools.islice(_lines(record), head)
    for line in lines:
        yield safe(line)


def _path(record: ServerRecord) -> str:
    if not record.log:
        raise MissingError(f"{record.name} has no log that this machine can read", "its own machine has it")
    return record.log


def _absent(record: ServerRecord, error: OSError) -> MissingError:
    return MissingError(f"{record.log}: {error.strerror}", "the server may not have begun yet")


def _lines(record: ServerRecord) -> Iterator[str]:
    try:
        with open(_path(record), encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                yield line.rstrip("\n")
    except OSError as error:
        raise _absent(record, error) from error


def print_log(record: ServerRecord, *, head: int | None, tail: int | None, follow: bool) -> None:
    """Print the wanted lines to standard output; with `follow` go on until the server is over."""
    import os

    from vq_console.logs.follow import LogFollower
    from vq_console.serving.containers import container_of, follow_log, refresh_log

    refresh_log(record)
    path = _path(record)
    size = os.stat(path).st_size if os.path.exists(path) else 0
    if size or not follow:
        for line in log_lines(record, head=head, tail=tail):
            print(line, flush=follow)
    container = container_of(record) if follow else None
    if container is not None:
        for line in follow_log(container):
            print(safe(line), flush=True)
        return
    follower = LogFollower(path, size)
    while follow:
        lines = follower.read()
        for line in lines:
            print(safe(line), flush=True)
        if not lines:
            record = reread(record)
            if record.state not in LIVE:
                say(f"{record.name} is {record.state.value}: {record.reason}")
                return
            time.sleep(0.2)
