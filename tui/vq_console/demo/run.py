"""`vq-console demo`: prepare, compare, and if an arm cannot run here, say why and take the next pair."""

from __future__ import annotations

from collections.abc import Callable

from vq_console.compare.comparison import AbSettings
from vq_console.compare.run import AbOutcome, run_ab
from vq_console.core.errors import EngineError, LaunchError
from vq_console.demo.prepare import Prepared, prepare, save_demo_profile

WITHIN_S = 440.0
"""Two slow cores end within eight minutes; a GPU needs far less."""


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
            within_s=WITHIN_S,
        )
        try:
            return run_ab(f"profile:{pair.a.name}", f"profile:{pair.b.name}", settings, say)
        except LaunchError as error:
            reasons.append(f"{pair.a.name} against {pair.b.name}: {error.message}")
            say(f"this pair does not run here: {error.message}")
    raise EngineError(
        "no pair of servers came up: " + "; ".join(reasons), "`vq-console ps` and `vq-console logs NAME` show why"
    )
