"""The estimator on a real small model and through a pair of real servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vq_console.checks.endpoint import Endpoint
from vq_console.checks.kld import KldResult, compare_scores
from vq_console.checks.progress import Silent
from vq_console.checks.quality import QualitySettings, run_quality
from vq_console.checks.quality_data import Scored
from vq_console.checks.quality_measure import connect
from vq_console.checks.reference import load_reference

SCRIPT = Path(__file__).with_name("fake_quantize.py")
SCHEMES = ("int8", "fp8", "int5", "int4")


def fake_quantized(
    python: str, model: str, folder: Path, sequences: int, tokens: int, seeds: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    """What the model and its fake-quantized versions say, for each seed."""
    words = [str(sequences), str(tokens), ",".join(map(str, seeds)), *SCHEMES]
    subprocess.run(
        [python, str(SCRIPT), model, str(folder), *words],
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=7000,
        capture_output=True,
    )
    found = []
    for seed in seeds:
        with np.load(folder / f"{seed}.npz") as loaded:
            found.append({name: loaded[name] for name in loaded.files})
    return found


def scores(arrays: dict[str, np.ndarray], scheme: str) -> list[Scored]:
    parts = [arrays[f"{scheme}_{name}"] for name in ("x", "x_lp", "top_ids", "top_lp")]
    return [Scored(*row) for row in zip(*parts, strict=True)]


def against(arrays: dict[str, np.ndarray], scheme: str) -> tuple[KldResult, float, float]:
    """The estimate, the exact value at the same positions, and their difference in paired standard errors."""
    a, b = scores(arrays, "bf16"), scores(arrays, scheme)
    exact = arrays[f"{scheme}_exact"].mean(axis=1)
    single = [compare_scores([one], [other], on_policy=True).value or 0.0 for one, other in zip(a, b, strict=True)]
    gap = np.asarray(single) - exact
    error = gap.std(ddof=1) / len(gap) ** 0.5
    return compare_scores(a, b, on_policy=True), float(exact.mean()), float(gap.mean() / error) if error else 0.0


@pytest.mark.engine
@pytest.mark.timeout(1600)
def test_the_estimate_is_right_on_a_real_model(engine_python: str, starter_model: str, tmp_path: Path) -> None:
    (arrays,) = fake_quantized(engine_python, starter_model, tmp_path, 16, 48, [1])
    same, exact, _ = against(arrays, "bf16")
    assert (same.value, exact) == (0.0, pytest.approx(0.0, abs=1e-9))
    values = {}
    for scheme in SCHEMES:
        got, exact, off = against(arrays, scheme)
        assert got.value is not None
        assert abs(off) <= 3.5, (scheme, got.value, exact)
        assert got.value == pytest.approx(exact, rel=0.15), scheme
        assert got.lower_bound is not None
        assert got.lower_bound < exact
        values[scheme] = got.value
    assert values["int8"] < values["fp8"] < values["int5"] < values["int4"]


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_int4_is_worse_than_int8_in_every_run(engine_python: str, starter_model: str, tmp_path: Path) -> None:
    """Twenty seeds; over all of them the estimate is within 10 % and three paired standard errors."""
    ratios: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for arrays in fake_quantized(engine_python, starter_model, tmp_path, 8, 48, range(20)):
        found = {scheme: against(arrays, scheme) for scheme in SCHEMES}
        worse, better = (found[scheme][0].interval for scheme in ("int4", "int8"))
        assert worse is not None
        assert better is not None
        assert worse[0] > better[1], "the intervals are apart: INT4 is called worse"
        for scheme, (got, exact, _) in found.items():
            ratios[scheme].append((got.value or 0.0) / exact)
    for scheme, values in ratios.items():
        print(f"soak: {scheme}: estimate over exact {np.mean(values):.3f}, 20 runs, SD {np.std(values, ddof=1):.3f}")
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5
        assert abs(float(np.mean(values)) - 1) <= max(0.1, 3 * error), (scheme, values)


@pytest.fixture
def real_pair(prepared, vq_home: Path, tmp_path: Path) -> Iterator[tuple[Endpoint, Endpoint]]:  # type: ignore[no-untyped-def]
    """Two real servers of the demo's pair, which allow many log-probabilities."""
    from vq_console.core.http import get
    from vq_console.serving.launch import free_port

    processes, endpoints = [], []
    try:
        for label, scheme in zip("AB", prepared.pair, strict=True):
            port = free_port()
            command = [
                prepared.engine, "-m", "vllm.entrypoints.openai.api_server", "--model", prepared.models[scheme],
                f"--served-model-name={scheme}", "--host=127.0.0.1", f"--port={port}", "--enforce-eager",
                "--max-model-len=512", "--max-num-seqs=16", "--max-logprobs=2000",
            ]  # fmt: skip
            with open(tmp_path / f"{scheme}.log", "wb") as log:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            processes.append(process)
            endpoints.append(Endpoint(label, f"http://127.0.0.1:{port}", scheme))
            wait_until_up(process, endpoints[-1].url, get)
        yield endpoints[0], endpoints[1]
    finally:
        end_groups(processes)


def wait_until_up(process: subprocess.Popen[bytes], url: str, get) -> None:  # type: ignore[no-untyped-def]
    import time

    for _ in range(400):
        assert process.poll() is None
        if get(f"{url}/health", timeout=1).ok:
            return
        time.sleep(1)
    raise AssertionError("the server did not come up")


def end_groups(processes: list[subprocess.Popen[bytes]]) -> None:
    import signal

    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_real_pair_agrees_with_its_own_long_list(real_pair: tuple[Endpoint, Endpoint], tmp_path: Path) -> None:
    """The estimate from 20 tokens a position against the one from 1,500, on the same sequences of real servers."""
    a, b = real_pair
    settings = replace(
        QualitySettings.of("quick", seed=3), sequences=16, tokens=32, floor_sequences=4, divergence_sequences=4,
        divergence_tokens=16, repeat_sequences=1, own_sequences=2,
    )  # fmt: skip
    result = run_quality(a, b, settings, tmp_path / "q", Silent(), facts={"A": {"quantization": None}})
    assert result.kld is not None
    assert result.kld.interval is not None
    assert result.kld.missing_a == result.kld.missing_b == 0
    recording = load_reference(tmp_path / "q" / "baseline.vqref")
    long_a, long_b = [], []
    for index, text in enumerate(recording.samples[:8]):
        prompt = recording.prompts[text.prompt].ids
        for endpoint, kept in ((a, long_a), (b, long_b)):
            client = connect(endpoint, settings)
            client.top_k = 1500
            kept.append(client.score([*prompt, *text.ids], len(prompt)))
        assert long_a[index].error is None
    near_exact = compare_scores(long_a, long_b, on_policy=True)
    short = compare_scores(list(recording.scores[:8]), long_b_as_short(long_b), on_policy=True)
    assert near_exact.value is not None
    assert short.value == pytest.approx(near_exact.value, rel=0.35)
    assert result.kld.interval[0] * 0.6 <= near_exact.value <= result.kld.interval[1] * 1.6


def long_b_as_short(scores: list[Scored], k: int = 20) -> list[Scored]:
    """The k likeliest of longer lists, as a server with the default limit sends them."""
    out = []
    for scored in scores:
        order = np.argsort(-np.nan_to_num(scored.top_lp, nan=-1e9), axis=1)[:, :k]
        out.append(
            Scored(
                scored.x,
                scored.x_lp,
                np.take_along_axis(scored.top_ids, order, axis=1),
                np.take_along_axis(scored.top_lp, order, axis=1),
            )
        )
    return out
