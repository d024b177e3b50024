"""From the annotation of a configuration field to what argparse does with it.

vLLM's own rules: engine/arg_utils.py `get_type_hints` and `_compute_kwargs`, 0.20 to 0.33.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from vq_console.engines.extract_source import MovedError, Source

HELP_CHARACTERS = 600
"""How much of a flag's documentation is kept."""

_BUILTIN = frozenset({"bool", "int", "float", "str", "dict", "list", "tuple", "set", "None"})
_GENERIC = {
    "List": "list",
    "Dict": "dict",
    "Tuple": "tuple",
    "Set": "set",
    "Sequence": "list",
    "Mapping": "dict",
    "frozenset": "set",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """What argparse is told about one flag, before its names are known."""

    kind: str | None = None
    many: bool = False
    choices: tuple[str, ...] | None = None
    negatable: bool = False
    help: str = ""
    repeat: bool = False
    suffixes: bool = False
    optional: bool = False


def field_spec(source: Source, file: str, name: str, annotation: ast.expr, text: str, suffixes: frozenset[str]) -> Spec:
    """What a dataclass field with this annotation becomes on vLLM's command line."""
    hints = _hints(source, file, annotation, 0)
    kinds = {hint.kind for hint in hints}
    text = text[:HELP_CHARACTERS]
    if "dataclass" in kinds:
        return Spec("json", help=text)
    if kinds == {"bool", "str", "None"}:
        return Spec("str", optional=True, help=text)
    if "bool" in kinds:
        return Spec("bool", negatable=True, help=text)
    literal = next((hint for hint in hints if hint.kind == "literal"), None)
    if literal is not None:
        if "str" in kinds:
            return Spec("str", help=text)
        if literal.element == "int":
            return Spec("int", choices=literal.choices, help=text)
        return Spec("choice", choices=literal.choices, help=text)
    for hint in hints:
        if hint.kind in ("tuple", "list", "set"):
            return Spec(hint.element or "str", many=True, choices=hint.choices, help=text)
    if "int" in kinds:
        return Spec("int", suffixes=name in suffixes, help=text)
    if "float" in kinds:
        return Spec("float", help=text)
    if "dict" in kinds:
        return Spec("json", help=text)
    return Spec("str", help=text)


@dataclass(frozen=True, slots=True)
class _Hint:
    """One alternative of an annotation."""

    kind: str
    element: str | None = None
    choices: tuple[str, ...] | None = None


def _hints(source: Source, file: str, node: ast.expr, depth: int) -> list[_Hint]:
    if depth > 8:
        return [_Hint("other")]
    if isinstance(node, ast.Constant):
        if node.value is None:
            return [_Hint("None")]
        if isinstance(node.value, str):
            try:
                return _hints(source, file, ast.parse(node.value, mode="eval").body, depth + 1)
            except SyntaxError:
                return [_Hint("other")]
        return [_Hint("other")]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _hints(source, file, node.left, depth + 1) + _hints(source, file, node.right, depth + 1)
    if isinstance(node, ast.Subscript):
        return _subscript(source, file, node, depth)
    if isinstance(node, ast.Attribute):
        return _attribute(source, file, node, depth)
    if isinstance(node, ast.Name):
        return _name(source, file, node.id, depth)
    return [_Hint("other")]


def _subscript(source: Source, file: str, node: ast.Subscript, depth: int) -> list[_Hint]:
    head = ast.unparse(node.value).rpartition(".")[2]
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if head == "Literal":
        return [_literal(source, file, node)]
    if head in ("Optional", "Union"):
        hints = [hint for item in items for hint in _hints(source, file, item, depth + 1)]
        return hints + ([_Hint("None")] if head == "Optional" else [])
    if head in ("Annotated", "SkipValidation", "ClassVar", "Final", "InitVar"):
        return _hints(source, file, items[0], depth + 1)
    head = _GENERIC.get(head, head)
    if head in ("list", "tuple", "set"):
        inner = _hints(source, file, items[0], depth + 1)
        kinds = {hint.kind for hint in inner}
        literal = next((hint for hint in inner if hint.kind == "literal"), None)
        if literal is not None and len(kinds) == 1:
            return [_Hint(head, "choice", literal.choices)]
        return [_Hint(head, next((kind for kind in ("str", "int", "float") if kind in kinds), "str"))]
    return [_Hint(head if head in _BUILTIN else "other")]


def _literal(source: Source, file: str, node: ast.expr) -> _Hint:
    items = node.slice if isinstance(node, ast.Subscript) else node
    constants = [item.value for item in ast.walk(items) if isinstance(item, ast.Constant)]
    if constants and all(isinstance(value, int) and not isinstance(value, bool) for value in constants):
        return _Hint("literal", "int", tuple(str(value) for value in constants))
    try:
        return _Hint("literal", "str", source.strings_of(file, node))
    except MovedError:
        return _Hint("str")


def _attribute(source: Source, file: str, node: ast.Attribute, depth: int) -> list[_Hint]:
    if isinstance(node.value, ast.Name) and node.attr in source.imports(file):
        return _name(source, file, node.attr, depth + 1)
    return [_Hint("other")]


def _name(source: Source, file: str, name: str, depth: int) -> list[_Hint]:
    name = _GENERIC.get(name, name)
    if name in _BUILTIN:
        return [_Hint(name)]
    if source.is_class(file, name):
        _, head = source.class_head(file, name)
        bases = {ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in head.bases}
        if "dict" in bases:
            return [_Hint("dict")]
        decorators = {ast.unparse(item).partition("(")[0].rpartition(".")[2] for item in head.decorator_list}
        return [_Hint("dataclass" if decorators & {"config", "dataclass"} else "other")]
    try:
        where, statement = source.find(file, name)
    except MovedError:
        return [_Hint("other")]
    value = getattr(statement, "value", None)
    return _hints(source, where, value, depth + 1) if isinstance(value, ast.expr) else [_Hint("other")]
