"""The ready profiles are sound on the targets that they name, and run the kernels that they announce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vq_console.preflight.check import plan_profile
from vq_console.preflight.target import read_target
from vq_console.profiles.format import parse_profile

FOLDER = Path(__file__).parent.parent.parent / "profiles"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_on_its_target(path: Path, vq_home: Path) -> None:
    text = path.read_text()
    named = re.search(r"^# Target: (\S+)$", text, re.MULTILINE)
    assert named is not None, "a profile names the target it was made for"
    plan = plan_profile(parse_profile(text, path), target=read_target(FOLDER / named[1]))
    loud = [finding for finding in plan.findings if finding.severity != "info"]
    assert not [finding for finding in loud if finding.severity == "error"], loud
    assert len(loud) <= 1


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_announced_kernels(path: Path, vq_home: Path) -> None:
    text = path.read_text()
    for target, kind, kernel in re.findall(r"^# Expects on (\S+): (linear|moe) (\S+)$", text, re.MULTILINE):
        plan = plan_profile(parse_profile(text, path), target=read_target(FOLDER / "targets" / f"{target}.toml"))
        assert kernel in {row.kernel for row in plan.layers if row.kind == kind}, (target, kind)
