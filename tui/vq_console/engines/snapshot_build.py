"""Makes `snapshot.json` from unpacked vLLM packages: python -m vq_console.engines.snapshot_build FOLDER…

Each FOLDER holds a `vllm` package and its metadata, as `unzip WHEEL '*.py' '*.dist-info/*'` leaves them. Meant for
whoever adds a vLLM version to the project; the console itself never runs it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vq_console.engines.catalogue import catalogue_json
from vq_console.engines.extract import extract
from vq_console.engines.model import Catalogue
from vq_console.engines.snapshot import FILE

_APART = ("vllm_version", "origin", "unknown", "flags", "env")
_HELP_CHARACTERS = 200


def build(catalogues: Sequence[Catalogue]) -> dict[str, Any]:
    """The content of the snapshot file from catalogues in order of version."""
    values = [catalogue_json(catalogue) for catalogue in catalogues]
    names = [str(catalogue.vllm_version) for catalogue in catalogues]
    data: dict[str, Any] = {
        "versions": names,
        "unknown": {name: value["unknown"] for name, value in zip(names, values, strict=True)},
        "fields": {},
        "flags": {},
        "help": {},
        "env": {},
    }
    for field in (field for field in values[0] if field not in _APART):
        data["fields"][field] = _grouped([value[field] for value in values])
    for at, value in enumerate(values):
        for name, flag in (value["flags"] or {}).items():
            if name == flag["name"]:
                data["flags"].setdefault(name, [None] * len(values))[at] = {
                    key: item for key, item in flag.items() if key != "help"
                }
                if flag.get("help"):
                    data["help"][name] = _first_sentence(flag["help"])
        for name in value["env"] or ():
            data["env"].setdefault(name, []).append(at)
    data["flags"] = {name: _grouped(kinds) for name, kinds in sorted(data["flags"].items())}
    return data


def _grouped(values: Sequence[Any]) -> list[dict[str, Any]]:
    """Equal values once, each with the places of the versions that have it; absent ones not at all."""
    groups: dict[str, dict[str, Any]] = {}
    for at, value in enumerate(values):
        if value is not None:
            groups.setdefault(json.dumps(value, sort_keys=True), {"at": [], "value": value})["at"].append(at)
    return list(groups.values())


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`\"*-])", text, maxsplit=1)[0]
    return sentence if len(sentence) <= _HELP_CHARACTERS else sentence[: _HELP_CHARACTERS - 1].rstrip() + "…"


def main(arguments: Sequence[str]) -> int:
    """Write the snapshot from the folders named on the command line."""
    catalogues = []
    for folder in (Path(argument) for argument in arguments):
        found = sorted(folder.glob("vllm-*.dist-info"))
        if not found:
            print(f"{folder}: no vllm-*.dist-info", file=sys.stderr)
            return 2
        version = found[0].name.removeprefix("vllm-").removesuffix(".dist-info").partition("+")[0]
        catalogues.append(extract(folder / "vllm", version))
    if not catalogues:
        print(__doc__, file=sys.stderr)
        return 2
    catalogues.sort(key=lambda item: tuple(int(part) for part in re.findall(r"\d+", str(item.vllm_version))))
    lines = []
    data = build(catalogues)
    for key, value in data.items():
        if isinstance(value, dict) and key != "unknown":
            # one entry a line, so that a new version shows as a readable change
            inner = ",\n".join(f"{json.dumps(name)}:{_compact(item)}" for name, item in value.items())
            lines.append(f"{json.dumps(key)}:{{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}:{_compact(value)}")
    FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    print(f"{FILE}: {len(catalogues)} versions, {FILE.stat().st_size // 1024} KiB", file=sys.stderr)
    return 0


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
