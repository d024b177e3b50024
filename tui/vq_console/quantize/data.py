"""Calibration data: the user's own prompts, checked before anything runs, or texts that the model wrote (cached)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vq_console.core import places
from vq_console.core.errors import UsageError
from vq_console.quantize.model import Source

HELD_OUT = 32
"""Texts that are only ever measured on, never calibrated with; a multiple of the generator's batch."""

MAX_NEW_TOKENS = 128
SEED = 22
_MAX_LINE = 1_000_000


def read_user_data(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file: each has `messages`, `prompt` or `text`; a plain text file gives a text per line.

    Raises UsageError naming file and line for anything else, and for a file without records.
    """
    records = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    records.append(_record(path, number, line[:_MAX_LINE].strip()))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", "--data names a file of prompts, one JSON object a line") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from error
    if not records:
        raise UsageError(f"{path}: holds no prompts", 'one JSON object a line: {"prompt": "…"}')
    return records


def write_calibration(path: Path, records: list[dict[str, Any]]) -> None:
    """Write what the recipe reads."""
    path.write_text("".join(_lines(records)), encoding="utf-8")


def generated_texts(source: Source) -> Path:
    """Where the texts that this model wrote are kept: keyed by its files, so another revision has its own."""
    stamps = [(file.name, file.stat().st_size, int(file.stat().st_mtime)) for file in _weights(source.path)]
    key = hashlib.sha256(json.dumps([str(source.path), stamps, SEED, MAX_NEW_TOKENS]).encode()).hexdigest()[:16]
    return places.cache_dir() / "quantize" / f"texts-{key}.jsonl"


def read_texts(path: Path) -> list[dict[str, Any]]:
    """Generated texts; empty when there are none yet or the file is broken."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError):
        return []
    return [record for record in records if isinstance(record, dict) and record.get("ids") and record.get("text")]


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        if path.suffix in (".jsonl", ".json"):
            raise UsageError(f"{path}: line {number}: is no JSON object", 'one a line: {"prompt": "…"}')
        return {"text": line}
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{path}: line {number}: is no JSON object ({error})") from error
    messages = value.get("messages")
    if isinstance(messages, list) and messages:
        kept = [
            {"role": str(message.get("role", "user")), "content": message["content"]}
            for message in messages
            if isinstance(message, dict) and isinstance(message.get("content"), str)
        ]
        if len(kept) == len(messages):
            return {"messages": kept}
    for key in ("prompt", "text"):
        if isinstance(value.get(key), str) and value[key].strip():
            return {key: value[key]}
    raise UsageError(
        f"{path}: line {number}: has none of prompt, text, messages (with text content)", 'such as {"prompt": "…"}'
    )


def _lines(records: list[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        yield json.dumps(record, ensure_ascii=False) + "\n"


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
