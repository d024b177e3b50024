"""Which token comes next: sampling as vLLM does it, scripted answers, and the faults that show in the text.

Decides only; timing and HTTP are elsewhere. Log-probabilities are the raw ones of the model, before temperature and
filters, which is vLLM's default (`--logprobs-mode raw_logprobs`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vq_console.simulator.language import END, END_TURN, SIZE, Array, LanguageModel
from vq_console.simulator.spec import SimSpec

_SURE = 0.98


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling fields of one request, with vLLM's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    needs_model: bool = True
    """False where nothing of the answer but its length matters; any words then do."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """One prepared answer: given when `match` is in the last user turn."""

    match: str
    answer: str
    wrong: str


def read_answers(path: str | None) -> tuple[Scripted, ...]:
    """The answer key of a specification; lines without `match` and `answer` are an error (ValueError)."""
    if not path:
        return ()
    out = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            out.append(Scripted(str(row["match"]), str(row["answer"]), str(row.get("wrong", "I do not know."))))
    return tuple(out)


def share(text: str, seed: int) -> float:
    """A number in [0, 1) that depends on the text and seed alone."""
    return zlib.crc32(f"{seed}/{text}".encode()) / 2**32


def scripted_answer(
    spec: SimSpec, answers: Sequence[Scripted], last_user: str, prompt_tokens: int, user_turns: int
) -> str | None:
    """The prepared text for this prompt after accuracy and faults, or None where nothing is prepared."""
    faults = spec.faults
    if faults.multi_turn_garbage and user_turns > 1:
        return "�� )) the the ((" * 12
    found = next((row for row in answers if row.match in last_user), None)
    if found is None:
        return None
    right = share(found.match, spec.vocabulary_seed) < spec.accuracy
    if faults.flip is not None and share(found.match, 77 + spec.kl_seed) < faults.flip:
        right = not right
    if faults.needle_beyond is not None and prompt_tokens > faults.needle_beyond:
        right = False
    return found.answer if right else found.wrong


class Generator:
    """Makes the output of one request, token by token."""

    def __init__(
        self,
        model: LanguageModel,
        spec: SimSpec,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        answer: str | None = None,
        jitter: int = 0,
    ) -> None:
        self._model = model
        self._faults = spec.faults
        self._prompt_length = len(prompt)
        self._tokens = list(prompt)
        self._sampling = sampling
        self._jitter = jitter
        self._answer = [*model.tokenizer.encode(answer), END_TURN] if answer is not None else None
        seed = sampling.seed if sampling.seed is not None else jitter
        self._random = np.random.default_rng([seed & 0xFFFFFFFF, len(prompt)])
        self._filler = zlib.crc32(np.asarray(prompt[-32:], dtype=np.int32).tobytes()) ^ (spec.kl_seed if spec.kl else 0)

    @property
    def produced(self) -> int:
        """How many tokens came out so far."""
        return len(self._tokens) - self._prompt_length

    def step(self) -> tuple[int, Array | None]:
        """The next token and the raw log-probabilities it was drawn from (None for filler)."""
        at = self.produced
        loops = self._faults.loops_after
        if loops is not None and at >= max(loops, 4):
            row = self._row(self._tokens[-4])
            return self._keep(self._tokens[-4], row)
        if self._answer is not None and at < len(self._answer):
            return self._keep(self._answer[at], self._row(self._answer[at]))
        if not self._sampling.needs_model and loops is None:
            self._filler = (self._filler * 1103515245 + 12345) & 0x7FFFFFFF
            return self._keep(300 + (self._filler >> 8) % 200, None)
        log_p = self._model.next(self._tokens, jitter=self._jitter)
        return self._keep(self._choose(log_p), log_p)

    def _keep(self, token: int, row: Array | None) -> tuple[int, Array | None]:
        self._tokens.append(token)
        return token, row

    def _row(self, token: int) -> Array | None:
        if not self._sampling.needs_model:
            return None
        mixed = np.log1p(-_SURE) + self._model.next(self._tokens, jitter=self._jitter)
        mixed[token] = np.logaddexp(mixed[token], np.log(_SURE))
        return np.asarray(mixed)

    def _choose(self, log_p: Array) -> int:
        sampling = self._sampling
        logits = log_p.copy()
        if sampling.repetition_penalty != 1.0:
            seen = np.unique(self._tokens)
            values = logits[seen]
            logits[seen] = np.where(
                values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
            )
        for token, bias in sampling.logit_bias.items():
            if 0 <= token < SIZE:
                logits[token] += bias
        if sampling.ignore_eos or self.produced < sampling.min_tokens:
            logits[[END, END_TURN, *sampling.stop_token_ids]] = -np.inf
        if sampling.temperature < 1e-5:
            return int(logits.argmax())
        logits = logits / sampling.temperature
        p = np.exp(logits - logits.max())
        p /= p.sum()
        if sampling.min_p > 0:
            p[p < sampling.min_p * p.max()] = 0
        order = np.argsort(-p)
        if sampling.top_k > 0:
            p[order[sampling.top_k :]] = 0
        if sampling.top_p < 1.0:
            before = np.cumsum(p[order]) - p[order]
            p[order[before >= sampling.top_p * p.sum()]] = 0
        return int(self._random.choice(SIZE, p=p / p.sum()))

    def ends(self, token: int) -> bool:
        """Whether this token ends the answer by itself."""
        if self._sampling.ignore_eos or self.produced <= self._sampling.min_tokens:
            return False
        return token in (END, END_TURN) or token in self._sampling.stop_token_ids
