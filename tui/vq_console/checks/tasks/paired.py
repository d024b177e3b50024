"""Two arms' answers to the same items, made into counts, tests and intervals.

Only items with a right or wrong answer on both sides are compared; truncated and failed ones are counted apart, never
as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vq_console.checks.statistics import (
    Interval,
    detectable_difference,
    harm_log_e,
    mcnemar_midp,
    tango_interval,
)
from vq_console.checks.tasks.model import Outcome


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task over two arms. `a`, `b` and `difference` are shares of the `n` items that both answered in full."""

    name: str
    n: int
    a: float | None
    b: float | None
    difference: float | None
    interval: Interval | None
    p: float | None
    detectable: float | None
    """The smallest drop that this many items show with 80 % power."""
    a_right_b_wrong: int = 0
    a_wrong_b_right: int = 0
    truncated_a: int = 0
    truncated_b: int = 0
    errors: int = 0
    stopped_early: bool = False
    level: int | None = None

    @property
    def flips(self) -> float | None:
        """The share of items whose correctness changed, whichever way."""
        return (self.a_right_b_wrong + self.a_wrong_b_right) / self.n if self.n else None

    @property
    def worse(self) -> bool:
        """Whether B lost more items than it won."""
        return self.a_right_b_wrong > self.a_wrong_b_right

    def log_e(self) -> float:
        """Logarithm of the e-value that B is worse."""
        return harm_log_e(self.a_right_b_wrong, self.a_wrong_b_right)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "n": self.n,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "ci": list(self.interval) if self.interval else None,
            "p": self.p,
            "detectable": self.detectable,
            "flips": self.flips,
            "a_right_b_wrong": self.a_right_b_wrong,
            "a_wrong_b_right": self.a_wrong_b_right,
            "truncated": {"a": self.truncated_a, "b": self.truncated_b},
            "errors": self.errors,
            "stopped_early": self.stopped_early,
            "level": self.level,
        }


def compare_outcomes(
    name: str,
    pairs: Sequence[tuple[Outcome, Outcome]],
    *,
    stopped_early: bool = False,
    level: int | None = None,
) -> TaskResult:
    """The paired result of one task from (A, B) outcomes of the same items."""
    judged = {Outcome.RIGHT, Outcome.WRONG}
    both = [(a, b) for a, b in pairs if a in judged and b in judged]
    lost = sum(a is Outcome.RIGHT and b is Outcome.WRONG for a, b in both)
    won = sum(a is Outcome.WRONG and b is Outcome.RIGHT for a, b in both)
    n = len(both)
    common: dict[str, Any] = {
        "a_right_b_wrong": lost,
        "a_wrong_b_right": won,
        "truncated_a": sum(a is Outcome.TRUNCATED for a, _ in pairs),
        "truncated_b": sum(b is Outcome.TRUNCATED for _, b in pairs),
        "errors": sum(Outcome.ERROR in pair for pair in pairs),
        "stopped_early": stopped_early,
        "level": level,
    }
    if n == 0:
        return TaskResult(name, 0, None, None, None, None, None, None, **common)
    right_a = sum(a is Outcome.RIGHT for a, _ in both)
    right_b = sum(b is Outcome.RIGHT for _, b in both)
    return TaskResult(
        name,
        n,
        right_a / n,
        right_b / n,
        (right_b - right_a) / n,
        tango_interval(lost, won, n),
        mcnemar_midp(lost, won),
        detectable_difference(n, (lost + won) / n),
        **common,
    )


ALL_TASKS = "all tasks"


def pooled(results: Sequence[TaskResult]) -> TaskResult | None:
    """All tasks as one, where there are several: small losses everywhere show here first."""
    judged = [result for result in results if result.n]
    if len(judged) < 2:
        return None
    n = sum(result.n for result in judged)
    lost = sum(result.a_right_b_wrong for result in judged)
    won = sum(result.a_wrong_b_right for result in judged)
    a = sum((result.a or 0.0) * result.n for result in judged) / n
    return TaskResult(
        ALL_TASKS, n, a, a + (won - lost) / n, (won - lost) / n, tango_interval(lost, won, n), mcnemar_midp(lost, won),
        detectable_difference(n, (lost + won) / n), lost, won,
        truncated_a=sum(result.truncated_a for result in results),
        truncated_b=sum(result.truncated_b for result in results),
        errors=sum(result.errors for result in results),
        stopped_early=any(result.stopped_early for result in results),
    )  # fmt: skip


def harm_reached(pairs: Sequence[tuple[Outcome, Outcome]], log_limit: float) -> bool:
    """Whether the sequential test for harm has reached its limit; may be asked after every item."""
    lost = sum(a is Outcome.RIGHT and b is Outcome.WRONG for a, b in pairs)
    won = sum(a is Outcome.WRONG and b is Outcome.RIGHT for a, b in pairs)
    return lost > won and harm_log_e(lost, won) >= log_limit


def group_by_task(
    tasks: Mapping[str, str], a: Mapping[str, Outcome], b: Mapping[str, Outcome]
) -> dict[str, list[tuple[Outcome, Outcome]]]:
    """Outcome pairs of the items that both sides have, by task name, in the order of `tasks` (item id → task)."""
    grouped: dict[str, list[tuple[Outcome, Outcome]]] = {}
    for item, task in tasks.items():
        if item in a and item in b:
            grouped.setdefault(task, []).append((a[item], b[item]))
    return grouped


def e_limit(tasks: int, limit: float) -> float:
    """ln of the e-value at which one of `tasks` families stops: Bonferroni over the families."""
    return math.log(limit * max(1, tasks))
