"""What the tests on the real engine share: a home that is clean again at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.vq import processes_of, vq


@pytest.fixture
def clean_home(vq_home: Path) -> Iterator[Path]:
    """A console home; afterwards no process of it lives and no shared memory segment is new."""
    before = set(Path("/dev/shm").iterdir())
    yield vq_home
    vq("stop", "--all", code=None)
    assert processes_of(vq_home) == []
    assert set(Path("/dev/shm").iterdir()) - before == set()
