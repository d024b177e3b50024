"""Two runs of the same pair: did anything get worse? Only decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
QUALITY_ORDER = ("INDISTINGUISHABLE", "SMALL", "NOTICEABLE", "DAMAGING")


@dataclass(frozen=True, slots=True)
class Change:
    """One compared figure. `word` is regression, improvement, unchanged or unresolved."""

    what: str
    before: Any
    after: Any
    word: str
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "before": self.before, "after": self.after, "word": self.word, "detail": self.detail}


def compare_runs(before: Json, after: Json) -> tuple[Change, ...]:
    """Changes from one summary to another, endpoint by endpoint; intervals that overlap say nothing.

    What the later run left out counts as a regression: a gate must not pass because nothing was measured.
    """
    changes: list[Change] = []
    old = {(e["metric"], e["concurrency"]): e for e in (before.get("latency") or {}).get("endpoints") or ()}
    measured = (after.get("latency") or {}).get("endpoints") or ()
    for new in measured:
        was = old.get((new["metric"], new["concurrency"]))
        if was is not None:
            changes.append(_endpoint_change(was, new))
    if old and not measured:
        changes.append(Change("latency", "measured", None, "regression", "the later run did not measure it"))
    quality = before.get("quality") or {}, after.get("quality") or {}
    words = quality[0].get("word"), quality[1].get("word")
    if all(word in QUALITY_ORDER for word in words):
        step = QUALITY_ORDER.index(str(words[1])) - QUALITY_ORDER.index(str(words[0]))
        name = "regression" if step > 0 else "improvement" if step < 0 else "unchanged"
        changes.append(Change("quality", words[0], words[1], name))
    elif words[0] and not words[1]:
        changes.append(Change("quality", words[0], None, "regression", "the later run did not measure it"))
    elif any(words):
        changes.append(Change("quality", words[0], words[1], "unresolved"))
    kld = [(q.get("kld") or {}) for q in quality]
    if all(k.get("ci") for k in kld):
        name = "unchanged"
        if kld[1]["ci"][0] > kld[0]["ci"][1]:
            name = "regression"
        elif kld[1]["ci"][1] < kld[0]["ci"][0]:
            name = "improvement"
        changes.append(Change("kld", kld[0].get("value"), kld[1].get("value"), name, "nats per token"))
    for arm in ("A", "B"):
        changes.extend(_kernel_changes(arm, before, after))
    return tuple(changes)


def _endpoint_change(was: Json, new: Json) -> Change:
    what = f"{new['metric']} at {new['concurrency']}, B/A"
    if not was.get("ci") or not new.get("ci"):
        return Change(what, was.get("ratio"), new.get("ratio"), "unresolved", "an interval is missing")
    up, down = new["ci"][0] > was["ci"][1], new["ci"][1] < was["ci"][0]
    higher_is_faster = new["metric"] == "throughput"
    if not up and not down:
        return Change(what, was["ratio"], new["ratio"], "unchanged", "the intervals overlap")
    return Change(what, was["ratio"], new["ratio"], "regression" if up != higher_is_faster else "improvement")


def _kernel_changes(arm: str, before: Json, after: Json) -> list[Change]:
    def rows(summary: Json) -> dict[str, Json]:
        return {str(r.get("kind")): r for r in ((summary.get("arms") or {}).get(arm) or {}).get("asked_vs_runs") or ()}

    old, new = rows(before), rows(after)
    return [
        Change(
            f"kernel of {kind} ({arm})",
            old[kind].get("selected"),
            new[kind].get("selected"),
            "regression" if new[kind].get("alarm") and not old[kind].get("alarm") else "unchanged",
        )
        for kind in sorted(set(old) & set(new))
        if old[kind].get("selected") != new[kind].get("selected")
    ]
