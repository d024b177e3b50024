"""The shipped catalogue of known vLLM versions, for machines where no vLLM is installed.

`snapshot.json` is made from unpacked vLLM packages by `snapshot_build.py`. Each list is stored once and named by the
versions that have it.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from vq_console.engines.model import Catalogue

FILE = Path(__file__).with_name("snapshot.json")


def snapshot(version: str | None) -> Catalogue:
    """The shipped catalogue nearest to `version`: the same, else the newest one below, else the oldest; the newest
    for None. `origin` is `snapshot` and `vllm_version` says which version it really is."""
    return _catalogue(nearest_version(version))


def known_versions() -> tuple[str, ...]:
    """The versions in the snapshot, oldest first."""
    return tuple(_data()["versions"])


def newest_version() -> str:
    """The newest version in the snapshot."""
    return known_versions()[-1]


def nearest_version(version: str | None) -> str:
    """The version of the snapshot that stands for `version`."""
    known = known_versions()
    wanted = _release(version)
    if wanted is None:
        return known[-1]
    below = [name for name in known if (_release(name) or ()) <= wanted]
    return below[-1] if below else known[0]


def _release(version: str | None) -> tuple[int, ...] | None:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(part) for part in found[1].split(".")) if found else None


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return value


@lru_cache(maxsize=16)
def _catalogue(version: str) -> Catalogue:
    from vq_console.engines.catalogue import catalogue_from_json

    data = _data()
    at = data["versions"].index(version)
    value: dict[str, Any] = {"vllm_version": version, "origin": "snapshot", "unknown": data["unknown"][version]}
    for field, kinds in data["fields"].items():
        value[field] = next((kind["value"] for kind in kinds if at in kind["at"]), None)
    flags: dict[str, Any] = {}
    for name, kinds in data["flags"].items():
        for kind in kinds:
            if at in kind["at"]:
                flags[name] = {**kind["value"], "help": data["help"].get(name)}
                for alias in flags[name].get("aliases") or ():
                    if not alias.startswith("-"):
                        flags[alias] = flags[name]
    value["flags"] = flags or None
    value["env"] = [name for name, held in data["env"].items() if at in held] or None
    return catalogue_from_json(value)
