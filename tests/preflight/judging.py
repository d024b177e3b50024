"""How the tests of this folder judge a launch that is described by one flat table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vq_console.engines.catalogue import snapshot
from vq_console.engines.model import Catalogue
from vq_console.preflight.method import Resolution, resolve
from vq_console.preflight.model import Finding, Plan, Target
from vq_console.preflight.plan import make_plan
from vq_console.preflight.situation import Situation
from vq_console.profiles.model import Profile


def plan_of(lint_input: Mapping[str, Any]) -> Plan:
    """The plan of a launch: `model` and `args` make the profile, the rest is the target."""
    facts = dict(lint_input)
    profile = Profile("x", str(facts.pop("model", "org/model")), args=facts.pop("args", {}))
    version = facts.get("vllm_version")
    return make_plan(profile, Target(facts), engine=None, catalogue=snapshot(version), checkpoint_facts={})


def situation_of(lint_input: Mapping[str, Any], catalogue: Catalogue | None = None) -> Situation:
    """The situation of a launch, for the parts below the plan."""
    facts = dict(lint_input)
    profile = Profile("x", str(facts.pop("model", "org/model")), args=facts.pop("args", {}))
    chosen = catalogue or snapshot(facts.get("vllm_version"))
    return Situation(profile, Target(facts), chosen, facts.get("checkpoint") or {})


def resolution_of(lint_input: Mapping[str, Any]) -> Resolution:
    """The method and schemes of a launch."""
    return resolve(situation_of(lint_input))


def loud(plan: Plan) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in plan.findings if finding.severity != "info"]


def rules_of(plan: Plan) -> list[str]:
    """The rules of errors and warnings."""
    return [finding.rule for finding in loud(plan)]
