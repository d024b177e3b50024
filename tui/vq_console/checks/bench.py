"""Runs single blocks of load against known servers and keeps what they gave.

Owns the order "idle, counters, load, counters, keep"; decides nothing about what the figures mean. One block at a
time: two servers on one device are never loaded together (trap 16), and a lock per device keeps two checks apart.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vq_console.checks.counters import Counters, read_counters
from vq_console.checks.endpoint import Capabilities, Endpoint, probe
from vq_console.checks.generator import LoadGenerator
from vq_console.checks.gpu_watch import GpuWatch
from vq_console.checks.latency_blocks import BlockEntry, BlockResult, keep_entry, measure_block
from vq_console.checks.measures import Slo, geometric_mean, times_of
from vq_console.checks.order import BlockOrder, can_do
from vq_console.checks.progress import Progress
from vq_console.checks.prompts import PromptPool, make_pool
from vq_console.checks.records import REQUESTS_FILE, RequestRecord, record_from_json
from vq_console.checks.schedule import Level, ProbeTimes, Turn
from vq_console.checks.validity import BlockFacts
from vq_console.core.errors import CheckError
from vq_console.core.files import file_lock
from vq_console.core.places import state_dir
from vq_console.core.text import counted

_IDLE_WAIT_S = 5.0
_STALL_REQUESTS = 3
PROBE_PROMPT, PROBE_OUTPUT = 64, 8


@dataclass(slots=True)
class Arm:
    """One server with what is known of it."""

    name: str
    endpoint: Endpoint
    capabilities: Capabilities
    pool: PromptPool


@dataclass(frozen=True, slots=True)
class Load:
    """What the requests of a run are made of."""

    prompt_tokens: int
    output_tokens: int
    seed: int
    chat: bool = False
    requests: tuple[Mapping[str, Any], ...] = ()
    slo: Slo = field(default_factory=Slo)


def devices_of(endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    """What is loaded: GPU UUIDs, `cpu`, or the server's address where the device is unknown."""
    names: dict[str, None] = {}
    for endpoint in endpoints:
        if endpoint.gpu_uuids:
            names.update(dict.fromkeys(endpoint.gpu_uuids))
        else:
            names["cpu" if endpoint.device == "cpu" else endpoint.url.split("//")[-1]] = None
    return tuple(names)


def share_device(a: Endpoint, b: Endpoint) -> bool:
    """Whether load on one disturbs the other; unknown counts as shared."""
    if a.gpu_uuids and b.gpu_uuids:
        return bool(set(a.gpu_uuids) & set(b.gpu_uuids))
    return True


@contextlib.contextmanager
def hold_devices(endpoints: Sequence[Endpoint]) -> Iterator[None]:
    """Keep other checks of this machine off these devices. Raises CheckError when one is in use."""
    with contextlib.ExitStack() as stack:
        for name in sorted(devices_of(endpoints)):
            safe = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in name)
            path = state_dir() / "locks" / f"load-{safe}.lock"
            if not stack.enter_context(file_lock(path, blocking=False)):
                raise CheckError(
                    f"another check is loading {name} at this moment",
                    "Two loads on one device measure each other; wait for it or cancel it.",
                )
        yield


class Bench:
    """Servers, one load generator and the folder of raw records. Use as a context manager."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.progress = progress
        self.arms: dict[str, Arm] = {}
        self._records = folder / REQUESTS_FILE
        self._generator = LoadGenerator(folder / "generator.log")
        self._watch: dict[str, GpuWatch] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._generator.close()
        for watch in self._watch.values():
            watch.close()

    def add(self, name: str, endpoint: Endpoint) -> Arm:
        """Probe a server and make it known to the generator, also when it came back on another port."""
        self.progress.event("probe", f"{endpoint.label}: asking what it can do", arm=name)
        capabilities = probe(endpoint)
        arm = Arm(name, endpoint, capabilities, make_pool(endpoint, capabilities))
        self.arms[name] = arm
        self._generator.server(name, endpoint)
        if name in self._watch:
            self._watch[name].close()
        self._watch[name] = GpuWatch(endpoint.gpu_uuids)
        return arm

    def _order(self, turn: Turn, load: Load, level: Level) -> BlockOrder:
        arm = self.arms[turn.arm]
        lifetime = max(level.lifetime_s, 0.01)
        order = BlockOrder(
            block=turn.block,
            server=turn.arm,
            model=arm.endpoint.model,
            records=str(self._records),
            concurrency=turn.concurrency,
            prompt_tokens=load.prompt_tokens,
            output_tokens=load.output_tokens,
            prompt_seed=load.seed,
            prompt_key=turn.prompt_key,
            pool=arm.pool,
            chat=load.chat or any("messages" in request for request in load.requests),
            requests_per_stream=level.requests_per_stream,
            stagger_s=level.stagger_s,
            ramp_s=level.ramp_s,
            window_s=level.window_s,
            drain_s=min(60.0, max(2.0, lifetime)),
            timeout_s=max(60.0, 20 * lifetime),
            requests=load.requests,
        )
        return replace(order, **can_do(arm.capabilities))

    def wait_idle(self, names: Sequence[str]) -> dict[str, Counters]:
        """Counters of these servers once none of them works any more, or after a few seconds as they are."""
        deadline = time.monotonic() + _IDLE_WAIT_S
        while True:
            found = {name: read_counters(self.arms[name].endpoint) for name in names if name in self.arms}
            if all(counters.idle for counters in found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def run(
        self, turn: Turn, load: Load, level: Level, *, phase: int = 0, fresh: bool = False
    ) -> tuple[BlockEntry, list[RequestRecord]]:
        """One block: its facts (not yet kept) and its records (already in the file)."""
        order = replace(self._order(turn, load, level), fresh=fresh)
        other = next((name for name in self.arms if name != turn.arm and self._shares(name, turn.arm)), None)
        names = [turn.arm, *([other] if other else [])]
        before = self.wait_idle(names)
        offset = self._records.stat().st_size if self._records.exists() else 0
        began = time.monotonic()
        watch = self._watch[turn.arm]
        with watch:
            account = self._generator.block(
                order, cancelled=self.progress.cancelled, most_s=60 + 20 * level.block_s + order.timeout_s
            )
        seconds = time.monotonic() - began
        after = self.wait_idle(names)
        clocks = watch.clocks()
        facts = BlockFacts(
            concurrency=turn.concurrency,
            lag_p99_ms=(account.get("lag") or {}).get("p99_ms"),
            client_cpu=account.get("client_cpu"),
            before=before[turn.arm],
            after=after[turn.arm],
            idle_before=before[other] if other else None,
            idle_after=after[other] if other else None,
            problem=account.get("problem"),
            clock_before_mhz=clocks[0],
            clock_after_mhz=clocks[1],
            throttle=watch.throttle(),
        )
        entry = BlockEntry(turn, facts, account.get("started") or time.time(), seconds, phase, watch.power())
        return entry, _records_from(self._records, offset)

    def _shares(self, a: str, b: str) -> bool:
        return share_device(self.arms[a].endpoint, self.arms[b].endpoint)

    def measure(self, turn: Turn, load: Load, level: Level, *, phase: int = 0) -> BlockResult:
        """One block, kept and measured. A block that was cancelled is not kept as a block; its records stay."""
        entry, records = self.run(turn, load, level, phase=phase)
        if not self.progress.cancelled():
            keep_entry(self.folder, entry)
        return measure_block(entry, records, load.slo)

    def probe_times(self, name: str, seed: int) -> ProbeTimes:
        """Seconds to the first token and per token of one small request, after one that is thrown away.

        Raises CheckError when the server gives no tokens.
        """
        load = Load(PROBE_PROMPT, PROBE_OUTPUT, seed)
        last: list[RequestRecord] = []
        for attempt in range(2):
            turn = Turn(-100 - attempt, 1, name, 0)
            _, last = self.run(turn, load, Level(1, 30.0, requests_per_stream=1))
            if self.progress.cancelled():
                break
        ttft = geometric_mean(times_of(record).ttft for record in last)
        tpot = geometric_mean(times_of(record).tpot for record in last)
        if ttft is None or tpot is None:
            said = next((record.error for record in last if record.error), None) or "no token came"
            raise CheckError(
                f"{self.arms[name].endpoint.label}: the probe request gave no tokens ({said})",
                "See the server's log; ready is not proven until one token came out.",
            )
        return ProbeTimes(ttft, tpot, PROBE_PROMPT)

    def stall_ms(self, name: str, seed: int) -> float | None:
        """How much later first tokens come on a kept connection than on a new one, in milliseconds; None if unknown.

        About 40 ms is the signature of Nagle's algorithm meeting a delayed acknowledgement: a new connection is still
        acknowledged at once. Requests of one token, so that nothing but the first token is timed.
        """
        medians = []
        for number, fresh in ((-200, False), (-201, True)):
            turn = Turn(number, 1, name, 0)
            level = Level(1, 10.0, requests_per_stream=_STALL_REQUESTS)
            _, records = self.run(turn, Load(16, 1, seed), level, fresh=fresh)
            times = sorted(ttft for record in records if (ttft := times_of(record).ttft) is not None)
            if len(times) < _STALL_REQUESTS:
                return None
            medians.append(times[len(times) // 2])
        return (medians[0] - medians[1]) * 1000

    def busy_gpu(self, name: str) -> int | None:
        """Utilisation of a server's GPUs in percent while no load is ours; None where unknown."""
        return self._watch[name].idle_utilization()

    def warm_up(self, load: Load, concurrencies: Sequence[int], blocks: int) -> dict[int, float]:
        """Discarded blocks with prompts of their own on every arm; the longest request lifetime seen per level."""
        seen: dict[int, float] = {}
        total = blocks * len(concurrencies) * len(self.arms)
        done = 0
        for name in self.arms:
            for concurrency in sorted(concurrencies):
                for number in range(blocks):
                    if self.progress.cancelled():
                        return seen
                    turn = Turn(-1 - number, concurrency, name, 0)
                    self.progress.event(
                        "warm-up",
                        f"{name} at {counted(concurrency, 'stream')}, discarded",
                        arm=name,
                        done=done,
                        total=total,
                    )
                    _, records = self.run(turn, load, Level(concurrency, 60.0, requests_per_stream=1))
                    done += 1
                    lives = [times.e2e for record in records if (times := times_of(record)).e2e is not None]
                    if lives and number == blocks - 1:
                        longest = sum(life for life in lives if life is not None) / len(lives)
                        seen[concurrency] = max(seen.get(concurrency, 0.0), longest)
        return seen


def _records_from(path: Path, offset: int) -> list[RequestRecord]:
    out = []
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                out.append(record_from_json(json.loads(line)))
    return out
