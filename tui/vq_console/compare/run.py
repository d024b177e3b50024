"""The main job: two arms opened, checked for latency and quality, judged, reported, closed.

Runs in a process of its own (`vq-console ab`); the console starts that process and reads its run folder. Leaves no
server behind that it started.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vq_console import __version__
from vq_console.compare import history
from vq_console.compare.bandwidth import floors_of
from vq_console.compare.differences import find_differences
from vq_console.compare.open import Arm, open_arm, place_arms, prepare_arm
from vq_console.compare.placement import Placement
from vq_console.compare.progress import RunProgress
from vq_console.compare.report import report_markdown
from vq_console.compare.report_html import report_html
from vq_console.compare.summary import build_summary
from vq_console.core.errors import CheckError, UsageError, VqError
from vq_console.core.files import write_atomic, write_json
from vq_console.core.places import runs_dir
from vq_console.core.text import redact, strip_control

if TYPE_CHECKING:
    from vq_console.checks.endpoint import Endpoint
    from vq_console.checks.latency_settings import LatencySettings
    from vq_console.checks.quality_data import Recording


_QUALITY_SHARE = 0.3
_LEAST_CHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class AbSettings:
    """What a comparison does. Budgets in seconds, None for the mode's own; everything here is fixed before it runs."""

    mode: str = "quick"
    latency: bool = True
    quality: bool = True
    baseline: str | None = None
    prompts: Path | None = None
    declared: tuple[str, ...] = ()
    engine: str | None = None
    api_key_env: str | None = None
    seed: int | None = None
    latency_budget_s: float | None = None
    quality_budget_s: float | None = None
    within_s: float | None = None
    """Seconds for the whole run, starts of servers included: the checks share what the starts left."""
    keep: bool = False
    load: Mapping[str, Any] = field(default_factory=dict)
    """Fields of LatencySettings (levels, lengths, objective …) that differ from the mode's own."""
    copy_test: bool = False
    """Measure memory bandwidth by copying, for the floor beside the figures."""


@dataclass(frozen=True, slots=True)
class AbOutcome:
    """The answer and where it lies. `partial` when the user stopped it."""

    summary: dict[str, Any]
    folder: Path
    report: Path
    partial: bool


def run_ab(
    a_text: str, b_text: str, settings: AbSettings, say: Callable[[str], None] | None = None, *, run: str | None = None
) -> AbOutcome:
    """Compare two arms and write the run folder.

    Raises UsageError or MissingError, and leaves no folder, for arms that cannot be compared; VqError (with what was
    measured kept in the folder) when an arm does not come up or a check cannot run.
    """
    a, b, third = _prepared(a_text, b_text, settings)
    seed = settings.seed if settings.seed is not None else secrets.randbelow(2**31)
    name = run or history.new_run_name((a.label, b.label))
    folder = runs_dir() / name
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    head: dict[str, Any] = {
        "state": history.RUNNING,
        "kind": "ab",
        "created": started,
        "arms": {"A": a.label, "B": b.label},
        "settings": {**asdict(settings), "prompts": str(settings.prompts or ""), "seed": seed},
        "process": history.own_process(),
        "version": __version__,
        "machine": _machine_name(),
        "simulated": any(arm.engine.simulated for arm in (a, b) if arm.engine),
    }
    write_json(folder / "run.json", head)
    progress = RunProgress(folder, say)
    state = history.FAILED
    try:
        with _cancel_on_signals(progress):
            summary = _compare(a, b, third, settings, seed, name, folder, progress, started)
        state = history.PARTIAL if summary["partial"] else history.FINISHED
        summary["how"]["minutes"] = round((time.time() - started) / 60, 1)
        report = write_outputs(folder, summary)
        head["simulated"] = summary["simulated"]
        return AbOutcome(summary, folder, report, bool(summary["partial"]))
    except KeyboardInterrupt:
        state = history.PARTIAL
        raise
    except VqError as error:
        head["error"] = {"message": error.message, "hint": error.hint}
        progress.event("failed", error.message)
        raise
    finally:
        write_json(folder / "run.json", {**head, "state": state, "ended": time.time()})


def _prepared(a_text: str, b_text: str, settings: AbSettings) -> tuple[Arm, Arm, Arm | None]:
    """The arms, seen to be there before anything is started or written."""
    named = [("A", a_text), ("B", b_text), *([("R", settings.baseline)] if settings.baseline else [])]
    arms = [prepare_arm(side, text, engine=settings.engine, api_key_env=settings.api_key_env) for side, text in named]
    a, b = arms[0], arms[1]
    if b.spec.kind == "reference":
        raise UsageError(
            f"{b.label} is a recorded baseline and cannot answer", "name it as the first arm, or with --baseline"
        )
    if a.spec.kind == "reference" and not settings.quality:
        raise UsageError(f"{a.label} is a recorded baseline: it has no speed", "compare its quality, with --quality")
    return a, b, arms[2] if len(arms) > 2 else None


def _compare(
    a: Arm,
    b: Arm,
    third: Arm | None,
    settings: AbSettings,
    seed: int,
    name: str,
    folder: Path,
    progress: RunProgress,
    started: float,
) -> dict[str, Any]:
    placement = place_arms(a, b, third)
    progress.event("plan", f"{placement.design}: {placement.why}")
    for difference in find_differences(a.settings(), b.settings(), declared=settings.declared):
        kind = "the question" if difference.declared else "NOT declared, blocks a verdict on formats"
        progress.event("plan", f"differs in {difference.key}: A {difference.a}, B {difference.b} ({kind})")
    if placement.design == "one-at-a-time":
        from vq_console.compare.alternate import compare_alternating

        return compare_alternating(a, b, third, placement, settings, seed, name, folder, progress)
    if placement.design == "swapped-gpus" and settings.latency:
        from vq_console.compare.swap import compare_swapped

        return compare_swapped(a, b, third, placement, settings, seed, name, folder, progress)
    latency: Mapping[str, Any] | None = None
    quality: Mapping[str, Any] | None = None
    validity: list[Mapping[str, Any]] = []
    with ExitStack() as stack:
        opened = ExitStack() if settings.keep else stack  # a stack that is never entered stops nothing
        for arm in (a, b, *((third,) if third else ())):
            open_arm(arm, placement, progress, opened, api_key_env=settings.api_key_env)
            keep_arm(arm, folder)
        recorded = [arm.label for arm in (a, b) if arm.spec.kind == "reference"]
        if recorded:
            validity.append({"flag": "no-latency", "detail": f"{', '.join(recorded)} is a recording: it has no speed"})
        # In a run of fixed length latency comes last: how long quality takes is known beforehand, and more pairs of
        # blocks never hurt.
        for part in ("latency", "quality") if settings.within_s is None else ("quality", "latency"):
            if progress.cancelled():
                break
            settings = share_time(settings, time.time() - started, quality_done=quality is not None)
            if part == "latency" and settings.latency and not recorded:
                latency, flags = run_latency_part(
                    endpoint_of(a), endpoint_of(b), settings, seed, folder, progress, placement
                )
                validity += flags
            if part == "quality" and settings.quality:
                quality, flags = run_quality_part(a, b, third, settings, seed, folder, progress)
                validity += flags
        partial = progress.cancelled()
    return summarize(a, b, placement, settings, seed, name, latency, quality, validity, partial)


def share_time(settings: AbSettings, spent_s: float, *, quality_done: bool = False) -> AbSettings:
    """The same with budgets for both checks, when the run as a whole has one: shares of what is left of it. Pure."""
    if settings.within_s is None:
        return settings
    left = settings.within_s - spent_s
    quality = max(left * _QUALITY_SHARE if settings.latency else left, _LEAST_CHECK_S)
    latency = left - quality if settings.quality and not quality_done else left
    return replace(settings, latency_budget_s=max(latency, _LEAST_CHECK_S), quality_budget_s=quality)


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


def run_latency_part(
    a: Endpoint, b: Endpoint, settings: AbSettings, seed: int, folder: Path, progress: RunProgress, placement: Placement
) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Latency over two open arms: the JSON part and its validity flags."""
    from vq_console.checks.latency import run_latency

    result = run_latency(a, b, latency_settings(settings, seed), folder / "latency", progress)
    return result.to_json(), list(result.validity)


def latency_settings(settings: AbSettings, seed: int) -> LatencySettings:
    """The latency check of these settings."""
    from vq_console.checks.latency_settings import LatencySettings

    return replace(LatencySettings.of(settings.mode, seed=seed, budget_s=settings.latency_budget_s), **settings.load)


def run_quality_part(
    a: Arm, b: Arm, third: Arm | None, settings: AbSettings, seed: int, folder: Path, progress: RunProgress
) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Quality over two open arms, against a third as baseline where one was named."""
    from vq_console.checks.quality import QualitySettings, run_quality

    chosen = QualitySettings.of(settings.mode, seed=seed, budget_s=settings.quality_budget_s)
    result = run_quality(
        side_of(a),
        endpoint_of(b),
        chosen,
        folder / "quality",
        progress,
        baseline=side_of(third) if third else None,
        prompts=settings.prompts,
        facts={arm.side: arm.facts for arm in (a, b, *((third,) if third else ()))},
    )
    return result.to_json(), list(result.validity)


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


def summarize(
    a: Arm,
    b: Arm,
    placement: Placement,
    settings: AbSettings,
    seed: int,
    name: str,
    latency: Mapping[str, Any] | None,
    quality: Mapping[str, Any] | None,
    validity: list[Mapping[str, Any]],
    partial: bool,
) -> dict[str, Any]:
    """The answer of `ab --json` from what the arms said and the checks measured."""
    if latency:
        rows, notes = floors_of((a, b), latency, copy_test=settings.copy_test)
        latency, validity = {**latency, "floor": rows}, [*validity, *notes]
    not_tested = [] if settings.quality else ["quality"]
    not_tested += [] if settings.latency else ["latency"]
    if quality and not quality.get("tasks"):
        not_tested.append("tasks: whether answers are right (KL divergence says only how far they moved)")
    return build_summary(
        run=name,
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
        partial=partial,
        how={"console": __version__, "mode": settings.mode, "seed": seed, "machine": _machine_name()},
    )


def write_outputs(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Summary and reports of a run; returns the Markdown report's path."""
    write_json(folder / "summary.json", summary)
    write_atomic(folder / "report.html", report_html(summary))
    write_atomic(folder / "report.md", report_markdown(summary))
    return folder / "report.md"


def _machine_name() -> str:
    from vq_console.hardware.probe import read_machine

    machine = read_machine(processes=False)
    names = [gpu.name or "GPU" for gpu in machine.gpus]
    kinds = [f"{names.count(name)}× {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return ", ".join(kinds) or machine.host.cpu_model or machine.host.hostname


@contextlib.contextmanager
def _cancel_on_signals(progress: RunProgress) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for an end that keeps what was measured; a second Ctrl-C ends at once."""

    def first(number: int, frame: object) -> None:
        progress.cancel()
        progress.event("cancel", "ending after this block; what was measured is kept")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
