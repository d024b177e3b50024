"""How far each arm is from the shortest decode step that memory bandwidth allows. Only decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vq_console.checks.worth import decode_floor


@dataclass(frozen=True, slots=True)
class ArmBytes:
    """What an arm reads in a decode step, for one GPU: weights in GiB, KV cache in bytes per token."""

    weights_gib: float | None
    kv_bytes_per_token: float | None
    experts: bool = False
    """A mixture of experts reads only some of its weights for a small batch, so its floor is lower than said."""


def arm_bytes(facts: Mapping[str, Any], fit: Mapping[str, Any], *, experts: bool) -> ArmBytes:
    """From the log where it says so, else from the plan's memory fit."""
    gib, tokens = facts.get("kv_cache_gib"), facts.get("kv_cache_tokens")
    weights = facts.get("model_load_gib")
    return ArmBytes(
        weights if weights is not None else fit.get("weights_gib"),
        gib * 2**30 / tokens if gib and tokens else fit.get("kv_bytes_per_token"),
        experts,
    )


def floor_rows(
    latency: Mapping[str, Any], arms: Mapping[str, ArmBytes], bandwidth_gbs: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    """For each level: the floor of both arms and the share of the measured time per token that it explains.

    `bandwidth_gbs` is GB/s of one GPU. A level or arm of which something is not known is absent.
    """
    plan = latency.get("plan") or {}
    context = float(plan.get("prompt_tokens") or 0) + float(plan.get("output_tokens") or 0) / 2
    rows = []
    for endpoint in latency.get("endpoints") or ():
        if endpoint.get("metric") != "tpot":
            continue
        row: dict[str, Any] = {"concurrency": endpoint["concurrency"]}
        for side, measured in (("A", endpoint.get("a")), ("B", endpoint.get("b"))):
            mine = arms.get(side)
            floor = mine and decode_floor(
                weight_gib=mine.weights_gib,
                kv_bytes_per_token=mine.kv_bytes_per_token,
                context_tokens=context,
                batch=int(endpoint["concurrency"]),
                bandwidth=bandwidth_gbs.get(side),
            )
            if mine and floor:
                row[side] = {**floor.to_json(measured), "upper_bound": mine.experts}
        if len(row) > 1:
            rows.append(row)
    return rows
