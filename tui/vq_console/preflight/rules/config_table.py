"""Rules about `--quantization-config`: its keys, its names, and what they may be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vq_console.core.text import nearest
from vq_console.preflight.model import Patch
from vq_console.preflight.rules import knowledge
from vq_console.preflight.rules.base import Context, Hit, put, rule
from vq_console.preflight.rules.quantization import online_names
from vq_console.preflight.scheme import KEY_NAMES, ONLINE
from vq_console.preflight.situation import Situation
from vq_console.preflight.versions import span

SOURCE = "vLLM source: config/quantization.py QuantizationConfigArgs"
KEYS = ("linear", "moe", "ignore", "targets")
TARGETS = span(">=0.32")
COMPOSES = span(">=0.32")
_ONLINE_LINEAR = frozenset({"fp8_per_tensor_static", "fp8_per_block_static", "fp8_per_channel_static", "mxfp8"})
_ONLINE_MOE = _ONLINE_LINEAR | {"int8_per_channel_static"}


def _names(situation: Situation) -> frozenset[str]:
    names = set(situation.catalogue.quant_keys or ())
    if not situation.exact:
        for catalogue in knowledge.around(situation.version):
            names.update(catalogue.quant_keys or ())
    return frozenset(names or KEY_NAMES) | online_names(situation)


@rule("quant-config-invalid", "error", source=SOURCE)
def online_without_config(context: Context) -> Iterator[Hit]:
    """`--quantization online` says: follow --quantization-config. Without it vLLM fails with a TypeError."""
    s = context.s
    if s.asked != "online":
        return
    table = s.quant_config
    if "quantization_config" not in s.args and table is None and not s.args.get("quantization_config_file"):
        yield Hit(
            "--quantization online needs --quantization-config",
            fix='Use --quantization fp8_per_block, or add quantization_config = { linear = "fp8_per_block" }',
            patch=put(quantization="fp8_per_block"),
        )
        return
    empty = table is not None and not any(table.get(key) for key in ("linear", "moe", "targets"))
    if table is not None and empty and set(table) <= set(KEYS):
        yield Hit(
            "--quantization-config names neither linear, moe nor targets: nothing is quantized",
            fix='Add linear = "fp8_per_block"',
            patch=put(quantization_config={**table, "linear": "fp8_per_block"}),
            severity="warning",
        )


@rule("quant-config-invalid", "error", source=SOURCE, versions=">=0.24")
def bad_keys(context: Context) -> Iterator[Hit]:
    """Keys that the table does not have."""
    table = context.s.quant_config
    if table is None:
        return
    for key in table:
        if key.partition(".")[0] in KEYS:
            continue
        near = nearest(key, KEYS)
        yield Hit(
            f"--quantization-config has no key {key!r}" + (f" (nearest: {near})" if near else ""),
            evidence=f"keys: {', '.join(KEYS)}",
            fix=f"Write {near}" if near else "Use linear, moe, ignore or targets; delete this key",
            patch=put(quantization_config={k: v for k, v in table.items() if k != key}),
        )


@rule("quant-config-invalid", "error", source=SOURCE, versions=">=0.24")
def bad_names(context: Context) -> Iterator[Hit]:
    """Names that are neither shorthands nor key names, or do not fit the kind of layer."""
    s = context.s
    table = s.quant_config
    if table is None:
        return
    known = _names(s)
    for kind in ("linear", "moe"):
        spec = table.get(kind)
        for part, name in _parts(spec):
            if name not in known:
                near = nearest(name, known)
                yield Hit(
                    f"--quantization-config: {kind}: unknown quantization name {name!r}",
                    evidence="known: " + ", ".join(sorted(known)),
                    fix=f"Write {near}" if near else "Use a shorthand such as fp8_per_tensor",
                    patch=_renamed(table, kind, part, near),
                )
            elif part is None and name in ONLINE and not ONLINE[name][0 if kind == "linear" else 1].quantized:
                yield Hit(
                    f"--quantization-config: {name} does not define a {kind} spec",
                    fix="Use it for moe, and another name for linear",
                    patch=put(quantization_config={k: v for k, v in table.items() if k != kind}),
                )
            elif part == "activation" and context.resolution.online:
                yield Hit(
                    f"--quantization-config: {kind}.activation cannot be overridden for online quantization",
                    evidence="online/base.py: activation override is not yet supported",
                    fix="Delete activation; the method chooses it",
                    patch=_renamed(table, kind, part, None),
                )
            elif part != "activation" and context.resolution.online and name not in online_names(s):
                allowed = _ONLINE_LINEAR if kind == "linear" else _ONLINE_MOE
                if name not in allowed:
                    yield Hit(
                        f"--quantization-config: no online method makes {name} for {kind} layers",
                        evidence="online: " + ", ".join(sorted(online_names(s))),
                        fix="Use an online shorthand such as fp8_per_tensor",
                        patch=put(quantization_config={**table, kind: "fp8_per_tensor"}),
                    )


def _parts(spec: Any) -> Iterator[tuple[str | None, str]]:
    if isinstance(spec, str):
        yield None, spec
    elif isinstance(spec, dict):
        for part in ("weight", "activation"):
            if isinstance(spec.get(part), str):
                yield part, spec[part]


def _renamed(table: dict[str, Any], kind: str, part: str | None, name: str | None) -> Patch | None:
    if part is None:
        return put(quantization_config={**table, kind: name}) if name else None
    spec = {k: v for k, v in table[kind].items() if k != part}
    if name:
        spec[part] = name
    return put(quantization_config={**table, kind: spec})


@rule("quant-config-invalid", "error", source=SOURCE, versions=">=0.24")
def bad_targets(context: Context) -> Iterator[Hit]:
    """`targets` stands alone, maps patterns to online shorthands, and exists from 0.32."""
    s = context.s
    table = s.quant_config
    targets = table.get("targets") if table else None
    if table is None or targets is None:
        return
    if not TARGETS.holds(s.version) and not (s.version is not None and s.version > (0, 31, 0)):
        if s.version is not None and s.version <= (0, 31, 0):
            yield Hit("targets in --quantization-config needs vLLM 0.32", fix="Use linear, moe and ignore, or upgrade")
        return
    if table.get("linear") or table.get("moe"):
        yield Hit(
            "targets in --quantization-config excludes linear and moe",
            fix="Keep targets, or linear and moe",
            patch=put(quantization_config={k: v for k, v in table.items() if k not in {"linear", "moe"}}),
        )
    elif s.asked in online_names(s) - {"online"}:
        yield Hit(
            f"targets in --quantization-config excludes --quantization {s.asked}, which stands for linear and moe",
            fix="Use --quantization online",
            patch=put(quantization="online"),
        )
    if not isinstance(targets, dict):
        yield Hit("targets in --quantization-config must be a table from pattern to shorthand", fix="Write a table")
        return
    online = online_names(s)
    for pattern, name in targets.items():
        if name not in online:
            near = nearest(str(name), online)
            yield Hit(
                f"targets: {pattern!r}: {name!r} is no online shorthand",
                evidence="known: " + ", ".join(sorted(online)),
                fix=f"Write {near}" if near else "Use an online shorthand",
                patch=put(quantization_config={**table, "targets": {**targets, pattern: near}}) if near else None,
            )


@rule("quant-config-invalid", "error", source=SOURCE, versions=">=0.24,<0.30")
def only_with_online(context: Context) -> Iterator[Hit]:
    """Up to 0.29 the table is refused beside a method that is not online."""
    s = context.s
    if s.quant_config is None or s.asked is None or s.asked in online_names(s) | {"online", "fp8"}:
        return
    yield Hit(
        f"--quantization-config cannot be combined with --quantization {s.asked} in this version",
        fix="Use an online shorthand, or delete --quantization-config",
        patch=Patch(remove_args=("quantization_config",)),
    )
