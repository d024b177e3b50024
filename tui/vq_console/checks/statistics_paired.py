"""Statistics of answers that are right or wrong on the same items, and of rare events per token.

b counts items where A is right and B wrong, c the reverse, n all items. Never compares two accuracies as if the items
were different: that needs 6 to 25 times the items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import optimize, stats

from vq_console.checks.statistics_means import Interval


def tango_interval(b: int, c: int, n: int, alpha: float = 0.05) -> Interval:
    """Tango's score interval of accuracy(B) − accuracy(A) = (c − b)/n. Raises ValueError when n is 0 or too small."""
    if n <= 0 or b + c > n:
        raise ValueError("discordant items cannot exceed all items")
    z = float(stats.norm.ppf(1 - alpha / 2))

    def statistic(delta: float) -> float:
        linear = -b - c + (2 * n - b + c) * delta
        constant = -c * delta * (1 - delta)
        root = (math.sqrt(max(linear * linear - 8 * n * constant, 0.0)) - linear) / (4 * n)
        return (b - c - n * delta) / math.sqrt(max(n * (2 * root + delta * (1 - delta)), 1e-12))

    edge = 1 - 1e-9
    estimate = (b - c) / n
    inner = min(max(estimate, -edge), edge)
    low, high = -1.0, 1.0
    if (statistic(-edge) - z) * (statistic(inner) - z) < 0:
        low = float(optimize.brentq(lambda delta: statistic(delta) - z, -edge, inner))
    if (statistic(inner) + z) * (statistic(edge) + z) < 0:
        high = float(optimize.brentq(lambda delta: statistic(delta) + z, inner, edge))
    return -high, -low


def mcnemar_midp(b: int, c: int) -> float:
    """Two-sided mid-p McNemar test that A and B are equally often right; 1 without discordant items."""
    n = b + c
    if n == 0:
        return 1.0
    if b == c:
        return 1.0
    few = min(b, c)
    return float(min(1.0, 2 * stats.binom.cdf(few, n, 0.5) - stats.binom.pmf(few, n, 0.5)))


def mcnemar_harm_p(b: int, c: int) -> float:
    """One-sided mid-p that B is worse (b > c); 1 without discordant items."""
    n = b + c
    if n == 0:
        return 1.0
    return float(stats.binom.sf(b, n, 0.5) + stats.binom.pmf(b, n, 0.5) / 2)


def required_items(difference: float, discordance: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """Items needed to see `difference` (share of items) when `discordance` of them flip, by the paired formula."""
    if not 0 < difference <= discordance <= 1:
        raise ValueError("0 < difference ≤ discordance ≤ 1 was expected")
    z_alpha = float(stats.norm.ppf(1 - alpha / 2))
    z_power = float(stats.norm.ppf(power))
    root = z_alpha * math.sqrt(discordance) + z_power * math.sqrt(discordance - difference**2)
    return (root / difference) ** 2


def detectable_difference(
    n: int, discordance: float, power: float = 0.8, alpha: float = 0.05, *, floor: bool = True
) -> float | None:
    """The smallest difference in accuracy that `n` paired items show with `power`; None when they show none at all.

    `floor` takes at least the 3/n discordance that zero observed flips still allow.
    """
    if n <= 0:
        return None
    share = min(1.0, max(discordance, 3 / n if floor else 0.0))
    if share <= 0:
        return None
    if required_items(share, share, power, alpha) > n:
        # Even if every flip were a loss, this many items would not show it at the observed rate of flips; what they
        # do show is the difference at which all flips go one way.
        if required_items(1.0, 1.0, power, alpha) > n:
            return None
        return float(optimize.brentq(lambda d: required_items(d, d, power, alpha) - n, 1e-9, 1.0))
    return float(optimize.brentq(lambda d: required_items(d, share, power, alpha) - n, 1e-9, share))


def hazard_interval(events: int, exposed: float, alpha: float = 0.05) -> Interval:
    """Exact (χ²) interval of a rate: `events` in `exposed` tokens. Raises ValueError when nothing was exposed."""
    if exposed <= 0:
        raise ValueError("a rate needs exposure")
    low = float(stats.chi2.ppf(alpha / 2, 2 * events)) / 2 / exposed if events else 0.0
    return low, float(stats.chi2.ppf(1 - alpha / 2, 2 * events + 2)) / 2 / exposed


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values in the order given; any of them ≤ alpha is significant over the family."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def share_interval(right: int, n: int, alpha: float = 0.05) -> Interval | None:
    """Wilson's interval of a share; None without items."""
    if n <= 0:
        return None
    z = float(stats.norm.ppf(1 - alpha / 2))
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
