"""Opens the arms of a comparison: uses what runs, starts what does not, stops what it started.

Touches processes through `serving` only; decides nothing about numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vq_console.checks.progress import Progress
from vq_console.compare import arms as arms_module
from vq_console.compare.arms import ArmSpec
from vq_console.compare.differences import ArmSettings
from vq_console.compare.placement import ArmDemand, GpuRoom, Placement, plan_placement
from vq_console.core.errors import EngineError, LaunchError
from vq_console.logs.model import AskedVsRuns
from vq_console.preflight.model import LayerExpectation, Plan
from vq_console.serving.model import ServerRecord

if TYPE_CHECKING:
    from vq_console.checks.endpoint import Endpoint
    from vq_console.engines.model import Engine
    from vq_console.profiles.model import Profile


@dataclass(slots=True)
class Arm:
    """One side, from its name to its endpoint. `started` servers are stopped when the comparison ends."""

    side: str
    spec: ArmSpec
    profile: Profile | None = None
    engine: Engine | None = None
    plan: Plan | None = None
    server: ServerRecord | None = None
    endpoint: Endpoint | None = None
    started: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Any = None
    asked_vs_runs: tuple[AskedVsRuns, ...] = ()

    @property
    def label(self) -> str:
        return self.spec.label

    def settings(self) -> ArmSettings:
        """What this arm was asked for and resolved to, for the list of differences."""
        plan = self.server.plan if self.server else {}
        args = dict(self.profile.args) if self.profile else dict(plan.get("args") or {})
        env = {k: str(v) for k, v in self.profile.env.items() if isinstance(v, str)} if self.profile else _env(plan)
        env = {k: v for k, v in env.items() if not k.startswith("VQ_SIM_")}
        model = self.profile.model if self.profile else self.facts.get("model")
        return ArmSettings(args=args, env=env, facts=self.facts, model=model)


def _env(plan: Mapping[str, Any]) -> dict[str, str]:
    """What a running server's plan set by itself, without where it runs and without secrets."""
    told = {**(plan.get("env") or {})}
    return {
        key: str(value)
        for key, value in told.items()
        if key not in {*(plan.get("secret_env") or {}), "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
    }


def prepare_arm(side: str, text: str, *, engine: str | None, api_key_env: str | None = None) -> Arm:
    """Resolve one ARM: read its profile, find its engine, make its plan, see that what runs answers and what was
    recorded can be read. Starts nothing.

    Raises ProfileError, EngineError, UsageError, and MissingError where no server answers.
    """
    arm = Arm(side, arms_module.resolve_arm(text))
    if arm.spec.kind == "profile":
        from vq_console.engines.find import choose_engine
        from vq_console.preflight.check import plan_profile
        from vq_console.profiles.store import load_profile

        arm.profile = load_profile(arm.spec.name)
        arm.server = arms_module.running_server(arm.spec)
        if arm.server is None:
            arm.engine = choose_engine(arm.profile.vllm, python=engine)
        arm.plan = plan_profile(arm.profile, engine=arm.engine)
        # What is free is shared out when both arms are known; the launch judges it again with that share.
        errors = [f for f in arm.plan.findings if f.severity == "error" and f.rule != "gpu-memory-busy"]
        if errors and arm.server is None:
            raise LaunchError(
                f"{arm.label}: preflight says no: {errors[0].message}",
                errors[0].fix or f"`vq-console lint {arm.spec.name}` shows everything",
            )
    elif arm.spec.kind == "server":
        arm.server = arms_module.running_server(arm.spec)
        if arm.server is not None:
            arms_module.server_endpoint(arm.server, arm.label)
    elif arm.spec.kind == "url":
        arm.endpoint = arms_module.url_endpoint(arm.spec.name, arm.label, api_key_env=api_key_env)
    else:
        from vq_console.checks.reference import load_reference, reference_path

        load_reference(reference_path(arm.spec.name))
    return arm


def place_arms(a: Arm, b: Arm, third: Arm | None = None) -> Placement:
    """Which design this machine allows for the two arms and, where there is one, the baseline beside them."""
    from vq_console.hardware.probe import read_machine

    device = next((arm.engine.device for arm in (a, b) if arm.engine and arm.engine.device), None)
    simulated = any(arm.engine.simulated for arm in (a, b) if arm.engine)
    machine = read_machine(processes=False)
    rooms = (
        []
        if simulated
        else [
            GpuRoom(
                g.index, g.name or "GPU", g.memory_usable_mib / 1024, (g.memory_free_mib or 0) / 1024, g.power_limit_w
            )
            for g in machine.gpus
            if g.visible and g.memory_usable_mib
        ]
    )
    baseline = _demand(third) if third is not None else None
    return plan_placement(_demand(a), _demand(b), rooms, device=device, third=baseline)


def _demand(arm: Arm) -> ArmDemand:
    share = arm.profile.args.get("gpu_memory_utilization") if arm.profile else None
    fit = arm.plan.fit if arm.plan else None
    return ArmDemand(
        label=arm.side,
        gpus=arm.server.gpus if arm.server else (),
        share=float(share) if share is not None else None,
        weights_gib=fit.weights_gib if fit else None,
        load_peak_gib=fit.load_peak_gib if fit else None,
        running=arm.server is not None or arm.spec.kind in {"url", "reference"},
        gpu_count=(arm.profile.gpu_count or 1) if arm.profile else 1,
    )


def open_arm(arm: Arm, placement: Placement, progress: Progress, stack: ExitStack, *, api_key_env: str | None) -> None:
    """Give the arm a ready endpoint, starting its server if it has none; `stack` stops what was started.

    Raises LaunchError with the diagnosis when the server does not come up, KeyboardInterrupt when cancelled.
    """
    if arm.spec.kind == "reference":
        return
    if arm.spec.kind == "url":
        arm.endpoint = arms_module.url_endpoint(arm.spec.name, arm.label, api_key_env=api_key_env)
        return
    if arm.server is None:
        if arm.profile is None:
            raise EngineError(f"{arm.label}: nothing to start", "name a profile, a running server or a URL")
        _start(arm, placement, progress, stack)
    if arm.server is None:
        raise LaunchError(f"{arm.label}: no server", "start it and name it as server:NAME")
    arm.endpoint = arms_module.server_endpoint(arm.server, arm.label)
    read_log(arm)


def _start(arm: Arm, placement: Placement, progress: Progress, stack: ExitStack) -> None:
    from vq_console.serving.control import stop_server, wait_ready
    from vq_console.serving.launch import launch

    if arm.profile is None:
        return
    progress.event("serve", "starting", arm=arm.side)
    record = launch(
        arm.profile,
        engine=arm.engine,
        gpus=placement.gpus.get(arm.side) or None,
        args_override=placement.overrides.get(arm.side),
    )
    arm.started = True

    def stop() -> None:
        progress.event("stop", f"stopping {record.name}", arm=arm.side)
        stop_server(record.name)

    stack.callback(stop)
    last = [""]

    def tell(server: ServerRecord) -> None:
        if progress.cancelled():
            raise KeyboardInterrupt
        if server.phase != last[0]:
            last[0] = server.phase
            progress.event("serve", server.phase or server.state.value, arm=arm.side)

    arm.server = wait_ready(record.name, on_progress=tell)
    progress.event("serve", f"ready at {arm.server.url}", arm=arm.side)


def read_log(arm: Arm) -> None:
    """Facts, diagnosis and asked-against-runs of an arm from its server's log, where there is one."""
    if arm.server is None:
        return
    from vq_console.logs.asked import asked_vs_runs
    from vq_console.serving.view import server_json

    seen = server_json(arm.server)
    arm.facts = seen.get("facts") or {}
    arm.diagnosis = seen.get("diagnosis")
    arm.asked_vs_runs = asked_vs_runs(planned_layers(arm), arm.facts)


def planned_layers(arm: Arm) -> tuple[LayerExpectation, ...]:
    """What preflight expected, from this run's plan or from the plan that the server was launched with."""
    if arm.plan is not None:
        return arm.plan.layers
    rows = arm.server.plan.get("layers") if arm.server else None
    return tuple(LayerExpectation.from_json(row) for row in rows or ())
