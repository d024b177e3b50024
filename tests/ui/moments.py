"""Fixed moments of a workstation, as the hub would show them."""

from __future__ import annotations

from pathlib import Path

from vq_console.hardware.model import Gpu, GpuProcess, Host
from vq_console.serving.model import Identity, ServerRecord, ServerState
from vq_console.ui.hub import Hub, ServerSnapshot, Snapshot

LOGS = Path(__file__).parents[1] / "data" / "logs"


class FrozenHub(Hub):
    """Shows one snapshot and polls nothing."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""


def h200(index: int = 0) -> Gpu:
    return Gpu(
        index,
        name="NVIDIA H200",
        uuid=f"GPU-{index}",
        sm="9.0",
        memory_total_mib=143155,
        memory_used_mib=99020,
        utilization_pct=83,
        power_w=612.0,
        power_limit_w=700.0,
        temperature_c=61,
        sm_clock_mhz=1980,
        processes=(GpuProcess(411, 28467, "ann", "VLLM::EngineCor"),),
    )


def server(
    name: str, state: ServerState, *, alarm: bool = False, log: str | None = None, **more: object
) -> ServerSnapshot:
    """One server as the screen gets it."""
    record = ServerRecord(
        name, state, url="http://127.0.0.1:8102", port=8102, model=name, profile=name, gpus=(0,),
        identity=Identity(410, 1, "boot"), log=log, plan={"method": {"asked": "fp8_per_tensor"}, "layers": []},
        phase=str(more.pop("phase", "")), reason=str(more.pop("reason", "")),
    )  # fmt: skip
    kernel = "MarlinFP8ScaledMMLinearKernel" if alarm else "CutlassFP8ScaledMMLinearKernel"
    seen = {
        "uptime_s": 3840.0,
        "pids": [411],
        "facts": {
            "vllm_version": "0.26.0", "quantization": "fp8_per_tensor", "attention_backend": "FLASH_ATTN",
            "kernels": [{"module": "Fp8LinearMethod", "kernel": kernel}], "kv_cache_tokens": 185760,
        },
        "phases": [{"name": "weights", "seconds": 3.0}, {"name": "compilation", "seconds": 46.0}],
        "asked_vs_runs": [{
            "kind": "linear", "expected": "CutlassFP8ScaledMMLinearKernel", "selected": kernel,
            "grade": "weight-only" if alarm else "native", "alarm": alarm, "detail": "",
        }],
        "problem": None,
        **more,
    }  # fmt: skip
    metrics = {
        "generation_tokens_per_s": 1320.0,
        "ttft_p50_ms": 31.0,
        "ttft_p95_ms": 41.0,
        "running": 3,
        "waiting": 0,
        "kv_usage_pct": 12.0,
    }
    return ServerSnapshot(record, seen, metrics if state is ServerState.READY else {})


PROBLEM = {
    "slug": "kv-cache-too-small", "title": "Context does not fit the KV cache", "severity": "error", "root_line": 84,
    "process": "EngineCore", "evidence": "To serve at least one request [with brackets] …", "explanation": "Too long.",
    "fixes": [{"text": "Lower --max-model-len to 52,144.", "patch": {"set_args": {"max_model_len": 52144}}}],
}  # fmt: skip


def busy() -> Snapshot:
    """One H200, a good server, one that fell back, one starting, one queued, one failed."""
    return Snapshot(
        version=1,
        gpus=(h200(),),
        host=Host("box"),
        utilization={0: (10.0, 50.0, 83.0)},
        servers=(
            server("fp8", ServerState.READY),
            server("int4", ServerState.READY, alarm=True),
            server("bf16", ServerState.STARTING, phase="loading weights"),
            server("nvfp4", ServerState.QUEUED),
            server("mla", ServerState.FAILED, problem=PROBLEM, reason="exit 1"),
        ),
    )
