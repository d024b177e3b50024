"""Every claim of the seed documents is held by a rule, a cell or a list, or is shown to be otherwise."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from preflight.judging import plan_of, resolution_of
from vq_console.engines.catalogue import snapshot
from vq_console.preflight.ignore import matches
from vq_console.preflight.matrix import METHODS, cell
from vq_console.preflight.scheme import online_schemes
from vq_console.preflight.versions import parse_version
from vq_console.quantize.schemes import find_scheme, needs_data

CLAIMS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent.parent / "data" / "seed_claims.toml").read_text())[
    "claim"
]
GB = 1000**3 / 1024**3


def test_all_three_documents_are_walked() -> None:
    assert {claim["seed"] for claim in CLAIMS} == {"notes", "interview", "skill"}
    assert len(CLAIMS) >= 150
    assert all(len(claim.get("contradicted", "evidence of some length").strip()) > 20 for claim in CLAIMS)
    assert len({(claim["seed"], claim["text"]) for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=[f"{n}-{claim['seed']}" for n, claim in enumerate(CLAIMS)])
def test_claim(claim: dict[str, Any]) -> None:
    checked = 0
    if "lint" in claim:
        checked += _lint(claim)
    if "cell" in claim:
        checked += _cell(claim)
    if "catalogue" in claim:
        checked += _catalogue(claim)
    if "online" in claim:
        schemes = online_schemes(claim["online"])
        assert schemes is not None
        assert [scheme.family for scheme in schemes] == [claim["linear"], claim["moe"]]
        checked += 1
    if "method" in claim:
        checked += _method(claim)
    if "pattern" in claim:
        assert matches(claim["pattern"], claim["matches"])
        assert not matches(claim["pattern"], "norm")
        checked += 1
    if "fit" in claim:
        checked += _fit(claim)
    if "layers" in claim:
        rows = [row for row in plan_of(claim["lint_input"]).layers if row.kind == "linear"]
        assert {row.scheme: row.count for row in rows} == claim["layers"]
        checked += 1
    if "scheme" in claim:
        scheme, method = find_scheme(claim["scheme"])
        assert needs_data(scheme, method, None) is claim["needs_data"]
        checked += 1
    assert checked, "a claim without a check"


def _lint(claim: dict[str, Any]) -> int:
    found = plan_of(claim["lint"]).findings
    if "silent" in claim:
        assert claim["silent"] not in {finding.rule for finding in found}
        return 1
    hits = [finding for finding in found if finding.rule == claim["rule"]]
    assert hits, [finding.rule for finding in found]
    if "severity" in claim:
        assert hits[0].severity == claim["severity"]
    assert hits[0].fix
    assert hits[0].source
    return 1


def _cell(claim: dict[str, Any]) -> int:
    rows = [row for row in METHODS if row.method == claim["cell"] and row.kind == claim["kind"]]
    version = parse_version(claim["vllm"])
    assert version is not None
    found = cell(rows[0], claim["device"], version)
    assert found.grade == claim["grade"], found
    if "kernel" in claim:
        assert found.kernel == claim["kernel"]
    assert found.source
    return 1


def _catalogue(claim: dict[str, Any]) -> int:
    catalogue = snapshot(claim["catalogue"])
    assert catalogue.vllm_version == claim["catalogue"]
    values = getattr(catalogue, claim["list"])
    assert values is not None
    assert not set(claim.get("has", ())) - set(values)
    assert not set(claim.get("lacks", ())) & set(values)
    if "count" in claim:
        assert len(values) == claim["count"]
    if "without_choices" in claim:
        assert values[claim["without_choices"]].choices is None
    return 1


def _method(claim: dict[str, Any]) -> int:
    found = resolution_of(claim["method"])
    assert found.method.resolved == claim["resolved"]
    for kind in ("linear", "moe"):
        if kind in claim:
            scheme = getattr(found, kind)
            assert scheme is not None
            assert scheme.family == claim[kind]
    return 1


def _fit(claim: dict[str, Any]) -> int:
    fit = plan_of(claim["fit"]).fit
    if "weights_gb" in claim:
        assert fit.weights_gib == pytest.approx(claim["weights_gb"] * GB, rel=0.02)
    if "kv_bytes_per_token" in claim:
        assert fit.kv_bytes_per_token == claim["kv_bytes_per_token"]
    if "peak_below_gib" in claim:
        assert fit.load_peak_gib is not None
        assert fit.weights_gib is not None
        assert fit.weights_gib < fit.load_peak_gib < claim["peak_below_gib"]
    return 1
