"""What one vLLM accepts: read from that installation and kept on disk, or taken from the shipped snapshot.

Owns the JSON form of a catalogue. Never imports or runs vLLM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vq_console.core import places
from vq_console.engines.model import Catalogue, Engine, Flag, OnlineScheme
from vq_console.engines.snapshot import snapshot

__all__ = ["catalogue_from_json", "catalogue_json", "flag_json", "read_catalogue", "snapshot"]

_REVISION = 2
"""Raised whenever the extractor would read the same source differently."""

_WATCHED = ("_version.py", "engine/arg_utils.py", "config/cache.py", "envs.py")
"""Files whose time and size stand for the whole installation."""


def read_catalogue(engine: Engine) -> Catalogue:
    """The catalogue of an engine: its own source as text (0.1 to 0.3 s the first time, milliseconds after that).

    Without readable source (a simulated engine, a broken installation) it is the snapshot of the nearest version,
    and `origin` says so. What one installation's source does not reveal is None with a reason in `unknown`.
    """
    if engine.simulated or engine.site is None or not Path(engine.site).is_dir():
        return snapshot(engine.vllm_version)
    stamp = _stamp(engine)
    path = places.cache_dir() / "catalogues" / f"{stamp[:24]}.json"
    kept = _kept(path, stamp)
    if kept is not None:
        return kept
    from vq_console.engines.extract import extract

    catalogue = extract(Path(engine.site), engine.vllm_version)
    if catalogue.quantization is None and catalogue.flags is None and catalogue.env is None:
        return snapshot(engine.vllm_version)
    _keep(path, stamp, catalogue)
    return catalogue


def catalogue_json(catalogue: Catalogue) -> dict[str, Any]:
    """The JSON form: the fields of `Catalogue`, flags by name (a flag's other long names are keys of their own)."""
    value = {field.name: getattr(catalogue, field.name) for field in fields(catalogue)}
    if catalogue.flags is not None:
        value["flags"] = {name: flag_json(flag) for name, flag in catalogue.flags.items()}
    if catalogue.online_schemes is not None:
        value["online_schemes"] = {name: asdict(scheme) for name, scheme in catalogue.online_schemes.items()}
    return value


def flag_json(flag: Flag) -> dict[str, Any]:
    """A flag without what is false or absent, apart from its name and kind."""
    value = {key: item for key, item in asdict(flag).items() if item not in (None, False, ())}
    return {"name": flag.name, "kind": flag.kind, **value}


def flag_from_json(value: Mapping[str, Any]) -> Flag:
    """The flag that `flag_json` wrote."""
    choices = value.get("choices")
    return Flag(
        name=str(value["name"]),
        kind=value.get("kind"),
        many=bool(value.get("many")),
        choices=None if choices is None else tuple(choices),
        negatable=bool(value.get("negatable")),
        help=value.get("help"),
        aliases=tuple(value.get("aliases") or ()),
        repeat=bool(value.get("repeat")),
        suffixes=bool(value.get("suffixes")),
        optional=bool(value.get("optional")),
    )


def catalogue_from_json(value: Mapping[str, Any]) -> Catalogue:
    """The catalogue that `catalogue_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
    known = {field.name for field in fields(Catalogue)}
    plain = {key: _frozen(item) for key, item in value.items() if key in known}
    if value.get("flags") is not None:
        made = {name: flag_from_json(item) for name, item in value["flags"].items()}
        # a flag's other names lead to the same value, as they did before it was written
        plain["flags"] = {name: made.get(flag.name, flag) for name, flag in made.items()}
    if value.get("online_schemes") is not None:
        plain["online_schemes"] = {name: OnlineScheme(**item) for name, item in value["online_schemes"].items()}
    return Catalogue(**plain)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def _stamp(engine: Engine) -> str:
    """Changes whenever the installation does: its place, version, and the time and size of telling files."""
    parts = [str(_REVISION), str(engine.site), str(engine.vllm_version)]
    for name in _WATCHED:
        try:
            stat = (Path(str(engine.site)) / name).stat()
            parts.append(f"{name}:{stat.st_mtime_ns}:{stat.st_size}")
        except OSError:
            parts.append(f"{name}:absent")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _kept(path: Path, stamp: str) -> Catalogue | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return catalogue_from_json(value["catalogue"]) if value.get("stamp") == stamp else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _keep(path: Path, stamp: str, catalogue: Catalogue) -> None:
    from vq_console.core.files import write_atomic

    text = json.dumps({"schema": 1, "stamp": stamp, "catalogue": catalogue_json(catalogue)}, separators=(",", ":"))
    try:
        write_atomic(path, text)
    except OSError:
        pass  # a cache that cannot be written costs time and nothing else
