"""A run's summary as Markdown and CSV. Takes the JSON values of `ab`; the HTML report is in report_html."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.compare.worth_rows import worth_rows
from vq_console.core.text import counted

Json = Mapping[str, Any]
DASH = "–"


_TAG = re.compile(r"<(?=[A-Za-z/!])")
"""What Markdown would take as HTML: names and settings may come from another machine."""


def number(value: Any, digits: int = 3, unit: str = "") -> str:
    """A figure with its unit, a dash where absent; never 0 for what is not known."""
    if value is None:
        return DASH
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


def interval(ci: Sequence[float] | None, digits: int = 3) -> str:
    """`low to high`, a dash where absent."""
    return f"{ci[0]:.{digits}g} to {ci[1]:.{digits}g}" if ci else DASH


def ratio_text(value: float | None) -> str:
    """A ratio with three decimals, so that the figures of a column can be compared by eye."""
    return DASH if value is None else f"{value:.3f}"


def metric_value(metric: str, value: float | None) -> str:
    """Seconds as milliseconds, throughput in tokens/s."""
    if value is None:
        return DASH
    return f"{value:,.1f} tok/s" if metric == "throughput" else f"{value * 1000:,.1f} ms"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A GitHub table; bars inside cells are escaped."""

    def cells(row: Sequence[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"

    return [cells(head), "|" + "---|" * len(head), *[cells(row) for row in rows]]


def report_markdown(summary: Json) -> str:
    """The whole report: verdict first, then tables, validity, what was not tested, how it was made."""
    arms = summary.get("arms") or {}
    names = {side: arm_name(arms.get(side), side) for side in ("A", "B")}
    lines = [f"# {names['A']} against {names['B']}", ""]
    if summary.get("simulated"):
        lines += ["**SIMULATED**: a stand-in engine produced these figures; they say nothing about any hardware.", ""]
    lines += [f"- {text}" for text in (summary.get("verdict") or {}).values() if text]
    lines += ["", "## Arms", "", *_arms_table(arms, names)]
    alarms = [
        f"- **{names[side]}**: {row.get('kind')}: expected {row.get('expected') or DASH},"
        f" runs {row.get('selected') or DASH}"
        f" ({row.get('grade')}). {row.get('detail') or ''}".rstrip()
        for side in ("A", "B")
        for row in (arms.get(side) or {}).get("asked_vs_runs") or ()
        if row.get("alarm")
    ]
    if alarms:
        lines += ["", "### ALARM: not running what was asked for", "", *alarms]
    differences = summary.get("differences") or []
    if differences:
        rows = [
            (d["key"], str(d["a"]), str(d["b"]), "the question" if d["declared"] else "**confounds**")
            for d in differences
        ]
        lines += ["", "## Differences between the arms", "", *markdown_table(("setting", "A", "B", "is"), rows)]
    lines += _latency_part(summary.get("latency"))
    lines += _quality_part(summary.get("quality"))
    lines += _memory_part(summary.get("memory") or {})
    validity = summary.get("validity") or []
    lines += ["", "## Validity", ""]
    lines += [f"- {item['flag']}: {item['detail']}" for item in validity] or ["- nothing to note"]
    if summary.get("not_tested"):
        lines += ["", "## Not tested", "", *[f"- {item}" for item in summary["not_tested"]]]
    lines += ["", "## How", "", *_how(summary)]
    return _TAG.sub("&lt;", "\n".join(lines)) + "\n"


def arm_name(arm: Json | None, side: str) -> str:
    """What an arm is called wherever a run speaks of it: as the user named it, which is also what the sentences say."""
    arm = arm or {}
    return str(arm.get("label") or arm.get("profile") or arm.get("url") or side)


def _arms_table(arms: Json, names: Mapping[str, str]) -> list[str]:
    def fact(side: str, key: str) -> str:
        return number(((arms.get(side) or {}).get("facts") or {}).get(key))

    def kernels(side: str) -> str:
        found = ((arms.get(side) or {}).get("facts") or {}).get("kernels") or ()
        return ", ".join(dict.fromkeys(str(k.get("kernel")) for k in found)) or "not found in the log"

    rows = [
        ("name", names["A"], names["B"]),
        ("engine", *[str((arms.get(s) or {}).get("engine") or DASH) for s in ("A", "B")]),
        ("GPU", *[str((arms.get(s) or {}).get("gpu") or DASH) for s in ("A", "B")]),
        ("vLLM", fact("A", "vllm_version"), fact("B", "vllm_version")),
        ("method", fact("A", "quantization"), fact("B", "quantization")),
        ("kernels selected", kernels("A"), kernels("B")),
        ("KV cache dtype", fact("A", "kv_cache_dtype"), fact("B", "kv_cache_dtype")),
        ("KV cache tokens", fact("A", "kv_cache_tokens"), fact("B", "kv_cache_tokens")),
        ("context", fact("A", "max_model_len"), fact("B", "max_model_len")),
    ]
    return markdown_table(("", "A", "B"), rows)


def latency_rows(latency: Json) -> list[tuple[str, ...]]:
    """Rows of the latency table, shared by Markdown, CSV and the screen."""
    return [
        (
            f"{e['metric']}{' *' if e.get('primary') else ''}",
            str(e["concurrency"]),
            metric_value(e["metric"], e.get("a")),
            metric_value(e["metric"], e.get("b")),
            ratio_text(e.get("ratio")),
            f"{ratio_text(e['ci'][0])} to {ratio_text(e['ci'][1])}" if e.get("ci") else DASH,
            str(e.get("pairs") or 0),
            str(e.get("word") or DASH),
        )
        for e in latency.get("endpoints") or ()
    ]


def _latency_part(latency: Json | None) -> list[str]:
    if not latency:
        return []
    head = ("metric", "streams", "A", "B", "B/A", "95 % CI", "pairs", "B is")
    return [
        "",
        "## Latency",
        "",
        *markdown_table(head, latency_rows(latency)),
        "",
        f"\\* primary. {counted(latency.get('blocks') or 0, 'block')}, {latency.get('void') or 0} void. "
        "The unit of every interval is the pair of interleaved blocks.",
        *_worth_part(latency),
    ]


def _worth_part(latency: Json) -> list[str]:
    rows = worth_rows(latency)
    return ["", "### What it is worth", "", *markdown_table(("", "A", "B"), rows)] if rows else []


def _quality_part(quality: Json | None) -> list[str]:
    if not quality:
        return []
    kld, ppl, divergence = quality.get("kld") or {}, quality.get("ppl_ratio") or {}, quality.get("divergence") or {}
    rows = [
        ("KL divergence, nats/token", number(kld.get("value")), interval(kld.get("ci"))),
        ("noise floor (A against itself)", number(kld.get("floor")), DASH),
        ("same first choice", number(quality.get("top1_agreement")), DASH),
        ("perplexity ratio B/A", number(ppl.get("value"), 4), interval(ppl.get("ci"), 4)),
        ("first divergence, per token", number(divergence.get("hazard")), interval(divergence.get("ci"))),
    ]
    lines = ["", "## Quality", "", f"**{quality.get('word')}**", "", *markdown_table(("", "value", "95 % CI"), rows)]
    kind = "sampled from A itself" if kld.get("on_policy") else "not sampled from A: a lower bound"
    lines += [
        "",
        f"{counted(kld.get('sequences') or 0, 'sequence')}, {counted(kld.get('tokens') or 0, 'token')}, {kind}.",
    ]
    if quality.get("tasks"):
        rows_t = [
            (
                t["name"],
                number(t.get("n")),
                number(t.get("a")),
                number(t.get("b")),
                number(t.get("difference")),
                interval(t.get("ci")),
                number(t.get("p")),
                number(t.get("detectable")),
            )
            for t in quality["tasks"]
        ]
        head = ("task", "n", "A", "B", "B−A", "95 % CI", "p", "detectable drop")
        lines += ["", *markdown_table(head, rows_t)]
    if quality.get("health"):
        rows_h = [(h["name"], number(h.get("n")), number(h.get("a")), number(h.get("b"))) for h in quality["health"]]
        lines += ["", *markdown_table(("faults", "of answers", "A", "B"), rows_h)]
    return lines


def _memory_part(memory: Json) -> list[str]:
    rows = [
        (label, *[number((memory.get(side) or {}).get(key)) for side in ("A", "B")])
        for key, label in (
            ("weights_gib", "weights, GiB"),
            ("kv_tokens", "KV cache, tokens"),
            ("requests_at_context", "requests at the asked context"),
        )
    ]
    return ["", "## Memory", "", *markdown_table(("", "A", "B"), rows)] if memory else []


def _how(summary: Json) -> list[str]:
    how = summary.get("how") or {}
    lines = [f"- {key.replace('_', ' ')}: {value}" for key, value in how.items()]
    return [*lines, f"- run: {summary.get('run')}", "- raw samples of every request are kept in the run's folder"]


def report_csv(summary: Json) -> str:
    """The latency endpoints and quality figures as one flat CSV."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(
        ("run", "kind", "name", "concurrency", "a", "b", "ratio_or_value", "ci_low", "ci_high", "n", "word")
    )
    run = summary.get("run")
    for e in (summary.get("latency") or {}).get("endpoints") or ():
        low, high = e.get("ci") or (None, None)
        writer.writerow(
            (
                run,
                "latency",
                e["metric"],
                e["concurrency"],
                e.get("a"),
                e.get("b"),
                e.get("ratio"),
                low,
                high,
                e.get("pairs"),
                e.get("word"),
            )
        )
    quality = summary.get("quality") or {}
    if quality:
        kld = quality.get("kld") or {}
        low, high = kld.get("ci") or (None, None)
        writer.writerow(
            (
                run,
                "quality",
                "kld",
                None,
                None,
                None,
                kld.get("value"),
                low,
                high,
                kld.get("sequences"),
                quality.get("word"),
            )
        )
        for t in quality.get("tasks") or ():
            low, high = t.get("ci") or (None, None)
            writer.writerow(
                (run, "task", t["name"], None, t.get("a"), t.get("b"), t.get("difference"), low, high, t.get("n"), None)
            )
    return out.getvalue()
