"""All rules, by where they look."""

from __future__ import annotations

from vq_console.logs.rules import arguments, build, kernels, memory, model, plugins, quantization, system
from vq_console.logs.rules.rule import Context, Hit, Rule
from vq_console.logs.rules.warnings import WARNINGS

TROUBLE: tuple[Rule, ...] = (
    *arguments.RULES,
    *plugins.RULES,
    *quantization.RULES,
    *kernels.RULES,
    *memory.RULES,
    *model.RULES,
    *system.RULES,
    *build.RULES,
)

__all__ = ["TROUBLE", "WARNINGS", "Context", "Hit", "Rule"]
