"""The statistics of all checks, as pure functions of numbers: one door to the formulas of the method.

The formulas live in `statistics_means` (intervals for means, ratios, quantiles), `statistics_sequential` (stopping
rules for latency), `statistics_kld` (divergence of two token distributions) and `statistics_paired` (right and wrong
answers, event rates). Nothing here reads files, sends requests or decides a verdict in words about quality. It loads
numpy and scipy, so only processes that analyse import it.

An interval is `(low, high)`. What the data cannot support is None, never a number that looks like one.
"""

from __future__ import annotations

from vq_console.checks.statistics_kld import (
    kld_bucket,
    kld_position,
    top1_disagreement_expected,
)
from vq_console.checks.statistics_means import (
    ClusterMean,
    Interval,
    Ratio,
    aba_ratio,
    block_bootstrap_quantile,
    cluster_mean,
    design_effect,
    lag1_correlation,
    quantile_interval,
    ratio_interval,
    swapped_ratio,
    t_interval,
)
from vq_console.checks.statistics_paired import (
    detectable_difference,
    hazard_interval,
    holm,
    mcnemar_harm_p,
    mcnemar_midp,
    required_items,
    share_interval,
    tango_interval,
)
from vq_console.checks.statistics_sequential import (
    Decision,
    anytime_t_halfwidth,
    harm_log_e,
    latency_decision,
)

__all__ = [
    "ClusterMean",
    "Decision",
    "Interval",
    "Ratio",
    "aba_ratio",
    "anytime_t_halfwidth",
    "block_bootstrap_quantile",
    "cluster_mean",
    "design_effect",
    "detectable_difference",
    "harm_log_e",
    "hazard_interval",
    "holm",
    "kld_bucket",
    "kld_position",
    "lag1_correlation",
    "latency_decision",
    "mcnemar_harm_p",
    "mcnemar_midp",
    "quantile_interval",
    "ratio_interval",
    "required_items",
    "share_interval",
    "swapped_ratio",
    "t_interval",
    "tango_interval",
    "top1_disagreement_expected",
]
