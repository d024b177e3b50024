"""Rules that may be looked at after every pair without inflating the error rate.

Owns the anytime-valid t interval, the latency decision built on it, and the e-process for harm on paired answers.
Nothing here may be replaced by a fixed-sample interval that is looked at repeatedly: that claims a difference in 24 %
of identical pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import betaln

from vq_console.checks.statistics_means import Interval

EQUIVALENCE = math.log(1.03)
"""Half-width of the equivalence region in log ratio (±3 %)."""


class Decision(NamedTuple):
    """What the pairs so far allow: a word, or `continue`; the interval of the ratio B/A is valid at any time."""

    word: str
    """continue, faster, slower, equivalent or inconclusive."""
    interval: Interval | None
    pairs: int


def anytime_t_halfwidth(n: int, s: float, alpha: float, phi: float = 1.0) -> float:
    """Half-width of the right-Haar Gaussian-mixture t confidence sequence (arXiv 2210.08589, 2310.03722).

    `n` pairs with sample standard deviation `s`; infinite while n is too small for `alpha`.
    """
    if n < 2:
        return math.inf
    r = phi / (phi + n)
    k = (1 / (alpha**2 * r)) ** (1 / n)
    if r * k >= 1:
        return math.inf
    return s / math.sqrt(n) * math.sqrt((n - 1) * (k - 1) / (1 - r * k))


def latency_decision(
    log_differences: Sequence[float],
    *,
    cap: int = 24,
    minimum: int = 6,
    equivalence: float = EQUIVALENCE,
    alpha_run: float = 0.02,
    alpha_cap: float = 0.03,
    higher_is_better: bool = False,
) -> Decision:
    """Whether to stop after these pairs and with which word.

    `log_differences` are ln x_B − ln x_A per block pair in order. During the run the anytime-valid interval at
    `alpha_run` decides; at `cap` also an ordinary t interval at `alpha_cap` (together at most 5 %). For times a value
    above 0 means that B is slower; `higher_is_better` turns that round for throughput.
    """
    data = np.asarray(log_differences, float)
    n = len(data)
    if n < max(minimum, 2):
        return Decision("continue", None, n)
    mean, spread = float(data.mean()), float(data.std(ddof=1))
    half = anytime_t_halfwidth(n, spread, alpha_run)
    if n >= cap:
        half = min(half, float(stats.t.ppf(1 - alpha_cap / 2, n - 1)) * spread / math.sqrt(n))
    low, high = mean - half, mean + half
    interval = (math.exp(low), math.exp(high)) if math.isfinite(half) else None
    if low > -equivalence and high < equivalence:
        return Decision("equivalent", interval, n)
    if low > 0:
        return Decision("faster" if higher_is_better else "slower", interval, n)
    if high < 0:
        return Decision("slower" if higher_is_better else "faster", interval, n)
    return Decision("inconclusive" if n >= cap else "continue", interval, n)


def harm_log_e(b: int, c: int, a: float = 2.0) -> float:
    """Logarithm of the one-sided e-value that B is worse; stop for harm when it is at least ln(1/alpha).

    `b` items where A is right and B wrong, `c` the reverse. θ ~ Beta(a+b, a+c) against θ = ½.
    """
    return float(
        (b + c) * math.log(2)
        + betaln(a + b, a + c)
        - betaln(a, a)
        + stats.beta.logsf(0.5, a + b, a + c)
        - math.log(0.5)
    )
