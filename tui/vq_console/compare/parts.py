"""The parts that every design of a comparison is made of: arms opened and kept, both checks, the answer."""

from __future__ import annotations

import contextlib
import shutil
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vq_console import __version__
from vq_console.compare.bandwidth import floors_of
from vq_console.compare.comparison import AbSettings, Comparison
from vq_console.compare.differences import find_differences
from vq_console.compare.open import Arm, open_arm
from vq_console.compare.placement import Placement
from vq_console.compare.summary import build_summary
from vq_console.core.errors import CheckError
from vq_console.core.files import write_atomic, write_json
from vq_console.core.text import redact, strip_control

if TYPE_CHECKING:
    from vq_console.checks.endpoint import Endpoint
    from vq_console.checks.latency_settings import LatencySettings
    from vq_console.checks.quality_data import Recording


def open_arms(
    comparison: Comparison, arms: tuple[Arm, ...], stack: ExitStack, placement: Placement | None = None
) -> None:
    """Open these arms in turn, never two loading at once, and keep what they said; `stack` closes them."""
    for arm in arms:
        open_arm(
            arm,
            placement or comparison.placement,
            comparison.progress,
            stack,
            api_key_env=comparison.settings.api_key_env,
        )
        keep_arm(arm, comparison.folder)


def endpoint_of(arm: Arm) -> Endpoint:
    """The endpoint of an arm that was opened. Raises CheckError when it is a recording."""
    if arm.endpoint is None:
        raise CheckError(f"{arm.label} has no endpoint", "a recorded baseline cannot be an arm of a latency check")
    return arm.endpoint


def side_of(arm: Arm) -> Endpoint | Recording:
    """What the quality check takes: the recording that a `ref:` arm names, else the endpoint."""
    if arm.spec.kind == "reference":
        from vq_console.checks.reference import load_reference, reference_path

        return load_reference(reference_path(arm.spec.name))
    return endpoint_of(arm)


def latency_settings(settings: AbSettings, seed: int) -> LatencySettings:
    """The latency check of these settings."""
    from vq_console.checks.latency_settings import LatencySettings

    return replace(LatencySettings.of(settings.mode, seed=seed, budget_s=settings.latency_budget_s), **settings.load)


def measure_latency(comparison: Comparison) -> None:
    """Latency over two open arms."""
    from vq_console.checks.latency import run_latency

    result = run_latency(
        endpoint_of(comparison.a),
        endpoint_of(comparison.b),
        latency_settings(comparison.settings, comparison.seed),
        comparison.folder / "latency",
        comparison.progress,
    )
    comparison.latency = result.to_json()
    comparison.validity += result.validity


def measure_quality(comparison: Comparison) -> None:
    """Quality over two open arms, against a third as baseline where one was named."""
    from vq_console.checks.quality import QualitySettings, run_quality

    settings = comparison.settings
    result = run_quality(
        side_of(comparison.a),
        endpoint_of(comparison.b),
        QualitySettings.of(settings.mode, seed=comparison.seed, budget_s=settings.quality_budget_s),
        comparison.folder / "quality",
        comparison.progress,
        baseline=side_of(comparison.third) if comparison.third else None,
        prompts=settings.prompts,
        facts={arm.side: arm.facts for arm in comparison.arms},
    )
    comparison.quality = result.to_json()
    comparison.validity += result.validity


def keep_arm(arm: Arm, folder: Path) -> None:
    """Copy what an arm was and said into the run: plan, facts, its log with secrets and control codes removed."""
    place = folder / "arms" / arm.side
    write_json(place / "arm.json", arm_json(arm))
    if arm.server and arm.server.log:
        with contextlib.suppress(OSError):
            text = Path(arm.server.log).read_text(encoding="utf-8", errors="replace")
            write_atomic(place / "log.txt", "\n".join(redact(strip_control(line)) for line in text.split("\n")))
    if arm.profile is not None and arm.profile.path is not None:
        with contextlib.suppress(OSError):
            shutil.copyfile(arm.profile.path, place / "profile.toml")


def arm_json(arm: Arm) -> dict[str, Any]:
    """One arm in the keys of the contract."""
    server = arm.server
    return {
        "label": arm.label,
        "profile": arm.profile.name if arm.profile else (server.profile if server else None),
        "url": arm.endpoint.url if arm.endpoint else None,
        "engine": server.engine if server else None,
        "gpu": ", ".join(str(gpu) for gpu in server.gpus) if server and server.gpus else _device(arm),
        "model": arm.endpoint.model if arm.endpoint else None,
        "facts": dict(arm.facts),
        "diagnosis": arm.diagnosis,
        "asked_vs_runs": [asdict(row) for row in arm.asked_vs_runs],
        "started_here": arm.started,
    }


def _device(arm: Arm) -> str | None:
    return arm.engine.device if arm.engine else arm.endpoint.device if arm.endpoint else None


def summarize(comparison: Comparison) -> dict[str, Any]:
    """The answer of `ab --json` from what the arms said and the checks measured."""
    a, b, settings, placement = comparison.a, comparison.b, comparison.settings, comparison.placement
    latency, quality, validity = comparison.latency, comparison.quality, comparison.validity
    if latency:
        rows, notes = floors_of((a, b), latency, copy_test=settings.copy_test)
        latency, validity = {**latency, "floor": rows}, [*validity, *notes]
    not_tested = [] if settings.quality else ["quality"]
    not_tested += [] if settings.latency else ["latency"]
    if quality and not quality.get("tasks"):
        not_tested.append("tasks: whether answers are right (KL divergence says only how far they moved)")
    return build_summary(
        run=comparison.name,
        simulated=any(arm.endpoint.simulated for arm in (a, b) if arm.endpoint),
        labels=(a.label, b.label),
        arms={"A": arm_json(a), "B": arm_json(b)},
        fits={arm.side: asdict(arm.plan.fit) if arm.plan else {} for arm in (a, b)},
        differences=find_differences(a.settings(), b.settings(), declared=settings.declared),
        design=placement.design,
        design_why=placement.why,
        same_gpus=latency is None or (placement.same_kind and placement.design != "separate-gpus"),
        latency=latency,
        quality=quality,
        validity=validity,
        not_tested=not_tested,
        partial=comparison.progress.cancelled(),
        how={"console": __version__, "mode": settings.mode, "seed": comparison.seed, "machine": machine_name()},
    )


def machine_name() -> str:
    """The GPUs of this machine, or its CPU, in words."""
    from vq_console.hardware.probe import read_machine

    machine = read_machine(processes=False)
    names = [gpu.name or "GPU" for gpu in machine.gpus]
    kinds = [f"{names.count(name)}× {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return ", ".join(kinds) or machine.host.cpu_model or machine.host.hostname
