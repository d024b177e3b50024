"""Runs the console on a GPU, stage by stage, and writes every answer to a folder.

    python tests/gpu/run_gpu.py --models FOLDER --out FOLDER look start speed small stranger together

FOLDER of models holds what `make_models.py` made, `smol-bf16` and `smol-w4a16` among them for `small`. Every stage uses
the installed `vq-console` as a person would, stops what it started, and goes on after a failure. `--engine simulator`
rehearses all of it without a GPU. The console keeps its state under `$VQ_CONSOLE_HOME`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENV = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
DUMMY = {"load_format": "dummy"}
SPEED = {**DUMMY, "max_model_len": 4096, "max_num_seqs": 128, "gpu_memory_utilization": 0.28}
SMALL = {"max_model_len": 4096, "max_num_seqs": 64, "enforce_eager": True}
FIT = {**DUMMY, "max_model_len": 4096, "enforce_eager": True}


def _fit(share: float, **more: Any) -> dict[str, Any]:
    return {**FIT, "gpu_memory_utilization": share, **more}


PROFILES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "speed-fp8": ("l8b", {**SPEED, "quantization": "fp8_per_tensor"}),
    "speed-w4a16": ("l8b-w4a16", SPEED),
    "speed-bf16": ("l8b", SPEED),
    "small-bf16": ("smol-bf16", SMALL),
    "small-fp8": ("smol-bf16", {**SMALL, "quantization": "fp8_per_tensor"}),
    "small-w4a16": ("smol-w4a16", SMALL),
    "small-fp8kv": ("smol-bf16", {**SMALL, "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.03}),
    "fit-nvfp4": ("l8b-nvfp4", _fit(0.045)),
    "fit-fp8-block": ("l8b", _fit(0.075, quantization="fp8_per_block")),
    "fit-fp8-channel-fp8kv": ("l8b", _fit(0.075, quantization="fp8_per_channel", kv_cache_dtype="fp8")),
    "fit-moe-fp8": ("moe", _fit(0.05, quantization="fp8_per_tensor")),
    "fit-mla-bf16": ("mla", _fit(0.085)),
    "fit-window-and-full": ("gemma3", _fit(0.045)),
    "fit-window-only": ("mistral-window", _fit(0.06, max_model_len=8192)),
    "fit-tied-4b": ("qwen3-4b", _fit(0.075)),
    "fit-tied-05b": ("qwen25-05b", _fit(0.025)),
}
"""Name → model folder and arguments. The shares of `fit-…` leave room for each other and for the small servers."""
STAGES = ("look", "start", "speed", "bf16", "small", "stranger", "together", "agree")
READY, OVER = "ready", ("failed", "stopped", "unresponsive")


@dataclass
class Run:
    """One round: where things lie, and what was said so far."""

    models: Path
    out: Path
    engine: str | None
    started: float = field(default_factory=time.monotonic)
    number: int = 0

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.started:6.1f}] {text}"
        print(line, flush=True)
        with open(self.out / "summary.txt", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def profile(self, name: str) -> str:
        return str(self.models / "profiles" / f"{name}.toml")

    def vq(self, label: str, *words: str, timeout_s: float = 300.0, engine: bool = False) -> Any:
        """Run `vq-console … --json`; its answer and messages are kept. None where it gave none."""
        more = ["--engine", self.engine] if engine and self.engine else []
        return self.command(label, [sys.executable, "-m", "vq_console", *words, *more, "--json"], timeout_s=timeout_s)

    def command(self, label: str, argv: Sequence[str], *, timeout_s: float = 300.0) -> Any:
        """Run any command; its output parsed as JSON where it is, else as text."""
        self.number += 1
        stem = self.out / f"{self.number:02d}-{label}"
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


def write_profiles(run: Run) -> None:
    """Every profile of the round, beside the models."""
    import tomli_w

    folder = run.models / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (model, args) in PROFILES.items():
        value = {"name": name, "model": str(run.models / model), "args": dict(args), "env": ENV}
        (folder / f"{name}.toml").write_text(tomli_w.dumps(value))


def look(run: Run) -> None:
    """The machine, the engine, its catalogue, and what preflight says of every profile."""
    keys = "name,uuid,compute_cap,memory.total,memory.used,power.draw,clocks.sm,clocks.mem,temperature.gpu"
    with contextlib.suppress(OSError):
        said = run.command("nvidia-smi", ["nvidia-smi", f"--query-gpu={keys},driver_version", "--format=csv,noheader"])
        run.say(f"  nvidia-smi {str(said).strip()}")
    for gpu in (run.vq("detect", "detect") or {}).get("gpus", ()):
        run.say(f"  detect {json.dumps({k: v for k, v in gpu.items() if k != 'processes'})[:700]}")
    for engine in (run.vq("engines", "engines", "list") or {}).get("engines", ()):
        words = {k: engine.get(k) for k in ("python", "vllm_version", "device", "origin", "problem")}
        run.say(f"  engine {words}")
    found = run.vq("catalog", "engines", "catalog") or {}
    if isinstance(found, dict):
        sizes = {key: len(value) for key, value in found.items() if isinstance(value, (list, dict))}
        run.say(f"  catalogue {found.get('vllm_version')} from {found.get('origin')}: {sizes}")
    for name, (model, _) in PROFILES.items():
        if (run.models / model).is_dir():
            _lint(run, name)


def _lint(run: Run, name: str) -> None:
    told = run.vq(f"lint-{name}", "lint", run.profile(name), engine=True, timeout_s=60)
    if not isinstance(told, dict):
        return
    plan = told["plan"]
    layers = [f"{row['kind']}×{row['count']} {row['kernel']} ({row['grade']})" for row in plan["layers"]]
    fit = plan["fit"]
    run.say(f"  {[(f['rule'], f['severity']) for f in told['findings']]} {layers}")
    run.say(f"  weights {fit['weights_gib']} GiB, KV {fit['kv_gib']} GiB, {fit['kv_tokens']} tokens")


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


def _told(run: Run, answer: Any) -> None:
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


def start(run: Run) -> None:
    """Both 8B servers, without waiting: the second queues behind the first."""
    for name in ("speed-fp8", "speed-w4a16"):
        run.vq(f"serve-{name}", "serve", run.profile(name), engine=True, timeout_s=60)
    servers(run, "ps-start", quiet=True)


def speed(run: Run) -> None:
    """FP8 against INT4 on the 8B shape, co-resident; servers that run already are taken as they are."""
    found = servers(run, "ps-found", quiet=True)
    if {"speed-fp8", "speed-w4a16"} <= set(found):
        _wait(run, ("speed-fp8", "speed-w4a16"), 300)
        arms = ["server:speed-fp8", "server:speed-w4a16"]
    else:
        arms = [run.profile("speed-fp8"), run.profile("speed-w4a16")]
    minutes = os.environ.get("SPEED_MINUTES", "3.5")
    answer = run.vq(
        "ab-speed", "ab", *arms, "--quick", "--latency", "--levels", "1,8,32,64", "--latency-minutes", minutes,
        "--keep", "--seed", "1", engine=True, timeout_s=520,
    )  # fmt: skip
    _told(run, answer)
    servers(run, "ps-speed")


def bf16(run: Run) -> None:
    """BF16 against FP8, FP8's server as `speed` left it where it still runs."""
    live = {name for name, row in servers(run, "ps-before", quiet=True).items() if row["state"] == READY}
    other = "server:speed-fp8" if "speed-fp8" in live else run.profile("speed-fp8")
    answer = run.vq(
        "ab-bf16", "ab", run.profile("speed-bf16"), other, "--quick", "--latency", "--levels", "1,8,32,64",
        "--latency-minutes", "2.5", "--seed", "2", engine=True, timeout_s=420,
    )  # fmt: skip
    _told(run, answer)
    stop_all(run)


def small(run: Run) -> None:
    """FP8 against INT4 on SmolLM2 with a BF16 baseline, three servers on what is free: shares planned, quality."""
    answer = run.vq(
        "ab-small", "ab", run.profile("small-fp8"), run.profile("small-w4a16"), "--quick", "--quality", "--baseline",
        run.profile("small-bf16"), "--quality-minutes", "1.5", "--keep", "--seed", "3", engine=True, timeout_s=400,
    )  # fmt: skip
    _told(run, answer)
    servers(run, "ps-small")


def pairs(run: Run) -> None:
    """Each quantized SmolLM2 against BF16, then the FP8 KV cache with needle and multi-turn tasks on and off."""
    live = {name for name, row in servers(run, "ps-pairs", quiet=True).items() if row["state"] == READY}
    for name in ("small-fp8", "small-w4a16", "small-fp8kv"):
        if {name, "small-bf16"} <= live:
            words = ["ab", "server:small-bf16", f"server:{name}", "--quick", "--quality", "--quality-minutes", "1"]
            words += ["--declare", "gpu_memory_utilization", "--seed", "4"]
            _told(run, run.vq(f"ab-{name}-bf16", *words, timeout_s=120))
    for name in sorted(live & {"small-bf16", "small-fp8kv"}):
        words = ["tasks", "run", f"server:{name}", "--needle", "2048", "--count", "40", "--task", "recall"]
        told = run.vq(f"tasks-{name}", *words, timeout_s=90)
        run.say(f"  {json.dumps(told)[:900]}")


def stop_all(run: Run) -> None:
    run.vq("stop", "stop", "--all", timeout_s=150)
    run.say(f"  GPU memory used after stopping: {_used(run)}")


def _used(run: Run) -> str:
    try:
        argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip().replace("\n", ", ")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


_HOLD = """
import sys, time, torch
x = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda"); x.fill_(1); torch.cuda.synchronize()
print("held", flush=True); time.sleep(600)
"""


def stranger(run: Run) -> None:
    """A foreign program holds memory: who says so, and whether a start is refused."""
    process = None
    try:
        argv = [sys.executable, "-c", _HOLD, "50"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if process.stdout is not None and process.stdout.readline().strip() == "held":
            run.say(f"  stranger pid {process.pid} holds 50 GiB; used {_used(run)}")
            seen = run.vq("detect-stranger", "detect") or {}
            run.say(f"  detect {[gpu['processes'] for gpu in seen.get('gpus', ())]}")
            left = run.vq("reap-stranger", "reap") or {}
            run.say(f"  reap {left.get('strangers')}")
            told = run.vq("lint-stranger", "lint", run.profile("small-bf16"), engine=True) or {}
            run.say(f"  lint {[(f['rule'], f['severity'], f['message']) for f in told.get('findings', ())]}")
            words = ("serve", run.profile("small-bf16"), "--name", "refused")
            run.vq("serve-stranger", *words, engine=True, timeout_s=60)
    finally:
        if process is not None:
            process.kill()
            process.wait()


def kill(run: Run, name: str) -> None:
    """Kill the API server of `name`: what the console says, and whether the memory of its GPU comes back."""
    victim = servers(run, "ps-victim", quiet=True).get(name, {})
    if victim.get("state") != READY:
        return
    before, at = _used(run), time.monotonic()
    os.kill(int(victim["pid"]), signal.SIGKILL)
    now: dict[str, Any] = {}
    while time.monotonic() - at < 60 and now.get("state") not in OVER:
        now = {s["name"]: s for s in (run.vq("ps-killed", "ps") or {}).get("servers", ())}.get(name, {})
    run.say(f"  killed API server: {now.get('state')} after {time.monotonic() - at:.1f} s, {now.get('reason')}")
    run.say(f"  memory {before} before, {_used(run)} after; incident {now.get('incident')}")


def _wait(run: Run, names: Sequence[str], timeout_s: float) -> None:
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


def together(run: Run) -> None:
    """Shapes start one after another while the small servers, which hold their memory by now, answer quality checks."""
    for name in ("speed-fp8", "speed-w4a16"):
        if name in servers(run, "ps-together", quiet=True):
            run.vq(f"stop-{name}", "stop", name, timeout_s=90)
    run.say(f"  GPU memory used after stopping two: {_used(run)}")
    run.vq("serve-small-fp8kv", "serve", run.profile("small-fp8kv"), "--wait", engine=True, timeout_s=150)
    names = [name for name in PROFILES if name.startswith("fit-") and (run.models / PROFILES[name][0]).is_dir()]
    for name in names:
        run.vq(f"serve-{name}", "serve", run.profile(name), engine=True, timeout_s=60)
    pairs(run)
    _wait(run, names, float(os.environ.get("FIT_SECONDS", "300")))
    fit(run, names)
    kill(run, "fit-tied-05b")
    stop_all(run)


def fit(run: Run, names: Sequence[str]) -> None:
    """What preflight said beside what vLLM then reported."""
    found = servers(run, "ps-fit")
    table = []
    for name in names:
        server = found.get(name)
        if server is None or not server.get("log"):
            continue
        plan = json.loads((Path(server["log"]).parent / "server.json").read_text())["plan"]["fit"]
        facts = server["facts"]
        pairs = {
            "weights_gib": (plan["weights_gib"], facts.get("model_load_gib")),
            "kv_gib": (plan["kv_gib"], facts.get("kv_cache_gib")),
            "kv_tokens": (plan["kv_tokens"], facts.get("kv_cache_tokens")),
        }
        table.append({"profile": name, **pairs})
        ratios = {key: f"{a} / {b}{f' ({a / b - 1:+.1%})' if a and b else ''}" for key, (a, b) in pairs.items()}
        run.say(f"  fit {name}: {ratios}")
    (run.out / "fit.json").write_text(json.dumps(table, indent=1))


def agree(run: Run) -> None:
    """The console's load generator beside `vllm bench serve` on one server."""
    run.vq("serve-agree", "serve", run.profile("small-bf16"), "--wait", engine=True, timeout_s=200)
    server = servers(run, "ps-agree").get("small-bf16", {})
    if server.get("state") == READY:
        script = Path(__file__).parents[1] / "benchmarks" / "load_generators.py"
        argv = [sys.executable, str(script), "agree", str(server["url"]), str(server["model"]), "--vllm-python"]
        said = run.command("agree", [*argv, sys.executable], timeout_s=280)
        run.say(f"  {str(said)[-1500:]}")
    stop_all(run)


def pack(run: Run) -> None:
    """Everything that the console wrote, without what is large or of no use elsewhere."""
    home = Path(os.environ["VQ_CONSOLE_HOME"])
    with tarfile.open(run.out.with_suffix(".tar.gz"), "w:gz", compresslevel=5) as tar:
        for folder in (run.out, home / "state", run.models / "profiles"):
            if folder.exists():
                tar.add(folder, arcname=folder.name, filter=lambda item: item if item.size < 40_000_000 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(args.models.resolve(), args.out.resolve(), args.engine)
    write_profiles(run)
    for stage in args.stages:
        run.say(f"== {stage}")
        try:
            globals()[stage](run)
        except Exception as error:
            run.say(f"  {stage} broke off: {error!r}")
        pack(run)


if __name__ == "__main__":
    main()
