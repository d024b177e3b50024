"""Shared fixtures: a home of its own for every test, and the real CPU engine where `make engine` made it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BESIDE = frozenset(
    {
        *("checks_quality", "compare", "demo", "engines", "engines_install", "hardware", "logs", "metrics"),
        *("preflight", "profiles", "quantize", "simulator", "statistics", "ui"),
        *(f"e2e/test_{name}.py" for name in ("simulated", "terminal")),
        *(f"checks_latency/test_{name}.py" for name in ("measures", "schedule", "simulation", "stream")),
    }
)
"""Folders and files whose tests measure no time, unless a marker says so."""


def pytest_configure() -> None:
    """A run in the background of a script ignores Ctrl-C, and so would all that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what may run beside other tests."""
    root = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(root)
        if {place.parts[0], str(place)} & BESIDE and not any(
            item.get_closest_marker(name) for name in ("engine", "soak", "alone")
        ):
            item.add_marker("beside")


@pytest.fixture
def vq_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty console home; nothing of the user's own is read or written."""
    home = tmp_path / "vq-home"
    monkeypatch.setenv("VQ_CONSOLE_HOME", str(home))
    for name in (
        "VQ_ENGINES_DIR",
        "VQ_MODELS_DIR",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "VLLM_API_KEY",
        "HF_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    return home


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `make engine` made: interpreter of the CPU engine, model folders by scheme (bf16, w8a8, w4a16, fp8)."""

    engine: str
    models: dict[str, str]
    pair: tuple[str, str]
    """The schemes that this CPU truly runs and the demo compares, A first."""


@pytest.fixture(scope="session")
def prepared() -> Iterator[Prepared]:
    """The real engine and models; tests that use it carry the marker `engine`."""
    path = os.environ.get("VQ_TEST_PREPARED")
    if not path:
        pytest.skip("VQ_TEST_PREPARED is not set: run `make test`, which makes the engine")
    value = json.loads(Path(path).read_text())
    return Prepared(value["engine"], value["models"], tuple(value["pair"]))


@pytest.fixture(scope="session")
def engine_python(prepared: Prepared) -> str:
    """Interpreter of the real CPU engine."""
    return prepared.engine


@pytest.fixture(scope="session")
def starter_model(prepared: Prepared) -> str:
    """Folder of SmolLM2-135M-Instruct in BF16."""
    return prepared.models["bf16"]
