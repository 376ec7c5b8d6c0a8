"""What a solution's text does: it may make the calls of its puzzle, and reach for nothing around them.

The text is read, never run. A learner who follows a puzzle's statement never meets these rules. They are here so that
a verdict can be trusted: the ranks run the learner's code, so what it can reach there must not help it to pass.
What it sends is looked at again in the trace (see `engine.py`), where no alias hides a call.
"""

import ast
import builtins
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from types import ModuleType
from typing import ForwardRef

from torch import TypedStorage, UntypedStorage

from reference.trace import Op
from reference.trace.tap import Tap

from . import rules
from .driver import program
from .puzzle import Puzzle

_LEADS_OUT = (Tap, TypedStorage, UntypedStorage, Enum, ForwardRef)  # by names that begin with an underscore


@dataclass(frozen=True)
class Finding:
    """One thing that is not allowed."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line} {self.message}"


def allowed_operations(puzzle: Puzzle) -> set[Op]:
    """What may appear in the trace of a solution."""
    operations = {op for call in puzzle.calls for op in rules.OPERATIONS.get(call.__name__, ())}
    return operations | ({Op.SEND, Op.RECV} if puzzle.given else set())


def allowed_calls(puzzle: Puzzle) -> str:
    """The puzzle's calls, for people."""
    names = [*(call.__name__ for call in puzzle.calls), *(each.name for each in puzzle.helpers)]
    return ", ".join(names) if names else "nothing, this puzzle needs no communication"


def parse(puzzle: Puzzle, source: str) -> ast.Module:
    """The text as a tree. Raises SyntaxError, with a message for people, where it is no program for this puzzle."""
    if len(source) > rules.MAX_TEXT:
        raise SyntaxError(f"the file has {len(source):,} characters; a solution has fewer than {rules.MAX_TEXT:,}")
    try:
        tree = program(source)
        compile(source, "<solution>", "exec")
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        raise SyntaxError(f"{line}{error.msg}: {(error.text or '').strip()}".rstrip(": ")) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(f"the text can't be read as Python: {error}") from None
    _check_entry(puzzle, tree)
    return tree


def _check_entry(puzzle: Puzzle, tree: ast.Module) -> None:
    """Raises SyntaxError where the text does not define the function that is asked for."""
    found = [node for node in tree.body if getattr(node, "name", None) == puzzle.entry]
    if not found:
        raise SyntaxError(f"it defines no `{puzzle.entry}` by def or class at the top level: the check calls that")
    if isinstance(found[-1], ast.FunctionDef) and found[-1].args.kwarg is None:
        wanted = signature(puzzle.function).parameters.values()
        taken = found[-1].args
        got = [each.arg for each in (*taken.args, *filter(None, [taken.vararg]), *taken.kwonlyargs)]
        if not {each.name for each in wanted if each.default is each.empty} <= set(got):
            names = ", ".join(each.name for each in wanted)
            raise SyntaxError(f"`{puzzle.entry}` must take ({names}); yours takes ({', '.join(got)})")


def inspect(puzzle: Puzzle, tree: ast.Module) -> list[Finding]:
    """Everything in the text that its puzzle does not allow, in the order of lines."""
    return sorted(dict.fromkeys(_Reader(puzzle, tree).findings()), key=lambda finding: finding.line)


class _Reader:
    """Walks a tree and knows which of its names stand for modules."""

    def __init__(self, puzzle: Puzzle, tree: ast.Module) -> None:
        self.tree = tree
        self.calls = {call.__name__ for call in puzzle.calls}
        self.allowed = allowed_calls(puzzle)
        self.without = set(puzzle.without)
        self.given = {(each.function.__module__, each.function.__name__) for each in puzzle.helpers}
        self.modules: dict[str, str] = {}
        self.ambiguous: list[Finding] = []
        self.imported: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._note(node)
        self.bound = {name for node in ast.walk(tree) for name in _bound(node)}
        self.own = self.bound | {name for node in ast.walk(tree) for name in _assigned(node)}
        self.own -= rules.OF_THE_TAP.union(*map(dir, _LEADS_OUT))

    def findings(self) -> Iterator[Finding]:
        """In no particular order."""
        yield from self.ambiguous
        bases = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    found = (self._no_module(each.name) for each in node.names if each.name not in rules.MODULES)
                case ast.ImportFrom():
                    found = self._import_from(node)
                case ast.Attribute():
                    found = self._attribute(node)
                case ast.Name():
                    found = self._name(node, id(node) in bases)
                case ast.MatchClass():
                    found = self._class_pattern(node)
                case ast.ClassDef() if any(isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(node)):
                    found = ("imports inside a class, where a module becomes an attribute: import at the top",)
                case ast.FunctionDef() if node.name.startswith("__") and node.name not in rules.DUNDERS:
                    found = (_reaching(node.name),)
                case _:
                    found = ()
            yield from (Finding(getattr(node, "lineno", 1), message) for message in found)

    def _note(self, node: ast.Import | ast.ImportFrom) -> None:
        """Remember what an import binds."""
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            self.imported.add(bound)
            if isinstance(node, ast.Import):
                module = alias.name if alias.asname else bound
            elif f"{node.module}.{alias.name}" in rules.MODULES:
                module = f"{node.module}.{alias.name}"
            else:
                continue
            if self.modules.setdefault(bound, module) != module:
                self.ambiguous.append(Finding(node.lineno, f"gives the name {bound} to two modules"))

    def _import_from(self, node: ast.ImportFrom) -> Iterator[str]:
        module = node.module or ""
        for alias in node.names:
            if (module, alias.name) in self.given or f"{module}.{alias.name}" in rules.MODULES:
                continue
            if module not in rules.MODULES or node.level:
                yield self._no_module(module or ".")
            elif alias.name == "*":
                yield f"imports * from {module}, which hides what is used: name it"
            elif module == "torch.distributed":
                yield from self._call(alias.name)
            else:
                yield from self._member(module, alias.name)

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        module, names = self._path(node)
        if module and len(names) == 1:
            ours = module == "torch.distributed" and not node.attr.startswith("_")
            yield from self._call(node.attr) if ours else self._member(module, node.attr)
        elif self._reaches(node.attr):
            yield self._refused(node.attr)
        if isinstance(node.ctx, ast.Store | ast.Del):
            yield from self._assignment(node)

    def _assignment(self, node: ast.Attribute) -> Iterator[str]:
        root = node.value
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        name = root.id if isinstance(root, ast.Name) else "an expression"
        if name in self.imported:
            yield f"patches {ast.unparse(node)}: a solution leaves alone what it imports"
        elif name not in ("self", "cls", "ctx") and node.attr not in rules.SETTABLE:
            yield f"assigns {ast.unparse(node)}: keep what you need in variables, or let a method assign it to self"

    def _name(self, node: ast.Name, is_base: bool) -> Iterator[str]:
        if node.id in rules.BUILTINS or (node.id.startswith("__") and node.id not in rules.DUNDERS):
            yield _reaching(node.id)
        elif node.id in self.modules and isinstance(node.ctx, ast.Load) and not is_base:
            yield f"uses the module {self.modules[node.id]} as a value: call its functions by name"

    def _class_pattern(self, node: ast.MatchClass) -> Iterator[str]:
        """`case Class(part, name=part)`: which attributes the parts are, the class says, and a class can be made up."""
        yield from (self._refused(name) for name in node.kwd_attrs if self._reaches(name))
        known = isinstance(node.cls, ast.Name) and node.cls.id in (self.imported | set(dir(builtins))) - self.bound
        if node.patterns and not known:
            yield f"matches {ast.unparse(node)} by position, which hides what is read: name the attributes"

    def _call(self, name: str) -> Iterator[str]:
        """`torch.distributed.name`."""
        if name not in self.calls | rules.ALWAYS:
            yield f"uses dist.{name}; allowed here: {self.allowed}"

    def _member(self, module: str, name: str) -> Iterator[str]:
        """`module.name`, where a module inside a module may be a way out, one that torch imports when asked, too."""
        if f"{module}.{name}" in rules.MODULES:
            return
        held = vars(importlib.import_module(module))
        value = held.get(name)
        allowed = rules.ONLY.get(getattr(value, "__module__", None), {name})
        leads_out = name not in held or isinstance(value, ModuleType) or name not in allowed
        in_files = module == "torch" and name in ("load", "save")
        if name.startswith("_") or self._reaches(name) or leads_out or in_files:
            yield self._refused(f"{module}.{name}")

    def _path(self, node: ast.Attribute) -> tuple[str, list[str]]:
        """The module that an attribute belongs to, and the names below it; ("", []) where it is no module's."""
        names = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            names.append(value.attr)
            value = value.value
        if not isinstance(value, ast.Name) or value.id not in self.modules:
            return "", []
        module, names = self.modules[value.id], names[::-1]
        while len(names) > 1 and f"{module}.{names[0]}" in rules.MODULES:
            module, names = f"{module}.{names[0]}", names[1:]
        return module, names

    def _reaches(self, name: str) -> bool:
        """True for an attribute that leads where no solution needs to go."""
        if name.startswith("__"):
            return name not in rules.DUNDERS
        return name in rules.ATTRIBUTES | self.without or (
            name.startswith("_") and name not in self.own | rules.OF_TUPLES
        )

    def _refused(self, name: str) -> str:
        """What to say of a name that leads out, or that the puzzle goes without."""
        if name.rpartition(".")[2] in self.without:
            return f"uses {name}: it is a part of what this puzzle asks for"
        return _reaching(name)

    def _no_module(self, module: str) -> str:
        given = "".join(f", {name} of {home}" for home, name in sorted(self.given))
        known = ", ".join(sorted(name for name in rules.MODULES if "." not in name and not name.startswith("_")))
        return f"imports {module}: a solution may import {known}{given}"


def _bound(node: ast.AST) -> list[str]:
    """Names that a node gives to something of the text's own: functions, classes, arguments, variables."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
        case ast.arg():
            return [node.arg]
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return [node.name or ""]
        case ast.MatchMapping():
            return [node.rest or ""]
    return []


def _assigned(node: ast.AST) -> list[str]:
    """Attributes that a node assigns to an object of the text's own."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return [node.attr] if node.value.id in ("self", "cls", "ctx") else []
    return []


def _reaching(name: str) -> str:
    if name in ("format", "format_map"):
        return f"uses {name}: write an f-string, which shows what it reads"
    return f"uses {name}: a solution needs its arguments, torch and the calls of its puzzle, nothing around them"
