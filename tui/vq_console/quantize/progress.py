"""What a tool's own output says about how far it is. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEP = re.compile(r"STEP (?P<number>\d+)/(?P<total>\d+): (?P<words>.+)")
_LAYER = re.compile(r"\((?P<number>\d+)/(?P<total>\d+)\): (?P<words>\w+):\s+(?P<percent>\d+)%")
_BAR = re.compile(
    r"(?P<words>Applying quantization config|Compressing model|Smoothing|Loading weights|Writing model shards"
    r"|Calibrating weights|Calibrating|Generating|Measuring)[^:]*:\s+(?P<percent>\d+)%"
)

_SHARES = {"loading the model": 0.05, "reading calibration data": 0.02, "quantizing": 0.85}


@dataclass(slots=True)
class Progress:
    """How far a job is: the step in words, layers done, a share of the whole from 0 to 1, and the time left."""

    words: str = ""
    number: int = 0
    total: int = 0
    share: float = 0.0
    detail: str = ""
    _begin: float = 0.0

    def read(self, line: str) -> bool:
        """Take one line; True when it said something new about the step."""
        step = _STEP.search(line)
        if step:
            self.words, self.number, self.total = step["words"].strip(), int(step["number"]), int(step["total"])
            self._begin = self._before()
            self.share, self.detail = max(self.share, self._begin), ""
            return True
        layer = _LAYER.search(line)
        if layer:
            number, total = int(layer["number"]), max(1, int(layer["total"]))
            within = (
                number - 1 + int(layer["percent"]) / 100 * (0.6 if layer["words"] == "Calibrating" else 1)
            ) / total
            return self._inside(within, f"layer {number} of {total}")
        bar = _BAR.search(line)
        if bar:
            layer_words = self.detail.partition(":")[0] if self.detail.startswith("layer ") else ""
            words = f"{bar['words'].lower()} {bar['percent']} %"
            return self._inside(None, f"{layer_words}: {words}" if layer_words else words)
        return False

    def eta_s(self, passed_s: float) -> float | None:
        """Seconds left by the share that is done; None while too little is done to say."""
        if self.share < 0.1 or passed_s < 3:
            return None
        return passed_s * (1 - self.share) / self.share

    def _before(self) -> float:
        done = 0.0
        for words, share in _SHARES.items():
            if words == self.words:
                return done
            done += share
        return done

    def _inside(self, within: float | None, detail: str) -> bool:
        changed = detail != self.detail
        self.detail = detail
        if within is not None:
            self.share = max(self.share, min(0.99, self._begin + _SHARES.get(self.words, 0.05) * min(1.0, within)))
        return changed
