"""What the speed of both arms is worth, as rows of a table for the report and the screen. Only decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vq_console.core.text import counted

DASH = "–"
SIDES = ("A", "B")


def worth_rows(latency: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, A, B: requests within the objective, energy, cost, share of the bandwidth floor. Absent is a dash."""
    worth = latency.get("worth") or {}
    rows = [*_served(worth), *_energy(worth), *_cost(worth), *_floor(latency)]
    return [row for row in rows if set(row[1:]) != {DASH}]


def _figure(value: Mapping[str, Any] | None, digits: int = 3) -> str:
    if not value:
        return DASH
    ci = value.get("ci")
    between = f" ({ci[0]:.{digits}g} to {ci[1]:.{digits}g})" if ci else ""
    return f"{value['value']:.{digits}g}{between}"


def _served(worth: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    slo, served = worth.get("slo") or {}, worth.get("served") or {}
    if not slo:
        return []
    objective = f"{slo['ttft_s'] * 1000:,.0f} ms to the first token, {slo['tpot_s'] * 1000:,.0f} ms per token"
    streams, rates = [], []
    for side in SIDES:
        mine = served.get(side)
        more = " or more" if mine and mine.get("at_top") else ""
        streams.append(f"{mine['concurrency']}{more}" if mine else "none measured" if side in served else DASH)
        rates.append(_figure(mine.get("requests_per_s")) if mine else DASH)
    return [(f"streams within {objective}", *_two(streams)), ("requests/s there", *_two(rates))]


def _energy(worth: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (
            f"joules per token at {counted(row['concurrency'], 'stream')}",
            *_two([_figure(row.get(side)) for side in SIDES]),
        )
        for row in worth.get("joules_per_token") or ()
    ]


def _cost(worth: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    costs = worth.get("cost_per_million_tokens") or {}
    return [("cost of a million output tokens", *_two([_figure(costs.get(side)) for side in SIDES]))] if costs else []


def _floor(latency: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for row in latency.get("floor") or ():
        cells = []
        for side in SIDES:
            mine = row.get(side)
            most = "at most " if mine and mine.get("upper_bound") else ""
            share = mine.get("share") if mine else None
            cells.append(f"{most}{share * 100:.0f} % of {mine['bandwidth_gb_s']:,.0f} GB/s" if share else DASH)
        rows.append((f"memory bandwidth used at {counted(row['concurrency'], 'stream')}", *_two(cells)))
    return rows


def _two(cells: list[str]) -> tuple[str, str]:
    return cells[0], cells[1]
