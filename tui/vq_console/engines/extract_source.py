"""Reading a vLLM installation's Python as text: statements by name, string lists, imports followed within vLLM.

Parses with `ast` and never imports or runs what it reads. To stay fast on files of 100 kB and more, only the
statement asked for is parsed; when cutting a file up fails, the whole of it is parsed instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_HEAD = re.compile(
    r"^(?:@|(?:async def|def|class|type) (?P<kind>\w+)|(?P<name>\w+)[ \t]*(?::(?!=)|=(?!=)))", re.MULTILINE
)
_TOP = re.compile(r"^(?=[^\s#)\]}])", re.MULTILINE)
_MAX_DEPTH = 12


class MovedError(Exception):
    """A symbol or file is not where it was; the text is the reason a person sees."""


class Source:
    """The package folder of one vLLM. Everything raises MovedError when a file or symbol is not there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str] = {}
        self._statements: dict[str, dict[str, str]] = {}
        self._trees: dict[str, dict[str, ast.stmt]] = {}
        self._parsed: dict[tuple[str, str], ast.stmt] = {}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        self._heads: dict[tuple[str, str], ast.ClassDef] = {}

    def text(self, file: str) -> str:
        """The text of a file by its path inside the package."""
        if file not in self._texts:
            try:
                self._texts[file] = (self.root / file).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise MovedError(f"{file} is not in this vLLM") from error
        return self._texts[file]

    def names(self, file: str) -> list[str]:
        """The names that a file defines at its top level, in order."""
        return list(self._cut(file))

    def statement(self, file: str, name: str) -> ast.stmt:
        """The definition of `name` at the top level of `file` (the last one, where there are several)."""
        found = self._parsed.get((file, name))
        if found is not None:
            return found
        piece = self._cut(file).get(name)
        statement: ast.stmt | None = None
        if piece is not None:
            try:
                body = ast.parse(piece).body
                statement = body[0] if body else None
            except SyntaxError:
                statement = None
        if statement is None:
            statement = self._whole(file).get(name)
        if statement is None:
            raise MovedError(f"{name} is not in {file}")
        self._parsed[file, name] = statement
        return statement

    def value(self, file: str, name: str) -> ast.expr:
        """The expression that `name` stands for: the value of an assignment or of a type alias."""
        statement = self.statement(file, name)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            return statement.value
        value = getattr(statement, "value", None)
        if isinstance(value, ast.expr):
            return value
        raise MovedError(f"{name} in {file} is no assignment")

    def find(self, file: str, name: str) -> tuple[str, ast.stmt]:
        """Where `name`, as `file` knows it, is defined: the file and the definition, imports followed within vLLM."""
        seen: set[tuple[str, str]] = set()
        while True:
            if (file, name) in seen or len(seen) > _MAX_DEPTH:
                raise MovedError(f"{name}: its imports go round in circles")
            seen.add((file, name))
            if name in self._cut(file):
                return file, self.statement(file, name)
            target = self.imports(file).get(name)
            if target is None:
                return file, self.statement(file, name)
            file, name = target

    def imports(self, file: str) -> dict[str, tuple[str, str]]:
        """The names that `file` imports from inside vLLM, as (file, name there)."""
        if file not in self._imports:
            found: dict[str, tuple[str, str]] = {}
            for match in re.finditer(
                r"^[ \t]*from[ \t]+(?P<module>\.*[\w.]*)[ \t]+import[ \t]+(?:\((?P<many>[^)]*)\)|(?P<one>[^\n#(]+))",
                self.text(file),
                re.MULTILINE,
            ):
                target = self._module_file(file, match["module"])
                if target is None:
                    continue
                listed = re.sub(r"#[^\n]*", "", match["many"] or match["one"] or "")
                for item in listed.split(","):
                    words = item.split()
                    if words:
                        name = words[-1] if len(words) == 3 and words[1] == "as" else words[0]
                        found.setdefault(name, (target, words[0]))
            self._imports[file] = found
        return self._imports[file]

    def strings(self, file: str, name: str) -> tuple[str, ...]:
        """The strings that `name` lists: a Literal, a list, tuple or set, the keys of a dict, the values of an Enum,
        or a combination of those; without repeats, in order. Raises MovedError when it is anything else."""
        return tuple(dict.fromkeys(self._strings(file, ast.Name(name), 0)))

    def strings_of(self, file: str, node: ast.expr) -> tuple[str, ...]:
        """Like `strings`, for an expression that stands in `file`."""
        return tuple(dict.fromkeys(self._strings(file, node, 0)))

    def _strings(self, file: str, node: ast.expr, depth: int) -> Iterator[str]:
        if depth > _MAX_DEPTH:
            raise MovedError("a list of names refers to itself")
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.value
            elif node.value is not None:
                raise MovedError("a list of names holds something else")
        elif isinstance(node, ast.Name):
            yield from self._named_strings(file, node.id, depth)
        elif isinstance(node, ast.Attribute):
            yield from self._named_strings(file, node.attr, depth)
        elif isinstance(node, ast.Subscript):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for item in inner:
                yield from self._strings(file, item, depth + 1)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            for item in node.elts:
                yield from self._strings(file, item.value if isinstance(item, ast.Starred) else item, depth + 1)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield from self._strings(file, value if key is None else key, depth + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.BitOr):
            yield from self._strings(file, node.left, depth + 1)
            yield from self._strings(file, node.right, depth + 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
            yield from self._strings(file, node.func.value, depth + 1)
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            yield from self._strings(file, node.args[0], depth + 1)
        else:
            raise MovedError("a list of names is computed in a way that cannot be read")

    def _named_strings(self, file: str, name: str, depth: int) -> Iterator[str]:
        where, statement = self.find(file, name)
        if isinstance(statement, ast.ClassDef):
            yield from (value for _, value in enum_members(statement) if value is not None)
            return
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr):
            raise MovedError(f"{name} in {where} is no list of names")
        yield from self._strings(where, value, depth + 1)

    def class_fields(self, file: str, name: str) -> dict[str, tuple[ast.expr, str]]:
        """The annotated fields of a class with the text that documents each; its methods are not parsed.

        Fields of base classes within vLLM come first.
        """
        where, parsed = self.class_head(file, name)
        fields: dict[str, tuple[ast.expr, str]] = {}
        for base in parsed.bases:
            if isinstance(base, ast.Name) and (base.id in self._cut(where) or base.id in self.imports(where)):
                fields.update(self.class_fields(where, base.id))
        for at, item in enumerate(parsed.body):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                following = parsed.body[at + 1] if at + 1 < len(parsed.body) else None
                fields[item.target.id] = (item.annotation, _docstring(following))
        return fields

    def class_head(self, file: str, name: str) -> tuple[str, ast.ClassDef]:
        """A class without its methods, and the file that defines it."""
        where, piece = self._class_piece(file, name)
        parsed: ast.stmt | None = self._heads.get((where, name))
        if parsed is None:
            try:
                parsed = ast.parse(_without_methods(piece)).body[0]
            except (SyntaxError, IndexError):
                parsed = self.statement(where, name)
            if not isinstance(parsed, ast.ClassDef):
                raise MovedError(f"{name} in {where} is no class")
            self._heads[where, name] = parsed
        assert isinstance(parsed, ast.ClassDef)
        return where, parsed

    def is_class(self, file: str, name: str) -> bool:
        """Whether `name`, as `file` knows it, is a class."""
        try:
            self._class_piece(file, name)
        except MovedError:
            return False
        return True

    def method(self, file: str, owner: str, name: str) -> tuple[str, ast.FunctionDef]:
        """A method of a class or of its bases within vLLM, and the file that defines it."""
        where, piece = self._class_piece(file, owner)
        found = re.search(rf"^    def {name}\(.*?(?=^    \S(?<!\))|\Z)", piece, re.MULTILINE | re.DOTALL)
        if found:
            try:
                parsed = ast.parse(re.sub(r"^    ", "", found[0], flags=re.MULTILINE)).body[0]
            except (SyntaxError, IndexError):
                parsed = None
            if isinstance(parsed, ast.FunctionDef):
                return where, parsed
        statement = self.statement(where, owner) if found else self.class_head(file, owner)[1]
        assert isinstance(statement, ast.ClassDef)
        for item in statement.body:
            if isinstance(item, ast.FunctionDef) and item.name == name:
                return where, item
        for base in statement.bases:
            if isinstance(base, ast.Name) and (base.id in self._cut(where) or base.id in self.imports(where)):
                try:
                    return self.method(where, base.id, name)
                except MovedError:
                    continue
        raise MovedError(f"{owner} in {where} has no {name}")

    def _class_piece(self, file: str, name: str) -> tuple[str, str]:
        seen: set[tuple[str, str]] = set()
        while (file, name) not in seen:
            seen.add((file, name))
            piece = self._cut(file).get(name)
            if piece is not None:
                if not re.search(rf"^class {name}\b", piece, re.MULTILINE):
                    raise MovedError(f"{name} in {file} is no class")
                return file, piece
            target = self.imports(file).get(name)
            if target is None:
                break
            file, name = target
        raise MovedError(f"{name} is not in {file}")

    def _cut(self, file: str) -> dict[str, str]:
        """Top-level statements by name. A line that starts in the first column begins one, unless it only closes a
        bracket; decorators belong to what follows."""
        if file not in self._statements:
            text = self.text(file)
            starts = [match.start() for match in _TOP.finditer(text)]
            pieces: dict[str, str] = {}
            pending: int | None = None
            for at, start in enumerate(starts):
                end = starts[at + 1] if at + 1 < len(starts) else len(text)
                head = _HEAD.match(text, start)
                if head is None:
                    pending = None
                    continue
                name = head["kind"] or head["name"]
                if name is None:
                    pending = start if pending is None else pending
                    continue
                pieces[name] = text[start if pending is None else pending : end]
                pending = None
            self._statements[file] = pieces
        return self._statements[file]

    def _whole(self, file: str) -> dict[str, ast.stmt]:
        if file not in self._trees:
            try:
                body = ast.parse(self.text(file)).body
            except SyntaxError as error:
                raise MovedError(f"{file} cannot be parsed by this Python ({error.msg})") from error
            found: dict[str, ast.stmt] = {}
            for statement in body:
                for name in _defined(statement):
                    found[name] = statement
            self._trees[file] = found
        return self._trees[file]

    def _module_file(self, file: str, module: str) -> str | None:
        dots = len(module) - len(module.lstrip("."))
        if dots:
            base = Path(file).parent
            for _ in range(dots - 1):
                base = base.parent
            parts = [part for part in module.lstrip(".").split(".") if part]
            path = base.joinpath(*parts)
        elif module == "vllm" or module.startswith("vllm."):
            path = Path(*module.split(".")[1:]) if "." in module else Path(".")
        else:
            return None
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            if (self.root / candidate).is_file():
                return str(Path(candidate))
        return None


def enum_members(statement: ast.ClassDef) -> list[tuple[str, str | None]]:
    """The members of an Enum class: names, and values where those are strings."""
    members = []
    for item in statement.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            value = item.value.value if isinstance(item.value, ast.Constant) else None
            name = item.targets[0].id
            if not name.startswith("_"):
                members.append((name, value if isinstance(value, str) else None))
    return members


def constant_return(function: ast.FunctionDef) -> int | None:
    """The number that a function returns, when all it does is return that number."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returned) != 1 or returned[0] is None:
        return None
    try:
        value = ast.literal_eval(returned[0])
    except ValueError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _without_methods(piece: str) -> str:
    """A class's text with only its head, its fields and what documents them."""
    kept: list[str] = []
    keep = True
    for line in piece.split("\n"):
        if line[:4] == "    " and line[4:5] not in ("", " ", ")", "]", "}", "#"):
            keep = not line.startswith(("    def ", "    async def ", "    @", "    class "))
        elif line[:1] not in ("", " ", "#", ")"):
            keep = True
        if keep:
            kept.append(line)
    return "\n".join(kept)


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    name = getattr(statement, "name", None)
    return [name.id] if isinstance(name, ast.Name) else []


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return " ".join(value.split()) if isinstance(value, str) else ""
    return ""
