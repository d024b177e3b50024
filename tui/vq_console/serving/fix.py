"""Applying what the diagnosis proposes: the patch to the profile, and a new start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vq_console.core.errors import MissingError, UsageError
from vq_console.core.files import read_json
from vq_console.logs.model import Diagnosis, Fix
from vq_console.preflight.model import Patch
from vq_console.serving.model import ServerRecord
from vq_console.serving.registry import get_server
from vq_console.serving.view import diagnose_server


@dataclass(frozen=True, slots=True)
class Chosen:
    """One fix of one server's diagnosis and the profile file that it changes."""

    record: ServerRecord
    diagnosis: Diagnosis
    fix: Fix
    patch: Patch
    profile_path: str


def choose_fix(name: str, number: int | None = None) -> Chosen:
    """The fix `number` (from 1) of the diagnosis, or its first one that is a patch.

    Raises MissingError when there is no diagnosis, no patch or no profile file; UsageError for a wrong number.
    """
    record = get_server(name)
    diagnosis = diagnose_server(record)
    if diagnosis is None or diagnosis.severity == "ok" or not diagnosis.fixes:
        raise MissingError(f"{name}: its log shows nothing to fix", f"`vq-console logs {name}` shows it")
    fixes = diagnosis.fixes
    if number is not None and not 1 <= number <= len(fixes):
        listed = "; ".join(f"{place}: {fix.text}" for place, fix in enumerate(fixes, 1))
        raise UsageError(f"there is no fix {number}; the diagnosis {diagnosis.slug} has {len(fixes)}", listed)
    chosen = fixes[number - 1] if number is not None else next((fix for fix in fixes if fix.patch is not None), None)
    if chosen is None or chosen.patch is None:
        steps = "; ".join(fix.text for fix in fixes)
        raise MissingError(f"{name}: {diagnosis.slug} has no change of the profile that would mend it", steps)
    path = read_json(Path(record.folder or "") / "server.json").get("profile_path") if record.folder else None
    if not path:
        raise MissingError(f"{name} was not started from a profile file", "change it where it was started")
    return Chosen(record, diagnosis, chosen, chosen.patch, str(path))


def apply_fix(chosen: Chosen) -> tuple[Path, ServerRecord]:
    """Change the profile and start it again under the same name; the changed file and the new record.

    A ready profile of the console is not changed in place: the user's copy of it is.
    """
    from vq_console.profiles.store import apply_patch
    from vq_console.serving.control import restart_server

    changed = apply_patch(Path(chosen.profile_path), chosen.patch)
    return changed, restart_server(chosen.record.name, profile_path=str(changed))


def patch_lines(patch: Patch) -> list[str]:
    """The change as a person reads it, values as a profile has them."""
    lines = [f"model = {patch.set_model}"] if patch.set_model else []
    lines += [f"args.{key} = {_value(value)}" for key, value in patch.set_args.items()]
    lines += [f"args.{key} removed" for key in patch.remove_args]
    lines += [f"env.{key} = {_value(value)}" for key, value in patch.set_env.items()]
    lines += [f"env.{key} removed" for key in patch.remove_env]
    return lines


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
