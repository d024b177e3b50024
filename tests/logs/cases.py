"""The recorded answers: failure cases and logs of real runs, as values that tests can be parametrised with."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "logs"


@dataclass(frozen=True)
class Recorded:
    """One log and what must be said about it. `roots` is empty where no line is right or wrong."""

    name: str
    path: Path
    kind: str
    diagnoses: frozenset[str]
    roots: frozenset[int]
    expect: dict[str, Any] = field(default_factory=dict, hash=False)
    exit_code: int | None = None


@cache
def cases() -> tuple[Recorded, ...]:
    """The constructed and reported cases."""
    found = []
    for folder in sorted((DATA / "cases").iterdir()):
        case = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
        roots = {case["root_line"], *case.get("root_line_alternates", ())}
        found.append(
            Recorded(
                case["id"],
                folder / "log.txt",
                case["kind"],
                frozenset({case["expected_diagnosis"], *case.get("also_acceptable", ())}),
                frozenset(roots) if case["kind"] in ("error", "warning") else frozenset(),
                case.get("expect", {}),
                case.get("exit_code"),
            )
        )
    return tuple(found)


@cache
def real() -> tuple[Recorded, ...]:
    """Whole logs of real runs."""
    answers = tomllib.loads((DATA / "real" / "answers.toml").read_text(encoding="utf-8"))
    return tuple(
        Recorded(
            answer["file"],
            DATA / "real" / answer["file"],
            "healthy" if answer["diagnosis"] == "healthy" else "error",
            frozenset({answer["diagnosis"], *answer.get("also_acceptable", ())}),
            frozenset(answer.get("root_lines", ())),
            answer.get("expect", {}),
        )
        for answer in answers["log"]
    )


@cache
def everything() -> tuple[Recorded, ...]:
    """Cases and real logs."""
    return cases() + real()


@cache
def text(path: Path) -> tuple[str, ...]:
    """The lines of a log as the console reads them."""
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    return tuple(lines[:-1] if lines and not lines[-1] else lines)
