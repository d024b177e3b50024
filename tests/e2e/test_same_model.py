"""A model against itself on two real servers: no difference may be found that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.vq import vq_json
from vq_console.demo.pair import demo_pairs
from vq_console.demo.prepare import save_demo_profile
from vq_console.hardware.probe import read_machine

if TYPE_CHECKING:
    from conftest import Prepared

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(3600)]


def test_three_runs_of_one_model_against_itself(clean_home: Path, prepared: Prepared) -> None:
    pair = demo_pairs("cpu", None, read_machine(processes=False).host.cpu_isa)[0]
    save_demo_profile(pair.a, prepared.models[pair.a.scheme])
    for name in ("one", "two"):
        vq_json("serve", pair.a.name, "--name", name, "--wait", "--engine", prepared.engine, timeout=600)
    try:
        for seed in ("1", "2", "3"):
            value: dict[str, Any] = vq_json(
                "ab", "server:one", "server:two", "--quality", "--quality-minutes", "3", "--seed", seed, timeout=900
            )
            kld = value["quality"]["kld"]
            print(f"soak: seed {seed}: {value['quality']['word']}, KLD {kld['value']:.2e}, {kld['sequences']} texts")
            assert value["quality"]["word"] in ("INDISTINGUISHABLE", "UNRESOLVED"), value["quality"]
    finally:
        vq_json("stop", "one", "two", timeout=120)
