"""Serving a result once: the last proof that it is one. Starts a server, waits for its first token, stops it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vq_console.core.text import seconds_text

CPU_SHARE = 0.5


def prove(profile_name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Start the profile, wait until one token came out, stop it: seconds to that, and the kernels of its log.

    Raises what launching raises: EngineError without an engine, LaunchError with the diagnosis.
    """
    from vq_console.hardware.probe import read_machine
    from vq_console.profiles.store import load_profile
    from vq_console.serving.control import stop_server, wait_ready
    from vq_console.serving.launch import launch
    from vq_console.serving.view import server_json

    say(f"serving {profile_name} once, until its first token")
    profile = load_profile(profile_name)
    if not read_machine(processes=False).gpus:
        # Of a CPU's memory vLLM wants 92 % to be free unless told otherwise; one token needs much less.
        profile = replace(profile, args={"gpu_memory_utilization": CPU_SHARE, **profile.args})
    begun = time.monotonic()
    record = launch(profile)
    try:
        record = wait_ready(record.name)
        seconds = time.monotonic() - begun
        facts = server_json(record).get("facts") or {}
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            stop_server(record.name)
    kernels = facts.get("kernels")
    say(f"it answers, {seconds_text(seconds)} after it was started")
    return {"ready_s": round(seconds, 1), "vllm": facts.get("vllm_version"), "kernels": kernels}
