"""Failures staged on the real engine: explained, mended by the offered patch, started again, ready."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.vq import cpu_args, vq, vq_json
from vq_console.demo.pair import CPU_ENV
from vq_console.profiles.model import Profile
from vq_console.profiles.store import load_profile, save_profile

if TYPE_CHECKING:
    from conftest import Prepared

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Staged:
    """What is wrong, how it must be called, and what is left of it in the profile that was mended."""

    slug: str
    args: dict[str, Any]
    mended: dict[str, Any]
    scheme: str = "bf16"
    absent: tuple[str, ...] = ()
    without: str = ""
    """A variable of the demo's environment that is left out."""


STAGED = {
    "flag": Staged("cli-unrecognized-argument", {"swap_space": 4}, {}, absent=("swap_space",)),
    "choice": Staged("cli-invalid-choice", {"dtype": "bf16"}, {"dtype": "bfloat16"}),
    "parser": Staged("tool-parser-config", {"enable_auto_tool_choice": True}, {}, absent=("enable_auto_tool_choice",)),
    "method": Staged("quant-method-unknown", {"quantization": "w4a16"}, {}, absent=("quantization",)),
    "checkpoint": Staged(
        "quant-checkpoint-conflict", {"quantization": "fp8"}, {}, scheme="w8a8", absent=("quantization",)
    ),
    "context": Staged("max-len-exceeds-model", {"max_model_len": 1_000_000}, {"max_model_len": 8192}),
    # The space for the KV cache in the environment would win over the argument.
    "cache": Staged("kv-cache-too-small", {"kv_cache_memory_bytes": 16 << 20}, {}, without="VLLM_CPU_KVCACHE_SPACE"),
}
CHEAP = ("flag",)
"""Those that fail before the engine's heavy imports."""


def _fails_and_is_mended(prepared: Prepared, name: str) -> None:
    staged = STAGED[name]
    args = {**cpu_args(), **staged.args}
    env = {key: value for key, value in CPU_ENV.items() if key != staged.without}
    save_profile(Profile(name, prepared.models[staged.scheme], args=args, env=env))
    vq("serve", name, "--engine", prepared.engine, "--force", "--wait", code=1, timeout=300)
    (server,) = vq_json("ps")["servers"]
    assert (server["state"], server["diagnosis"]) == ("failed", staged.slug)
    told = vq_json("explain", server["log"], code=1)
    assert (told["diagnosis"], told["root_line"]) == (staged.slug, server["problem"]["root_line"])
    # Bytes, because a carriage return of a progress bar begins no new line.
    line = Path(server["log"]).read_bytes().split(b"\n")[told["root_line"] - 1].decode(errors="replace")
    assert told["evidence"][:40] in line

    said = vq("fix", name, "--wait", timeout=300)
    assert "ready after" in said.stderr
    (server,) = vq_json("ps")["servers"]
    assert (server["state"], server["problem"]["severity"] in ("ok", "warning")) == ("ready", True), server["problem"]
    left = load_profile(name).args
    assert not set(staged.absent) & set(left)
    assert {key: left[key] for key in staged.mended} == staged.mended
    assert left != args
    vq("stop", name)


@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_failure_is_mended(clean_home: Path, prepared: Prepared, name: str) -> None:
    _fails_and_is_mended(prepared, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(STAGED))
def test_a_failure_is_mended(clean_home: Path, prepared: Prepared, name: str) -> None:
    _fails_and_is_mended(prepared, name)


@contextlib.contextmanager
def _listener() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        yield taken.getsockname()[1]


@pytest.mark.soak
def test_a_taken_port_is_mended(clean_home: Path, prepared: Prepared) -> None:
    with _listener() as port:
        args = {**cpu_args(), "port": port}
        save_profile(Profile("port", prepared.models["bf16"], args=args, env=dict(CPU_ENV)))
        said = vq("serve", "port", "--engine", prepared.engine, "--force", "--wait", code=1)
        assert f"port {port} is taken" in said.stderr
        (server,) = vq_json("ps")["servers"]
        assert (server["state"], server["diagnosis"]) == ("failed", "port-in-use")
        vq("fix", "port", "--wait", timeout=300)
        (server,) = vq_json("ps")["servers"]
        assert server["state"] == "ready"
        assert server["port"] != port
        vq("stop", "port")
