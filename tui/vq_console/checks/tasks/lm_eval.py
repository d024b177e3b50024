"""Import of two `lm_eval --log_samples` outputs as paired items.

Pairs are made by document hash (and filter), and only where prompt and target hashes agree too: otherwise the two
runs did not ask the same question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vq_console.checks.tasks.model import Outcome
from vq_console.checks.tasks.paired import TaskResult, compare_outcomes
from vq_console.core.errors import UsageError
from vq_console.core.files import read_jsonl
from vq_console.core.text import counted

METRICS = ("exact_match", "acc", "acc_norm", "pass@1", "prompt_level_strict_acc", "em")
"""Metrics whose value per item is right (1) or wrong (0), in the order of preference."""


def sample_files(path: Path) -> dict[str, Path]:
    """Task name → its newest `samples_<task>_<time>.jsonl` under `path` (a file stands for itself)."""
    if path.is_file():
        return {_task_of(path): path}
    found: dict[str, Path] = {}
    for file in sorted(path.rglob("samples_*.jsonl"), key=lambda file: (file.stem[-26:], str(file))):
        found[_task_of(file)] = file
    if not found:
        raise UsageError(f"{path}: no samples_*.jsonl in it", "Run lm_eval with --log_samples --output_path.")
    return found


def _task_of(path: Path) -> str:
    parts = path.stem.removeprefix("samples_").split("_")
    return "_".join(part for i, part in enumerate(parts) if i == 0 or not part[:4].isdigit() or "T" not in part)


def _value(record: Mapping[str, Any], metric: str | None) -> tuple[str, float] | None:
    listed = [str(name) for name in record.get("metrics") or ()]
    for name in (metric,) if metric else [*listed, *METRICS]:
        value = record.get(name)
        if isinstance(value, bool | int | float):
            return name, float(value)
    return None


def _key(record: Mapping[str, Any]) -> tuple[str, str] | None:
    document = record.get("doc_hash") or record.get("doc_id")
    return (str(document), str(record.get("filter", ""))) if document is not None else None


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    return read_jsonl(path)


def import_pairs(a: Path, b: Path, *, metric: str | None = None) -> tuple[list[TaskResult], list[str]]:
    """The paired results of all tasks that both sides have, one for each filter, and what could not be paired.

    Raises UsageError when the two share no task or no item.
    """
    left, right = sample_files(a), sample_files(b)
    notes = [f"{task}: only on one side" for task in sorted(left.keys() ^ right.keys())]
    results: list[TaskResult] = []
    for task in sorted(left.keys() & right.keys()):
        others = {key: record for record in _records(right[task]) if (key := _key(record)) is not None}
        by_filter: dict[str, list[tuple[Outcome, Outcome]]] = {}
        different = missing = unscored = 0
        for record in _records(left[task]):
            key = _key(record)
            other = others.get(key) if key is not None else None
            if key is None or other is None:
                missing += 1
                continue
            if any(record.get(name) != other.get(name) for name in ("prompt_hash", "target_hash")):
                different += 1
                continue
            mine, theirs = _value(record, metric), _value(other, metric)
            if mine is None or theirs is None or mine[0] != theirs[0] or {mine[1], theirs[1]} - {0.0, 1.0}:
                unscored += 1
                continue
            pair = tuple(Outcome.RIGHT if value == 1.0 else Outcome.WRONG for value in (mine[1], theirs[1]))
            by_filter.setdefault(key[1], []).append((pair[0], pair[1]))
        for name, pairs in by_filter.items():
            title = task if len(by_filter) == 1 or not name else f"{task} ({name})"
            results.append(compare_outcomes(title, pairs))
        for count, what in (
            (missing, "without a partner"),
            (different, "with another prompt or target"),
            (unscored, "without a right-or-wrong metric"),
        ):
            if count:
                notes.append(f"{task}: {counted(count, 'item')} {what}")
    if not results:
        raise UsageError(f"{a} and {b} have no item in common", "; ".join(notes) or "Compare runs of the same tasks.")
    return results, notes
