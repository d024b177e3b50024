"""Twenty minutes at twenty times the normal rate: no growth of memory or open files can be shown."""

from __future__ import annotations

import pytest

from ui.test_budgets import measure

pytestmark = pytest.mark.soak


@pytest.mark.timeout(3600)
def test_nothing_grows() -> None:
    run = measure("growth", tries=1, seconds=2400)[0]
    assert run["resident_mib_per_h"]["low"] <= 0, "memory grows"
    assert run["open_files_per_h"]["low"] <= 0, "open files grow"
