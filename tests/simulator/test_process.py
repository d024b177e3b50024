"""The process as vLLM's: children, signals, exits, planted faults."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from simulator.running import alive, descendants, end, launch, served, until
from vq_console.checks.endpoint import probe
from vq_console.core.errors import CheckError
from vq_console.core.http import get, post


def _token(url: str, model: str = "sim-fp8", *, timeout: float = 5.0) -> int:
    return post(url + "/v1/completions", {"model": model, "prompt": "x", "max_tokens": 1}, timeout=timeout).status


def test_tree_and_clean_stop(tmp_path: Path) -> None:
    running = launch(tmp_path, {"shm": True, "worker_process": True})
    try:
        assert until(lambda: len(descendants(running.process.pid)) == 2)
        children = descendants(running.process.pid)

        def names() -> list[str]:
            return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in children)

        # The kernel cuts a name after 15 characters.
        assert until(lambda: names() == ["VLLM::EngineCor", "VLLM::Worker"]), names()
        segments = {
            line.split()[-1] for pid in children for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "/dev/shm/psm_" in line
        }  # fmt: skip
        assert len(segments) == 1
        running.process.terminate()
        assert running.wait_exit() == 0
        assert until(lambda: not alive(children), 3)
        assert not any(Path(segment).exists() for segment in segments)
        assert "[shutdown] API server: shutdown triggered" in running.text()
    finally:
        end(running)


def test_nothing_listens_before_the_start_is_over(tmp_path: Path) -> None:
    running = launch(tmp_path, {"startup_s": 1.0}, wait=False)
    try:
        assert until(lambda: running.log.exists() and "non-default args" in running.text())
        assert get(running.url + "/health").status == 0
        assert until(lambda: get(running.url + "/health").ok)
        text = running.text()
        assert text.index("Loading model") < text.index("Application startup complete")
    finally:
        end(running)


def test_a_start_can_be_interrupted(tmp_path: Path) -> None:
    running = launch(tmp_path, {"startup_s": 30.0}, wait=False)
    assert until(lambda: running.log.exists() and "non-default args" in running.text())
    running.process.terminate()
    assert running.wait_exit() == 1
    assert "KeyboardInterrupt: terminated" in running.text()


def test_a_taken_port_ends_it_as_vllm_ends(tmp_path: Path) -> None:
    with served(tmp_path, {}) as first:
        port = first.url.rsplit(":", 1)[1]
        second = launch(tmp_path, {}, "--port", port, wait=False, name="second")
        assert second.wait_exit() == 1
        assert "Address already in use" in second.text()


def test_dies_while_loading(tmp_path: Path) -> None:
    running = launch(tmp_path, {"faults": {"die_loading": True}}, wait=False)
    assert running.wait_exit() == 1
    assert "larger than the available KV cache memory" in running.text()


def test_dies_at_the_first_token(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"die_first_token": True}}) as running:
        assert get(running.url + "/health").ok
        assert _token(running.url) == 500
        assert get(running.url + "/health").status in (503, 0)
        assert running.wait_exit() == 0
        assert "has no attribute 'cpu_gemm_wna16'" in running.text()


def test_ignores_sigterm(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"ignore_sigterm": True}}) as running:
        running.process.terminate()
        time.sleep(0.4)
        assert get(running.url + "/health").ok
        children = descendants(running.process.pid)
        running.process.kill()
        assert running.wait_exit() == -signal.SIGKILL
        assert until(lambda: not alive(children), 3)


def test_hangs_with_health_fine(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"hang_after": 1}}) as running:
        assert _token(running.url) == 200
        assert _token(running.url, timeout=0.5) == 0
        assert get(running.url + "/health").ok
        began = time.monotonic()
        with pytest.raises(CheckError, match="gave no token"):
            probe(running.endpoint, timeout=0.5)
        assert time.monotonic() - began < 5


def test_exit_zero_after_the_engine_died(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"exit_zero_after": 1}}) as running:
        assert _token(running.url) == 200
        assert _token(running.url) == 500
        assert running.wait_exit() == 0
        assert "engine core exited unexpectedly" in running.text()


def test_a_killed_engine_ends_the_server_with_zero(tmp_path: Path) -> None:
    with served(tmp_path, {}) as running:
        [engine] = [pid for pid in descendants(running.process.pid) if "Engine" in psutil.Process(pid).name()]
        os.kill(engine, signal.SIGKILL)
        assert until(lambda: get(running.url + "/health").status == 503, 3)
        assert running.wait_exit() == 0


def test_grandchild_outlives_it(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"grandchild": True}}) as running:
        assert until(lambda: len(descendants(running.process.pid)) == 2)
        children = descendants(running.process.pid)
        running.process.terminate()
        assert running.wait_exit() == 0
        left = alive(children)
        try:
            assert len(left) == 1
            os.kill(left[0], signal.SIGTERM)
            time.sleep(0.2)
            assert alive(left) == left
        finally:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_an_orphaned_engine_stays(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"orphan_engine": True}}) as running:
        children = descendants(running.process.pid)
        running.process.kill()
        running.wait_exit()
        time.sleep(0.3)
        left = alive(children)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == children


def test_floods_its_log(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"flood_lines_s": 2000}}) as running:
        time.sleep(1.0)
        assert running.text().count("flood line") > 800


@pytest.mark.parametrize(("faults", "share"), [({"flip": 0.1}, 0.9), ({"needle_beyond": 10}, 0.0), ({}, 1.0)])
def test_scripted_answers_go_wrong_as_asked(tmp_path: Path, faults: dict[str, float], share: float) -> None:
    from vq_console.simulator.generation import Scripted, scripted_answer
    from vq_console.simulator.spec import spec_from

    spec = spec_from({"faults": faults})
    answers = [Scripted(f"question {i}.", "right", "wrong") for i in range(400)]
    said = [scripted_answer(spec, answers, f"A question {i}.", 50, 1) for i in range(400)]
    assert sum(text == "right" for text in said) / 400 == pytest.approx(share, abs=0.03)


def test_loops_and_garbage(tmp_path: Path) -> None:
    with served(tmp_path, {"faults": {"loops_after": 8, "multi_turn_garbage": True}}) as running:
        body = {"model": running.model, "max_tokens": 40, "temperature": 0, "return_token_ids": True}
        ids = post(running.url + "/v1/completions", {**body, "prompt": "x", "ignore_eos": True}).json()
        tokens = ids["choices"][0]["token_ids"]
        assert tokens[8:40] == tokens[4:8] * 8
        turns = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        said = post(running.url + "/v1/chat/completions", {**body, "messages": turns}).json()
        assert "\ufffd" in said["choices"][0]["message"]["content"]
