"""Choosing the diagnosis of a run: has it failed, which line is the cause, what else does it say.

Decides from lines that `reader.py` kept and from rules; reads no files. The order of evidence: the cause of a failure,
what shows without an error, warnings, nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from vq_console.logs.blocks import MAIN_FRAME, Layout, Spot, lay_out
from vq_console.logs.catalogue import diagnoses
from vq_console.logs.lines import clean
from vq_console.logs.model import Diagnosis, Fix, LogLine
from vq_console.logs.rules import TROUBLE, WARNINGS, Context, Hit, Rule
from vq_console.logs.rules.phrases import BENIGN, FATAL, NOISE, RETRIED, STOP, WRAPPERS
from vq_console.logs.silent import Finding, broken_output, large_batch, slow_kernels, stalls, without_effect

if TYPE_CHECKING:
    from vq_console.logs.reader import Run

_EVIDENCE = 1200
_ENGINE_WENT = "MPClient: engine core exited unexpectedly"
_LONG = 2400
_SAME = 200
"""Lines that begin alike are looked at so often; a flood of one message must not cost the answer its time."""
_CODE = re.compile(r"\s{4,}(?:raise|return|await|assert|with|self\.)\b")
"""A line of source, left over from a traceback whose beginning is missing."""


def diagnose(run: Run, *, final: bool = False) -> Diagnosis:
    """The diagnosis of a run. `final`: nothing more will come, so that a log which ends in silence has stalled."""
    lines = run.lines()
    context = context_of(run, lines)
    layout = lay_out(lines)
    stop = _stop_line(lines)
    fatal = _fatal_line(layout, stop)
    raised = _unfinished_start(context, layout, stop)
    hits = [
        hit for hit in _hits(layout, context, stop) if fatal or raised or context.ready_line is None or hit.rule.serving
    ]
    best = _best(hits)
    if best is not None:
        return _from_hit(best, "error")
    if fatal or raised:
        return _unexplained(layout, context, stop, fatal)
    if context.ready_line is None and stop is not None and _still_starting(run):
        return _make("startup-interrupted", "error", stop)
    if final and not lines:
        return _no_log("The log is empty", "There is no line in it: the server has not begun, or wrote elsewhere.")
    if final and not _is_vllm(run, lines):
        words = "Nothing in this text looks like a line of a vLLM log, so nothing can be said about a server."
        return _no_log("No log of vLLM", words)
    return _without_failure(run, context, lines, final=final)


def _is_vllm(run: Run, lines: list[LogLine]) -> bool:
    """Whether anything is known from the text: a fact, a mark of the start-up, or a line with a level or a process."""
    return bool(run.sheet.lines or run.marks) or any(line.level or line.process for line in lines)


def context_of(run: Run, lines: list[LogLine]) -> Context:
    """What rules may know of the run."""
    ready = run.sheet.lines.get("ready")
    return Context(run.sheet.as_mapping(), tuple(lines), run.sheet.lines, ready)


def warning_slugs(run: Run) -> tuple[str, ...]:
    """Slugs of what the run warns about, soft ones included, in order of appearance."""
    lines = run.lines()
    context = context_of(run, lines)
    found: dict[str, int] = {}
    for hit in _warnings(lines, context):
        found.setdefault(hit.rule.slug, hit.line.number)
    for finding in (*slow_kernels(context), *without_effect(context)):
        found.setdefault(finding.slug, finding.line)
    return tuple(sorted(found, key=lambda slug: found[slug]))


def _hits(layout: Layout, context: Context, stop: LogLine | None) -> Iterable[Hit]:
    shapes: dict[str, int] = {}
    for spot in layout.spots:
        line = spot.line
        message = line.message
        if line.level in ("INFO", "DEBUG", "WARNING") or not message:
            continue
        if stop is not None and line.number > stop.number and context.ready_line is not None:
            continue
        shape = message[:48]
        shapes[shape] = shapes.get(shape, 0) + 1
        if shapes[shape] > _SAME or NOISE.in_(message) or _CODE.match(message):
            continue
        text = message if len(message) <= _LONG else f"{message[:1800]} {message[-600:]}"
        for rule in TROUBLE:
            if rule.needle in text:
                match = rule.pattern.search(text)
                if match is None:
                    continue
                whole = match if text is message else rule.pattern.search(message)
                hit = Hit(rule, whole or match, spot, context)
                if rule.when is None or rule.when(hit):
                    yield hit


def _best(hits: list[Hit]) -> Hit | None:
    """The highest rank, then the first line; announcements of another attempt only where nothing else is."""
    if not hits:
        return None
    return min(hits, key=lambda hit: (_retried(hit.line), -hit.rule.rank, hit.line.number))


def _retried(line: LogLine) -> bool:
    return bool(line.level == "ERROR" and line.source and RETRIED.search(line.source))


def _still_starting(run: Run) -> bool:
    """Whether the log shows the beginning of this start and not its end: the server was not listening yet."""
    if "server" in run.mark_lines:
        return False
    return "banner" in run.mark_lines or "requested" in run.sheet.lines or "engine_line" in run.sheet.lines


def _stop_line(lines: list[LogLine]) -> LogLine | None:
    for line in lines:
        if line.level in ("INFO", "WARNING") and STOP.in_(line.message):
            return line
    return None


def _fatal_line(layout: Layout, stop: LogLine | None) -> LogLine | None:
    """The first line that says that this run is lost, unless it was told to stop before."""
    for spot in layout.spots:
        line = spot.line
        if stop is not None and line.number > stop.number:
            return None
        if _ENGINE_WENT in line.message[:200]:
            return line
        if line.level in ("INFO", "DEBUG", "WARNING") or NOISE.in_(line.message):
            continue
        if FATAL.in_(line.message):
            return line
    return None


def _unfinished_start(context: Context, layout: Layout, stop: LogLine | None) -> bool:
    """Whether an exception ended a start that never got ready, or ended a server: one in its engine or main process."""
    for trace in layout.traces:
        if not trace.exceptions or (stop is not None and trace.start > stop.number and context.ready_line is not None):
            continue
        last = trace.exceptions[-1]
        if NOISE.in_(last.message) or _retried(last):
            continue
        if context.ready_line is None:
            return True
        engine = trace.process or ""
        if trace.start > context.ready_line and (
            engine.startswith(("EngineCore", "Worker", "VllmWorker"))
            or any(MAIN_FRAME.search(frame) for frame in trace.frames)
        ):
            return True
    return False


def _unexplained(layout: Layout, context: Context, stop: LogLine | None, fatal: LogLine | None) -> Diagnosis:
    """No rule knows it: the exception of the first block that has one of its own, or only wrappers."""
    wrapper: Spot | None = None
    for trace in layout.traces:
        if stop is not None and trace.start > stop.number and context.ready_line is not None:
            continue
        own = [
            line
            for line in trace.exceptions
            if not WRAPPERS.in_(line.message) and not NOISE.in_(line.message) and not _retried(line)
        ]
        if own:
            line = own[-1]
            return _make("unknown", "unknown", line, process=line.process or trace.process)
        if trace.exceptions:
            wrapper = Spot(trace.exceptions[-1], trace, raised=True)
    if wrapper is None:
        for spot in layout.spots:
            if spot.line.level not in ("INFO", "DEBUG", "WARNING") and (
                FATAL.in_(spot.line.message) or WRAPPERS.in_(spot.line.message)
            ):
                wrapper = spot
    if wrapper is None:
        return _make("root-cause-not-in-log", "unknown", fatal)
    process = wrapper.line.process or (wrapper.trace.process if wrapper.trace else None)
    return _make("root-cause-not-in-log", "unknown", wrapper.line, process=process)


def _warnings(lines: list[LogLine], context: Context) -> Iterable[Hit]:
    for line in lines:
        if line.level not in ("WARNING", "INFO"):
            continue
        for rule in WARNINGS:
            if rule.needle in line.message and (line.level == "WARNING" or rule.scope == "info"):
                match = rule.pattern.search(line.message)
                if match is not None:
                    yield Hit(rule, match, Spot(line, None), context)


def _without_failure(run: Run, context: Context, lines: list[LogLine], *, final: bool) -> Diagnosis:
    """Nothing failed: what shows without an error, then warnings, then harmless ones."""
    whole = {"engine_line", "kv_cache_tokens", "ready"} <= set(run.sheet.lines)
    complete = whole and "banner" in run.mark_lines
    for finding in broken_output(context, lines):
        return _from_finding(finding, lines)
    if final:
        for finding in stalls(context, lines):
            return _from_finding(finding, lines)
    for finding in without_effect(context):
        return _from_finding(finding, lines)
    hits = [hit for hit in _warnings(lines, context) if not (complete and hit.rule.soft)]
    if hits:
        return _from_hit(min(hits, key=lambda hit: (-hit.rule.rank, hit.line.number)), "warning")
    if not complete:
        for finding in (*slow_kernels(context), *large_batch(context, lines)):
            return _from_finding(finding, lines)
        harmless = _harmless(lines)
        if harmless is not None:
            return _make("benign-warning", "ok", harmless)
    if context.ready_line is None:
        words = "Nothing has failed in what the log shows; it does not show the server getting ready."
        return replace(_make("healthy", "ok", None), title="Nothing has failed so far", explanation=words)
    return _make("healthy", "ok", None)


def _harmless(lines: list[LogLine]) -> LogLine | None:
    """The first line that looks like trouble and is none."""
    for line in lines:
        if BENIGN.in_(line.message) and line.level is not None:
            return line
    for line in lines:
        if line.level in ("WARNING", "ERROR"):
            return line
    return None


def _from_hit(hit: Hit, severity: str) -> Diagnosis:
    rule: Rule = hit.rule
    process = hit.line.process or (hit.spot.trace.process if hit.spot.trace is not None else None)
    explanation = rule.explain(hit) if rule.explain is not None else ""
    fixes = rule.fixes(hit) if rule.fixes is not None else ()
    return _make(rule.slug, severity, hit.line, process=process, explanation=explanation, fixes=fixes)


def _from_finding(finding: Finding, lines: list[LogLine]) -> Diagnosis:
    line = next((line for line in lines if line.number == finding.line), None)
    made = _make(finding.slug, finding.severity, line, explanation=finding.explanation, fixes=finding.fixes)
    if line is None and finding.line:
        return Diagnosis(made.slug, made.title, made.severity, finding.line, None, "", made.explanation, made.fixes)
    return made


def _make(
    slug: str,
    severity: str,
    line: LogLine | None,
    *,
    process: str | None = None,
    explanation: str = "",
    fixes: tuple[Fix, ...] = (),
) -> Diagnosis:
    entry = diagnoses()[slug]
    words = f"{explanation} {entry.explanation}".strip() if explanation else entry.explanation
    general = tuple(Fix(text) for text in entry.fixes if not fixes)
    return Diagnosis(
        slug=slug,
        title=entry.title,
        severity=severity,
        root_line=line.number if line is not None else 0,
        process=process or (line.process if line is not None else None),
        evidence=_evidence(line) if line is not None else "",
        explanation=words,
        fixes=fixes or general,
    )


def _no_log(title: str, words: str) -> Diagnosis:
    """What was given is no log to look for a cause in."""
    fix = Fix("Give the file that holds the server's standard output and error, from its start on.")
    return Diagnosis("root-cause-not-in-log", title, "unknown", explanation=words, fixes=(fix,))


def _evidence(line: LogLine) -> str:
    text = clean(line.message).strip()
    if len(text) > _EVIDENCE:
        text = text[: _EVIDENCE - 200] + " … " + text[-200:]
    return re.sub(r"\s*\[type=\w+, input_value=ArgsKwargs.*$", "", text)
