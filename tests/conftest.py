"""Shared fixtures: a home of its own for every test that touches the console's state."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def vq_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty console home; nothing of the user's own is read or written."""
    home = tmp_path / "vq-home"
    monkeypatch.setenv("VQ_CONSOLE_HOME", str(home))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "VLLM_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home
