"""One look at a server's /metrics: Prometheus text as values by name and labels.

Owns the parser (names of vLLM 0.20 to 0.33, `v1/metrics/loggers.py`). Keeps no history and judges nothing; unknown
names are kept out, malformed lines are skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from vq_console.core import http

Labels = tuple[tuple[str, str], ...]
WANTED = ("vllm:", "process_start_time_seconds")


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values of one moment: name (counters without `_total`) to labels to value. `at` is monotonic seconds."""

    at: float
    values: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str) -> float | None:
        """The sum over engines and labels, or None when the server does not expose `name`."""
        found = self.values.get(name)
        return sum(found.values()) if found else None

    def peak(self, name: str) -> float | None:
        """The highest value over engines, or None."""
        found = self.values.get(name)
        return max(found.values()) if found else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of one label; empty when `name` is absent."""
        sums: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def buckets(self, name: str) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound (seconds or tokens), summed over engines."""
        found: dict[float, float] = {}
        for text, count in self.by_label(f"{name}_bucket", "le").items():
            bound = _number(text)
            if bound is not None:
                found[bound] = count
        return dict(sorted(found.items()))

    def info(self, name: str) -> dict[str, str]:
        """The labels of an info metric such as `vllm:cache_config_info`; empty when absent."""
        for labels in self.values.get(name, {}):
            return dict(labels)
        return {}


def scrape(url: str, *, api_key: str | None = None, timeout_s: float = 3.0) -> Scrape | None:
    """Fetch and parse `url`/metrics; None when the server gives none (down, or metrics disabled)."""
    answer = http.get(f"{url.rstrip('/')}/metrics", timeout=timeout_s, api_key=api_key)
    if not answer.ok:
        return None
    return parse_metrics(answer.body.decode("utf-8", "replace"), at=time.monotonic())


def parse_metrics(text: str, *, at: float) -> Scrape:
    """Parse the Prometheus text format. Pure. NaN counts as absent; a timestamp behind a value is ignored."""
    values: dict[str, dict[Labels, float]] = {}
    known: dict[str, Labels] = {}
    for line in text.split("\n"):
        if not line.startswith(WANTED):
            continue
        brace = line.find("{")
        if brace < 0:
            name, _, rest = line.partition(" ")
            labels: Labels = ()
        else:
            name = line[:brace]
            end = line.rfind("}")
            inside, rest = line[brace + 1 : end], line[end + 1 :]
            if end < brace:
                continue
            cached = known.get(inside)
            labels = cached if cached is not None else known.setdefault(inside, parse_labels(inside))
        fields = rest.split()
        value = _number(fields[0]) if fields else None
        if value is None:
            continue
        values.setdefault(name.removesuffix("_total"), {})[labels] = value
    return Scrape(at, values)


def parse_labels(text: str) -> Labels:
    """`a="x",b="y"` as pairs in their order; backslash escapes as the format has them. Pure."""
    found = []
    place = 0
    while place < len(text):
        equals = text.find('="', place)
        if equals < 0:
            break
        name = text[place:equals].strip(", ")
        place = equals + 2
        value = []
        while place < len(text) and text[place] != '"':
            if text[place] == "\\" and place + 1 < len(text):
                place += 1
                value.append({"n": "\n"}.get(text[place], text[place]))
            else:
                value.append(text[place])
            place += 1
        place += 1
        found.append((name, "".join(value)))
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
