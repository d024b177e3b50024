"""The answer of a latency comparison and its JSON. Computed from blocks alone, so a run can be analysed again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vq_console.checks.latency_blocks import BlockResult
from vq_console.checks.latency_decide import BUDGET, CANCELLED, Outcome, outcomes
from vq_console.checks.latency_settings import LatencySettings
from vq_console.checks.measures import percentiles
from vq_console.checks.schedule import ARMS, LatencyPlan
from vq_console.checks.validity import Flag
from vq_console.checks.worth import worth
from vq_console.core.text import counted


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Everything that a latency comparison says. `ends` gives for each level why it stopped."""

    outcomes: tuple[Outcome, ...]
    blocks: tuple[BlockResult, ...]
    plan: LatencyPlan
    settings: LatencySettings
    ends: Mapping[int, str]
    flags: tuple[Flag, ...] = ()
    design: str = "interleaved"
    seconds: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Stopped by the person, or by the budget before the least number of pairs was there."""
        ends = set(self.ends.values())
        return CANCELLED in ends or (BUDGET in ends and any(flag.flag == "few-pairs" for flag in self.flags))

    @property
    def validity(self) -> list[Mapping[str, Any]]:
        """The flags of the whole run in the form of the contract."""
        return [flag.to_json() for flag in self.flags]

    def to_json(self) -> dict[str, Any]:
        """The contract's `latency {…}`, with blocks, plan and descriptive percentiles beside it."""
        return {
            "endpoints": [one.to_json() for one in self.outcomes],
            "blocks": len(self.blocks),
            "void": sum(not block.valid for block in self.blocks),
            "void_blocks": [block.to_json() for block in self.blocks if not block.valid],
            "design": self.design,
            "plan": self.plan.to_json(),
            "stopped": {str(level): end for level, end in self.ends.items()},
            "partial": self.partial,
            "seconds": round(self.seconds, 1),
            "percentiles": pooled_percentiles(self.blocks),
            "worth": worth(self.blocks, self.settings),
            **self.extra,
        }


def pooled_percentiles(blocks: Sequence[BlockResult]) -> list[dict[str, Any]]:
    """Quantiles over the requests of all valid blocks of an arm and level. Descriptive: requests are not units."""
    out = []
    for concurrency in sorted({block.turn.concurrency for block in blocks}):
        for arm in ARMS:
            mine = [b for b in blocks if b.valid and b.turn.concurrency == concurrency and b.turn.arm == arm]
            if not mine:
                continue
            for metric in ("ttft", "tpot", "e2e"):
                values = [value for block in mine for value in block.samples.get(metric, ())]
                row: dict[str, Any] = {"arm": arm, "metric": metric, "concurrency": concurrency, "n": len(values)}
                for found in percentiles(values):
                    row[f"p{found.q * 100:g}"] = {"value": found.value, "ci": [found.low, found.high]}
                out.append(row)
            rates = [block.goodput for block in mine if block.goodput is not None]
            if rates:
                mean = sum(rates) / len(rates)
                out.append({"arm": arm, "metric": "goodput", "concurrency": concurrency, "n": len(rates), "mean": mean})
    return out


def run_flags(blocks: Sequence[BlockResult], ends: Mapping[int, str], settings: LatencySettings) -> tuple[Flag, ...]:
    """What the blocks and the way the run ended require to be said."""
    out = []
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for block in blocks:
        for flag in block.void:
            counts[flag.flag] += 1
            example.setdefault(flag.flag, f"{block.turn.block}: {flag.detail}")
    out += [Flag(name, f"{counted(count, 'block')} void; {example[name]}") for name, count in counts.items()]
    limited = [block for block in blocks if block.valid and block.limited is not None]
    if limited:
        sides = " and ".join(
            f"{sum(block.turn.arm == arm for block in limited)} of {arm}"
            for arm in sorted({block.turn.arm for block in blocks})
        )
        first = limited[0]
        detail = first.limited.detail if first.limited else ""
        text = f"{sides} of {len(blocks)} blocks ran at the GPU's power limit and count; {first.turn.block}: {detail}"
        out.append(Flag("power-limited", text))
    late = [str(level) for level, end in ends.items() if end == BUDGET]
    if late:
        where = f"{', '.join(late)} stream{'' if late == ['1'] else 's'}"
        out.append(Flag("budget-ended", f"the budget of {settings.budget_s / 60:.1f} min ended the run at {where}"))
    if CANCELLED in ends.values():
        out.append(Flag("cancelled", "stopped before it was decided; what was measured is kept"))
    return tuple(out)


def make_result(
    blocks: Sequence[BlockResult],
    plan: LatencyPlan,
    settings: LatencySettings,
    ends: Mapping[int, str],
    *,
    flags: Sequence[Flag] = (),
    seconds: float = 0.0,
    extra: Mapping[str, Any] | None = None,
) -> LatencyResult:
    """The result of an interleaved comparison from its blocks."""
    found = outcomes(blocks, [level.concurrency for level in plan.levels], settings, ends)
    few = [one for one in found if one.primary and one.pairs < settings.pairs_min]
    more = [
        Flag(
            "few-pairs",
            f"{one.metric} at {one.concurrency}: {counted(one.pairs, 'pair')}, {settings.pairs_min} are needed",
        )
        for one in few
    ]
    more += [
        Flag("correlated-pairs", f"{one.metric} at {one.concurrency}: neighbours are alike, so quads are the units")
        for one in found
        if one.primary and one.confidence.endswith("on quads")
    ]
    return LatencyResult(
        outcomes=found,
        blocks=tuple(blocks),
        plan=plan,
        settings=settings,
        ends=dict(ends),
        flags=(*run_flags(blocks, ends, settings), *more, *flags),
        seconds=seconds,
        extra=dict(extra or {}),
    )
