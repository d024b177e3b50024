"""Sentences that the numbers allow, with their intervals. Takes the JSON values of `ab`; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vq_console.core.text import counted

Json = Mapping[str, Any]


def headline(summary: Json) -> str:
    """What B costs and brings against A in one line, for who has to choose; empty where neither side was measured.

    Only words that the verdict allows: what is not decided says so, and nothing is weighed against anything else.
    """
    arms = summary.get("arms") or {}
    b = (arms.get("B") or {}).get("label")
    parts = [words for e in (summary.get("latency") or {}).get("endpoints") or () if (words := _speed_words(e))]
    if parts and all(words.startswith("speed ") for words in parts):
        parts = ["speed undecided"]
    word = (summary.get("quality") or {}).get("word")
    if word:
        parts.append(f"{word} difference in quality" if word in {"SMALL", "NOTICEABLE"} else f"quality {word}")
    memory = summary.get("memory") or {}
    weights = [(memory.get(side) or {}).get("weights_gib") for side in ("A", "B")]
    if parts and weights[0] and weights[1]:
        change = (weights[1] / weights[0] - 1) * 100
        more = "the same weight memory" if abs(change) < 0.5 else f"{abs(change):.0f} % {_more(change)} weight memory"
        parts.append(more)
    if not b or not parts:
        return ""
    return f"{b} instead of {(arms.get('A') or {}).get('label')}: {', '.join(parts)}."


def _more(change: float) -> str:
    return "less" if change < 0 else "more"


def _speed_words(endpoint: Json) -> str:
    """`11 % slower per token with 1 stream`; empty for an endpoint that decides nothing."""
    if not endpoint.get("primary"):
        return ""
    level, word, ratio = endpoint["concurrency"], endpoint.get("word"), endpoint.get("ratio")
    per_token = endpoint.get("metric") != "throughput"
    where = f"{'per token' if per_token else 'in tokens/s'} with {counted(level, 'stream')}"
    if word == "equivalent":
        return f"as fast {where}"
    if word not in {"faster", "slower"} or not ratio:
        return f"speed {where} undecided"
    gain = 1 / float(ratio) if per_token else float(ratio)
    return f"{_times(gain if word == 'faster' else 1 / gain, word)} {where}"


def speed_sentence(
    latency: Json | None, a: str, b: str, *, confounders: Sequence[str] = (), partial: bool = False
) -> str:
    """One sentence for each primary endpoint: B against A, in the unit that a reader decides by."""
    if not latency or not latency.get("endpoints"):
        return "Speed was not measured."
    primary = [e for e in latency["endpoints"] if e.get("primary")]
    parts = [_endpoint_words(e, a, b) for e in primary or latency["endpoints"][:2]]
    text = "; ".join(parts) + "."
    text = text[0].upper() + text[1:]
    if confounders:
        text += f" The arms also differ in {', '.join(confounders)}: this is no verdict on formats."
    if partial:
        text += " Partial: the check was stopped before it was decided."
    return text


def _endpoint_words(endpoint: Json, a: str, b: str) -> str:
    level = endpoint["concurrency"]
    ratio, ci, word = endpoint.get("ratio"), endpoint.get("ci"), endpoint.get("word")
    pairs = endpoint.get("pairs") or 0
    what = {
        "tpot": "per token",
        "ttft": "to the first token",
        "e2e": "per request",
        "throughput": "in tokens/s",
    }.get(str(endpoint.get("metric")), str(endpoint.get("metric")))
    where = f"with {counted(level, 'stream')}"
    if ratio is None or not ci:
        return f"{where} {what}: not enough valid pairs ({pairs})"
    low, high = float(ci[0]), float(ci[1])
    pair_text = counted(pairs, "pair")
    if word == "equivalent":
        return f"{where} {b} and {a} are equivalent {what} (B/A {ratio:.3f}, {low:.3f} to {high:.3f}, {pair_text})"
    if word == "inconclusive" and (low > 1 or high < 1):
        return (
            f"{where} the difference {what} is not decided yet (B/A {ratio:.2f}, only {counted(pairs, 'valid pair')})"
        )
    if word == "inconclusive":
        return f"{where} the difference {what} is inconclusive (B/A {ratio:.2f}, {low:.2f} to {high:.2f}, {pair_text})"
    higher_is_faster = endpoint.get("metric") == "throughput"
    gain = float(ratio) if higher_is_faster else 1 / float(ratio)
    bounds = (low, high) if higher_is_faster else (1 / high if high else 0.0, 1 / low if low else float("inf"))
    if word == "slower":
        gain, bounds = 1 / gain, (1 / bounds[1], 1 / bounds[0])
    return f"{where} {b} is {_times(gain, word or '')} than {a} {what} (95 % CI {_bounds(gain, bounds)}, {pair_text})"


def _times(factor: float, word: str) -> str:
    return f"{factor:.1f}× {word}" if factor >= 2 else f"{(factor - 1) * 100:.0f} % {word}"


def _bounds(factor: float, bounds: tuple[float, float]) -> str:
    if factor >= 2:
        return f"{bounds[0]:.1f} to {bounds[1]:.1f}×"
    return f"{(bounds[0] - 1) * 100:.0f} to {(bounds[1] - 1) * 100:.0f} %"


def quality_sentence(quality: Json | None, a: str, b: str) -> str:
    """Word, KLD with interval and floor, and what cannot be excluded."""
    if not quality:
        return "Quality was not measured."
    against = quality.get("against_baseline") or {}
    if against:
        parts = [_against(label, against.get(side) or {}) for side, label in (("A", a), ("B", b))]
        return f"Against the baseline: {'; '.join(parts)}. " + quality_sentence(
            {**quality, "against_baseline": None}, a, b
        )
    kld = quality.get("kld") or {}
    word = quality.get("word") or "UNRESOLVED"
    value, ci = kld.get("value"), kld.get("ci")
    if value is None:
        return f"{word}: {b} against {a} has no KL divergence."
    text = f"{word}: {b} differs from {a} by KLD {_nats(value)} nats/token"
    if ci:
        text += f" (95 % CI {_nats(ci[0])} to {_nats(ci[1])}"
        text += f", {counted(kld['sequences'], 'sequence')}" if kld.get("sequences") else ""
        text += f"; noise floor {_nats(kld['floor'])})" if kld.get("floor") is not None else ")"
    if quality.get("top1_agreement") is not None:
        text += f"; same first choice at {quality['top1_agreement'] * 100:.1f} % of tokens"
    divergence = quality.get("divergence") or {}
    if divergence.get("hazard"):
        text += f"; greedy answers part after {1 / divergence['hazard']:.0f} tokens on average"
    text += "."
    for task in quality.get("tasks") or ():
        if task.get("difference") is None:
            continue
        points = task["difference"] * 100
        text += f" {task['name']} ({counted(task['n'], 'item')}): {points:+.1f} pt"
        if task.get("ci"):
            text += f" ({task['ci'][0] * 100:+.1f} to {task['ci'][1] * 100:+.1f})"
        if task.get("detectable") is not None:
            text += f", a drop under {task['detectable'] * 100:.0f} points cannot be seen"
        text += "."
    return text


def _against(label: str, quality: Json) -> str:
    kld = quality.get("kld") or {}
    if kld.get("value") is None:
        return f"{label} {quality.get('word') or 'was not measured'}"
    ci = kld.get("ci")
    bounds = f" ({_nats(ci[0])} to {_nats(ci[1])})" if ci else ""
    return f"{label} {quality.get('word')}, KLD {_nats(kld['value'])}{bounds}"


def _nats(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.4f}" if abs(value) < 0.01 else f"{value:.3f}"


def memory_sentence(memory: Json | None, a: str, b: str, *, context: int | None = None) -> str:
    """Weights, KV tokens and requests side by side: read or computed, not sampled, so without an interval."""
    if not memory:
        return "Memory is unknown."
    left, right = memory.get("A") or {}, memory.get("B") or {}
    parts: list[str] = []
    weights = left.get("weights_gib"), right.get("weights_gib")
    if None not in weights:
        change = (weights[1] / weights[0] - 1) * 100 if weights[0] else 0.0
        relation = "the same" if abs(change) < 0.5 else f"{abs(change):.0f} % {'less' if change < 0 else 'more'}"
        parts.append(f"weights {b} {weights[1]:.2f} GiB, {a} {weights[0]:.2f} GiB ({relation})")
    tokens = left.get("kv_tokens"), right.get("kv_tokens")
    if None not in tokens:
        parts.append(f"KV cache {b} {tokens[1]:,} tokens, {a} {tokens[0]:,}")
    requests = left.get("requests_at_context"), right.get("requests_at_context")
    if None not in requests:
        at = f" of {context:,} tokens" if context else ""
        parts.append(f"requests{at} at once: {b} {requests[1]:.1f}, {a} {requests[0]:.1f}")
    if not parts:
        known = [name for name, side in ((a, left), (b, right)) if any(v is not None for v in side.values())]
        if known:
            return f"Memory cannot be compared: only {known[0]}'s is known."
        return "Memory is unknown: neither log says what the weights or the KV cache take."
    text = "; ".join(parts) + " (exact, as the logs and checkpoints say)."
    return text[0].upper() + text[1:]
