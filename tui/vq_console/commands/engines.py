"""`engines list|catalog|install`: which vLLM installations there are, what one accepts, making one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vq_console.commands.common import Subparsers, add_command, emit, say, table
from vq_console.commands.names import help_of
from vq_console.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vq_console.engines.model import Catalogue, Engine

_KINDS = ("cpu", "cuda", "compressor", "modelopt")


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser("engines", help=help_of("engines"), description="vLLM installations")
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_command(actions, "list", "list the vLLM installations of this machine", run_list)
    catalog = add_command(actions, "catalog", "what one vLLM accepts, read from its source", run_catalog)
    catalog.add_argument("list", metavar="LIST", nargs="?", help="print only this list, such as flags or env")
    source = catalog.add_mutually_exclusive_group()
    source.add_argument("--engine", metavar="PYTHON", help="interpreter of the vLLM to read (the best otherwise)")
    source.add_argument("--version", metavar="X.Y.Z", help="the shipped snapshot nearest to this version")
    install = add_command(actions, "install", "make an engine in an environment of its own", run_install)
    install.add_argument("kind", metavar="KIND", choices=_KINDS, help="cpu, cuda, compressor or modelopt")
    install.add_argument("--version", metavar="X.Y.Z", help="the version to install (a tested one otherwise)")
    install.add_argument("--wheelhouse", metavar="DIR", help="take packages from this folder, for a machine offline")


def run_list(args: argparse.Namespace) -> ExitCode:
    """Print every engine that is found; none is an answer too."""
    from vq_console.engines.find import find_engines

    engines = find_engines()
    if args.json:
        emit("vq-console/engines/1", {"engines": [engine_json(engine) for engine in engines]})
    else:
        print(engines_text(engines))
    return ExitCode.DONE


def run_catalog(args: argparse.Namespace) -> ExitCode:
    """Print the catalogue of one engine, or of the snapshot where no engine is here."""
    from vq_console.core.errors import EngineError, UsageError
    from vq_console.core.text import nearest
    from vq_console.engines.catalogue import catalogue_json, read_catalogue, snapshot
    from vq_console.engines.find import choose_engine, engine_at

    engine = None
    if args.version:
        catalogue = snapshot(args.version)
    elif args.engine:
        engine = engine_at(args.engine)
        catalogue = read_catalogue(engine)
    else:
        try:
            engine = choose_engine()
            catalogue = read_catalogue(engine)
        except EngineError:
            catalogue = snapshot(None)
            say(f"no vLLM here: this is the shipped snapshot of {catalogue.vllm_version}")
    value: dict[str, Any] = {"python": engine.python if engine else None, **catalogue_json(catalogue)}
    if engine is not None:
        value["plugins"] = list(engine.plugins)
    if args.list:
        if args.list not in value:
            close = nearest(args.list, value)
            raise UsageError(
                f"{args.list}: no such list", f"did you mean {close}?" if close else "one of " + ", ".join(value)
            )
        value = {key: value[key] for key in ("vllm_version", "origin", args.list)}
    if args.json:
        emit("vq-console/catalog/1", value)
    elif args.list:
        print(_list_text(value[args.list], catalogue.unknown.get(args.list)))
    else:
        print(catalogue_text(catalogue, engine))
    return ExitCode.DONE


def run_install(args: argparse.Namespace) -> ExitCode:
    """Make an engine and print it."""
    from vq_console.engines.install import install_engine

    engine = install_engine(args.kind, version=args.version, wheelhouse=args.wheelhouse, say=say)
    if args.json:
        emit("vq-console/engines/1", {"engines": [engine_json(engine)]})
    else:
        print(engines_text([engine]))
    return ExitCode.DONE


def engine_json(engine: Engine) -> dict[str, Any]:
    """The fields of `Engine` under their own names."""
    from dataclasses import asdict

    return asdict(engine)


def engines_text(engines: Sequence[Engine]) -> str:
    """Engines as a table, troubled ones with their trouble below."""
    if not engines:
        return "no vLLM was found; make one: vq-console engines install cuda (or cpu), or name one: --engine PYTHON"
    rows = [
        [
            engine.vllm_version or "–",
            engine.device or "–",
            engine.installed.get("torch", "–"),
            engine.origin + (" !" if engine.problem else ""),
            engine.python,
        ]
        for engine in engines
    ]
    lines = [table(rows, ["vLLM", "device", "torch", "found", "interpreter"])]
    for engine in engines:
        if engine.plugins:
            lines.append(f"{engine.python}: {len(engine.plugins)} plugin(s): {', '.join(engine.plugins)}")
        if engine.problem:
            lines.append(f"! {engine.python}: {engine.problem}")
    return "\n".join(lines)


def catalogue_text(catalogue: Catalogue, engine: Engine | None) -> str:
    """A catalogue for a person: the lists, and how many flags and variables there are."""
    where = engine.site if engine is not None and catalogue.origin == "source" else "the shipped snapshot"
    lines = [f"vLLM {catalogue.vllm_version}, from {where}", ""]
    deprecated = set(catalogue.deprecated or ())
    methods = catalogue.quantization and [
        f"{name} (deprecated)" if name in deprecated else name for name in catalogue.quantization
    ]
    named = (
        ("Quantization", "quantization", methods),
        ("Online shorthands", "online", _online(catalogue)),
        ("Quantization keys", "quant_keys", catalogue.quant_keys),
        ("KV cache types", "kv_cache_dtypes", catalogue.kv_cache_dtypes),
        ("Linear backends", "linear_backends", catalogue.linear_backends),
        ("MoE backends", "moe_backends", catalogue.moe_backends),
        ("Attention backends", "attention_backends", catalogue.attention_backends),
        ("Load formats", "load_formats", catalogue.load_formats),
        ("Types", "dtypes", catalogue.dtypes),
    )
    import textwrap

    for title, field, names in named:
        text = ", ".join(names) if names is not None else f"unknown: {catalogue.unknown.get(field, 'not read')}"
        lines += textwrap.wrap(f"{title}: {text}", 118, subsequent_indent="    ", break_on_hyphens=False)
    flags = {flag.name for flag in catalogue.flags.values()} if catalogue.flags is not None else None
    for title, field, many in (("Serve flags", "flags", flags), ("Environment variables", "env", catalogue.env)):
        count = f"unknown: {catalogue.unknown.get(field, 'not read')}" if many is None else str(len(many))
        lines.append(f"{title}: {count}" + ("" if many is None else f" (vq-console engines catalog {field})"))
    if engine is not None:
        lines.append(f"Plugins: {', '.join(engine.plugins) or 'none'}")
    return "\n".join(lines)


def _online(catalogue: Catalogue) -> list[str] | None:
    if catalogue.online is None:
        return None
    schemes = catalogue.online_schemes or {}
    named = []
    for name in catalogue.online:
        scheme = schemes.get(name)
        named.append(name if scheme is None or scheme.linear_weight else f"{name} (MoE only, linear stays as it is)")
    return named


def _list_text(value: Any, reason: str | None) -> str:
    """One list, an entry a line; a flag with its kind and the first words of its help."""
    if value is None:
        return f"unknown: {reason or 'not read'}"
    if isinstance(value, dict):
        lines = []
        for name, item in value.items():
            if isinstance(item, dict) and "kind" in item:
                if item["name"] != name:
                    continue
                form = f"{item['kind'] or '?'}{' …' if item.get('many') else ''}"
                lines.append(f"--{name.replace('_', '-'):<45} {form:<8} {(item.get('help') or '')[:90]}".rstrip())
            elif isinstance(item, dict):
                lines += [f"{name}.{key}: {_words(part)}" for key, part in item.items() if part is not None]
            else:
                lines.append(f"{name}: {_words(item)}")
        return "\n".join(lines)
    if isinstance(value, list | tuple):
        return "\n".join(str(item) for item in value)
    return str(value)


def _words(value: Any) -> str:
    return ", ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)
