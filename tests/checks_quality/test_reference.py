"""Reference bundles: the same after a round trip, small, and refused with a reason."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checks_quality.scored import arm, random_pair, scored_from, text
from vq_console.checks.kld import compare_scores
from vq_console.checks.quality_analysis import analyse
from vq_console.checks.quality_answers import differing_answers, load_answers, save_answers
from vq_console.checks.quality_data import PromptIds, Recording, Replay, Scored
from vq_console.checks.quality_settings import QualitySettings
from vq_console.checks.reference import load_reference, read_head, reference_path, refuse_unfit, save_reference
from vq_console.checks.tasks.answer_key import right_answer, wrong_answer
from vq_console.checks.tasks.model import Answer, Item
from vq_console.checks.tasks.registry import make_items
from vq_console.core.errors import CheckError, UsageError

ITEMS = make_items("words", seed=1, level=2, count=30)


def answers(wrong: int, items: list[Item] = ITEMS) -> dict[str, Answer]:
    return {
        item.id: Answer(item.id, (wrong_answer(item) if index < wrong else right_answer(item),), 5, "stop")
        for index, item in enumerate(items)
    }


def measured(noise: float = 0.3, sequences: int = 10) -> tuple[Recording, Replay]:
    samples, left, right = [], [], []
    for index in range(sequences):
        a, b, x = random_pair(index, 30, noise)
        samples.append(replace(text(0, x), logprobs=scored_from(a, x).x_lp))
        left.append(scored_from(a, x))
        right.append(scored_from(b, x))
    greedy = [
        replace(text(0, [1, 2, 3, 4], words="one two"), top=({1: -0.1}, {2: -0.2, 9: -2.0}, {3: -0.1}, {4: -0.1}))
    ]
    recording = Recording(
        arm=arm("BF16", bits=16, parameters=8e9, shape={"hidden_size": 64}),
        prompts=(PromptIds("p0", (5, 6, 7), "Say it"),),
        samples=tuple(samples),
        scores=tuple(left),
        floor={2: left[2], 0: left[0]},
        greedy=tuple(greedy),
        repeat={0: greedy[0]},
        items=tuple(ITEMS),
        answers=answers(6),
        levels={"words": 2},
        settings=QualitySettings.of("quick").to_json(),
        notes=("a note",),
        created=12.0,
    )
    theirs = replace(greedy[0], ids=(1, 9, 3, 4), text="one nine")
    return recording, Replay(arm("INT4", bits=4), tuple(right), (theirs,), answers=answers(9))


def same_scores(one: Scored, other: Scored) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name.endswith("lp"))
        for name in ("x", "x_lp", "top_ids", "top_lp")
    )


def test_round_trip(tmp_path: Path) -> None:
    recording, _ = measured()
    path = save_reference(recording, tmp_path / "a.vqref")
    again = load_reference(path)
    assert again.arm == recording.arm
    assert again.prompts == recording.prompts
    assert again.items == recording.items
    assert again.answers == recording.answers
    assert [s.ids for s in again.samples] == [s.ids for s in recording.samples]
    assert all(same_scores(x, y) for x, y in zip(again.scores, recording.scores, strict=True))
    assert all(same_scores(again.floor[i], recording.floor[i]) for i in (0, 2))
    assert set(again.floor) == {0, 2}
    assert again.greedy[0].ids == recording.greedy[0].ids
    assert again.greedy[0].top[1] == pytest.approx(recording.greedy[0].top[1])
    assert again.repeat[0].text == "one two"
    assert (again.levels, again.notes, again.created) == ({"words": 2}, ("a note",), 12.0)


def test_replay_gives_the_same_numbers_as_live(tmp_path: Path) -> None:
    recording, replay = measured()
    settings = QualitySettings.of("quick")
    live = analyse(recording, replay, settings).to_json()
    later = analyse(load_reference(save_reference(recording, tmp_path / "a.vqref")), replay, settings).to_json()
    assert json.dumps(live, default=str) == json.dumps(later, default=str)


def test_json_has_the_keys_of_the_contract() -> None:
    value = analyse(*measured(), QualitySettings.of("quick")).to_json()
    assert {"word", "kld", "top1_agreement", "ppl_ratio", "divergence", "tasks", "health"} <= set(value)
    assert {"value", "ci", "floor", "sequences", "tokens", "on_policy"} <= set(value["kld"])
    assert {"hazard", "ci"} <= set(value["divergence"])
    assert {"name", "n", "a", "b", "difference", "ci", "p", "detectable"} <= set(value["tasks"][0])
    assert {"name", "n", "a", "b"} <= set(value["health"][0])
    assert value["kld"]["floor"] == 0.0
    assert value["kld"]["tokens"] == 300
    json.dumps(value, allow_nan=False)


def test_empty_sides_give_nulls_not_zeros() -> None:
    value = analyse(Recording(arm("A")), Replay(arm("B")), QualitySettings.of("quick")).to_json()
    assert value["word"] == "UNRESOLVED"
    assert value["kld"]["value"] is None
    assert value["kld"]["floor"] is None
    assert value["top1_agreement"] is None
    assert value["ppl_ratio"] == {"value": None, "ci": None}
    assert value["divergence"]["hazard"] is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (arm("B", tokenizer="other"), "different tokenizers"),
        (arm("B", tokenizer=None), "does not show its tokenizer"),
        (arm("B", template="other"), "different chat templates"),
        (arm("B", shape={"hidden_size": 128}), "not the same model: hidden_size"),
    ],
)
def test_an_arm_that_does_not_fit_is_refused_with_the_reason(other, reason: str) -> None:  # type: ignore[no-untyped-def]
    recording, _ = measured()
    with pytest.raises(CheckError, match=reason) as caught:
        refuse_unfit(recording, other)
    assert caught.value.hint
    refuse_unfit(recording, arm("fits", bits=4))


def test_altered_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = save_reference(measured()[0], tmp_path / "a.vqref")
    with zipfile.ZipFile(path) as bundle:
        parts = {name: bundle.read(name) for name in bundle.namelist()}

    def rewrite(**changes: bytes) -> Path:
        broken = tmp_path / "broken.vqref"
        with zipfile.ZipFile(broken, "w") as bundle:
            for name, part in {**parts, **changes}.items():
                bundle.writestr(name, part)
        return broken

    with pytest.raises(CheckError, match="hash"):
        load_reference(rewrite(**{"items.json": parts["items.json"].replace(b"Answer", b"Reply!")}))
    head = json.loads(parts["reference.json"])
    with pytest.raises(CheckError, match="schema 99"):
        read_head(rewrite(**{"reference.json": json.dumps({**head, "schema": 99}).encode()}))
    with pytest.raises(CheckError, match="not a reference"):
        read_head(rewrite(**{"reference.json": b"{}"}))
    (tmp_path / "text.vqref").write_text("hello")
    with pytest.raises(CheckError, match="not a reference"):
        load_reference(tmp_path / "text.vqref")


def test_no_address_of_a_server_is_in_a_bundle(tmp_path: Path) -> None:
    recording, _ = measured()
    recording = replace(recording, arm=replace(recording.arm, url="http://secret-host:1"))
    path = save_reference(recording, tmp_path / "a.vqref")
    with zipfile.ZipFile(path) as bundle:
        assert all(b"secret-host" not in bundle.read(name) for name in bundle.namelist())


def test_names_and_paths(vq_home: Path, tmp_path: Path) -> None:
    from vq_console.core.places import references_dir

    saved = save_reference(measured()[0], references_dir() / "bf16.vqref")
    assert reference_path("bf16") == saved
    assert reference_path("ref:bf16") == saved
    assert reference_path(str(saved)) == saved
    with pytest.raises(UsageError, match="no recorded baseline") as caught:
        reference_path("int4")
    assert "bf16" in caught.value.hint


def test_limited_keeps_what_belongs_together() -> None:
    recording, replay = measured()
    short = recording.limited(2, 1)
    assert len(short.samples) == len(short.scores) == 2
    assert set(short.floor) == {0}
    got = analyse(short, replay, QualitySettings.of("quick"))
    assert got.kld is not None
    assert got.kld.sequences == 2
    assert got.kld.value == compare_scores(recording.scores[:2], replay.scores[:2], on_policy=True).value


def test_differing_answers_side_by_side(tmp_path: Path) -> None:
    recording, replay = measured()
    found = differing_answers(recording, replay, lambda token: f"<{token}>")
    flips = [pair for pair in found if pair.kind == "flip"]
    (parting,) = [pair for pair in found if pair.kind == "parting"]
    assert len(flips) == 3
    assert all(flip.worse for flip in flips)
    assert (parting.index, parting.a_token, parting.b_token, parting.common) == (1, "<2>", "<9>", "one ")
    assert parting.a_of_b == pytest.approx(np.exp(-2.0))
    save_answers(tmp_path, found)
    assert list(load_answers(tmp_path)) == found
    assert list(load_answers(tmp_path / "none")) == []
