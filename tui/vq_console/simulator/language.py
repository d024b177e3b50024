"""A small deterministic language model with text-like tokens, and a noisy twin at an exact KL divergence.

The base distribution of a position depends on the last eight tokens and the vocabulary seed only. A server with
`kl > 0` shifts the logits along a direction that also depends on the position alone, by the step at which the
divergence of that position is what the specification says; the mean over positions is the programmed value. So the
KL divergence of two servers is known without sampling (`exact_kl`). Pure; touches nothing.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

SIZE = 1024
END, START_TURN, END_TURN = 0, 1, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BYTES_FROM = len(SPECIAL)
_WORDS_FROM = _BYTES_FROM + 256
_ROWS = 2048
_WINDOW = 8
_MASK = (1 << 61) - 1

_COMMON_WORDS = (
    "the of and to in is that it for was on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also around another came come "
    "work three word must because does part even place well such here take why things help put years different away "
    "again off went old number great tell men say small every found still between name should home big give air line "
    "set own under read last never us left end along while might next sound below saw something thought both few those "
    "always looked show large often together asked house world going want school important until form food keep "
    "children feet land side without boy once animals life enough took sometimes four head above kind began almost "
    "live page got earth need far hand high year mother light parts country father let night following picture being "
    "study second eyes soon times story boys since white days ever paper hard near sentence better best across during "
    "today others however sure means knew it's try told young miles sun ways thing whole hear example heard several "
    "change answer room sea against top turned learn point city play toward five using himself usually"
)
_ONSETS = "b br c cl d dr f g gr h j k l m n p pl r s st t tr v w"
_CORES = "a e i o u ai ea io ou"
_CODAS = ("", "l", "n", "r", "s", "nd", "st", "rn", "lm")


class Tokenizer:
    """Longest match over a fixed list of words, with bytes for the rest; decoding gives back any text exactly."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng([seed, 11])
        words: dict[str, None] = dict.fromkeys(" " + word for word in _COMMON_WORDS.split())
        onsets, cores = _ONSETS.split(), _CORES.split()
        words.update(
            dict.fromkeys((".", ",", "?", "!", "\n", ": ", " - ", '"', "ing", "ed", "er", "ly", " I", " A", " The"))
        )
        while len(words) < SIZE - _WORDS_FROM:
            parts = [
                str(random.choice(onsets)) + str(random.choice(cores)) + str(random.choice(_CODAS))
                for _ in range(int(random.integers(1, 3)))
            ]
            words[(" " if random.random() < 0.8 else "") + "".join(parts)] = None
        self.pieces: list[bytes] = [word.encode() for word in SPECIAL]
        self.pieces += [bytes([value]) for value in range(256)]
        self.pieces += [word.encode() for word in list(words)[: SIZE - _WORDS_FROM]]
        self._ids = {piece.decode(): index for index, piece in enumerate(self.pieces) if not _is_byte(index)}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._match = re.compile("|".join(re.escape(piece) for piece in longest_first))

    def encode(self, text: str) -> list[int]:
        """Token IDs; special tokens in the text are recognised as such."""
        out: list[int] = []
        at = 0
        for found in self._match.finditer(text):
            out.extend(byte + _BYTES_FROM for byte in text[at : found.start()].encode("utf-8", "surrogatepass"))
            out.append(self._ids[found[0]])
            at = found.end()
        out.extend(byte + _BYTES_FROM for byte in text[at:].encode("utf-8", "surrogatepass"))
        return out

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of the tokens; broken UTF-8 becomes the replacement character."""
        kept = ids if special else [token for token in ids if token >= _BYTES_FROM]
        return b"".join(self.pieces[token] for token in kept).decode("utf-8", "replace")

    def stream(self) -> StreamDecoder:
        """A decoder that holds back the bytes of an unfinished character."""
        return StreamDecoder(self)

    def piece(self, token: int) -> str:
        """One token as text."""
        return self.pieces[token].decode("utf-8", "replace")


class StreamDecoder:
    """Tokens in, text out, as an incremental detokenizer does it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int], *, final: bool = False) -> str:
        """The text that these tokens complete; may be empty."""
        raw = b"".join(self._tokenizer.pieces[token] for token in ids if token >= _BYTES_FROM)
        return self._decoder.decode(raw, final)


def _is_byte(token: int) -> bool:
    return _BYTES_FROM <= token < _WORDS_FROM


@functools.lru_cache(maxsize=4)
def tokenizer_of(seed: int) -> Tokenizer:
    """The tokenizer of a vocabulary seed."""
    return Tokenizer(seed)


@functools.lru_cache(maxsize=4)
def _base_tables(seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32], Array]:
    random = np.random.default_rng([seed, 12])
    pair = random.standard_normal((SIZE, SIZE), dtype=np.float32)
    context = random.standard_normal((_ROWS, SIZE), dtype=np.float32)
    bias = np.full(SIZE, -6.0, dtype=np.float32)
    bias[_WORDS_FROM:] = np.linspace(1.5, -1.5, SIZE - _WORDS_FROM)
    bias[_BYTES_FROM:_WORDS_FROM] = -14.0
    bias[:_BYTES_FROM] = -10.0
    sharpness = random.uniform(1.6, 4.4, _ROWS)
    return pair, context, bias, sharpness


@functools.lru_cache(maxsize=8)
def _noise_tables(seed: int, spread: float) -> tuple[npt.NDArray[np.float32], Array]:
    random = np.random.default_rng([seed, 13])
    rows = random.standard_normal((_ROWS, SIZE), dtype=np.float32)
    weight = np.exp(spread * random.standard_normal(_ROWS))
    return rows, weight / weight.mean()


def _hashes(tokens: Sequence[int], first: int, seed: int) -> list[int]:
    """A hash of the last eight tokens before each position from `first` to one past the end."""
    out = []
    for position in range(first, len(tokens) + 1):
        value = 0x9E3779B97F4A7C15 ^ seed
        for token in tokens[max(0, position - _WINDOW) : position]:
            value = (value * 0x100000001B3 ^ (token + 1)) & _MASK
        out.append((value ^ value >> 29) & _MASK)
    return out


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def tilt(log_p: Array, direction: Array, target: Array) -> Array:
    """Log-probabilities q ∝ p·exp(s·direction) with s ≥ 0 such that KL(p‖q) equals `target`, row by row.

    The divergence is the centred cumulant function of the direction under p: convex and growing in s, so Newton from
    the right-hand side converges; 25 steps at most, to a relative error of 1e-9.
    """
    p = np.exp(log_p)
    centred = direction - (p * direction).sum(axis=-1, keepdims=True)
    variance = (p * centred**2).sum(axis=-1)
    step = np.sqrt(2 * target / np.maximum(variance, 1e-12))
    for _ in range(25):
        logits = log_p + step[:, None] * centred
        top = logits.max(axis=-1)
        weights = np.exp(logits - top[:, None])
        total = weights.sum(axis=-1)
        value = top + np.log(total)
        slope = (weights * centred).sum(axis=-1) / total
        change = (value - target) / np.maximum(slope, 1e-12)
        step = np.maximum(step - change, step / 4)
        if np.all(np.abs(value - target) <= 1e-9 * np.maximum(target, 1e-12)):
            break
    return _log_softmax(log_p + step[:, None] * centred)


class LanguageModel:
    """Distributions of one simulated server."""

    def __init__(
        self, seed: int, *, kl: float = 0.0, kl_spread: float = 1.0, kl_seed: int = 1, jitter_kl: float = 0.0
    ) -> None:
        self.tokenizer = tokenizer_of(seed)
        self._seed = seed
        self._kl = kl
        self._kl_spread = kl_spread
        self._kl_seed = kl_seed
        self._jitter_kl = jitter_kl

    def log_probabilities(self, tokens: Sequence[int], first: int, *, jitter: int = 0) -> Array:
        """Rows `first`…`len(tokens)`: row i is the distribution of the token that follows `tokens[:i]`.

        Shape (len(tokens) + 1 − first, 1024), natural logarithms. `jitter` picks the request's own random part.
        """
        pair, context, bias, sharpness = _base_tables(self._seed)
        hashes = np.asarray(_hashes(tokens, first, self._seed), dtype=np.int64)
        rows = hashes % _ROWS
        previous = np.asarray([tokens[i - 1] if i else START_TURN for i in range(first, len(tokens) + 1)])
        logits = sharpness[(hashes // _ROWS) % _ROWS][:, None] * (pair[previous] + context[rows]) + bias
        log_p = _log_softmax(logits.astype(np.float64))
        if self._kl > 0:
            noise, weight = _noise_tables(self._kl_seed, self._kl_spread)
            at = (hashes // 7) % _ROWS
            log_p = tilt(log_p, noise[at].astype(np.float64), self._kl * weight[at])
        if self._jitter_kl > 0:
            noise, weight = _noise_tables(self._kl_seed + 1000, self._kl_spread)
            at = (hashes // 5 + jitter * 7919) % _ROWS
            log_p = tilt(log_p, noise[at].astype(np.float64), self._jitter_kl * weight[at])
        return log_p

    def next(self, tokens: Sequence[int], *, jitter: int = 0) -> Array:
        """The distribution of the token that follows, shape (1024,)."""
        row: Array = self.log_probabilities(tokens, len(tokens), jitter=jitter)[0]
        return row


def exact_kl(a: LanguageModel, b: LanguageModel, tokens: Sequence[int], first: int) -> Array:
    """KL(a‖b) in nats at each position from `first` to the last token, over the full vocabulary."""
    log_p = a.log_probabilities(tokens, first)[:-1]
    log_q = b.log_probabilities(tokens, first)[:-1]
    return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))
