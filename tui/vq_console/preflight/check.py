"""From a profile to its plan in the real world: gathers machine, engine, catalogue and checkpoint, then plans.

The only module of preflight, besides `target`, that touches the world; decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vq_console.core.errors import EngineError, ProfileError
from vq_console.engines.model import Catalogue, Engine
from vq_console.hardware.model import Machine
from vq_console.preflight.model import Finding, Plan, Target
from vq_console.preflight.plan import make_plan
from vq_console.preflight.suggest import Suggestion, suggest
from vq_console.preflight.target import checkpoint_here, free_port, simulated_target, target_here, with_engine
from vq_console.profiles.model import Profile


def plan_profile(
    profile: Profile,
    *,
    engine: Engine | None = None,
    target: Target | None = None,
    machine: Machine | None = None,
    port: int | None = None,
    gpus: Sequence[int] | None = None,
    name: str | None = None,
) -> Plan:
    """The plan of `profile` on this machine, or on `target` where one is given.

    Without `engine` the newest one that satisfies the profile is taken; where there is none, the plan is made from
    the shipped catalogue and its argv begins with `vllm serve`. No network is used.
    """
    from vq_console.profiles.store import model_argument

    resolved = replace(profile, model=model_argument(profile))
    if engine is None and target is None:
        engine = _engine_for(profile)
    if engine is not None and target is not None:
        target = with_engine(target, engine)
    catalogue = _catalogue_for(engine, target)
    if target is None and engine is not None and engine.simulated:
        facts, _ = checkpoint_here(resolved)
        target = simulated_target(engine, facts, resolved)
    elif target is None:
        facts, problems = checkpoint_here(resolved)
        target = target_here(
            resolved,
            machine=machine,
            engine=engine,
            catalogue=catalogue,
            checkpoint=facts,
            problems=problems,
            gpus=tuple(gpus) if gpus else None,
        )
    else:
        facts = {} if target.checkpoint else checkpoint_here(resolved)[0]
    if port is None and "port" not in profile.args:
        port = free_port(str(profile.args.get("host") or "127.0.0.1"))
    return make_plan(
        resolved,
        target,
        engine=engine,
        catalogue=catalogue,
        checkpoint_facts=facts,
        port=port,
        gpus=gpus,
        name=name,
    )


def _engine_for(profile: Profile) -> Engine | None:
    from vq_console.engines.find import choose_engine

    try:
        return choose_engine(profile.vllm)
    except EngineError:
        return None


def _catalogue_for(engine: Engine | None, target: Target | None) -> Catalogue:
    from vq_console.engines.catalogue import read_catalogue, snapshot

    stated = str(target.get("vllm_version")) if target is not None and target.get("vllm_version") else None
    if engine is not None and (stated is None or stated == engine.vllm_version):
        return read_catalogue(engine)
    return snapshot(stated)


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding under the keys that stay."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.message,
        "fix": finding.fix,
        "evidence": finding.evidence,
        "source": finding.source,
        "patch": finding.patch.to_json() if finding.patch is not None else None,
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as `lint --json` prints it. Sizes in GiB; what is unknown is null."""
    fit = {name: getattr(plan.fit, name) for name in plan.fit.__slots__}
    env: Mapping[str, str] = {**plan.env, **{name: f"${{{source}}}" for name, source in plan.secret_env.items()}}
    return {
        "findings": [finding_json(finding) for finding in plan.findings],
        "plan": {
            "profile": plan.profile,
            "argv": list(plan.argv),
            "env": dict(env),
            "secret_env": dict(plan.secret_env),
            "gpus": list(plan.gpus),
            "host": plan.host,
            "port": plan.port,
            "served_model": plan.served_model,
            "method": {
                "asked": plan.method.asked,
                "checkpoint": plan.method.checkpoint,
                "resolved": plan.method.resolved,
                "claimed_by": plan.method.claimed_by,
            },
            "layers": [
                {
                    "kind": layer.kind,
                    "count": layer.count,
                    "scheme": layer.scheme,
                    "kernel": layer.kernel,
                    "grade": layer.grade,
                    "source": layer.source,
                }
                for layer in plan.layers
            ],
            "fit": fit,
            "target": plan.target.origin,
        },
    }


def unreadable_json(error: ProfileError) -> dict[str, Any]:
    """The answer of `lint --json` for a profile that cannot be read: one error finding, and no plan."""
    finding = Finding("profile-unreadable", "error", error.message, error.hint, evidence=error.key)
    return {"findings": [finding_json(finding)], "plan": None}


@dataclass(frozen=True, slots=True)
class Judged:
    """One profile of the list with its plan, or why it has none."""

    name: str
    path: Path
    origin: str
    plan: Plan | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Findings and plan as for a single profile; an unreadable one has one error finding."""
        if self.plan is not None:
            return plan_json(self.plan)
        finding = Finding("profile-unreadable", "error", self.error or "unreadable")
        return {"findings": [finding_json(finding)], "plan": None}


def plan_all(*, engine: Engine | None = None, target: Target | None = None) -> tuple[Judged, ...]:
    """Every profile of the store, judged; a broken one never keeps the others from an answer."""
    from vq_console.hardware.probe import read_machine
    from vq_console.profiles.store import list_profiles

    machine = read_machine() if target is None else None
    judged = []
    for listed in list_profiles():
        item = Judged(listed.name, listed.path, listed.origin, error=listed.error)
        if listed.profile is not None:
            try:
                plan = plan_profile(listed.profile, engine=engine, target=target, machine=machine)
                item = replace(item, plan=plan, error=None)
            except ProfileError as error:
                item = replace(item, error=str(error))
        judged.append(item)
    return tuple(judged)


def suggest_model(model: str, *, engine: Engine | None = None, target: Target | None = None) -> Suggestion:
    """The ways of serving `model` on this machine, or on `target`, best first; no network is used."""
    profile = Profile(name="suggest", model=model)
    if engine is None and target is None:
        engine = _engine_for(profile)
    if engine is not None and target is not None:
        target = with_engine(target, engine)
    catalogue = _catalogue_for(engine, target)
    facts, _ = checkpoint_here(profile)
    if target is None and engine is not None and engine.simulated:
        target = simulated_target(engine, facts)
    elif target is None:
        target = target_here(profile, engine=engine, catalogue=catalogue, checkpoint=facts)
    return suggest(model, target, engine=engine, catalogue=catalogue, checkpoint_facts=facts)
