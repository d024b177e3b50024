"""How a server is kept: intervals, time-outs and limits of its keeper. Seconds and bytes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULTS: dict[str, Any] = {
    "probe_s": 1.0,
    "health_s": 30.0,
    "retry_s": 5.0,
    "health_timeout_s": 10.0,
    "silent_s": 20.0,
    "record_s": 15.0,
    "gpu_s": 60.0,
    "token_s": 300.0,
    "token_timeout_s": 60.0,
    "first_token_timeout_s": 900.0,
    "stuck_s": 90.0,
    "scan_start_s": 1.0,
    "scan_rest_s": 5.0,
    "tick_s": 1.0,
    "stop_timeout_s": 30.0,
    "survivors_s": 3.0,
    "kill_wait_s": 60.0,
    "startup_timeout_s": None,
    "port_tries": 3,
    "log_cap_bytes": 64 * 1024 * 1024,
    "log_head_bytes": 4 * 1024 * 1024,
    "on_death": [],
    "restart_limit": 0,
    "restart_backoff_s": 5.0,
    "restart_forgive_s": 600.0,
}
"""Intervals, time-outs and limits; `server.json` may hold others under `keeper`. Each look is a line in vLLM's log."""
