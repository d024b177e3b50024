"""`explain`: what happened in a vLLM log, where, why, and what to do. Works on any log of any machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, emit
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode, MissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vq_console.logs.model import AskedVsRuns, Explanation
    from vq_console.preflight.model import LayerExpectation


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    explain = add_command(subparsers, "explain", help_of("explain"), run_explain)
    explain.add_argument("log", metavar="LOGFILE", help="a log file, or - for standard input")
    explain.add_argument(
        "--profile", metavar="P", help="the profile it was started from: expected against selected kernels"
    )
    explain.add_argument(
        "--target", metavar="T.toml", help="the machine it ran on, as `detect --as-target` describes it"
    )


def run_explain(args: argparse.Namespace) -> ExitCode:
    """Explain the last run in a log: 0 healthy or a warning, 1 an error or no known cause."""
    import sys

    from vq_console.logs.asked import asked_vs_runs
    from vq_console.logs.explain import explain_path, explain_stream, explanation_json

    layers = _expected(args.profile, args.target)
    if args.log == "-" and sys.stdin is None:
        raise MissingError("standard input is closed", "pipe a log into it, or name a file")
    explanation = explain_stream(sys.stdin.buffer) if args.log == "-" else explain_path(args.log)
    rows = asked_vs_runs(layers, explanation.facts)
    if args.json:
        emit("vq-console/explain/1", explanation_json(explanation, rows))
    else:
        print("\n".join(_words(explanation, rows)))
    return ExitCode.DONE if explanation.diagnosis.severity in ("ok", "warning") else ExitCode.NO


def _expected(profile: str | None, target: str | None) -> Sequence[LayerExpectation]:
    """The layers that preflight expects of the profile on the target, `()` without a profile."""
    if profile is None:
        if target is not None:
            from vq_console.core.errors import UsageError

            raise UsageError("--target needs --profile", "It says what a profile is judged against.")
        return ()
    from vq_console.preflight.check import plan_profile
    from vq_console.preflight.target import read_target
    from vq_console.profiles.store import load_profile

    judged = read_target(target) if target is not None else None
    return plan_profile(load_profile(profile), target=judged).layers


def _words(explanation: Explanation, rows: Sequence[AskedVsRuns]) -> list[str]:
    """What happened, where, why, what to do; then what runs and how long the start took."""
    from textwrap import fill

    from vq_console.core.text import seconds_text, strip_control
    from vq_console.logs.catalogue import diagnoses
    from vq_console.logs.phases import longest

    diagnosis, facts = explanation.diagnosis, explanation.facts
    lines = [f"{diagnosis.title}  [{diagnosis.slug}]"]
    if diagnosis.root_line:
        where = f" ({diagnosis.process})" if diagnosis.process else ""
        lines += ["", f"Line {diagnosis.root_line}{where}:"]
        lines.append(fill(strip_control(diagnosis.evidence), 100, initial_indent="  ", subsequent_indent="  "))
    lines += ["", fill(diagnosis.explanation, 100)]
    if diagnosis.fixes and diagnosis.severity != "ok":
        lines += ["", "What to do:"]
        for fix in diagnosis.fixes:
            change = _change(fix.patch) if fix.patch is not None else ""
            lines.append(fill(f"{fix.text}{change}", 100, initial_indent="  • ", subsequent_indent="    "))
    other = [slug for slug in facts.get("warnings", ()) if slug != diagnosis.slug]
    if other:
        lines += ["", "It also warns:"]
        lines += [f"  • {diagnoses()[slug].title}  [{slug}]" for slug in other]
    shown = _facts(facts)
    if shown:
        lines += ["", "The log says:", *(f"  {name:<22} {strip_control(value)}" for name, value in shown)]
    if rows:
        lines += ["", "Expected and selected:" if any(row.expected for row in rows) else "Selected:"]
        for row in rows:
            expected = f"{row.expected} → " if row.expected else ""
            detail = f"  ({row.detail})" if row.detail else ""
            mark = "  ! fallback" if row.alarm else ""
            lines.append(f"  {row.kind:<10} {expected}{row.selected or 'not found'}  {row.grade}{mark}{detail}")
    slowest = longest(explanation.phases)
    if explanation.phases:
        lines += ["", "Start-up:"]
        for phase in explanation.phases:
            mark = "  ← longest" if phase is slowest and len(explanation.phases) > 1 else ""
            lines.append(f"  {phase.name:<32} {seconds_text(phase.seconds):>6}{mark}")
    return lines


def _change(patch: Any) -> str:
    parts = [f"{key} = {value!r}" for key, value in patch.set_args.items()]
    parts += [f"remove {key}" for key in (*patch.remove_args, *patch.remove_env)]
    parts += [f"{key}={value}" for key, value in patch.set_env.items()]
    return f"  [{', '.join(parts)}]" if parts else ""


_SHOWN = (
    ("vllm_version", "vLLM", ""),
    ("model", "model", ""),
    ("architecture", "architecture", ""),
    ("quantization", "quantization", ""),
    ("dtype", "dtype", ""),
    ("max_model_len", "context", " tokens"),
    ("tensor_parallel_size", "tensor parallel", ""),
    ("model_load_gib", "weights", " GiB"),
    ("model_load_s", "loaded in", " s"),
    ("kv_cache_dtype", "KV cache dtype", ""),
    ("kv_cache_tokens", "KV cache", " tokens"),
    ("max_concurrency", "requests at context", ""),
    ("compile_s", "compiled in", " s"),
    ("graph_capture_s", "graphs captured in", " s"),
    ("init_engine_s", "engine start", " s"),
    ("ready", "ready", ""),
    ("stopped_by", "stopped by", ""),
)


def _facts(facts: Any) -> list[tuple[str, str]]:
    shown = []
    for key, name, unit in _SHOWN:
        value = facts.get(key)
        if value is None or (key == "ready" and len(facts) == 1):
            continue
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int):
            text = f"{value:,}{unit}"
        else:
            text = f"{value}{unit}"
        shown.append((name, text))
    return shown
