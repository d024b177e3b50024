"""Reference bundles: a baseline recorded once, kept in one file, replayed on any later arm.

A bundle is a zip: `reference.json` (who, when, versions, settings, hashes), `scores.npz` (token IDs and
log-probabilities), `items.json` (prompts, texts, task items and answers). Nothing in it is ever executed: arrays are
read without pickle, and every part is held to the hash in `reference.json`. Owns the format and the refusal of an arm
that does not fit.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vq_console.checks.quality_data import (
    ArmIdentity,
    Fingerprint,
    Generated,
    PromptIds,
    Recording,
    Scored,
    model_facts_from_json,
)
from vq_console.checks.quality_facts import shape_conflict
from vq_console.checks.tasks.model import answer_from_json, item_from_json
from vq_console.checks.tasks.registry import VERSION as GENERATOR_VERSION
from vq_console.core.errors import CheckError, UsageError
from vq_console.core.files import write_atomic
from vq_console.core.places import references_dir

SUFFIX = ".vqref"
FORMAT = 1
_LIMIT_BYTES = 2 << 30
_PARTS = ("scores.npz", "items.json")


def reference_path(text: str) -> Path:
    """Where a bundle lies: a path as it is, a name among the recorded ones. Raises UsageError when there is none."""
    path = Path(text.removeprefix("ref:"))
    candidates = [path, references_dir() / path.name, references_dir() / f"{path.name}{SUFFIX}"]
    found = next((one for one in candidates if one.is_file()), None)
    if found is None:
        names = ", ".join(sorted(one.stem for one in references_dir().glob(f"*{SUFFIX}"))) or "none"
        raise UsageError(f"{text!r} is no recorded baseline", f"Recorded: {names}; `vq-console reference record ARM`.")
    return found


def _flat_ids(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    lengths = np.asarray([len(ids) for ids in texts], np.int32)
    flat = np.asarray([token for ids in texts for token in ids], np.int32)
    return flat, lengths


def _pack_scored(prefix: str, scores: Sequence[Scored]) -> dict[str, np.ndarray[Any, Any]]:
    width = max((scored.top_ids.shape[1] for scored in scores), default=1)

    def wide(array: np.ndarray[Any, Any], fill: float) -> np.ndarray[Any, Any]:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill)

    return {
        f"{prefix}_lengths": np.asarray([scored.tokens for scored in scores], np.int32),
        f"{prefix}_x": np.concatenate([np.empty(0, np.int32), *(scored.x for scored in scores)]),
        f"{prefix}_x_lp": np.concatenate([np.empty(0, np.float32), *(scored.x_lp for scored in scores)]),
        f"{prefix}_top_ids": np.concatenate([np.empty((0, width), np.int32), *(wide(s.top_ids, -1) for s in scores)]),
        f"{prefix}_top_lp": np.concatenate(
            [np.empty((0, width), np.float32), *(wide(s.top_lp, np.nan) for s in scores)]
        ),
    }


def _unpack_scored(prefix: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[Scored]:
    ends = np.cumsum(arrays[f"{prefix}_lengths"])
    return [
        Scored(
            arrays[f"{prefix}_x"][end - n : end],
            arrays[f"{prefix}_x_lp"][end - n : end],
            arrays[f"{prefix}_top_ids"][end - n : end],
            arrays[f"{prefix}_top_lp"][end - n : end],
        )
        for end, n in zip(ends, arrays[f"{prefix}_lengths"], strict=True)
    ]


def _pack_generated(prefix: str, texts: Sequence[Generated]) -> dict[str, np.ndarray[Any, Any]]:
    flat, lengths = _flat_ids([one.ids for one in texts])
    tops = [
        (at, token, lp)
        for at, row in enumerate(row for one in texts for row in _tops(one))
        for token, lp in row.items()
    ]
    return {
        f"{prefix}_ids": flat,
        f"{prefix}_lengths": lengths,
        f"{prefix}_lp": np.concatenate([np.empty(0, np.float32), *(one.logprobs for one in texts)]),
        f"{prefix}_top_at": np.asarray([at for at, _, _ in tops], np.int32),
        f"{prefix}_top_id": np.asarray([token for _, token, _ in tops], np.int32),
        f"{prefix}_top_lp": np.asarray([lp for _, _, lp in tops], np.float32),
    }


def _tops(one: Generated) -> Sequence[Mapping[int, float]]:
    return one.top if len(one.top) == len(one.ids) else [{} for _ in one.ids]


def _unpack_generated(prefix: str, arrays: Mapping[str, np.ndarray[Any, Any]], about: Sequence[Any]) -> list[Generated]:
    rows: list[dict[int, float]] = [{} for _ in arrays[f"{prefix}_ids"]]
    columns = (arrays[f"{prefix}_top_{name}"] for name in ("at", "id", "lp"))
    for at, token, lp in zip(*columns, strict=True):
        rows[int(at)][int(token)] = float(lp)
    texts: list[Generated] = []
    end = 0
    for n, facts in zip(arrays[f"{prefix}_lengths"], about, strict=True):
        start, end = end, end + int(n)
        top = rows[start:end]
        texts.append(
            Generated(
                int(facts["prompt"]), tuple(int(token) for token in arrays[f"{prefix}_ids"][start:end]),
                arrays[f"{prefix}_lp"][start:end], str(facts["text"]), facts.get("finish"),
                tuple(top) if any(top) else (), facts.get("error"),
            )
        )  # fmt: skip
    return texts


def _about(texts: Sequence[Generated]) -> list[dict[str, Any]]:
    return [{"prompt": t.prompt, "text": t.text, "finish": t.finish, "error": t.error} for t in texts]


def save_reference(recording: Recording, path: Path) -> Path:
    """Write a bundle atomically; the address of the server is not in it."""
    repeats, floors = sorted(recording.repeat), sorted(recording.floor)
    flat, lengths = _flat_ids([prompt.ids for prompt in recording.prompts])
    arrays = {
        "prompt_ids": flat,
        "prompt_lengths": lengths,
        "floor_index": np.asarray(floors, np.int32),
        "repeat_index": np.asarray(repeats, np.int32),
        **_pack_generated("sample", recording.samples),
        **_pack_generated("greedy", recording.greedy),
        **_pack_generated("repeat", [recording.repeat[index] for index in repeats]),
        **_pack_scored("score", recording.scores),
        **_pack_scored("floor", [recording.floor[index] for index in floors]),
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    items = {
        "prompts": [{"id": prompt.id, "text": prompt.text} for prompt in recording.prompts],
        "samples": _about(recording.samples),
        "greedy": _about(recording.greedy),
        "repeat": _about([recording.repeat[index] for index in repeats]),
        "items": [item.to_json() for item in recording.items],
        "answers": [answer.to_json() for answer in recording.answers.values()],
    }
    parts = {"scores.npz": buffer.getvalue(), "items.json": json.dumps(items, ensure_ascii=False).encode()}
    arm = recording.arm
    head = {
        "schema": FORMAT,
        "kind": "vq-console reference",
        "generators": GENERATOR_VERSION,
        "created": recording.created,
        "arm": {
            "label": arm.label, "model": arm.model, "version": arm.version, "simulated": arm.simulated,
            "tokenizer": arm.fingerprint.tokenizer, "template": arm.fingerprint.template, "facts": arm.facts.to_json(),
        },
        "on_policy": recording.on_policy,
        "levels": dict(recording.levels),
        "settings": dict(recording.settings),
        "notes": list(recording.notes),
        "sha256": {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()},
    }  # fmt: skip
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("reference.json", json.dumps(head, ensure_ascii=False, indent=1))
        for name, part in parts.items():
            bundle.writestr(name, part)
    write_atomic(path, whole.getvalue())
    return path


def read_head(path: Path) -> dict[str, Any]:
    """`reference.json` of a bundle. Raises CheckError when the file is no bundle of a known version."""
    try:
        with zipfile.ZipFile(path) as bundle:
            head = json.loads(_part(bundle, "reference.json", path))
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise CheckError(
            f"{path}: not a reference bundle ({error})", "Record one with `reference record ARM`."
        ) from error
    if not isinstance(head, dict) or head.get("kind") != "vq-console reference":
        raise CheckError(f"{path}: not a reference bundle", "Record one with `reference record ARM`.")
    if head.get("schema") != FORMAT:
        raise CheckError(
            f"{path}: schema {head.get('schema')!r} is not known here (this console knows {FORMAT})",
            "Update the console, or record the baseline again.",
        )
    return head


def _part(bundle: zipfile.ZipFile, name: str, path: Path) -> bytes:
    try:
        info = bundle.getinfo(name)
    except KeyError as error:
        raise CheckError(
            f"{path}: {name} is missing in it", "The file is damaged; record the baseline again."
        ) from error
    if info.file_size > _LIMIT_BYTES:
        raise CheckError(f"{path}: {name} claims {info.file_size:,} bytes", "This is no bundle of this console.")
    return bundle.read(info)


def load_reference(path: Path) -> Recording:
    """The recording in a bundle. Raises CheckError when it is damaged, altered or of another version."""
    head = read_head(path)
    with zipfile.ZipFile(path) as bundle:
        parts = {name: _part(bundle, name, path) for name in _PARTS}
    for name, part in parts.items():
        if hashlib.sha256(part).hexdigest() != head.get("sha256", {}).get(name):
            raise CheckError(
                f"{path}: {name} does not match its hash", "The file was altered; record the baseline again."
            )
    try:
        with np.load(io.BytesIO(parts["scores.npz"]), allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        return _recording(head, arrays, json.loads(parts["items.json"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckError(f"{path}: {type(error).__name__}: {error}", "The file is damaged; record it again.") from error


def _recording(
    head: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]], items: Mapping[str, Any]
) -> Recording:
    arm = head["arm"]
    ends = np.cumsum(arrays["prompt_lengths"])
    prompts = [
        PromptIds(about["id"], tuple(int(t) for t in arrays["prompt_ids"][end - n : end]), about["text"])
        for end, n, about in zip(ends, arrays["prompt_lengths"], items["prompts"], strict=True)
    ]
    repeat = _unpack_generated("repeat", arrays, items["repeat"])
    floor = _unpack_scored("floor", arrays)
    answers = [answer_from_json(value) for value in items["answers"]]
    return Recording(
        arm=ArmIdentity(
            label=str(arm["label"]),
            model=str(arm["model"]),
            version=arm.get("version"),
            fingerprint=Fingerprint(arm.get("tokenizer"), arm.get("template")),
            facts=model_facts_from_json(arm.get("facts") or {}),
            simulated=bool(arm.get("simulated")),
        ),
        prompts=tuple(prompts),
        on_policy=bool(head.get("on_policy", True)),
        samples=tuple(_unpack_generated("sample", arrays, items["samples"])),
        scores=tuple(_unpack_scored("score", arrays)),
        floor={int(i): scored for i, scored in zip(arrays["floor_index"], floor, strict=True)},
        greedy=tuple(_unpack_generated("greedy", arrays, items["greedy"])),
        repeat={int(i): one for i, one in zip(arrays["repeat_index"], repeat, strict=True)},
        items=tuple(item_from_json(value) for value in items["items"]),
        answers={answer.item: answer for answer in answers},
        levels={str(name): int(level) for name, level in head.get("levels", {}).items()},
        settings=dict(head.get("settings") or {}),
        notes=tuple(str(note) for note in head.get("notes", ())),
        created=float(head.get("created") or 0.0),
    )


def refuse_unfit(recording: Recording, arm: ArmIdentity) -> None:
    """Raise CheckError with the reason when an arm cannot be held against this recording."""
    mine, theirs = recording.arm.fingerprint, arm.fingerprint
    name = f"the baseline {recording.arm.label!r} ({recording.arm.model})"
    hint = f"Record a baseline of the model that {arm.label} serves: `vq-console reference record ARM`."
    if theirs.tokenizer is None:
        raise CheckError(f"{arm.label} does not show its tokenizer (/tokenize), so {name} cannot be replayed", hint)
    if mine.tokenizer != theirs.tokenizer:
        raise CheckError(f"{arm.label} and {name} use different tokenizers", hint)
    if mine.template != theirs.template:
        raise CheckError(
            f"{arm.label} and {name} use different chat templates",
            "Serve with the same --chat-template; otherwise the two answer different prompts.",
        )
    conflict = shape_conflict(recording.arm.facts, arm.facts)
    if conflict is not None:
        raise CheckError(f"{arm.label} and {name} are not the same model: {conflict}", hint)
