"""How much a quality check asks, what it will cost, what it can see, and the thresholds of its verdict.

All of it is fixed before the first request and recorded with the result. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from vq_console.checks.tasks.registry import GENERATORS
from vq_console.core.errors import UsageError
from vq_console.core.text import counted, seconds_text

Mode = Literal["quick", "standard"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The cuts of the verdict. KLD in nats per token."""

    indistinguishable: float = 0.002
    floor_factor: float = 3.0
    near_lossless: float = 0.01
    small: float = 0.05
    damaging: float = 0.10
    ppl_ratio: float = 1.05
    """For text that A did not sample: on A's own text the ratio is the divergence once more."""
    harm_e: float = 50.0
    harm_p: float = 0.03
    health_alpha: float = 0.02
    small_model: float = 1e9
    """Below so many parameters DAMAGING needs task evidence."""
    missing_share: float = 0.01
    consistency_shift: float = 0.1
    """Mean |decode − prefill| in nats that passes, or `consistency_factor` times that of scoring twice."""
    consistency_factor: float = 5.0
    consistency_far: float = 0.02


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """One quality check. Token counts are upper limits: answers may end by themselves."""

    mode: str
    seed: int = 0
    budget_s: float | None = None
    sequences: int = 64
    tokens: int = 96
    floor_sequences: int = 32
    divergence_sequences: int = 24
    divergence_tokens: int = 128
    repeat_sequences: int = 6
    own_sequences: int = 12
    """Greedy answers of B that it scores itself, to see whether decoding matches prefill."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    """Generator → items."""
    needle_tokens: tuple[int, ...] = ()
    needle_repeats: int = 2
    recall_with_quantized_kv: int = 20
    calibrate: bool = True
    """Choose each generator's level on pilot items of the baseline; otherwise `level` for all."""
    level: int | None = None
    pilot_items: int = 12
    concurrency: int = 16
    score_concurrency: int = 4
    top_k: int = 20
    thresholds: Thresholds = Thresholds()

    @classmethod
    def of(
        cls,
        mode: str,
        *,
        seed: int = 0,
        budget_s: float | None = None,
        tasks: Mapping[str, int] | None = None,
        needle_tokens: tuple[int, ...] | None = None,
    ) -> QualitySettings:
        """The settings of a mode. `budget_s` bounds KLD and divergence (tasks are announced apart), None for none.

        Raises UsageError for an unknown mode.
        """
        if mode == "quick":
            made = cls("quick", seed, budget_s)
        elif mode == "standard":
            made = cls(
                "standard", seed, budget_s, sequences=128, tokens=256, floor_sequences=64, divergence_sequences=64,
                divergence_tokens=256, repeat_sequences=24, own_sequences=32,
                tasks={name: generator.count for name, generator in GENERATORS.items()}, needle_tokens=(8192, 32768),
            )  # fmt: skip
        else:
            raise UsageError(f"no quality check is called {mode!r}", "The modes are quick and standard.")
        if tasks is not None:
            made = replace(made, tasks=dict(tasks))
        if needle_tokens is not None:
            made = replace(made, needle_tokens=needle_tokens)
        return made

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Speed:
    """What a server was just seen to do, tokens per second over all streams together."""

    decode_tokens_s: float
    prefill_tokens_s: float
    single_tokens_s: float
    """One stream alone."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens an arm makes and reads, at most, and seconds for both arms where their speed is known."""

    a_generated: int
    a_prompt: int
    b_generated: int
    b_prompt: int
    seconds: float | None = None
    task_generated: int = 0
    task_prompt: int = 0
    task_seconds: float | None = None


PROMPT_TOKENS = 60
"""A built-in prompt with its chat template, about."""
PROBE_TOKENS = 96
"""What probing and measuring the speed generate on an arm."""


def cost(
    settings: QualitySettings, a: Speed | None = None, b: Speed | None = None, *, prompt_tokens: int = PROMPT_TOKENS
) -> Cost:
    """The cost of these settings: KLD with its floor and divergence, and the tasks apart.

    Seconds assume that arms answer one after the other.
    """
    s = settings
    generated = s.sequences * s.tokens
    greedy = s.divergence_sequences * s.divergence_tokens
    repeat = s.repeat_sequences * s.divergence_tokens
    scored = s.sequences * (prompt_tokens + s.tokens)
    floor = s.floor_sequences * (prompt_tokens + s.tokens)
    own = s.own_sequences * (prompt_tokens + s.divergence_tokens)
    sent = (s.sequences + s.divergence_sequences + s.repeat_sequences) * prompt_tokens
    answers, prompts = 0, 0
    for name, count in s.tasks.items():
        answers += (count + (2 * s.pilot_items if s.calibrate else 0)) * GENERATORS[name].tokens
        prompts += count * 220
    needles = len(s.needle_tokens) * 5 * s.needle_repeats
    answers += needles * 32
    prompts += sum(s.needle_tokens) * 5 * s.needle_repeats
    seconds = task_seconds = None
    if a is not None and b is not None:
        single = min(a.single_tokens_s * 1.8, a.decode_tokens_s)
        seconds = (
            (generated + greedy) / a.decode_tokens_s + repeat / single + (scored + floor + sent) / a.prefill_tokens_s
            + greedy / b.decode_tokens_s + (scored + own + sent) / b.prefill_tokens_s
        )  # fmt: skip
        task_seconds = sum(answers / x.decode_tokens_s + prompts / x.prefill_tokens_s for x in (a, b))
    return Cost(
        generated + greedy + repeat + s.sequences + s.floor_sequences + PROBE_TOKENS,
        scored + floor + sent,
        greedy + s.sequences + s.own_sequences + PROBE_TOKENS,
        scored + own + s.divergence_sequences * prompt_tokens,
        seconds,
        answers,
        prompts,
        task_seconds,
    )


_LADDER = (
    (128, 256, 64, 64, 256, 24, 32),
    (96, 192, 48, 48, 192, 12, 24),
    (80, 128, 40, 32, 128, 8, 16),
    (64, 96, 32, 24, 128, 6, 12),
    (48, 80, 24, 20, 96, 6, 10),
    (40, 64, 16, 16, 64, 4, 8),
    (32, 48, 12, 16, 48, 4, 8),
    (24, 48, 8, 12, 48, 4, 6),
    (16, 32, 6, 8, 32, 3, 4),
)
"""sequences, tokens, floor, divergence sequences and tokens, repeats, own: what a smaller check asks, step by step."""

SLOW_BUDGET_S = 170.0
"""Where a quick check would take longer than a coffee, it is reduced to this."""
SLOW_ABOVE_S = 240.0


def fitted(
    settings: QualitySettings, a: Speed, b: Speed, *, prompt_tokens: int = PROMPT_TOKENS
) -> tuple[QualitySettings, Cost]:
    """The largest check that fits the budget at the measured speed, and its cost.

    Without a budget a quick check is reduced when it would take more than four minutes; a standard one is never.
    The smallest step is taken even where it does not fit: its announced time says so.
    """
    full = cost(settings, a, b, prompt_tokens=prompt_tokens)
    budget = settings.budget_s
    if budget is None:
        if settings.mode != "quick" or (full.seconds or 0) <= SLOW_ABOVE_S:
            return settings, full
        budget = SLOW_BUDGET_S
    if (full.seconds or 0) <= budget:
        return settings, full
    smaller = settings
    for sequences, tokens, floor, greedy, length, repeat, own in _LADDER:
        if sequences > settings.sequences or tokens > settings.tokens:
            continue
        smaller = replace(
            settings, sequences=sequences, tokens=tokens, floor_sequences=floor, divergence_sequences=greedy,
            divergence_tokens=length, repeat_sequences=repeat, own_sequences=own,
        )  # fmt: skip
        price = cost(smaller, a, b, prompt_tokens=prompt_tokens)
        if (price.seconds or 0) <= budget:
            return smaller, price
    return smaller, cost(smaller, a, b, prompt_tokens=prompt_tokens)


def announce(settings: QualitySettings, price: Cost) -> str:
    """What will be done, how long it takes, and what it can and cannot see; said before the run."""
    s = settings
    error = relative_error(s)
    text = (
        f"{s.mode}: {s.sequences} texts of up to {s.tokens} tokens for KL divergence (about ±{error * 100:.0f} %), "
        f"{s.divergence_sequences} greedy answers of {s.divergence_tokens}; "
        f"at most {price.a_generated:,} tokens generated and {price.a_prompt:,} read by the baseline"
    )
    if price.seconds is not None:
        text += f", about {seconds_text(price.seconds)}"
    if s.tasks or s.needle_tokens:
        items = sum(s.tasks.values()) + len(s.needle_tokens) * 5 * s.needle_repeats
        text += f"; {counted(items, 'task item')}, at most {price.task_generated:,} tokens an arm"
        if price.task_seconds is not None:
            text += f", about {seconds_text(price.task_seconds)}"
        largest = max(s.tasks.values(), default=0)
        text += (
            f". A drop in a task below about {detectable_points(largest):.0f} points stays unseen." if largest else "."
        )
    else:
        text += ". Whether answers are right is not tested (standard does that)."
    return text


def relative_error(settings: QualitySettings) -> float:
    """Expected relative half-width of the KLD interval: token spread 2.5 times the mean, design effect 5."""
    tokens = settings.sequences * settings.tokens
    return float(1.96 * 2.5 * (5 / tokens) ** 0.5)


def detectable_points(items: int, discordance: float = 0.08) -> float:
    """Percentage points that `items` paired items show with 80 % power when 8 % of them flip."""
    from vq_console.checks.statistics import detectable_difference

    found = detectable_difference(items, discordance)
    return found * 100 if found is not None else 100.0
