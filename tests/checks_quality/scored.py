"""Scores, texts and arms made in memory, with exact distributions behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vq_console.checks.quality_data import ArmIdentity, Fingerprint, Generated, ModelFacts, Scored

Array = np.ndarray[Any, Any]


def scored_from(rows: Array, tokens: Sequence[int], k: int = 20) -> Scored:
    """What a server with these distributions (natural logs, shape (n, vocabulary)) would send for these tokens."""
    order = np.argsort(-rows, axis=1)[:, :k]
    return Scored(
        np.asarray(tokens, np.int32),
        rows[np.arange(len(tokens)), list(tokens)].astype(np.float32),
        order.astype(np.int32),
        np.take_along_axis(rows, order, axis=1).astype(np.float32),
    )


def normalise(logits: Array) -> Array:
    """Log-probabilities of logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def random_pair(seed: int, tokens: int, noise: float, vocabulary: int = 400) -> tuple[Array, Array, list[int]]:
    """Distributions of A and B at `tokens` positions and the tokens that A sampled there."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2.5, (tokens, vocabulary))
    a = normalise(logits)
    b = normalise(logits + random.normal(0, noise, logits.shape))
    return a, b, [int(random.choice(vocabulary, p=np.exp(row) / np.exp(row).sum())) for row in a]


def exact(a: Array, b: Array) -> Array:
    """KL divergence at each position over the whole vocabulary."""
    return np.asarray((np.exp(a) * (a - b)).sum(axis=1))


def text(prompt: int, ids: Sequence[int], *, words: str = "", finish: str = "length", lp: float = -1.0) -> Generated:
    """A generated text with equal log-probabilities."""
    return Generated(prompt, tuple(ids), np.full(len(ids), lp, np.float32), words, finish)


def arm(label: str = "A", *, tokenizer: str | None = "t", template: str | None = "c", **facts: Any) -> ArmIdentity:
    """An arm that was never asked anything."""
    return ArmIdentity(label, "model", "0.32.0", Fingerprint(tokenizer, template), ModelFacts(**facts))
