"""What a latency check is told before it runs. Fixed then; a change after the start makes it another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vq_console.core.errors import UsageError

QUICK, STANDARD = "quick", "standard"

# (prompt, output) tokens, longest first: the first that fits the budget is taken.
QUICK_LENGTHS = ((512, 128), (256, 64), (128, 32), (96, 24), (64, 16), (32, 8))
STANDARD_LENGTHS = ((512, 128), (256, 96), (128, 64), (128, 32), (64, 16))


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """Design of the check. Times in seconds, `equivalence` as a ratio (0.03 is ±3 %).

    `levels` None picks them: 1 and 16 (quick) or 1, 8 and 32 (standard), with a lower top on a slow engine.
    `prompt_tokens`/`output_tokens` None pick the longest pair that fits the budget. `requests_file` replays the
    user's own requests instead of made prompts.
    """

    mode: str = QUICK
    seed: int = 0
    budget_s: float = 300.0
    levels: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    pairs_min: int = 6
    pairs_cap: int = 12
    equivalence: float = 0.03
    alpha_run: float = 0.02
    alpha_cap: float = 0.03
    single_requests: int = 2
    """Requests of a block at concurrency 1, at least; more where they are over within `single_min_s`."""
    single_min_s: float = 2.0
    window_lifetimes: float = 3.0
    """Length of the steady window in request lifetimes; never below two."""
    window_min_s: float = 2.0
    warmup_blocks: int = 2
    chat: bool = False
    requests_file: str | None = None
    slo_ttft_s: float = 2.0
    slo_tpot_s: float = 0.1
    price_per_hour: float | None = None
    """What an hour of the device costs, in the user's own currency."""

    @staticmethod
    def of(mode: str, *, seed: int = 0, budget_s: float | None = None) -> LatencySettings:
        """The settings of `quick` or `standard`; a budget of None is the mode's own (5 and 23 minutes)."""
        if mode == QUICK:
            return LatencySettings(seed=seed, budget_s=budget_s or 300.0)
        if mode == STANDARD:
            return LatencySettings(
                mode=STANDARD,
                seed=seed,
                budget_s=budget_s or 1380.0,
                pairs_cap=16,
                single_requests=4,
                window_lifetimes=4.0,
            )
        raise UsageError(f"latency: unknown mode {mode!r}", "There are quick and standard.")

    def with_levels(self, *levels: int) -> LatencySettings:
        """The same with concurrency levels of one's own, at least two different ones."""
        if levels and min(levels) < 1:
            raise UsageError(f"latency: a level of {min(levels)} streams cannot be meant", "levels are 1 or more")
        if len(set(levels)) < 2:
            raise UsageError(
                "latency: two different levels are needed", "A gain at batch 1 says nothing about batch 16."
            )
        return replace(self, levels=tuple(sorted(set(levels))))

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Candidate (prompt, output) lengths, longest first."""
        if self.prompt_tokens is not None or self.output_tokens is not None:
            return ((self.prompt_tokens or 512, self.output_tokens or 128),)
        return STANDARD_LENGTHS if self.mode == STANDARD else QUICK_LENGTHS

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON."""
        return asdict(self)

    def digest(self) -> str:
        """A hash of everything that may not change between a run and its resumption (budget and price may)."""
        value = {key: item for key, item in self.to_json().items() if key not in {"budget_s", "price_per_hour"}}
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def settings_from_json(value: Mapping[str, Any]) -> LatencySettings:
    """The settings of a recorded run."""
    fields = dict(value)
    if fields.get("levels") is not None:
        fields["levels"] = tuple(fields["levels"])
    return LatencySettings(**fields)


def own_requests(settings: LatencySettings) -> tuple[Mapping[str, Any], ...]:
    """The user's own requests, or none. Raises UsageError naming file and line."""
    from vq_console.checks.prompts import read_requests

    if settings.requests_file is None:
        return ()
    path = Path(settings.requests_file)
    try:
        found = read_requests(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "One JSON object per line with `messages` or `prompt`.") from error
    if not found:
        raise UsageError(f"{path}: no request in it")
    return tuple(found)
