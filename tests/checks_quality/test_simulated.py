"""The whole check against simulated servers whose divergence and faults are known."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.running import Running, end, launch, served
from vq_console.checks.endpoint import Endpoint
from vq_console.checks.kld import compare_scores
from vq_console.checks.progress import Callback, Silent
from vq_console.checks.quality import (
    QualityResult,
    QualitySettings,
    load_answers,
    record_baseline,
    replay_baseline,
    run_quality,
)
from vq_console.checks.quality_data import Recording
from vq_console.checks.quality_measure import connect
from vq_console.checks.quality_single import check_quality
from vq_console.checks.quality_tasks import ask_items, make_task_items
from vq_console.checks.reference import load_reference
from vq_console.checks.tasks import context
from vq_console.checks.tasks.answer_key import write_key
from vq_console.checks.tasks.registry import make_items
from vq_console.core.errors import CheckError
from vq_console.simulator.language import LanguageModel, exact_kl

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
COUNTS = {"words": 24, "recall": 14, "json": 8}
BASE: Mapping[str, Any] = {
    "script": "h200-bf16", "engine_process": False, "access_log": False, "tpot_ms": 0.1, "ttft_ms": 1.0,
    "jitter_kl": 1e-4, "accuracy": 0.9,
}  # fmt: skip
SMALL = replace(
    QualitySettings.of("quick", seed=1, tasks=COUNTS, needle_tokens=(700,)),
    calibrate=False, level=2, sequences=12, tokens=24, floor_sequences=4, divergence_sequences=4, divergence_tokens=96,
    repeat_sequences=1, own_sequences=1,
)  # fmt: skip
BARE = replace(SMALL, tasks={}, needle_tokens=(), divergence_sequences=2, divergence_tokens=16)
IS_16_BIT = {"quantization": None}


@dataclass
class Bench:
    """A baseline server, what was recorded of it, and a way to start others beside it."""

    server: Running
    recording: Recording
    key: Path
    folder: Path
    stack: ExitStack
    running: dict[str, Running]

    @property
    def endpoint(self) -> Endpoint:
        return arm(self.server, "A")

    def other(self, name: str, **spec: Any) -> Endpoint:
        """A second server, kept until the module ends; the same specification gives the same one."""
        kind = json.dumps(spec, sort_keys=True)
        if kind not in self.running:
            made = launch(self.folder, {**BASE, "answers": str(self.key), **spec}, model=MODEL, name=name)
            self.running[kind] = made
            self.stack.callback(end, made)
        return arm(self.running[kind], name)

    def replay(self, endpoint: Endpoint, settings: QualitySettings = SMALL) -> QualityResult:
        return replay_baseline(self.recording, endpoint, settings, self.folder / endpoint.label, Silent())


def arm(server: Running, label: str) -> Endpoint:
    return Endpoint(label, server.url, server.model, simulated=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("quality")
    key = folder / "key.jsonl"
    sentences = " ".join(context.filler(random.Random("measure"), 2000))
    per_token = len(sentences) / len(LanguageModel(0).tokenizer.encode(sentences))
    items = [item for name, count in COUNTS.items() for item in make_items(name, seed=1, level=2, count=count)]
    write_key([*items, *context.needles(1, 700, characters_per_token=per_token)], key)
    with ExitStack() as stack:
        server = stack.enter_context(served(folder, {**BASE, "answers": str(key)}, model=MODEL, name="baseline"))
        recording = record_baseline(arm(server, "A"), SMALL, Silent(), facts=IS_16_BIT, any_arm=False)
        yield Bench(server, recording, key, folder, stack, {})


def test_the_recording_is_complete(bench: Bench) -> None:
    recording = bench.recording
    assert len(recording.samples) == len(recording.scores) == 12
    assert len(recording.floor) == 4
    assert len(recording.answers) == 56
    assert recording.arm.facts.bits == 16
    assert recording.arm.facts.parameters == 8e9
    assert len({prompt.ids for prompt in recording.prompts}) == len(recording.prompts)


def test_the_same_model_twice_is_indistinguishable(bench: Bench) -> None:
    result = bench.replay(bench.other("again"))
    assert result.word == "INDISTINGUISHABLE"
    assert result.kld is not None
    assert result.kld.value is not None
    assert 0 < result.kld.value < 0.001
    assert not any(health.excess for health in result.health)
    assert {task.name for task in result.tasks} >= {"word problems", "needle 700", "three-turn recall"}
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize("limit", [600, 1024, 2048])
def test_needles_as_long_as_the_context_get_answers(bench: Bench, limit: int) -> None:
    """Each text has sentences of its own and so tokens of its own: none may be refused for being too long."""
    client = connect(bench.other(f"short-{limit}", max_model_len=limit), SMALL)
    for seed in range(4):
        settings = replace(SMALL, seed=seed, tasks={}, needle_tokens=(9000,))
        items, notes = make_task_items(client, settings, {}, kv_quantized=False)
        assert notes == [f"needle: 9000 tokens do not fit the context of {limit}"]
        sizes = [len(client.render(item.messages) or ()) + item.max_tokens for item in items]
        assert len(sizes) == 10
        assert max(sizes) <= limit
        assert min(sizes) > 0.6 * limit - 100, "nor much shorter than what was asked for"
        answers = ask_items(client, items, settings, Silent(), arm="A", message="needles")
        assert [answer.error for answer in answers.values()] == [None] * 10


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ({"loops_after": 12}, "loop"),
        ({"needle_beyond": 450}, "needle"),
        ({"multi_turn_garbage": True}, "multi-turn"),
        ({"flip": 0.4}, "all tasks"),
    ],
)
def test_each_planted_fault_is_found_by_its_check(bench: Bench, fault: dict[str, Any], sign: str) -> None:
    result = bench.replay(bench.other(sign.replace(" ", "-"), faults=fault))
    assert result.word == "DAMAGING"
    found = {health.name for health in result.health if health.excess}
    found |= {task.name for task in result.tasks if task.p is not None and task.p < 0.01 and task.worse}
    assert sign in found
    assert any(sign in reason for reason in result.verdict.reasons)


def test_a_planted_divergence_agrees_with_the_exact_one(bench: Bench) -> None:
    """Paired: the exact divergence at the very positions that were scored."""
    result = bench.replay(bench.other("noisy", kl=0.07, jitter_kl=0.0), BARE)
    a, b = LanguageModel(0), LanguageModel(0, kl=0.07)
    truth = []
    for text in bench.recording.samples:
        prompt = bench.recording.prompts[text.prompt].ids
        truth.append(exact_kl(a, b, [*prompt, *text.ids], len(prompt)).mean())
    assert result.kld is not None
    assert result.kld.interval is not None
    assert result.kld.interval[0] <= float(np.mean(truth)) <= result.kld.interval[1]
    assert result.word in {"NOTICEABLE", "UNRESOLVED"}
    partings = [pair for pair in load_answers(bench.folder / "noisy") if pair.kind == "parting"]
    assert partings
    assert partings[0].a_token != partings[0].b_token
    assert partings[0].a_of_a is not None


def test_other_tokens_block_the_divergence(bench: Bench) -> None:
    other = bench.other("foreign", vocabulary_seed=5)
    with pytest.raises(CheckError, match="different tokenizers"):
        bench.replay(other)
    result = run_quality(bench.endpoint, other, BARE, bench.folder / "live", Silent(), facts={"A": IS_16_BIT})
    assert result.word == "UNRESOLVED"
    assert result.kld is None
    assert any(flag["flag"] == "tokenizer-mismatch" for flag in result.validity)


def test_a_server_that_is_not_vllm_is_still_asked_tasks(bench: Bench) -> None:
    plain = bench.other("plain", vllm_fields=False)
    settings = replace(SMALL, tasks={"words": 24}, needle_tokens=())
    result = run_quality(bench.endpoint, plain, settings, bench.folder / "chat", Silent(), facts={"A": IS_16_BIT})
    assert result.word == "UNRESOLVED"
    (task,) = result.tasks
    assert task.n == 24
    assert task.difference == 0.0
    assert task.a is not None
    assert task.a > 0.5


def test_the_same_server_is_never_damaging(bench: Bench) -> None:
    settings = replace(BARE, thresholds=replace(BARE.thresholds, damaging=-1.0))
    result = run_quality(bench.endpoint, bench.endpoint, settings, bench.folder / "self", Silent())
    assert result.word == "UNRESOLVED"
    assert "same server" in " ".join(result.verdict.reasons)


def test_three_arms_give_each_pair(bench: Bench) -> None:
    fp8, int4 = bench.other("fp8"), bench.other("int4", kl=0.07, jitter_kl=0.0)
    settings = replace(BARE, sequences=8, tokens=16)
    result = run_quality(
        fp8, int4, settings, bench.folder / "three", Silent(), baseline=bench.endpoint,
        facts={"R": IS_16_BIT, "A": {"quantization": "fp8"}, "B": {"quantization": "awq"}},
    )  # fmt: skip
    value = result.to_json()
    near, far = value["against_baseline"]["A"], value["against_baseline"]["B"]
    assert near["kld"]["value"] < far["kld"]["value"]
    assert value["kld"]["on_policy"]
    assert value["arms"] == {"A": "fp8", "B": "int4"}
    assert near["arms"] == {"A": "A", "B": "fp8"}
    assert value["word"] != "DAMAGING"
    assert "differs from" in value["sentence"]


def test_what_was_measured_before_a_cancel_is_kept(bench: Bench) -> None:
    other = bench.other("cancelled", kl=0.07, jitter_kl=0.0)

    def tell(event: Mapping[str, Any]) -> None:
        if event.get("arm") == "B" and event["stage"] == "score" and event.get("done", 0) >= 4:
            watch.cancel()

    watch = Callback(tell)
    folder = bench.folder / "cancelled"
    result = run_quality(bench.endpoint, other, BARE, folder, watch, facts={"A": IS_16_BIT})
    assert result.partial
    assert result.kld is not None
    assert 4 <= result.kld.sequences < 12
    assert load_reference(folder / "baseline.vqref").scores


def test_one_server_by_itself(bench: Bench) -> None:
    folder = bench.folder / "alone"
    settings = replace(SMALL, tasks={"words": 24}, needle_tokens=(), divergence_sequences=2)
    result = check_quality(bench.endpoint, settings, folder, Silent())
    value = result.to_json()
    assert value["samples"]["sequences"] == 12
    assert value["summary"]["consistent"]
    assert value["summary"]["tasks"][0]["n"] == 24
    assert value["summary"]["floor"]["value"] < 0.001
    assert len((folder / "items.jsonl").read_text().splitlines()) == 24
    assert any("right" in line for line in result.lines())


def test_fewer_log_probabilities_are_enough(tmp_path: Path, bench: Bench) -> None:
    with served(tmp_path, {**BASE, "kl": 0.07}, "--max-logprobs", "5", model=MODEL, name="five") as server:
        client = connect(arm(server, "five"), BARE)
        assert client.top_k == 5
        scored, truth = [], []
        for sample in bench.recording.samples:
            prompt = bench.recording.prompts[sample.prompt].ids
            row = [*prompt, *sample.ids]
            scored.append(client.score(row, len(prompt)))
            truth.append(exact_kl(LanguageModel(0), LanguageModel(0, kl=0.07), row, len(prompt)).mean())
    assert all(one.top_ids.shape[1] == 5 for one in scored)
    kld = compare_scores(bench.recording.scores, scored, on_policy=True)
    assert kld.interval is not None
    assert kld.value is not None
    assert abs(kld.value - float(np.mean(truth))) <= kld.interval[1] - kld.interval[0]


def test_my_own_prompts_drive_the_check(bench: Bench, tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be kind."}
    rows: list[dict[str, Any]] = [
        {"id": f"p{i}", "messages": [system, {"role": "user", "content": f"Say {i}"}]} for i in range(3)
    ]
    rows.append({"id": "checked", "prompt": "Say hello", "check": {"type": "contains", "value": "hello"}})
    file = tmp_path / "my.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    recording = record_baseline(bench.endpoint, BARE, Silent(), prompts=file, any_arm=False)
    assert [prompt.id for prompt in recording.prompts] == ["p0", "p1", "p2", "checked"]
    assert list(recording.answers) == ["checked"]
    assert len(recording.samples) == 12
