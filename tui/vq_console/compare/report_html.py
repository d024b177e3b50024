"""A run's summary as one self-contained HTML page with plots in SVG: no script, nothing fetched."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from vq_console.compare.report import DASH, arm_name, interval, latency_rows, number
from vq_console.compare.worth_rows import worth_rows
from vq_console.core.text import counted

Json = Mapping[str, Any]
WIDTH = 640


def _style() -> str:
    return files("vq_console.compare").joinpath("report.css").read_text(encoding="utf-8")


def escape(value: Any) -> str:
    return html.escape(str(value))


def report_html(summary: Json) -> str:
    """The page. Everything from outside is escaped."""
    arms = summary.get("arms") or {}
    names = [arm_name(arms.get(side), side) for side in ("A", "B")]
    title = f"{names[0]} against {names[1]}"
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"]
    parts += [f"<title>{escape(title)}</title><style>{_style()}</style><h1>{escape(title)}</h1>"]
    if summary.get("simulated"):
        parts.append("<p class=simulated>SIMULATED: a stand-in engine produced these figures.</p>")
    parts.append("<section class=verdict>")
    parts += [f"<p>{escape(text)}</p>" for text in (summary.get("verdict") or {}).values() if text]
    parts.append("</section>")
    for side in ("A", "B"):
        for row in (arms.get(side) or {}).get("asked_vs_runs") or ():
            if row.get("alarm"):
                parts.append(
                    f"<p class=alarm>▲ {escape(names[0] if side == 'A' else names[1])} runs "
                    f"{escape(row.get('selected'))} where {escape(row.get('expected'))} was expected.</p>"
                )
    latency = summary.get("latency") or {}
    if latency.get("endpoints"):
        parts += ["<h2>Latency</h2>", forest_svg(latency["endpoints"])]
        parts.append(_table(("metric", "streams", "A", "B", "B/A", "95 % CI", "pairs", "B is"), latency_rows(latency)))
        if rows := worth_rows(latency):
            parts += ["<h2>What it is worth</h2>", _table(("", "A", "B"), rows)]
    quality = summary.get("quality") or {}
    if quality:
        kld = quality.get("kld") or {}
        parts += [f"<h2>Quality: {escape(quality.get('word'))}</h2>", kld_svg(kld)]
        rows = [
            ("KL divergence, nats/token", number(kld.get("value")), interval(kld.get("ci"))),
            ("noise floor", number(kld.get("floor")), DASH),
            ("same first choice", number(quality.get("top1_agreement")), DASH),
        ]
        parts.append(_table(("", "value", "95 % CI"), rows))
        if quality.get("tasks"):
            parts.append(
                _table(
                    ("task", "n", "A", "B", "B−A", "95 % CI"),
                    [
                        (
                            t["name"],
                            number(t.get("n")),
                            number(t.get("a")),
                            number(t.get("b")),
                            number(t.get("difference")),
                            interval(t.get("ci")),
                        )
                        for t in quality["tasks"]
                    ],
                )
            )
    memory = summary.get("memory") or {}
    if memory:
        parts += [
            "<h2>Memory</h2>",
            _table(
                ("", "A", "B"),
                [
                    (key, number((memory.get("A") or {}).get(key)), number((memory.get("B") or {}).get(key)))
                    for key in ("weights_gib", "kv_tokens", "requests_at_context")
                ],
            ),
        ]
    differences = summary.get("differences") or []
    if differences:
        parts += [
            "<h2>Differences</h2>",
            _table(
                ("setting", "A", "B", "is"),
                [(d["key"], d["a"], d["b"], "the question" if d["declared"] else "confounds") for d in differences],
            ),
        ]
    validity = summary.get("validity") or []
    parts.append("<h2>Validity</h2><ul>")
    parts += [f"<li>{escape(v['flag'])}: {escape(v['detail'])}</li>" for v in validity] or ["<li>nothing to note</li>"]
    parts.append("</ul>")
    how = "; ".join(f"{k.replace('_', ' ')} {v}" for k, v in (summary.get("how") or {}).items())
    parts.append(f"<footer>Run {escape(summary.get('run'))}. {escape(how)}</footer></html>")
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>{body}</table>"


def forest_svg(endpoints: Sequence[Json]) -> str:
    """B/A of each endpoint with its interval on a logarithmic axis around 1."""
    shown = [e for e in endpoints if e.get("ratio") and e.get("ci") and e["ci"][0] > 0 and math.isfinite(e["ci"][1])]
    if not shown:
        return "<p>No endpoint has an interval.</p>"
    span = max(max(abs(math.log(e["ci"][0])), abs(math.log(e["ci"][1]))) for e in shown)
    span = max(span * 1.1, math.log(1.1))
    left, row = 170, 26

    def x(value: float) -> float:
        return left + (WIDTH - left - 20) * (math.log(value) + span) / (2 * span)

    height = row * len(shown) + 40
    out = [f"<svg viewBox='0 0 {WIDTH} {height}' role=img aria-label='B divided by A with 95 % intervals'>"]
    out.append(
        f"<rect x='{x(1 / 1.03):.1f}' y=0 width='{x(1.03) - x(1 / 1.03):.1f}' height='{height - 30}'"
        " fill='var(--line)' opacity=.5 />"
    )
    out.append(f"<line x1='{x(1):.1f}' x2='{x(1):.1f}' y1=0 y2='{height - 30}' stroke='var(--soft)'/>")
    for i, e in enumerate(shown):
        y = row * i + 16
        out.append(f"<text x=0 y='{y + 4}'>{escape(e['metric'])}, {counted(e['concurrency'], 'stream')}</text>")
        out.append(
            f"<line x1='{x(e['ci'][0]):.1f}' x2='{x(e['ci'][1]):.1f}' y1='{y}' y2='{y}'"
            " stroke='var(--a)' stroke-width=3 />"
        )
        out.append(f"<circle cx='{x(e['ratio']):.1f}' cy='{y}' r=5 fill='var(--a)'/>")
    for tick in (math.exp(-span * 0.9), 1.0, math.exp(span * 0.9)):
        out.append(f"<text class=soft x='{x(tick):.1f}' y='{height - 12}' text-anchor=middle>{tick:.2f}</text>")
    out.append("</svg><p class=soft>B/A; the band is ±3 %, where arms count as equivalent.</p>")
    return "".join(out)


def kld_svg(kld: Json) -> str:
    """The KLD interval on the bands of the verdict, logarithmic from 0.0001 to 1 nat per token."""
    if kld.get("value") is None:
        return ""
    low_end, high_end, left = 1e-4, 1.0, 10

    def x(value: float) -> float:
        clipped = min(max(value, low_end), high_end)
        return left + (WIDTH - 2 * left) * math.log(clipped / low_end) / math.log(high_end / low_end)

    bands = (
        (low_end, 0.002, "indistinguishable"),
        (0.002, 0.05, "small"),
        (0.05, 0.1, "noticeable"),
        (0.1, 1.0, "damaging"),
    )
    out = [f"<svg viewBox='0 0 {WIDTH} 84' role=img aria-label='KL divergence on the bands of the verdict'>"]
    for i, (start, end, name) in enumerate(bands):
        out.append(
            f"<rect x='{x(start):.1f}' y=10 width='{x(end) - x(start):.1f}' height=34"
            f" fill='var(--line)' opacity='{0.25 + 0.2 * i:.2f}'/>"
        )
        anchor = (x(start) + x(end)) / 2
        out.append(f"<text class=soft x='{anchor:.1f}' y='{62 if i % 2 == 0 else 78}' text-anchor=middle>{name}</text>")
    low, high = kld.get("ci") or (kld["value"], kld["value"])
    out.append(f"<line x1='{x(low):.1f}' x2='{x(high):.1f}' y1=27 y2=27 stroke='var(--a)' stroke-width=4 />")
    out.append(f"<circle cx='{x(kld['value']):.1f}' cy=27 r=6 fill='var(--a)'/></svg>")
    return "".join(out)
