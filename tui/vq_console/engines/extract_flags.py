"""The serve flags of a vLLM, from the source that builds its argument parser.

Follows vLLM's own rules from a field's annotation to argparse's behaviour (engine/arg_utils.py `_compute_kwargs`,
0.20 to 0.33), and reads the calls that add arguments; runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from vq_console.engines.extract_source import MovedError, Source
from vq_console.engines.extract_types import HELP_CHARACTERS, Spec, field_spec
from vq_console.engines.model import Flag

ARG_UTILS = "engine/arg_utils.py"

FRONTEND_FILES = (
    "entrypoints/common/cli_args.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/openai/cli_args.py",
)
"""Where the frontend's arguments were: 0.33, 0.29 to 0.32, and up to 0.27."""

_FRONTEND_CLASS = "FrontendArgs"


def read_flags(source: Source) -> dict[str, Flag]:
    """All serve flags by name with underscores; a flag's other long names are keys to the same value.

    Raises MovedError when the places that add arguments are not found.
    """
    flags: dict[str, Flag] = {}
    suffixes = _human_readable(source)
    for owner in ("EngineArgs", "AsyncEngineArgs"):
        where, function = source.method(ARG_UTILS, owner, "add_cli_args")
        for flag in _Arguments(source, where, suffixes).read(function):
            _put(flags, flag)
    frontend = frontend_file(source)
    for flag in _frontend_flags(source, frontend, suffixes):
        _put(flags, flag)
    maker = source.statement(frontend, "make_arg_parser")
    if isinstance(maker, ast.FunctionDef):
        for flag in _Arguments(source, frontend, suffixes).read(maker):
            _put(flags, flag)
    return flags


def frontend_file(source: Source) -> str:
    """The file that defines the frontend's arguments; looked for under entrypoints/ when it has moved again."""
    for file in FRONTEND_FILES:
        if (source.root / file).is_file() and _FRONTEND_CLASS in source.names(file):
            return file
    for path in sorted(source.root.glob("entrypoints/**/cli_args.py")):
        file = str(path.relative_to(source.root))
        if _FRONTEND_CLASS in source.names(file):
            return file
    raise MovedError(f"class {_FRONTEND_CLASS} is in none of {', '.join(FRONTEND_FILES)}")


def _put(flags: dict[str, Flag], flag: Flag) -> None:
    flags[flag.name] = flag
    for alias in flag.aliases:
        if not alias.startswith("-"):
            flags[alias] = flag


def _frontend_flags(source: Source, file: str, suffixes: frozenset[str]) -> Iterator[Flag]:
    """The fields of the frontend's dataclasses, with what `_customize_cli_kwargs` or `add_cli_args` changes."""
    specs: dict[str, Spec] = {}
    for name, (annotation, text) in source.class_fields(file, _FRONTEND_CLASS).items():
        specs[name] = field_spec(source, file, name, annotation, text, suffixes)
    owners: list[str] = []
    pending = [_FRONTEND_CLASS]
    while pending:
        owner = pending.pop()
        owners.insert(0, owner)
        _, head = source.class_head(file, owner)
        pending += [base.id for base in head.bases if isinstance(base, ast.Name) and base.id in source.names(file)]
    for owner in owners:
        _, head_statement = file, source.statement(file, owner)
        assert isinstance(head_statement, ast.ClassDef)
        for item in head_statement.body:
            if isinstance(item, ast.FunctionDef) and item.name in ("_customize_cli_kwargs", "add_cli_args"):
                for statement in _flat(item.body):
                    _customize(specs, statement)
    for name, spec in specs.items():
        yield _flag(["--" + name.replace("_", "-")], spec)


def _customize(specs: dict[str, Spec], statement: ast.stmt) -> None:
    """Apply `kwargs["field"]["key"] = …` and `del kwargs["field"]["nargs"]`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        at = _two_keys(statement.targets[0])
        if at is not None and at[0] in specs:
            specs[at[0]] = _changed(specs[at[0]], at[1], statement.value)
    elif isinstance(statement, ast.Delete):
        for target in statement.targets:
            at = _two_keys(target)
            if at is not None and at[0] in specs and at[1] == "nargs":
                specs[at[0]] = replace(specs[at[0]], many=False, optional=False)


def _two_keys(node: ast.expr) -> tuple[str, str] | None:
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Subscript)):
        return None
    inner, outer = node.value.slice, node.slice
    if not (isinstance(inner, ast.Constant) and isinstance(outer, ast.Constant)):
        return None
    if not (isinstance(inner.value, str) and isinstance(outer.value, str)):
        return None
    return inner.value, outer.value


def _changed(spec: Spec, key: str, value: ast.expr) -> Spec:
    """A specification after one more keyword of `add_argument`."""
    if key == "type":
        text = ast.unparse(value)
        if "json.loads" in text:
            return replace(spec, kind="json")
        if "human_readable_int" in text:
            return replace(spec, kind="int", suffixes=True)
        for kind in ("int", "float", "str"):
            if text in (kind, f"optional_type({kind})"):
                return replace(spec, kind=kind)
        return spec if spec.kind in ("choice", "json") else replace(spec, kind="str")
    if key == "action":
        text = ast.unparse(value)
        if "BooleanOptionalAction" in text:
            return replace(spec, kind="bool", negatable=True)
        if "store_true" in text or "store_false" in text:
            return replace(spec, kind="bool", negatable=False)
        if text == "'append'":
            return replace(spec, repeat=True, many=False)
        return spec
    if key == "nargs":
        nargs = value.value if isinstance(value, ast.Constant) else None
        return replace(spec, many=nargs in ("+", "*") or (isinstance(nargs, int) and nargs > 1), optional=nargs == "?")
    if key == "help":
        text = _text(value)
        return replace(spec, help=text) if text else spec
    return spec


class _Arguments:
    """Reads one function that calls `add_argument`, keeping track of its variables that hold keyword arguments."""

    def __init__(self, source: Source, file: str, suffixes: frozenset[str]) -> None:
        self._source = source
        self._file = file
        self._suffixes = suffixes
        self._classes: dict[str, str] = {}
        self._single: dict[str, Spec] = {}
        self._fields: dict[str, dict[str, tuple[ast.expr, str]]] = {}
        self._changes: dict[tuple[str, str], Spec] = {}

    def read(self, function: ast.FunctionDef) -> Iterator[Flag]:
        """The flags in the order in which the function adds them."""
        for statement in _flat(function.body):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], statement.value)
            for node in ast.walk(statement):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "add_argument"
                ):
                    flag = self._argument(node)
                    if flag is not None:
                        yield flag

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        at = _two_keys(target)
        if at is not None and isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript):
            holder = target.value.value
            if isinstance(holder, ast.Name) and holder.id in self._classes:
                self._changes[holder.id, at[0]] = _changed(self._field(holder.id, at[0]), at[1], value)
            return
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            key = target.slice.value if isinstance(target.slice, ast.Constant) else None
            if target.value.id in self._single and isinstance(key, str):
                self._single[target.value.id] = _changed(self._single[target.value.id], key, value)
            return
        if not isinstance(target, ast.Name):
            return
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "get_kwargs" and value.args:
            if isinstance(value.args[0], ast.Name):
                self._classes[target.id] = value.args[0].id
            return
        spec = self._held(value)
        if spec is not None:
            self._single[target.id] = spec

    def _held(self, value: ast.expr) -> Spec | None:
        """The specification that an expression holds: `x_kwargs["field"]`, `get_kwargs(X)["field"]`, a variable, or
        a dict that unpacks one of those."""
        if isinstance(value, ast.Name):
            return self._single.get(value.id)
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            field = value.slice.value
            if isinstance(value.value, ast.Name) and value.value.id in self._classes:
                return self._field(value.value.id, str(field))
            if isinstance(value.value, ast.Call) and ast.unparse(value.value.func) == "get_kwargs":
                owner = value.value.args[0]
                return self._class_field(owner.id, str(field)) if isinstance(owner, ast.Name) else None
        if isinstance(value, ast.Dict):
            spec: Spec | None = None
            for key, item in zip(value.keys, value.values, strict=True):
                if key is None:
                    spec = self._held(item) or spec
                elif isinstance(key, ast.Constant):
                    spec = _changed(spec or Spec(), str(key.value), item)
            return spec
        return None

    def _field(self, variable: str, field: str) -> Spec:
        changed = self._changes.get((variable, field))
        return changed if changed is not None else self._class_field(self._classes[variable], field)

    def _class_field(self, owner: str, field: str) -> Spec:
        try:
            where, _ = self._source.class_head(self._file, owner)
            if owner not in self._fields:
                self._fields[owner] = self._source.class_fields(where, owner)
            annotation, text = self._fields[owner][field]
        except (MovedError, KeyError):
            return Spec()
        return field_spec(self._source, where, field, annotation, text, self._suffixes)

    def _argument(self, call: ast.Call) -> Flag | None:
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if not any(name.startswith("--") for name in names):
            return None
        spec = Spec()
        given: set[str] = set()
        for keyword in call.keywords:
            if keyword.arg is None:
                spec = self._held(keyword.value) or spec
                given.add("**")
        for keyword in call.keywords:
            if keyword.arg == "choices":
                given.add("type")
                try:
                    choices = self._source.strings_of(self._file, keyword.value)
                    spec = replace(spec, kind="choice", choices=choices)
                except MovedError:
                    spec = replace(spec, kind="str", choices=None)
            elif keyword.arg is not None:
                given.add(keyword.arg)
                spec = _changed(spec, keyword.arg, keyword.value)
        if not given & {"**", "type", "action"}:
            spec = replace(spec, kind="str")
        if "action" in given and spec.kind is None:
            spec = replace(spec, kind="str")
        return _flag(names, spec)


def _flag(names: list[str], spec: Spec) -> Flag:
    long = [name[2:].replace("-", "_") for name in names if name.startswith("--")]
    short = [name for name in names if not name.startswith("--")]
    return Flag(
        name=long[0],
        kind=spec.kind,
        many=spec.many,
        choices=spec.choices,
        negatable=spec.negatable,
        help=spec.help or None,
        aliases=(*long[1:], *short),
        repeat=spec.repeat,
        suffixes=spec.suffixes,
        optional=spec.optional,
    )


def _human_readable(source: Source) -> frozenset[str]:
    """The integer flags that take `8k` or `2G`, named by string in `_compute_kwargs`."""
    try:
        function = source.statement(ARG_UTILS, "_compute_kwargs")
    except MovedError:
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "name":
            names.update(_texts(node))
        if isinstance(node, ast.Assign) and "human_readable" in ast.unparse(node.targets[0]):
            names.update(_texts(node.value))
    return frozenset(names)


def _texts(node: ast.AST) -> Iterator[str]:
    for item in ast.walk(node):
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            yield item.value


def _text(node: ast.expr) -> str:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ""
    return " ".join(value.split())[:HELP_CHARACTERS] if isinstance(value, str) else ""


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in order, those of `if` blocks included."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _flat(statement.body)
            yield from _flat(statement.orelse)
        elif isinstance(statement, ast.With | ast.Try):
            yield from _flat(statement.body)
        else:
            yield statement
