"""The course without what a handout must not show: of each module what the checks use, and of answers only the head.

What is used is found by reading: a definition that is kept keeps the names that it uses, in its module and in those
that it imports from. An answer keeps its signature and docstring, so nothing is kept for its body's sake.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
ROOMS = ("reference", "puzzles", "visualizations", "rankwise")
LEFT_OUT = "left out of this handout"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


class Stripped:
    """Modules of the course, as far as they are used.

    Args:
        answers: (module, name) of the functions and classes that keep their heads alone.
        without: keywords of a `PUZZLE` that are left out.
    """

    def __init__(self, answers: set[tuple[str, str]], without: tuple[str, ...] = ()) -> None:
        self.answers, self.without = answers, without
        self.modules: dict[str, _Module] = {}

    def need(self, module: str, name: str = "") -> None:
        """Keep a module, and what this name of it uses; "*" for all of its names."""
        parent = ""
        for part in module.split("."):
            parent = f"{parent}.{part}" if parent else part
            if parent not in self.modules:
                if parent.split(".")[0] not in ROOMS or file_of(parent) is None:
                    return
                self.modules[parent] = _Module(self, parent)
                self.modules[parent].begin()
        if name == "*":
            self.modules[module].keep_all()
        elif name:
            self.modules[module].keep(name)

    def texts(self) -> dict[Path, str]:
        """By file, relative to the course, what is left of it."""
        return {file_of(name): module.text() for name, module in self.modules.items()}


def file_of(module: str) -> Path | None:
    """The file of a module of the course, relative to it; None where there is none."""
    path = Path(*module.split("."))
    found = (each for each in (path / "__init__.py", path.with_suffix(".py")) if (HOUSE / each).is_file())
    return next(found, None)


def used(tree: ast.AST) -> dict[str, set[str] | None]:
    """The names that a piece of program uses; of each the attributes, where no more is asked for, else None."""
    found: dict[str, set[str] | None] = {}
    bases = {id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            attribute = bases.get(id(node))
            known = found.setdefault(node.id, set())
            if attribute is None:
                found[node.id] = None
            elif known is not None:
                known.add(attribute.attr)
    return found


class _Module:
    """One module: its statements at the top level, and which of them are kept."""

    def __init__(self, whole: Stripped, name: str) -> None:
        self.whole, self.name, self.path = whole, name, file_of(name)
        self.source = (HOUSE / self.path).read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Puzzle":
                node.keywords = [each for each in node.keywords if each.arg not in whole.without]
        body = self.tree.body[1:] if ast.get_docstring(self.tree) is not None else self.tree.body
        self.statements = [node for node in body if not _for_types(node)]
        self.kept: set[int] = set()
        self.names: set[str] = set()  # that imports at the top level must bind
        self.seen: set[tuple[str, str]] = set()  # names with attributes of theirs that are kept already

    def begin(self) -> None:
        """Keep what runs whenever the module is imported."""
        for node in self.statements:
            if not isinstance(node, (*_IMPORTS, *_FUNCTIONS, ast.ClassDef, ast.Assign, ast.AnnAssign)):
                self._keep(node)

    def keep_all(self) -> None:
        """Keep every definition and all that is imported."""
        for node in self.statements:
            for name in _bound(node):
                self.keep(name)

    def keep(self, name: str, attributes: set[str] | None = None) -> None:
        """Keep what binds a name, and what that uses. Of an imported module these attributes, or all."""
        seen = {(name, attribute) for attribute in (("*",) if attributes is None else ("", *attributes))}
        if seen <= self.seen:
            return
        self.seen |= seen
        for node in self.statements:
            if name not in _bound(node):
                continue
            if isinstance(node, _IMPORTS):
                self.names.add(name)
                self._follow(node, {name: attributes})
            else:
                self._keep(node)
        if self.path.name == "__init__.py":
            self.whole.need(f"{self.name}.{name}")  # a module of the package, where it is one

    def _keep(self, node: ast.stmt) -> None:
        if id(node) in self.kept:
            return
        self.kept.add(id(node))
        shown = self._headed(node) if self._is_answer(node) else node
        names = used(shown)
        for name, attributes in names.items():
            self.keep(name, attributes)
        for inner in ast.walk(shown):
            if isinstance(inner, _IMPORTS):
                self._follow(inner, names)

    def _follow(self, node: ast.Import | ast.ImportFrom, names: dict[str, set[str] | None]) -> None:
        """Keep what an import brings, of those names that are used."""
        for alias in node.names:
            own = alias.asname or alias.name.split(".")[0]
            if own not in names:
                continue
            if isinstance(node, ast.Import):
                module, name = alias.name, ""
            else:
                module, name = self._home(node), alias.name
                self.whole.need(module, name)
            inside = f"{module}.{name}" if name else module
            if file_of(inside) is not None and inside.split(".")[0] in ROOMS:
                attributes = names[own]
                for attribute in ["*"] if attributes is None else sorted(attributes):
                    self.whole.need(inside, attribute)

    def _home(self, node: ast.ImportFrom) -> str:
        """The module that an import names, in full."""
        if not node.level:
            return node.module
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        return ".".join([*package[: len(package) + 1 - node.level], *filter(None, [node.module])])

    def text(self) -> str:
        """What is left."""
        doc = (ast.get_docstring(self.tree) or self.name).splitlines()[0]
        return "\n".join([f'"""{doc}"""\n', *self._pieces()]).rstrip() + "\n"

    def _pieces(self) -> Iterator[str]:
        for node in self.statements:
            if isinstance(node, _IMPORTS):
                if line := self._import(node):
                    yield line
            elif id(node) in self.kept:
                yield ("\n\n" if hasattr(node, "name") else "") + self._piece(node)

    def _piece(self, node: ast.stmt) -> str:
        """A statement as it is written; of an answer its head; of a puzzle what is left of its description."""
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        lines = self.source.splitlines()
        if self._is_answer(node):
            if isinstance(node, ast.ClassDef):
                return ast.unparse(self._headed(node))
            begins = 1 if ast.get_docstring(node) is not None else 0
            head = lines[first - 1 : node.body[begins].lineno - 1]
            while head[-1].lstrip().startswith("#"):  # a comment on the body
                head.pop()
            return "\n".join([*head, f"    {self._instead(node)}"])
        if any(getattr(getattr(each, "func", None), "id", "") == "Puzzle" for each in ast.walk(node)):
            return ast.unparse(node)
        return "\n".join(lines[first - 1 : node.end_lineno])

    def _is_answer(self, node: ast.stmt) -> bool:
        return (self.name, getattr(node, "name", "")) in self.whole.answers

    def _instead(self, node: ast.stmt) -> str:
        """What the body of an answer is."""
        return f'raise NotImplementedError("{LEFT_OUT}: {self.name}:{node.name}")'

    def _headed(self, node: ast.stmt) -> ast.stmt:
        """A function without its body; a class without those of its functions."""
        instead = ast.parse(self._instead(node)).body

        def headed(function: ast.FunctionDef) -> ast.FunctionDef:
            doc = function.body[:1] if ast.get_docstring(function) is not None else []
            return type(function)(**{**_fields(function), "body": doc + instead})

        if not isinstance(node, ast.ClassDef):
            return headed(node)
        body = [headed(each) if isinstance(each, _FUNCTIONS) else each for each in node.body]
        return ast.ClassDef(**{**_fields(node), "body": body})

    def _import(self, node: ast.Import | ast.ImportFrom) -> str:
        future = getattr(node, "module", "") == "__future__"
        names = [each for each in node.names if future or (each.asname or each.name.split(".")[0]) in self.names]
        if not names:
            return ""
        kept = ast.Import(names) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, names, node.level)
        return ast.unparse(kept)


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement at the top level binds."""
    if isinstance(node, _IMPORTS):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return {node.name}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _fields(node: ast.AST) -> dict:
    return dict(ast.iter_fields(node)) | {"lineno": node.lineno, "col_offset": node.col_offset}
