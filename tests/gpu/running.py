"""One round of the console on a GPU: its commands as a person would type them, every answer kept in a folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY, OVER = "ready", ("failed", "stopped", "unresponsive")


@dataclass
class Run:
    """One round: where things lie, and what was said so far."""

    models: Path
    out: Path
    engine: str | None
    started: float = field(default_factory=time.monotonic)
    number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.started:6.1f}] {text}"
        with self.lock, open(self.out / "summary.txt", "a", encoding="utf-8") as file:
            print(line, flush=True)
            file.write(line + "\n")

    def lane(self, gpu: str) -> list[str]:
        """The words that pin a server to a GPU; none where there is no GPU, as in a rehearsal."""
        return ["--gpus", gpu] if shutil.which("nvidia-smi") else []

    def profile(self, name: str) -> str:
        return str(self.models / "profiles" / f"{name}.toml")

    def vq(self, label: str, *words: str, timeout_s: float = 300.0, engine: bool = False) -> Any:
        """Run `vq-console … --json`; its answer and messages are kept. None where it gave none."""
        more = ["--engine", self.engine] if engine and self.engine else []
        return self.command(label, [sys.executable, "-m", "vq_console", *words, *more, "--json"], timeout_s=timeout_s)

    def command(self, label: str, argv: Sequence[str], *, timeout_s: float = 300.0) -> Any:
        """Run any command; its output parsed as JSON where it is, else as text."""
        with self.lock:
            self.number += 1
            stem = self.out / f"{self.number:03d}-{label}"
        began = time.monotonic()
        process = subprocess.Popen(list(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, errors = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
        seconds = time.monotonic() - began
        stem.with_name(f"{stem.name}.out").write_text(output)
        stem.with_name(f"{stem.name}.err").write_text(errors)
        last = errors.strip().split("\n")[-1][:300]
        self.say(f"{label}: exit {process.returncode}, {seconds:.1f} s{f' · {last}' if process.returncode else ''}")
        try:
            return json.loads(output)
        except ValueError:
            return output or None


def servers(run: Run, label: str, *, quiet: bool = False) -> dict[str, dict[str, Any]]:
    """`ps --json` by name, with some lines for each that is not stopped."""
    found = {server["name"]: server for server in (run.vq(label, "ps") or {}).get("servers", ())}
    for server in () if quiet else found.values():
        if server["state"] == "stopped":
            continue
        facts = server["facts"]
        keys = ("vllm_version", "attention_backend", "model_load_gib", "kv_cache_tokens", "kv_cache_gib", "moe_backend")
        run.say(f"  {server['name']}: {server['state']}, {server['diagnosis']}, { ({k: facts.get(k) for k in keys}) }")
        for row in server["asked_vs_runs"]:
            alarm = " ALARM" if row["alarm"] else ""
            run.say(f"    {row['kind']}: expected {row['expected']}, runs {row['selected']} ({row['grade']}){alarm}")
        if server["state"] in OVER:
            run.say(f"    {server['reason']} · {json.dumps(server['problem'])[:300]}")
    return found


def told(run: Run, answer: Any) -> None:
    if not isinstance(answer, dict) or "verdict" not in answer:
        return
    for key, text in answer["verdict"].items():
        run.say(f"  {key}: {text}")
    for row in (answer.get("latency") or {}).get("endpoints", ()):
        numbers = {
            k: row.get(k) for k in ("metric", "concurrency", "a", "b", "ratio", "ci", "pairs", "word", "primary")
        }
        run.say(f"  {json.dumps(numbers)}")
    quality = answer.get("quality") or {}
    for key in ("word", "kld", "top1_agreement", "ppl_ratio", "divergence", "health", "against_baseline", "arms"):
        if key in quality:
            run.say(f"  quality {key}: {json.dumps(quality[key])[:330]}")
    for flag in answer.get("validity", ()):
        run.say(f"  note {flag['flag']}: {flag['detail']}")
    for key, value in answer.get("memory", {}).items():
        run.say(f"  memory {key}: {value}")


def used(run: Run) -> str:
    try:
        argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip().replace("\n", ", ")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def wait(run: Run, names: Sequence[str], timeout_s: float) -> None:
    """Until every named server is ready or over; says each change of state or phase."""
    deadline = time.monotonic() + timeout_s
    last: dict[str, tuple[Any, Any]] = {}
    while time.monotonic() < deadline:
        argv = [sys.executable, "-m", "vq_console", "ps", "--json"]
        try:
            said = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
            found = {server["name"]: server for server in json.loads(said)["servers"]}
        except (ValueError, subprocess.SubprocessError):
            found = {}
        for name in names:
            state = (found.get(name, {}).get("state"), found.get(name, {}).get("phase"))
            if state != last.get(name):
                last[name] = state
                run.say(f"    {name}: {state[0]}{f', {state[1]}' if state[1] else ''}")
        if all(last.get(name, ("", ""))[0] in (READY, *OVER) for name in names):
            return
        time.sleep(1.0)


def pack(run: Run) -> None:
    """Everything that the console wrote, without what is large or of no use elsewhere."""
    home = Path(os.environ["VQ_CONSOLE_HOME"])
    with tarfile.open(run.out.with_suffix(".tar.gz"), "w:gz", compresslevel=5) as tar:
        for folder in (run.out, home / "state", run.models / "profiles"):
            if folder.exists():
                tar.add(folder, arcname=folder.name, filter=lambda item: item if item.size < 40_000_000 else None)
