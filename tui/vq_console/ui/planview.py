"""The live plan of a profile as text: what it will run as, memory, findings with their fix, the exact command. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.text import Text

from vq_console.core.text import redact, strip_control
from vq_console.preflight.model import Finding, Fit, Plan
from vq_console.ui.plots import bar

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


def plan_text(plan: Plan, width: int, *, ascii_only: bool = False) -> Text:
    """Everything that the right-hand pane says, worst first."""
    text = Text()
    method = plan.method
    text.append("runs as  ", style="dim")
    text.append(f"{method.resolved or '16-bit (no quantization)'}\n", style="bold")
    if method.asked or method.checkpoint:
        text.append(
            f"         asked {method.asked or '–'}, checkpoint {method.checkpoint or '–'} {method.claimed_by}\n",
            style="dim",
        )
    for layer in plan.layers:
        grade_style = {"native": "green", "unsupported": "bold red"}.get(layer.grade, "yellow")
        text.append(f"{layer.kind:9}", style="dim")
        text.append(f"{layer.kernel or 'unknown kernel'} ")
        text.append(f"{layer.grade}", style=grade_style)
        text.append(f"  {layer.scheme}" + (f" × {layer.count}" if layer.count else "") + "\n", style="dim")
    text.append("\n")
    text.append_text(fit_text(plan.fit, width, ascii_only=ascii_only))
    if plan.findings:
        text.append("\n")
    for number, finding in enumerate(ordered(plan.findings), start=1):
        text.append_text(finding_text(finding, number))
    text.append("\n")
    for key, value in plan.env.items():
        text.append(f"{key}={strip_control(redact(value))} ", style="dim")
    for key, source in plan.secret_env.items():
        text.append(f"{key}=(from ${source}) ", style="dim")
    text.append(strip_control(redact(shlex.join(plan.argv))) + "\n")
    return text


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Errors, then warnings, then remarks; within each as the rules gave them."""
    return sorted(findings, key=lambda finding: ("error", "warning", "info").index(finding.severity))


def finding_text(finding: Finding, number: int) -> Text:
    """One finding with its fix, and the key that applies it."""
    mark, style = SEVERITY[finding.severity]
    text = Text()
    text.append(f"{mark} {strip_control(finding.message)}\n", style=style)
    if finding.fix:
        key = f"  [a] applies it ({number})" if finding.patch is not None else ""
        text.append(f"  fix: {strip_control(finding.fix)}{key}\n")
    return text


def fit_text(fit: Fit, width: int, *, ascii_only: bool = False) -> Text:
    """Memory per GPU as a bar and in words."""
    text = Text()
    if fit.weights_gib is None:
        return Text("memory   unknown: no checkpoint facts (is the model here? `vq-console pull`)\n", style="dim")
    text.append("memory   ", style="dim")
    parts = [
        ("weights", fit.weights_gib),
        ("KV", fit.kv_gib),
        ("activations", fit.activation_gib),
        ("graphs", fit.graphs_gib),
    ]
    text.append(" · ".join(f"{name} {value:.2f}" for name, value in parts if value is not None) + " GiB\n")
    if fit.budget_gib:
        used = sum(value for _, value in parts if value is not None)
        text.append("         ")
        text.append(bar(used / fit.budget_gib, min(max(width - 30, 8), 40), ascii_only=ascii_only), style="cyan")
        text.append(f" of {fit.budget_gib:.1f} GiB asked for\n", style="dim")
    if fit.kv_tokens is not None:
        text.append(f"         {fit.kv_tokens:,} tokens")
        if fit.requests_at_context is not None:
            text.append(f", {fit.requests_at_context:.1f} requests of the asked context")
        if fit.max_context is not None:
            text.append(f", longest context {fit.max_context:,}")
        text.append("\n")
    if fit.load_peak_gib is not None and fit.load_peak_gib > fit.weights_gib * 1.1:
        text.append(f"         peak while loading {fit.load_peak_gib:.1f} GiB\n", style="yellow")
    return text
