"""What a quality check measures, as values: sampled text, scores of it, greedy answers, recordings and replays.

Owns shapes only. Log-probabilities are natural logarithms in float32, as servers send them; a missing one is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vq_console.checks.tasks.model import Answer, Item

IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]

MISSING_BELOW = -9000.0
"""vLLM writes −9999 where a log-probability is −inf."""


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt as it is sent: token IDs rendered once by the baseline's chat template."""

    id: str
    ids: tuple[int, ...]
    text: str = ""
    """The user's words, for a reader."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One generated text. `top` holds for each position the likeliest tokens, id → log-probability.

    `exact` False: the server sent no token IDs, so its text was tokenized again, which may split it otherwise.
    """

    prompt: int
    ids: tuple[int, ...]
    logprobs: FloatArray
    text: str = ""
    finish: str | None = None
    top: tuple[Mapping[int, float], ...] = ()
    error: str | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Scored:
    """A server's view of given tokens: shapes (n,) for the observed token, (n, k) for the k likeliest.

    `top_ids` is −1 and `top_lp` NaN where a server sent fewer; the observed token is in the top only by its own right.
    """

    x: IntArray
    x_lp: FloatArray
    top_ids: IntArray
    top_lp: FloatArray
    error: str | None = None

    @property
    def tokens(self) -> int:
        return len(self.x)


def empty_scored(error: str) -> Scored:
    """No scores, and why."""
    none_i, none_f = np.empty(0, np.int32), np.empty(0, np.float32)
    return Scored(none_i, none_f, np.empty((0, 1), np.int32), np.empty((0, 1), np.float32), error)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of an arm's model apart from what it answers; None where unknown."""

    bits: int | None = None
    """Bits of a weight: 16 is an unquantized model."""
    parameters: float | None = None
    kv_quantized: bool | None = None
    speculative: bool | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Architecture, hidden size, layers, vocabulary: what two precisions of one model share."""

    def to_json(self) -> dict[str, Any]:
        return {
            "bits": self.bits,
            "parameters": self.parameters,
            "kv_quantized": self.kv_quantized,
            "speculative": self.speculative,
            "shape": dict(self.shape),
        }


def model_facts_from_json(value: Mapping[str, Any]) -> ModelFacts:
    """The facts that `ModelFacts.to_json` wrote."""
    return ModelFacts(
        value.get("bits"), value.get("parameters"), value.get("kv_quantized"), value.get("speculative"),
        dict(value.get("shape") or {}),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes by which a later arm is known to speak the same tokens: tokenizer and chat template."""

    tokenizer: str | None
    template: str | None


@dataclass(frozen=True, slots=True)
class ArmIdentity:
    """Who answered: enough to show and to refuse, no key and no address that matters elsewhere."""

    label: str
    model: str
    version: str | None
    fingerprint: Fingerprint
    facts: ModelFacts
    simulated: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """A baseline measured once: everything that a later arm is compared with."""

    arm: ArmIdentity
    prompts: tuple[PromptIds, ...] = ()
    on_policy: bool = True
    samples: tuple[Generated, ...] = ()
    scores: tuple[Scored, ...] = ()
    """Aligned with `samples`."""
    floor: Mapping[int, Scored] = field(default_factory=dict)
    """Sample index → a second scoring of it, at another batch size and in another order."""
    greedy: tuple[Generated, ...] = ()
    repeat: Mapping[int, Generated] = field(default_factory=dict)
    """Greedy index → a second answer at another batch size."""
    items: tuple[Item, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    created: float = 0.0

    def limited(self, sequences: int, greedy: int) -> Recording:
        """The first so many sequences and greedy answers, for an arm with less time."""
        return replace(
            self,
            samples=self.samples[:sequences],
            scores=self.scores[:sequences],
            floor={index: scored for index, scored in self.floor.items() if index < sequences},
            greedy=self.greedy[:greedy],
            repeat={index: made for index, made in self.repeat.items() if index < greedy},
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """What one arm made of a recording. `own` scores some of its own greedy answers: does decoding match prefill?"""

    arm: ArmIdentity
    scores: tuple[Scored, ...] = ()
    greedy: tuple[Generated, ...] = ()
    own: Mapping[int, Scored] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    """Tasks that ended early because the harm was proven."""
    blocked: str | None = None
    """Why tokens cannot be compared with the recording at all."""
    template_differs: bool = False
