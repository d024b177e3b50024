"""The main job: two arms opened, checked for latency and quality, judged, reported, closed.

Runs in a process of its own (`vq-console ab`); the console starts that process and reads its run folder. Leaves no
server behind that it started.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vq_console import __version__
from vq_console.compare import history
from vq_console.compare.comparison import AbSettings, Comparison, share_time
from vq_console.compare.differences import find_differences
from vq_console.compare.open import Arm, place_arms, prepare_arm
from vq_console.compare.parts import machine_name, measure_latency, measure_quality, open_arms, summarize
from vq_console.compare.progress import RunProgress
from vq_console.compare.report import report_markdown
from vq_console.compare.report_html import report_html
from vq_console.core.errors import UsageError, VqError
from vq_console.core.files import write_atomic, write_json
from vq_console.core.places import runs_dir


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
    measured kept in the folder) when an arm does not come up or a check cannot run; KeyboardInterrupt when it was
    stopped before anything could be said.
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
        "machine": machine_name(),
        "simulated": any(arm.engine.simulated for arm in (a, b) if arm.engine),
    }
    write_json(folder / "run.json", head)
    progress = RunProgress(folder, say)
    state = history.FAILED
    try:
        with _cancel_on_signals(progress):
            placement = place_arms(a, b, third)
            summary = _compare(Comparison(name, folder, a, b, third, settings, seed, placement, progress, started))
        state = history.PARTIAL if summary["partial"] else history.FINISHED
        summary["how"]["minutes"] = round((time.time() - started) / 60, 1)
        report = write_outputs(folder, summary)
        head["simulated"] = summary["simulated"]
        return AbOutcome(summary, folder, report, bool(summary["partial"]))
    except KeyboardInterrupt:
        state = history.PARTIAL
        raise
    except VqError as error:
        if progress.cancelled():
            # What fails once an end was asked for, such as a probe without tokens, says nothing about the arms.
            state = history.PARTIAL
            head["error"] = {"message": "stopped before anything could be said", "hint": None}
            raise KeyboardInterrupt from error
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


def _compare(comparison: Comparison) -> dict[str, Any]:
    a, b, settings = comparison.a, comparison.b, comparison.settings
    placement, progress = comparison.placement, comparison.progress
    progress.event("plan", f"{placement.design}: {placement.why}")
    for difference in find_differences(a.settings(), b.settings(), declared=settings.declared):
        progress.event("plan", difference.words())
    if placement.design == "one-at-a-time":
        from vq_console.compare.alternate import compare_alternating

        compare_alternating(comparison)
    elif placement.design == "swapped-gpus" and settings.latency:
        from vq_console.compare.swap import compare_swapped

        compare_swapped(comparison)
    else:
        _compare_together(comparison)
    return summarize(comparison)


def _compare_together(comparison: Comparison) -> None:
    """Both checks with all arms up at once."""
    settings, progress = comparison.settings, comparison.progress
    with ExitStack() as stack:
        opened = ExitStack() if settings.keep else stack  # a stack that is never entered stops nothing
        open_arms(comparison, comparison.arms, opened)
        recorded = [arm.label for arm in (comparison.a, comparison.b) if arm.spec.kind == "reference"]
        if recorded:
            detail = f"{', '.join(recorded)} is a recording: it has no speed"
            comparison.validity.append({"flag": "no-latency", "detail": detail})
        # In a run of fixed length latency comes last: how long quality takes is known beforehand, and more pairs of
        # blocks never hurt.
        for part in ("latency", "quality") if settings.within_s is None else ("quality", "latency"):
            if progress.cancelled():
                break
            comparison.settings = share_time(
                settings, time.time() - comparison.started, quality_done=comparison.quality is not None
            )
            if part == "latency" and settings.latency and not recorded:
                measure_latency(comparison)
            if part == "quality" and settings.quality:
                measure_quality(comparison)


def write_outputs(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Summary and reports of a run; returns the Markdown report's path."""
    write_json(folder / "summary.json", summary)
    write_atomic(folder / "report.html", report_html(summary))
    write_atomic(folder / "report.md", report_markdown(summary))
    return folder / "report.md"


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
