"""Summaries as `ab --json` gives them, for tests of what reads them."""

from __future__ import annotations

from typing import Any


def endpoint(
    metric: str, concurrency: int, ratio: float | None, low: float, high: float, word: str, **more: Any
) -> dict[str, Any]:
    """One endpoint of the contract; `a` is 1 in its own unit."""
    ci = None if ratio is None else [low, high]
    return {
        "metric": metric,
        "concurrency": concurrency,
        "a": 1.0,
        "b": ratio,
        "ratio": ratio,
        "ci": ci,
        "pairs": 6,
        "word": word,
        "primary": True,
        **more,
    }


def summary(**changes: Any) -> dict[str, Any]:
    """A finished comparison: INT4 against FP8."""
    value: dict[str, Any] = {
        "run": "20260101-000000-fp8-vs-int4-abcd",
        "simulated": False,
        "arms": {
            "A": {
                "profile": "fp8",
                "engine": "/venv/bin/python",
                "gpu": "0",
                "facts": {"vllm_version": "0.33.0", "kernels": [{"module": "Fp8LinearMethod", "kernel": "CutlassFP8"}]},
                "asked_vs_runs": [
                    {
                        "kind": "linear",
                        "expected": "CutlassFP8",
                        "selected": "CutlassFP8",
                        "grade": "native",
                        "alarm": False,
                    }
                ],
            },
            "B": {
                "profile": "int4",
                "engine": "/venv/bin/python",
                "gpu": "0",
                "facts": {"vllm_version": "0.33.0"},
                "asked_vs_runs": [
                    {
                        "kind": "linear",
                        "expected": "Machete",
                        "selected": "Marlin",
                        "grade": "weight-only",
                        "alarm": True,
                    }
                ],
            },
        },
        "differences": [{"key": "model", "a": "m", "b": "m-w4a16", "declared": True}],
        "latency": {
            "endpoints": [
                endpoint("tpot", 1, 1.1, 1.08, 1.12, "slower"),
                endpoint("throughput", 64, 0.77, 0.75, 0.79, "slower"),
            ],
            "blocks": 26,
            "void": 1,
        },
        "quality": {
            "word": "SMALL",
            "kld": {
                "value": 0.021,
                "ci": [0.018, 0.025],
                "floor": 0.0002,
                "sequences": 64,
                "tokens": 6144,
                "on_policy": True,
            },
            "top1_agreement": 0.963,
            "ppl_ratio": {"value": 1.01, "ci": [1.0, 1.02]},
            "divergence": {"hazard": 0.02, "ci": [0.015, 0.026]},
            "tasks": [
                {
                    "name": "maths",
                    "n": 200,
                    "a": 0.8,
                    "b": 0.785,
                    "difference": -0.015,
                    "ci": [-0.052, 0.021],
                    "p": 0.4,
                    "detectable": 0.05,
                }
            ],
            "health": [{"name": "loop", "n": 32, "a": 0, "b": 1}],
        },
        "memory": {
            "A": {"weights_gib": 7.3, "kv_tokens": 155000, "requests_at_context": 19.0},
            "B": {"weights_gib": 4.2, "kv_tokens": 185760, "requests_at_context": 22.7},
        },
        "verdict": {"speed": "s", "quality": "q", "memory": "m"},
        "validity": [{"flag": "prefix-hits", "detail": "1 block void"}],
        "how": {"mode": "quick"},
    }
    return {**value, **changes}
