"""`vq-console demo`: prepare, compare, and if an arm cannot run here, say why and take the next pair."""

from __future__ import annotations

from collections.abc import Callable

from vq_console.compare.run import AbOutcome, AbSettings, run_ab
from vq_console.core.errors import EngineError, LaunchError
from vq_console.demo.prepare import Prepared, prepare, save_demo_profile

LATENCY_BUDGET_S = 155.0
QUALITY_BUDGET_S = 95.0
"""Two servers on two cores end within eight minutes with these; a GPU needs far less."""


def run_demo(say: Callable[[str], None], *, prepared: Prepared | None = None) -> AbOutcome:
    """The whole job. Raises EngineError when no pair gets two servers up."""
    made = prepared or prepare(say)
    reasons: list[str] = []
    for pair in made.pairs:
        say(f"pair: {pair.a.name} against {pair.b.name}: {pair.why}")
        for arm in (pair.a, pair.b):
            save_demo_profile(arm, made.models[arm.scheme])
        settings = AbSettings(
            mode="quick",
            engine=made.engine.python,
            latency_budget_s=LATENCY_BUDGET_S,
            quality_budget_s=QUALITY_BUDGET_S,
        )
        try:
            return run_ab(f"profile:{pair.a.name}", f"profile:{pair.b.name}", settings, say)
        except LaunchError as error:
            reasons.append(f"{pair.a.name} against {pair.b.name}: {error.message}")
            say(f"this pair does not run here: {error.message}")
    raise EngineError(
        "no pair of servers came up: " + "; ".join(reasons), "`vq-console ps` and `vq-console logs NAME` show why"
    )
