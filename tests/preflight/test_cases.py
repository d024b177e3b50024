"""Launches that failed: lint says why, and says nothing of the kind once the launch is repaired."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from preflight.judging import loud, plan_of, rules_of
from vq_console.preflight.target import TARGET_KEYS

DATA = Path(__file__).parent.parent / "data" / "preflight"
CASES: list[dict[str, Any]] = tomllib.loads((DATA / "cases.toml").read_text())["case"]
VARIANTS: list[dict[str, Any]] = tomllib.loads((DATA / "variants.toml").read_text())["variant"]
TWINS: list[dict[str, Any]] = tomllib.loads((DATA / "twins.toml").read_text())["twin"]

NOT_PREDICTABLE = {
    # By its sizes a 14B AWQ model and one request of 40,960 tokens fit 24 GiB: 9.3 + 6.3 GiB.
    "tricky-non-utf8-bytes",
}


def _wanted(case: dict[str, Any]) -> set[str]:
    return {case["expected"], *case.get("also_acceptable", ())}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case_is_recognised(case: dict[str, Any]) -> None:
    found = plan_of(case["lint_input"]).findings
    hits = [finding for finding in found if finding.rule in _wanted(case) and finding.severity != "info"]
    if case["id"] in NOT_PREDICTABLE:
        assert not hits
        return
    assert hits, [(finding.rule, finding.message) for finding in found]
    assert all(hit.message and hit.fix and hit.source for hit in hits)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_repaired_twin_is_silent(case: dict[str, Any]) -> None:
    plan = plan_of(case["repaired"])
    assert not [finding for finding in loud(plan) if finding.rule in _wanted(case)]
    assert not [finding for finding in plan.findings if finding.severity == "error"]


def test_a_target_file_takes_every_key_of_the_cases() -> None:
    keys = {key for case in (*CASES, *VARIANTS, *TWINS) for key in case["lint_input"]}
    assert keys <= set(TARGET_KEYS)


def test_score() -> None:
    hits = others = 0
    for case in CASES:
        rules = rules_of(plan_of(case["lint_input"]))
        hits += any(rule in _wanted(case) for rule in rules)
        others += sum(rule not in _wanted(case) for rule in rules)
    assert len(CASES) >= 98
    assert hits / len(CASES) >= 0.98
    assert others / len(CASES) <= 0.1


@pytest.mark.parametrize("variant", VARIANTS, ids=[f"{n}-{v.get('expected', 'sound')}" for n, v in enumerate(VARIANTS)])
def test_variant(variant: dict[str, Any]) -> None:
    plan = plan_of(variant["lint_input"])
    rules = rules_of(plan)
    if "expected" in variant:
        assert variant["expected"] in rules, [(finding.rule, finding.message) for finding in plan.findings]
        assert len(rules) <= 3
    else:
        assert not [finding for finding in plan.findings if finding.severity == "error"], rules
        assert len(rules) <= 1


@pytest.mark.parametrize("twin", TWINS, ids=[f"{n}-{twin['expected']}" for n, twin in enumerate(TWINS)])
def test_twin(twin: dict[str, Any]) -> None:
    plan = plan_of(twin["lint_input"])
    hits = [finding for finding in loud(plan) if finding.rule == twin["expected"]]
    assert hits, [(finding.rule, finding.message) for finding in plan.findings]
    assert all(hit.fix and hit.source for hit in hits)
    assert len(loud(plan)) <= len(hits) + 1
    kept = {key: value for key, value in twin["lint_input"].items() if key not in twin.get("without", ())}
    repaired = plan_of({**kept, **twin["repaired"]})
    assert twin["expected"] not in rules_of(repaired)
    assert not [finding for finding in repaired.findings if finding.severity == "error"]
