"""Runs the console on one or two GPUs, stage by stage, and writes every answer to a folder.

    python tests/gpu/run_gpu.py --models FOLDER --out FOLDER look lanes apart

FOLDER of models holds what `make_models.py` made, `smol-bf16` and `smol-w4a16` among them. Every stage uses the
installed `vq-console` as a person would, stops what it started, and goes on after a failure. `--engine simulator`
rehearses all of it without a GPU. The console keeps its state under `$VQ_CONSOLE_HOME`.

`look`: machine, engine, catalogue, preflight of every profile. `first` (speed of FP8 against INT4 and BF16, agreement
with `vllm bench serve`, a killed server) and `second` (quality on SmolLM2, an FP8 KV cache, the memory of fresh shapes,
FP8 per channel against per block) each use one GPU; `lanes` runs both side by side on two. `apart` needs two GPUs:
tensor parallel 2 and a comparison whose arms change places. `stranger`: a foreign program holds memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_profiles import FRESH, PROFILES, share, write_profiles
from running import OVER, READY, Run, pack, servers, told, used, wait

STAGES = ("look", "first", "second", "lanes", "apart", "stranger")
LEVELS = "1,8,32,64"


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
    names = [name for name, (model, _) in PROFILES.items() if (run.models / model).is_dir()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: _lint(run, name), names))


def _lint(run: Run, name: str) -> None:
    said = run.vq(f"lint-{name}", "lint", run.profile(name), engine=True, timeout_s=60)
    if not isinstance(said, dict):
        return
    plan = said["plan"]
    layers = [f"{row['kind']}×{row['count']} {row['kernel']} ({row['grade']})" for row in plan["layers"]]
    fit = plan["fit"]
    run.say(f"  {name}: {[(f['rule'], f['severity']) for f in said['findings']]} {layers}")
    run.say(f"  {name}: weights {fit['weights_gib']} GiB, KV {fit['kv_gib']} GiB, {fit['kv_tokens']} tokens")


def _serve(run: Run, names: Sequence[str], gpu: str, timeout_s: float) -> None:
    """Start all at once, without waiting: each queues behind the one before it on its GPU. Then wait for all."""
    for name in names:
        run.vq(f"serve-{name}", "serve", run.profile(name), *run.lane(gpu), engine=True, timeout_s=60)
    wait(run, names, timeout_s)


def _stop(run: Run, names: Sequence[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: run.vq(f"stop-{name}", "stop", name, timeout_s=90), names))


def _speed(run: Run, a: str, b: str, minutes: str, seed: int) -> None:
    words = ["--quick", "--latency", "--levels", LEVELS, "--latency-minutes", minutes, "--seed", str(seed)]
    told(run, run.vq(f"ab-{a}-{b}", "ab", f"server:{a}", f"server:{b}", *words, timeout_s=520))


def first(run: Run, gpu: str = "0") -> None:
    """Speed on the 8B shape: FP8 against INT4, BF16 against FP8; then agreement, and a killed server."""
    _serve(run, ("speed-fp8", "speed-w4a16"), gpu, 400)
    servers(run, "ps-speed")
    _speed(run, "speed-fp8", "speed-w4a16", os.environ.get("SPEED_MINUTES", "4"), 1)
    pack(run)
    _stop(run, ["speed-w4a16"])
    _serve(run, ("speed-bf16", "alone-fp8"), gpu, 300)
    _speed(run, "speed-bf16", "speed-fp8", "2.5", 2)
    pack(run)
    agree(run, "alone-fp8")
    kill(run, "alone-fp8", gpu)
    _stop(run, ["speed-fp8", "speed-bf16"])
    run.say(f"  GPU memory used after the first lane: {used(run)}")


def second(run: Run, gpu: str = "0") -> None:
    """Quality on SmolLM2 while fresh shapes start beside it; then speed of FP8 per channel against per block."""
    small = ["small-bf16", "small-fp8-channel", "small-w4a16", "small-fp8kv", "small-fp8"]
    _serve(run, small, gpu, 400)
    live = servers(run, "ps-small")
    picture = threading.Thread(target=pictures, args=(run,))
    picture.start()
    if live.get("small-bf16", {}).get("state") == READY:
        # Before anything else runs on this GPU: the time from two ready servers to both verdicts.
        whole = ["ab", "server:small-bf16", "server:small-fp8-channel", "--quick", "--seed", "4"]
        told(run, run.vq("ab-quick-all", *whole, timeout_s=420))
        for name in ("small-fp8-channel", "small-fp8"):
            three = ["--quick", "--quality", "--baseline", "server:small-bf16", "--seed", "3"]
            words = ["ab", f"server:{name}", "server:small-w4a16", *three]
            told(run, run.vq(f"ab-{name}-w4a16", *words, timeout_s=260))
    pack(run)
    fits = threading.Thread(target=_fits, args=(run, gpu))
    fits.start()
    for words in (["--quick"], ["--standard", "--quality-minutes", "4"]):
        kv = ["ab", "server:small-bf16", "server:small-fp8kv", *words, "--quality", "--seed", "5"]
        told(run, run.vq(f"ab-fp8kv{words[0]}", *kv, timeout_s=330))
    fits.join()
    picture.join()
    _stop(run, small)
    pack(run)
    _serve(run, ("speed-fp8-channel", "speed-fp8-block"), gpu, 300)
    servers(run, "ps-channel-block")
    _speed(run, "speed-fp8-channel", "speed-fp8-block", "2.5", 6)
    _stop(run, ("speed-fp8-channel", "speed-fp8-block"))


def lanes(run: Run) -> None:
    """Both GPUs at once."""
    work = [threading.Thread(target=_guarded, args=(run, stage, gpu)) for stage, gpu in ((first, "0"), (second, "1"))]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()


def _guarded(run: Run, stage: Any, *more: Any) -> None:
    try:
        stage(run, *more)
    except Exception as error:
        run.say(f"  {stage.__name__} broke off: {error!r}")


def apart(run: Run) -> None:
    """Two GPUs: tensor parallel 2 with its API server killed, and arms that change places half-way."""
    run.vq("serve-tp2", "serve", run.profile("tp2-fp8"), "--wait", engine=True, timeout_s=240)
    _fit_table(run, ["tp2-fp8"])
    kill(run, "tp2-fp8", "0,1")
    words = ["--quick", "--latency", "--levels", "1,64", "--latency-minutes", os.environ.get("APART_MINUTES", "3.5")]
    arms = [run.profile("speed-fp8"), run.profile("speed-w4a16")]
    told(run, run.vq("ab-apart", "ab", *arms, *words, "--seed", "7", engine=True, timeout_s=560))
    servers(run, "ps-apart")


def _fits(run: Run, gpu: str) -> None:
    """Each fresh shape started and read; those that ran are stopped when their memory is needed."""
    resident: list[str] = []
    for name in FRESH:
        if not (run.models / PROFILES[name][0]).is_dir():
            continue
        if sum(share(other) + 0.005 for other in resident) + share(name) > 0.6:
            _stop(run, resident)
            resident = []
        words = ["serve", run.profile(name), *run.lane(gpu), "--wait"]
        run.vq(f"serve-{name}", *words, engine=True, timeout_s=120)
        resident.append(name)
    _fit_table(run, list(FRESH))
    _stop(run, resident)


def _fit_table(run: Run, names: Sequence[str]) -> None:
    """What preflight said beside what vLLM then reported."""
    found = servers(run, "ps-fit")
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
        ratios = {key: f"{a} / {b}{f' ({a / b - 1:+.1%})' if a and b else ''}" for key, (a, b) in pairs.items()}
        run.say(f"  fit {name}: {ratios}")


def agree(run: Run, name: str) -> None:
    """The console's load generator beside `vllm bench serve` on one server without prefix caching."""
    server = servers(run, "ps-agree", quiet=True).get(name, {})
    if server.get("state") == READY:
        script = Path(__file__).parents[1] / "benchmarks" / "load_generators.py"
        argv = [sys.executable, str(script), "agree", str(server["url"]), str(server["model"])]
        argv += ["--vllm-python", sys.executable, "--blocks", "20", "--requests", "6", "--words", "200"]
        argv += ["--tokens", "128", "--out", str(run.out / "agreement.json")]
        said = run.command("agree", argv, timeout_s=240)
        run.say(f"  {str(said)[-1500:]}")


def kill(run: Run, name: str, gpus: str) -> None:
    """Kill the API server of `name`: what the console says, and whether the memory of its GPU comes back."""
    victim = servers(run, "ps-victim", quiet=True).get(name, {})
    if victim.get("state") != READY:
        run.say(f"  {name} is not ready: not killed")
        return
    before, at = used(run), time.monotonic()
    os.kill(int(victim["pid"]), signal.SIGKILL)
    now: dict[str, Any] = {}
    while time.monotonic() - at < 60 and now.get("state") not in OVER:
        now = {s["name"]: s for s in (run.vq("ps-killed", "ps") or {}).get("servers", ())}.get(name, {})
    run.say(f"  killed API server: {now.get('state')} after {time.monotonic() - at:.1f} s, {now.get('reason')}")
    run.say(f"  memory of GPU {gpus}: {before} before, {used(run)} after; incident {now.get('incident')}")


def pictures(run: Run) -> None:
    """The console's own screens while both lanes work."""
    script = Path(__file__).with_name("pictures.py")
    run.command("pictures", [sys.executable, str(script), str(run.out)], timeout_s=120)


_HOLD = """
import sys, time, torch
x = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda"); x.fill_(1); torch.cuda.synchronize()
print("held", flush=True); time.sleep(600)
"""


def stranger(run: Run) -> None:
    """A foreign program holds memory: who says so, and whether a start is refused."""
    process = None
    try:
        argv = [sys.executable, "-c", _HOLD, "137"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if process.stdout is not None and process.stdout.readline().strip() == "held":
            run.say(f"  stranger pid {process.pid} holds 137 GiB; used {used(run)}")
            seen = run.vq("detect-stranger", "detect") or {}
            run.say(f"  detect {[gpu['processes'] for gpu in seen.get('gpus', ())]}")
            left = run.vq("reap-stranger", "reap") or {}
            run.say(f"  reap {left.get('strangers')}")
            words = ("serve", run.profile("small-bf16"), *run.lane("0"), "--name", "refused")
            run.vq("serve-stranger", *words, engine=True, timeout_s=60)
    finally:
        if process is not None:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(args.models.resolve(), args.out.resolve(), args.engine)
    write_profiles(run.models)
    for stage in args.stages:
        run.say(f"== {stage}")
        _guarded(run, globals()[stage])
        pack(run)
    run.vq("stop", "stop", "--all", timeout_s=150)
    run.say(f"  GPU memory used after stopping: {used(run)}")
    pack(run)
    run.say("== done")


if __name__ == "__main__":
    main()
