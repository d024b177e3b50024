"""Rules about the command line itself: flags, choices, JSON, environment variables, parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vq_console.core.text import nearest
from vq_console.engines.model import Flag
from vq_console.preflight.model import Patch
from vq_console.preflight.rules import knowledge
from vq_console.preflight.rules.base import Context, Hit, drop, put, rule
from vq_console.preflight.values import as_list, json_table, whole
from vq_console.preflight.versions import READ, span, version_text, vllm_text
from vq_console.profiles.arguments import takes_json_value

ARGPARSE = "vLLM source: engine/arg_utils.py and the frontend's cli_args.py"
_CHOICES = {
    "kv_cache_dtype": "kv_cache_dtypes",
    "linear_backend": "linear_backends",
    "moe_backend": "moe_backends",
    "load_format": "load_formats",
    "dtype": "dtypes",
}
_CONFIG_ONLY = frozenset({"quantization", "attention_backend"})
"""Names that argparse does not check; vLLM's config classes do, and other rules speak of them."""


def _flag(context: Context, name: str) -> Flag | None:
    return (context.s.catalogue.flags or {}).get(name)


def _known_around(context: Context, name: str) -> bool | None:
    """Whether the releases around this version have the flag; None where no catalogue tells."""
    if context.s.exact and context.s.catalogue.flags is not None:
        return name in context.s.catalogue.flags
    catalogues = [c for c in knowledge.around(context.s.version) if c.flags is not None]
    if not catalogues:
        return None
    return any(name in (catalogue.flags or {}) for catalogue in catalogues)


def _abbreviation(context: Context, name: str) -> bool:
    """argparse takes an unambiguous beginning of a flag."""
    flags = context.s.catalogue.flags or {}
    return len([known for known in flags if known.startswith(name)]) == 1


@rule("cli-unrecognized-argument", "error", source=ARGPARSE)
def unknown_flag(context: Context) -> Iterator[Hit]:
    """A flag that this version does not have: argparse ends the start with exit code 2 after the imports."""
    version = context.s.version
    for key in context.s.profile.args:
        name = key.lstrip("-").replace("-", "_").partition(".")[0]
        removed = knowledge.REMOVED_FLAGS.get(name)
        positive = name[3:] if name.startswith("no_") else name
        known = _known_around(context, name) or _known_around(context, positive)
        gone = removed is not None and removed[0].holds(version)
        if known is True and context.s.exact:
            continue
        if gone and removed is not None and not (known and context.s.exact):
            yield Hit(
                f"--{_dashes(name)} does not exist in {vllm_text(version)}",
                evidence=f"[args] {key}",
                fix=f"Delete it: {removed[1]}",
                patch=drop(key),
            )
        elif known is False and not _short(context, name) and not _abbreviation(context, name):
            near = nearest(name, context.s.catalogue.flags or {})
            hint = f" (nearest: --{_dashes(near)})" if near else ""
            yield Hit(
                f"--{_dashes(name)} is no flag of {vllm_text(version)}{hint}",
                evidence=f"[args] {key}",
                fix=f"Use --{_dashes(near)}, or delete it" if near else "Delete it",
                patch=drop(key),
            )
        elif known is None and (near := _typo(name)):
            yield Hit(
                f"--{_dashes(name)} looks like a misspelt --{_dashes(near)}",
                evidence=f"[args] {key}",
                fix=f"Write {near}",
                severity="warning",
            )


def _dashes(name: str) -> str:
    return name.replace("_", "-")


def _short(context: Context, name: str) -> bool:
    """Short forms (`tp`, `q`) that `profiles.arguments` writes by their long names."""
    from vq_console.profiles.arguments import SHORT_FORMS

    long = SHORT_FORMS.get(name)
    return long is not None and _known_around(context, long) is not False


def _typo(name: str) -> str | None:
    """For releases without a catalogue: the known flag that a name almost is."""
    known = knowledge.every_flag()
    if not known or name in known or name in knowledge.REMOVED_FLAGS:
        return None
    import difflib

    found = difflib.get_close_matches(name, known, n=1, cutoff=0.88)
    return found[0] if found else None


@rule("cli-invalid-choice", "error", source=ARGPARSE)
def bad_choice(context: Context) -> Iterator[Hit]:
    """A value outside a closed list. From 0.33 KV dtypes are checked by the config class, with the same outcome."""
    for name, attribute in _CHOICES.items():
        yield from _one_choice(context, name, getattr(context.s.catalogue, attribute))
    for name, value in context.s.args.items():
        if name in _CHOICES or name in _CONFIG_ONLY:
            continue
        flag = _flag(context, name)
        if flag is not None and flag.choices and context.s.exact:
            yield from _against(name, value, flag.choices, many=flag.many)
    backend = context.s.args.get("attention_backend")
    known = context.s.catalogue.attention_backends
    if isinstance(backend, str) and known and backend.lower() != "auto" and _settled(context):
        yield from _against("attention_backend", backend.upper(), known)


def _settled(context: Context) -> bool:
    """Whether a list of the catalogue speaks for this version: its own, or a younger version than all of them."""
    version = context.s.version
    return context.s.exact or (version is not None and version >= READ[0])


_OLDER: dict[str, tuple[tuple[str, str], ...]] = {
    "dtype": (("", "auto half float16 bfloat16 float float32"),),
    "kv_cache_dtype": (
        ("", "auto bfloat16 float16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4"),
        (">=0.17", "int8_per_token_head fp8_per_token_head"),
        (">=0.19", "turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc"),
    ),
}
"""What releases before those that were read took at most, by the versions that had it (release notes 0.17 and 0.19)."""


def _older(context: Context, name: str) -> set[str]:
    rows = _OLDER.get(name, ()) if context.s.version is not None else ()
    return {word for versions, words in rows if span(versions).holds(context.s.version) for word in words.split()}


def _one_choice(context: Context, name: str, known: tuple[str, ...] | None) -> Iterator[Hit]:
    value = context.s.args.get(name)
    if value is None or isinstance(value, dict):
        return
    allowed = set(known or ())
    if not context.s.exact:
        for catalogue in knowledge.around(context.s.version):
            allowed |= set(getattr(catalogue, _CHOICES[name]) or ())
    if not _settled(context):
        allowed = _older(context, name)
    if not allowed:
        return
    if name == "load_format" and str(value) in {"gguf", "bitsandbytes"}:
        # These belong to plugins, and the rule about plugins speaks of them.
        return
    yield from _against(name, value, tuple(sorted(allowed)))


def _against(name: str, value: Any, known: tuple[str, ...], *, many: bool = False) -> Iterator[Hit]:
    values = as_list(value) if many or isinstance(value, list) else [str(value)]
    for item in values:
        if item in known:
            continue
        near = _closest(item, known)
        shown = ", ".join(known[:24]) + (" …" if len(known) > 24 else "")
        yield Hit(
            f"--{_dashes(name)} does not take {item!r}",
            evidence=f"allowed: {shown}",
            fix=f"Use {near}" if near else f"Use one of: {shown}",
            patch=put(**{name: near}) if near and not many else None,
        )


_MEANT = {"fp16": "float16", "bf16": "bfloat16", "half": "float16", "fp8_e4m3fn": "fp8_e4m3", "e4m3": "fp8_e4m3"}


def _closest(item: str, known: tuple[str, ...]) -> str | None:
    meant = _MEANT.get(item.lower())
    if meant in known:
        return meant
    for candidate in (item.lower(), item.upper(), item.replace("-", "_")):
        if candidate in known:
            return candidate
    return nearest(item, known)


@rule(
    "cli-invalid-json",
    "error",
    source=ARGPARSE,
    fix="Write it as a table, or as JSON with double quotes around every name and text",
)
def bad_json(context: Context) -> Iterator[Hit]:
    """Text that a JSON flag cannot parse, as when a shell has eaten the quotes."""
    for name, value in context.s.args.items():
        if not isinstance(value, str) or "." in name or not takes_json_value(name, _flag(context, name)):
            continue
        text = value.strip()
        flag = _flag(context, name)
        if not text or (flag is not None and flag.kind not in (None, "json")):
            continue
        if name == "compilation_config" and whole(text.removeprefix("-O")) is not None:
            continue
        certain = name in _ALWAYS_JSON or (flag is not None and flag.kind == "json" and context.s.exact)
        if not certain and text[0] not in "{['\"":
            continue
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            yield Hit(
                f"--{_dashes(name)} is not valid JSON: {reason}",
                evidence=text[:200],
                patch=_repaired(name, text),
            )


_ALWAYS_JSON = frozenset({"speculative_config", "quantization_config", "hf_overrides"})


def _repaired(name: str, text: str) -> Patch | None:
    """The table that text with lost or single quotes most likely meant."""
    import re

    stripped = text.strip("'\"")
    for attempt in (
        stripped,
        stripped.replace("'", '"'),
        re.sub(r"([{,\[]\s*)([A-Za-z_][\w-]*)\s*:", r'\1"\2":', stripped),
        re.sub(
            r"(:\s*)([A-Za-z_][\w./-]*)(?=\s*[,}\]])",
            r'\1"\2"',
            re.sub(r"([{,\[]\s*)([A-Za-z_][\w-]*)\s*:", r'\1"\2":', stripped),
        ),
    ):
        table = json_table(attempt)
        if table is not None:
            return put(**{name: table})
    return None


@rule("tool-parser-config", "error", source="vLLM source: tool_parsers/__init__.py, reasoning/__init__.py (0.32)")
def bad_parser(context: Context) -> Iterator[Hit]:
    """A tool or reasoning parser that is not registered, or automatic tool choice without one."""
    s = context.s
    exact = s.version is not None and version_text(s.version) == knowledge.READ_IN
    for name, kind in (("tool_call_parser", "tool"), ("reasoning_parser", "reasoning")):
        value = s.args.get(name)
        known = knowledge.parsers(kind)
        if not isinstance(value, str) or not value or value in known:
            continue
        if s.args.get("tool_parser_plugin" if kind == "tool" else "reasoning_parser_plugin"):
            continue
        import difflib

        near = difflib.get_close_matches(value, known, n=1, cutoff=0.6 if exact else 0.8)
        if exact or near or (s.version is not None and s.version <= READ[-1]):
            yield Hit(
                f"--{_dashes(name)} {value!r} is not registered"
                + ("" if exact else f" in vLLM {knowledge.READ_IN}, whose list this goes by"),
                evidence="known: " + ", ".join(known),
                fix=f"Use {near[0]}" if near else "Use a listed name",
                patch=put(**{name: near[0]}) if near else None,
                severity="error" if exact else "warning",
            )
    if s.on("enable_auto_tool_choice") and not s.args.get("tool_call_parser"):
        yield Hit(
            "--enable-auto-tool-choice needs --tool-call-parser",
            fix="Name the parser of the model family, or drop --enable-auto-tool-choice",
            patch=drop("enable_auto_tool_choice"),
        )


@rule("env-var-unknown", "warning", source="vLLM source: envs.py and validate_environ; release notes")
def unknown_variable(context: Context) -> Iterator[Hit]:
    """A VLLM_ variable that this version does not register: it warns, and the wish is ignored."""
    s = context.s
    known = _variables(context)
    for name, value in s.env.items():
        if not name.startswith("VLLM_"):
            continue
        removed = knowledge.REMOVED_ENV.get(name)
        gone = removed is not None and removed[0].holds(s.version)
        hard = s.on("fail_on_environ_validation")
        if (known is not None and name not in known) or (known is None and gone):
            hint = removed[1].format(value=value) if removed else ""
            near = None if removed else nearest(name, known or ())
            yield Hit(
                f"{name} is not known to {vllm_text(s.version)}: it has no effect",
                evidence=f"[env] {name} = {value!r}",
                fix=f"Delete it; {hint}" if hint else f"Write {near}" if near else "Delete it",
                patch=_variable_patch(name, value),
                severity="error" if hard else None,
            )
        elif known is None and not gone and name not in knowledge.environment():
            import difflib

            close = difflib.get_close_matches(name, knowledge.environment(), n=1, cutoff=0.9)
            if close:
                yield Hit(f"{name} looks like a misspelt {close[0]}", evidence=f"[env] {name}", fix=f"Write {close[0]}")


def _variables(context: Context) -> frozenset[str] | None:
    """What this version, or a release around it, registers; None for releases older than what was read."""
    s = context.s
    if s.exact and s.catalogue.env:
        return frozenset(s.catalogue.env)
    names: set[str] = set()
    for catalogue in knowledge.around(s.version):
        names.update(catalogue.env or ())
    return frozenset(names) or None


def _variable_patch(name: str, value: str) -> Patch:
    if name == "VLLM_ATTENTION_BACKEND":
        return Patch(set_args={"attention_backend": value}, remove_env=(name,))
    if name in {"VLLM_TEST_FORCE_FP8_MARLIN"} and value not in {"", "0"}:
        return Patch(set_args={"linear_backend": "marlin"}, remove_env=(name,))
    if name == "VLLM_MXFP4_USE_MARLIN" and value not in {"", "0"}:
        return Patch(set_args={"moe_backend": "marlin"}, remove_env=(name,))
    return Patch(remove_env=(name,))
