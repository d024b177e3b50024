"""The pace of a simulated engine: queue, batch, prefill, decode, KV cache, prefix cache, preemption.

Every token has a due time on the monotonic clock; a request waits until it is due, so errors do not add up. Knows
nothing of HTTP or text.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from vq_console.simulator.counters import EngineCounters
from vq_console.simulator.spec import SimSpec

BLOCK = 16
_CACHE_BLOCKS = 65536


class EngineDead(Exception):
    """The engine process is gone; requests get HTTP 500 and /health 503."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a request costs: its prompt tokens, how many tokens it will give at most, and how its cache is keyed."""

    prompt: Sequence[int]
    max_tokens: int
    salt: str = ""
    reads_cache: bool = True


class PrefixCache:
    """Hashes of full prompt blocks, least recently used out first."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def hits(self, work: Work, counters: EngineCounters) -> int:
        """Cached prompt tokens of this request, counted; its own blocks are kept from now on."""
        if not self._enabled:
            return 0
        key = hash(work.salt)
        found = 0
        leading = work.reads_cache
        # vLLM always computes the last token anew, so a fully cached prompt still misses one block.
        full = (len(work.prompt) - 1) // BLOCK
        for block in range(full):
            key = hash((key, *work.prompt[block * BLOCK : (block + 1) * BLOCK]))
            if key in self._blocks:
                self._blocks.move_to_end(key)
                found += BLOCK if leading else 0
            else:
                leading = False
                self._blocks[key] = None
        while len(self._blocks) > _CACHE_BLOCKS:
            self._blocks.popitem(last=False)
        if work.reads_cache:
            counters.prefix_queries += len(work.prompt)
            counters.prefix_hits += found
        return found


class Engine:
    """One engine: runs requests at the programmed pace and keeps vLLM's counters."""

    def __init__(self, spec: SimSpec, kv_tokens: int) -> None:
        self.spec = spec
        self.kv_tokens = kv_tokens
        self.counters = EngineCounters()
        self.dead = asyncio.Event()
        self.started = 0
        self._random = random.Random(spec.seed)
        self._cache = PrefixCache(spec.prefix_caching)
        self._room = asyncio.Condition()
        self._ready_at = time.monotonic()

    def mark_ready(self) -> None:
        """Drift counts from now."""
        self._ready_at = time.monotonic()

    def _drift(self) -> float:
        return 1.0 + self.spec.drift_per_minute * (time.monotonic() - self._ready_at) / 60

    def _spread(self, sd: float) -> float:
        """A lognormal factor with mean 1."""
        return math.exp(sd * self._random.gauss(0, 1) - sd * sd / 2) if sd else 1.0

    def _prefill_s(self, tokens: int, first: bool) -> float:
        spec = self.spec
        base = (
            (spec.ttft_ms + spec.prefill_ms_per_1k * tokens / 1000) / 1000 * self._spread(spec.ttft_sd) * self._drift()
        )
        if spec.hiccup_share and self._random.random() < spec.hiccup_share:
            base += spec.hiccup_ms / 1000
        if first and spec.faults.slow_first_token_s:
            base += spec.faults.slow_first_token_s
        return base

    async def _admit(self, work: Work) -> None:
        counters = self.counters
        counters.waiting += 1
        try:
            async with self._room:
                await self._room.wait_for(
                    lambda: (
                        self.dead.is_set()
                        or (
                            counters.running < self.spec.max_num_seqs
                            and counters.kv_used + len(work.prompt) <= self.kv_tokens
                        )
                        or counters.running == 0
                    )
                )
        finally:
            counters.waiting -= 1
        if self.dead.is_set():
            raise EngineDead
        counters.running += 1
        counters.kv_used += len(work.prompt)

    async def _until(self, due: float) -> None:
        if self.dead.is_set():
            raise EngineDead
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if self.dead.is_set():
            raise EngineDead

    async def run(self, work: Work) -> AsyncGenerator[int, None]:
        """Yield the running count of output tokens whenever tokens are due; the caller closes it when it is done."""
        spec, counters = self.spec, self.counters
        self.started += 1
        number = self.started
        arrival = time.monotonic()
        await self._admit(work)
        admitted = time.monotonic()
        produced = 0
        first_at = admitted
        preempted = False
        try:
            if spec.faults.hang_after is not None and number > spec.faults.hang_after:
                await self.dead.wait()
                raise EngineDead
            cached = self._cache.hits(work, counters)
            due = time.monotonic() + self._prefill_s(len(work.prompt) - cached, number == 1)
            await self._until(due)
            counters.prompt_tokens += len(work.prompt)
            pace = self._spread(spec.tpot_request_sd)
            last = first_at = time.monotonic()
            counters.ttft.observe(first_at - arrival)
            counters.queue.observe(admitted - arrival)
            counters.prefill.observe(first_at - admitted)
            while True:
                step = 1 if produced == 0 else min(spec.tokens_per_chunk, work.max_tokens - produced)
                if produced:
                    for _ in range(step):
                        gap = spec.tpot_at(counters.running) / 1000 * pace * self._spread(spec.tpot_token_sd)
                        due += gap * self._drift()
                    if not preempted and self._preempts(work, produced):
                        preempted = True
                        counters.preemptions += 1
                        due += self._prefill_s(len(work.prompt) + produced, False)
                    await self._until(due)
                    now = time.monotonic()
                    for _ in range(step):
                        counters.inter_token.observe((now - last) / step)
                    last = now
                produced += step
                counters.kv_used += step
                counters.generation_tokens += step
                yield produced
                if produced >= work.max_tokens:
                    return
        finally:
            counters.running -= 1
            counters.kv_used -= len(work.prompt) + produced
            self._finish(work, produced, arrival, first_at)
            # Waking the queue needs no lock to be held by this task: the waiters test the condition again.
            asyncio.get_running_loop().create_task(self._wake())

    def _preempts(self, work: Work, produced: int) -> bool:
        share = self.spec.faults.preempt
        if share and produced == max(1, work.max_tokens // 2):
            return self._random.random() < share
        return self.counters.kv_used > self.kv_tokens and self.counters.running > 1

    def _finish(self, work: Work, produced: int, arrival: float, first_at: float) -> None:
        counters = self.counters
        end = time.monotonic()
        if produced:
            counters.e2e.observe(end - arrival)
            counters.decode.observe(end - first_at)
            if produced > 1:
                counters.per_token.observe((end - first_at) / (produced - 1))
            counters.request_prompt.observe(len(work.prompt))
            counters.request_generation.observe(produced)

    async def _wake(self) -> None:
        async with self._room:
            self._room.notify_all()

    async def kill(self) -> None:
        """The engine process is gone: nothing is answered any more."""
        self.dead.set()
        await self._wake()
