"""`lint`, `suggest`, `matrix`: what a launch would be before it is one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, emit, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode, ProfileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vq_console.engines.model import Engine
    from vq_console.preflight.matrix import Cell
    from vq_console.preflight.model import Fit, Plan, Target


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    lint = add_command(subparsers, "lint", help_of("lint"), run_lint)
    lint.add_argument("profile", nargs="?", help="name, or path of a file")
    lint.add_argument("--all", action="store_true", help="every profile: what an engine upgrade will break")
    _where(lint)
    advise = add_command(subparsers, "suggest", help_of("suggest"), run_suggest)
    advise.add_argument("model", help="hub id or path")
    _where(advise)
    grid = add_command(subparsers, "matrix", help_of("matrix"), run_matrix)
    grid.add_argument("--sm", metavar="SM", action="append", help="a capability such as 90 or 9.0; may be repeated")
    grid.add_argument("--vllm", metavar="VERSION", action="append", help="a version; may be repeated")
    grid.add_argument("--method", metavar="TEXT", default="", help="only methods whose name has this in it")


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="FILE", help="judge for the machine that this file describes")
    parser.add_argument("--engine", metavar="PYTHON", help="judge for this vLLM")


def _target(args: argparse.Namespace) -> Target | None:
    from vq_console.preflight.target import read_target

    return read_target(args.target) if args.target else None


def _engine(args: argparse.Namespace) -> Engine | None:
    from vq_console.engines.find import choose_engine

    return choose_engine(python=args.engine) if args.engine else None


def run_lint(args: argparse.Namespace) -> ExitCode:
    """Judge one profile, or all; an error finding or an unreadable profile is a no."""
    if args.all == bool(args.profile):
        raise UsageError("lint takes one profile, or --all", "vq-console lint NAME")
    if args.all:
        return _lint_all(args)
    from vq_console.preflight.check import plan_json, plan_profile, unreadable_json
    from vq_console.profiles.store import load_profile

    target, engine = _target(args), _engine(args)
    try:
        plan = plan_profile(load_profile(args.profile), engine=engine, target=target)
    except ProfileError as error:
        # Also where there is no such file: what cannot be judged is not good.
        error.exit_code = ExitCode.NO
        if not args.json:
            raise
        emit("vq-console/lint/1", unreadable_json(error))
        say(f"vq-console: {error}")
        return ExitCode.NO
    if args.json:
        emit("vq-console/lint/1", plan_json(plan))
    else:
        print(plan_text(plan))
    return _verdict(plan)


def _verdict(plan: Plan) -> ExitCode:
    return ExitCode.NO if any(finding.severity == "error" for finding in plan.findings) else ExitCode.DONE


def _lint_all(args: argparse.Namespace) -> ExitCode:
    from vq_console.preflight.check import plan_all

    judged = plan_all(engine=_engine(args), target=_target(args))
    bad = any(item.plan is None or _verdict(item.plan) is not ExitCode.DONE for item in judged)
    if args.json:
        emit(
            "vq-console/lint-all/1",
            {
                "profiles": [
                    {"name": item.name, "path": str(item.path), "origin": item.origin, **item.to_json()}
                    for item in judged
                ]
            },
        )
    else:
        rows = []
        for item in judged:
            if item.plan is None:
                rows.append((item.name, "unreadable", item.error or ""))
                continue
            loud = [finding for finding in item.plan.findings if finding.severity != "info"]
            word = "error" if _verdict(item.plan) is not ExitCode.DONE else "warning" if loud else "ok"
            rows.append((item.name, word, "; ".join(f"{f.rule}: {f.message}" for f in loud)))
        print(table(rows, ("profile", "says", "what")))
    return ExitCode.NO if bad else ExitCode.DONE


_SIGNS = {"error": "✖", "warning": "▲", "info": "●"}


def plan_text(plan: Plan) -> str:
    """A plan as a person reads it: findings, method, kernels, memory, command."""
    import shlex

    lines = []
    for finding in plan.findings:
        lines.append(f"{_SIGNS[finding.severity]} {finding.severity}  {finding.rule}: {finding.message}")
        if finding.fix:
            lines.append(f"    fix       {finding.fix}")
        if finding.evidence:
            lines.append(f"    evidence  {finding.evidence}")
    lines.append("✔ nothing to object" if not plan.findings else "")
    method = plan.method
    asked = method.asked or "–"
    lines.append(f"method    asked {asked}, checkpoint {method.checkpoint or '–'}, resolved {method.resolved or '–'}")
    if method.claimed_by:
        lines[-1] += f" ({method.claimed_by})"
    rows = [
        (row.kind, "–" if row.count is None else str(row.count), row.scheme, row.kernel or "–", row.grade)
        for row in plan.layers
    ]
    lines += ["", table(rows, ("layers", "count", "scheme", "kernel", "grade")), "", fit_text(plan.fit), ""]
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in plan.env.items())
    secret = " ".join(f'{name}="${source}"' for name, source in plan.secret_env.items())
    lines.append(" ".join(part for part in (env, secret, shlex.join(plan.argv)) if part))
    return "\n".join(lines)


def fit_text(fit: Fit) -> str:
    """The memory of one GPU in two lines."""

    def gib(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f}"

    first = (
        f"memory    weights {gib(fit.weights_gib)} GiB (peak while loading {gib(fit.load_peak_gib)}), "
        f"activations {gib(fit.activation_gib)}, graphs {gib(fit.graphs_gib)}, KV {gib(fit.kv_gib)} "
        f"of {gib(fit.budget_gib)}"
    )
    if fit.kv_tokens is None:
        return first
    requests = "–" if fit.requests_at_context is None else f"{fit.requests_at_context:.1f}"
    longest = "–" if fit.max_context is None else f"{fit.max_context:,}"
    return f"{first}\n          {fit.kv_tokens:,} tokens, {requests} requests at full context, longest {longest}"


def run_suggest(args: argparse.Namespace) -> ExitCode:
    """Rank the ways; no way at all is a no."""
    from vq_console.preflight.check import suggest_model
    from vq_console.preflight.suggest import suggestion_json

    if not args.model.strip():
        raise UsageError("suggest: the model is empty", "a hub id such as org/name, or a path")
    found = suggest_model(args.model, engine=_engine(args), target=_target(args))
    if args.json:
        emit("vq-console/suggest/1", suggestion_json(found))
    else:
        rows = [
            (str(place), choice.profile.name, choice.grade, choice.regime.partition(":")[0], choice.why)
            for place, choice in enumerate(found.choices, 1)
        ]
        print(table(rows, ("", "way", "grade", "for", "why")))
        for choice in found.choices:
            if choice.make:
                print(f"to make {choice.profile.name}: {choice.make}")
        for way, why in found.refused.items():
            print(f"✖ {way}: {why}")
    return ExitCode.DONE if found.choices else ExitCode.NO


def run_matrix(args: argparse.Namespace) -> ExitCode:
    """Print the matrix, one table per version."""
    from dataclasses import asdict

    from vq_console.preflight.matrix import COLUMNS, DEVICES, LEGEND, cells
    from vq_console.preflight.versions import READ, Version, parse_version, version_text

    versions: list[Version] = []
    for text in args.vllm or [version_text(READ[-1])]:
        version = parse_version(text)
        if version is None:
            raise UsageError(f"--vllm {text}: not a version", "such as 0.33.0")
        versions.append(version)
    asked = tuple(_capability(text) for text in args.sm) if args.sm else None
    if args.json:
        devices = asked or DEVICES
        found = cells(devices=devices, versions=versions, methods=args.method)
        emit("vq-console/matrix/1", {"devices": list(devices), "cells": [asdict(cell) for cell in found]})
        return ExitCode.DONE
    for version in versions:
        print(f"vLLM {version_text(version)}   {LEGEND}   sources: matrix --json")
        for devices in (asked,) if asked else COLUMNS:
            found = cells(devices=devices, versions=[version], methods=args.method)
            print(f"\n{_matrix_table(found, devices)}")
    return ExitCode.DONE


def _matrix_table(found: Sequence[Cell], devices: Sequence[str]) -> str:
    from vq_console.preflight.matrix import cell_text

    rows: dict[tuple[str, str], list[str]] = {}
    for cell in found:
        rows.setdefault((cell.method, cell.kind), [cell.method, cell.kind]).append(cell_text(cell))
    return table(list(rows.values()), ("method", "layers", *devices))


def _capability(text: Any) -> str:
    word = str(text).lower().removeprefix("sm").replace(".", "").replace("_", "")
    if not word.isdigit() or not 60 <= int(word) <= 130:
        raise UsageError(f"--sm {text}: not a compute capability", "such as 90, 9.0 or 120")
    return f"sm{word}"
