"""The whole console with a stand-in engine: two servers that run, one that failed, one that runs the wrong kernel.

Lives in a home of its own under the cache folder, so that nothing of the user's is touched, and leaves no process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from vq_console.compare.comparison import AbSettings
from vq_console.compare.run import AbOutcome, run_ab
from vq_console.core.places import HOME_VARIABLE, cache_dir
from vq_console.profiles.model import Profile

MODEL = "meta-llama/Llama-3.1-8B-Instruct"

PROFILES: tuple[tuple[str, str, Mapping[str, Any], Mapping[str, Any]], ...] = (
    (
        "tour-fp8",
        "FP8 on load, as recorded on an H200",
        {"quantization": "fp8_per_tensor", "kv_cache_dtype": "fp8"},
        {"script": "h200-fp8", "startup_s": 4.0, "tpot_factor": 8.0, "kl": 0.004, "ttft_ms": 60.0},
    ),
    (
        "tour-int4",
        "INT4 weights (W4A16), as recorded on an H200",
        {},
        {"script": "h200-w4a16", "startup_s": 4.0, "tpot_factor": 8.0, "kl": 0.03, "kl_seed": 2, "ttft_ms": 66.0},
    ),
    (
        "tour-too-long",
        "asks for more context than the KV cache holds: see what the log is explained to mean",
        {"max_model_len": 131072},
        {"script": "fail-kv-too-small", "startup_s": 3.0, "faults": {"die_loading": True}},
    ),
)
RUNNING = ("tour-fp8", "tour-int4")


@contextmanager
def simulated_tour(say: Callable[[str], None]) -> Iterator[None]:
    """Stand-in servers up, in a home of their own that this process then uses; all of them gone at the end."""
    home = cache_dir() / "simulated-tour"
    shutil.rmtree(home / "config", ignore_errors=True)
    os.environ[HOME_VARIABLE] = str(home)
    say("SIMULATED: stand-in engines, no GPU, no download; figures say nothing about any hardware")
    _save_profiles()
    with ExitStack() as stack:
        # A terminal window that is closed ends the tour as leaving it does.
        before = signal.signal(signal.SIGHUP, _hang_up)
        stack.callback(signal.signal, signal.SIGHUP, before)
        _start(stack, say)
        yield


def _hang_up(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def compare_simulated(say: Callable[[str], None]) -> AbOutcome:
    """The comparison of the two running stand-ins."""
    settings = AbSettings(engine="simulator", latency_budget_s=60, quality_budget_s=45)
    return run_ab(f"server:{RUNNING[0]}", f"server:{RUNNING[1]}", settings, say)


def _save_profiles() -> None:
    from vq_console.profiles.store import save_profile

    for name, description, args, spec in PROFILES:
        save_profile(
            Profile(
                name=name,
                model=MODEL,
                description=f"SIMULATED: {description}",
                args={"max_model_len": 8192, **args},
                env={"VQ_SIM_SPEC": json.dumps(spec)},
                tags=("simulated",),
            )
        )


def _start(stack: ExitStack, say: Callable[[str], None]) -> None:
    """Launch what does not run yet; `stack` stops it all."""
    from vq_console.engines.find import choose_engine
    from vq_console.profiles.store import load_profile
    from vq_console.serving.control import stop_server, wait_ready
    from vq_console.serving.launch import launch
    from vq_console.serving.model import LIVE
    from vq_console.serving.registry import forget_server, list_servers

    engine = choose_engine(python="simulator")

    def stop_all() -> None:
        for server in list_servers():
            if server.state in LIVE and not server.attached:
                stop_server(server.name)

    stop_all()
    for server in list_servers():
        forget_server(server.name)
    stack.callback(stop_all)
    for name, *_ in PROFILES:
        say(f"starting {name}")
        launch(load_profile(name), engine=engine, force=True)
    for name in RUNNING:
        wait_ready(name)
        say(f"{name} is ready")
