"""The answers hold when the same log arrives in another form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from logs.cases import Recorded, everything, text
from logs.variants import SAME_MEANING, blocks, cut_head
from vq_console.logs.explain import explain_lines
from vq_console.logs.reader import FactReader

_SMALL = [recorded for recorded in everything() if recorded.path.stat().st_size < 60_000]
_STALLS = {"deepgemm-block-fp8-hang", "nccl-p2p-hang-5090"}
_EXCERPTS = {
    "fp8-kv-uncalibrated-scale-1",
    "nvfp4-w4a16-kernel-preferred-sm121",
    "online-fp8-drops-bias-qwen2",
    "shm-broadcast-wait-during-compile",
}
"""With a banner and a version in front these are other logs: complete ones, of a newer release."""


def _left_out(variant: str) -> set[str]:
    if variant == "dying workers":
        return _STALLS
    return _EXCERPTS if variant.startswith("after a") else set()


def _right(recorded: Recorded, lines: Sequence[str], numbers: Mapping[int, int]) -> bool:
    diagnosis = explain_lines(lines).diagnosis
    where = {numbers[number] for number in recorded.roots if number in numbers}
    return diagnosis.slug in recorded.diagnoses and (not where or diagnosis.root_line in where)


@pytest.mark.parametrize("name", SAME_MEANING)
def test_same_log_same_answer(name: str) -> None:
    change: Callable[[Sequence[str]], tuple[list[str], Mapping[int, int]]] = SAME_MEANING[name]
    judged = [recorded for recorded in _SMALL if recorded.name not in _left_out(name)]
    wrong = [recorded.name for recorded in judged if not _right(recorded, *change(text(recorded.path)))]
    assert wrong == []


def test_the_cause_is_enough_without_what_came_before() -> None:
    errors = [recorded for recorded in _SMALL if recorded.kind == "error" and recorded.roots]
    assert len(errors) > 90
    wrong = [r.name for r in errors if not _right(r, *cut_head(text(r.path), min(r.roots)))]
    assert wrong == []


def test_healthy_logs_stay_healthy_when_they_end_earlier() -> None:
    """A server that is looked at while it starts has not failed."""
    wrong = []
    for recorded in _SMALL:
        if recorded.kind != "healthy":
            continue
        lines = text(recorded.path)
        for share in (0.2, 0.4, 0.6, 0.8):
            reader = FactReader()
            reader.feed(lines[: int(len(lines) * share)])
            if reader.failed:
                wrong.append((recorded.name, share))
    assert wrong == []


@pytest.mark.parametrize("sizes", [(1, 2, 3), (10,), (7, 40, 41)])
def test_pieces_give_what_the_whole_gives(sizes: tuple[int, ...]) -> None:
    for recorded in _SMALL[::7]:
        lines = text(recorded.path)
        whole = explain_lines(lines)
        reader = FactReader()
        for block in blocks(lines, [size for size in sizes if size < len(lines)]):
            reader.feed(block)
            _ = (reader.failed, reader.phase, reader.facts)
        assert reader.explanation() == whole, recorded.name
