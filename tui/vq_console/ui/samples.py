"""Raw samples of a finished run for plots: TTFT and TPOT of each answer by arm and streams. Reads files, draws nothing.

Call off the event loop: a long run has tens of thousands of requests.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"p(?P<pair>\d+)-c(?P<streams>\d+)-(?P<arm>[AB])")


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds by (arm, streams): time to first token, and time per token after it."""

    ttft_s: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    tpot_s: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)


def read_samples(folder: Path) -> Samples:
    """The samples of `latency/requests.jsonl`; empty where the run measured no latency. Warm-up is left out."""
    try:
        with open(folder / "latency" / "requests.jsonl", encoding="utf-8") as file:
            return samples_of(_records(file))
    except OSError:
        return Samples()


def _records(lines: Iterable[str]) -> Iterable[Mapping[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the last line of a run that was cut off


def samples_of(records: Iterable[Mapping[str, Any]]) -> Samples:
    """Pure. A request without a token, or that failed, has no sample."""
    ttft: dict[tuple[str, int], list[float]] = defaultdict(list)
    tpot: dict[tuple[str, int], list[float]] = defaultdict(list)
    for record in records:
        found = _BLOCK.fullmatch(str(record.get("block")))
        tokens = [chunk for chunk in record.get("chunks") or () if chunk[1] == "t"]
        if found is None or record.get("error") or not tokens:
            continue
        key = found["arm"], int(found["streams"])
        ttft[key].append(tokens[0][0] / 1e9)
        count = sum(chunk[3] or 0 for chunk in tokens)
        if count > 1:
            tpot[key].append((tokens[-1][0] - tokens[0][0]) / 1e9 / (count - 1))
    return Samples(
        {key: tuple(values) for key, values in ttft.items()}, {key: tuple(values) for key, values in tpot.items()}
    )
