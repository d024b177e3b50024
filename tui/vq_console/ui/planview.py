"""The live plan of a profile as text: what it will run as, memory, findings with their fix, the exact command. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from vq_console.core.text import redact, strip_control
from vq_console.preflight.model import Finding, Fit, Plan
from vq_console.ui.plots import shares_bar

GRADES = {"native": "green", "unsupported": "bold red", "unquantized": "dim", "unknown": "dim"}
KINDS = {"linear": "kernel", "moe": "MoE kernel", "kv_cache": "KV cache", "lm_head": "lm head"}
SEVERITY = {"error": ("✖", "bold red"), "warning": ("▲", "yellow"), "info": ("●", "dim")}

METHOD_HELP: Mapping[str, str] = {
    "": "as the checkpoint says; 16-bit when it says nothing",
    "fp8_per_tensor": "FP8 on load, one scale a tensor; native from SM 8.9, weight-only below",
    "fp8_per_channel": "FP8 on load, a scale a channel, per-token activations; needs SM 8.9",
    "fp8_per_block": "FP8 on load in 128×128 blocks; DeepGEMM on Hopper and Blackwell",
    "mxfp8": "FP8 on load with a scale for 32 values; native on Blackwell",
    "mxfp4": "FP4 on load with a scale for 32 values",
    "int8_per_channel_weight_only": "INT8 weights of MoE experts only: a dense model stays 16-bit",
    "nvfp4_per_token": "NVFP4 for MoE experts, Blackwell only",
    "compressed-tensors": "checkpoints by LLM Compressor (FP8, INT8, W4A16, NVFP4)",
    "awq": "AWQ checkpoints (INT4 weights)",
    "gptq": "GPTQ checkpoints (INT4 or INT8 weights)",
    "modelopt": "NVIDIA ModelOpt FP8 checkpoints",
    "modelopt_fp4": "NVIDIA ModelOpt NVFP4 checkpoints; native on Blackwell",
}


def plan_text(plan: Plan, width: int, *, ascii_only: bool = False) -> Group:
    """Everything that the right-hand pane says: what runs, problems, memory, the exact command."""
    method = plan.method
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="dim", no_wrap=True, width=10)
    rows.add_column(ratio=1, overflow="fold")
    text = Text(f"{method.resolved or '16-bit, no quantization'}", style="bold")
    if method.asked and method.asked != method.resolved:
        text.append(f"  asked {method.asked}", style="not bold dim")
    if method.checkpoint:
        text.append(f"  checkpoint {method.checkpoint}", style="not bold dim")
    rows.add_row("runs as", text)
    for layer in plan.layers:
        grade_style = GRADES.get(layer.grade, "yellow")
        named = layer.kind == "kv_cache" or layer.grade == "unquantized"
        text = Text(layer.kernel or ("" if named else "kernel not known"))
        scheme = layer.scheme + (f" × {layer.count}" if layer.count else "")
        text.append(f"{'  ' if text else ''}{layer.grade}", style=grade_style)
        text.append(f"  {scheme}", style="dim")
        rows.add_row(KINDS.get(layer.kind, layer.kind), text)
    for name, text in fit_rows(plan.fit, width - 11, ascii_only=ascii_only):
        rows.add_row(name, text)
    findings = Text()
    for number, finding in enumerate(ordered(plan.findings), start=1):
        findings.append_text(finding_text(finding, number))
    command = Text()
    for key, value in plan.env.items():
        command.append(f"{key}={strip_control(redact(value))} ", style="dim")
    for key, source in plan.secret_env.items():
        command.append(f"{key}=(from ${source}) ", style="dim")
    command.append(strip_control(redact(shlex.join(plan.argv))))
    command.append("  [y] copy", style="dim")
    parts: list[Table | Text] = [rows, Text()]
    if plan.findings:
        parts.append(findings)
    return Group(*parts, command)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Errors, then warnings, then remarks; within each as the rules gave them."""
    return sorted(findings, key=lambda finding: ("error", "warning", "info").index(finding.severity))


def finding_text(finding: Finding, number: int) -> Text:
    """One finding with its fix, and the key that applies it."""
    mark, style = SEVERITY[finding.severity]
    text = Text()
    text.append(f"{mark} {strip_control(finding.message)}\n", style=style)
    if finding.fix:
        key = f"  [a] {number}" if finding.patch is not None else ""
        text.append(f"  fix: {strip_control(finding.fix)}{key}\n")
    return text


def fit_rows(fit: Fit, width: int, *, ascii_only: bool = False) -> list[tuple[str, Text]]:
    """Memory per GPU: a bar with each part, the parts in words, what fits into the KV cache."""
    if fit.weights_gib is None:
        return [("memory", Text("not known: the checkpoint is not here (`vq-console pull`)", style="dim"))]
    parts = [
        ("weights", fit.weights_gib, "green"),
        ("KV", fit.kv_gib, "cyan"),
        ("activations", fit.activation_gib, "yellow"),
        ("graphs", fit.graphs_gib, "magenta"),
    ]
    known = [(name, value, style) for name, value, style in parts if value is not None]
    words = Text()
    for number, (name, value, style) in enumerate(known):
        words.append(" · " if number else "")
        words.append(f"{name} ", style=style)
        words.append(f"{value:.2f}")
    words.append(" GiB")
    rows = [("memory", words)]
    if fit.budget_gib:
        line = Text(no_wrap=True)
        shares = [(value / fit.budget_gib, style) for _, value, style in known]
        for piece, style in shares_bar(shares, min(max(width - 22, 8), 40), ascii_only=ascii_only):
            line.append(piece, style=style)
        line.append(f" of {fit.budget_gib:.1f} GiB", style="dim")
        rows.append(("", line))
    if fit.kv_tokens is not None:
        words = Text(f"{fit.kv_tokens:,} tokens")
        if fit.requests_at_context is not None:
            words.append(f", {fit.requests_at_context:.1f} requests of the asked context")
        if fit.max_context is not None:
            words.append(f", longest context {fit.max_context:,}")
        rows.append(("KV holds", words))
    if fit.load_peak_gib is not None and fit.load_peak_gib > fit.weights_gib * 1.1:
        rows.append(("loading", Text(f"peak {fit.load_peak_gib:.1f} GiB before it is quantized", style="yellow")))
    return rows
