"""Take a function out of its module, with everything it needs: the imports, helpers and constants that it uses."""

import ast
import importlib.util
import inspect
import math
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from .puzzle import Given

_NO_FILE = "<string>"  # of what `eval` and `exec` make; from Python 3.13 on it is also the file of `python -c`
_HOMES = ("torch.distributed", "torch", "math")  # where a reader expects a name, before the module that defines it


@dataclass
class Gathered:
    """What a function needs to stand in a file of its own.

    Attributes:
        given: functions that are imported, not copied.
        imports: lines, in the order in which they were met.
        definitions: name -> source, what is used before what uses it.
    """

    given: tuple[Given, ...] = ()
    imports: list[str] = field(default_factory=list)
    definitions: dict[str, str] = field(default_factory=dict)

    def take(self, function: Callable[..., Any]) -> "Gathered":
        """Add a function or class and all that it uses. Raises ValueError where a name can't be followed."""
        source = source_of(function)
        self.take_names(source, sys.modules[function.__module__], function.__name__)
        if self.definitions.setdefault(function.__name__, source) != source:
            raise ValueError(f"two different definitions of {function.__name__}")
        return self

    def take_names(self, source: str, module: ModuleType, own_name: str) -> None:
        """Add what a text of `module` uses besides its own name."""
        for name in global_names(source):
            if name != own_name and name not in self.definitions and hasattr(module, name):
                self._take_name(name, getattr(module, name), module)

    def _take_name(self, name: str, value: Any, module: ModuleType) -> None:
        if isinstance(value, ModuleType):
            self._take_import(_import_of_module(name, value))
        elif given := next((each for each in self.given if each.function is value), None):
            self._take_import(given.line)
        elif isinstance(value, FunctionType | type) and (value.__module__ == module.__name__ or _ours(value)):
            self.take(value)
        elif home := _home(name, value):
            self._take_import(f"from {home} import {name}")
        elif home := _home(own := getattr(value, "__name__", ""), value):  # ours is not torch's name for it
            self._take_import(f"from {home} import {own} as {name}")
        else:
            assignment = _assignment(name, value, module)
            self.take_names(assignment, module, name)
            self.definitions[name] = assignment

    def _take_import(self, line: str) -> None:
        if line not in self.imports:
            self.imports.append(line)


def source_of(function: Callable[..., Any]) -> str:
    """Its source, unindented. Raises OSError where there is none."""
    code = getattr(function, "__code__", None)
    if code and code.co_filename == _NO_FILE:
        raise OSError(f"could not get the source of {function.__name__}: it was made of a string")
    return textwrap.dedent(inspect.getsource(function)).strip()


def header(function: Callable[..., Any]) -> str:
    """`def name(arguments) -> result:` of a function, or the `class` line, as it is written."""
    source = source_of(function)
    node = ast.parse(source).body[0]
    return "\n".join(source.splitlines()[: node.body[0].lineno - 1]).rstrip()


def global_names(source: str) -> list[str]:
    """The names that a text takes from outside its functions, in the order of their first use."""
    wanted = set(_globals(symtable.symtable(source, "<source>", "exec")))
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and node.id in wanted]
    ordered = sorted(names, key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in ordered))


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() or (table.get_type() == "module" and symbol.is_referenced()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


def import_block(lines: list[str]) -> str:
    """Import lines in the usual order: the standard library, what is installed, ours; a blank line between."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, name = line.removeprefix("from ").partition(" import ")
        if name:
            names.setdefault(module, set()).add(name)
    merged = {line for line in lines if line.startswith("import ")}
    merged |= {f"from {module} import {', '.join(sorted(each))}" for module, each in names.items()}
    ordered = sorted(merged, key=lambda line: (_room(line), line.startswith("from"), line))
    groups = [[line for line in ordered if _room(line) == room] for room in range(3)]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _room(line: str) -> int:
    package = line.split()[1].split(".")[0]
    return 0 if package in sys.stdlib_module_names else 2 if package == "reference" else 1


def _ours(value: Any) -> bool:
    return value.__module__.split(".")[0] == "reference"


def _import_of_module(name: str, module: ModuleType) -> str:
    if module.__name__.split(".")[0] == "reference":
        raise ValueError(f"{name} is a module of ours: import functions from it, so that they can be copied")
    if name == module.__name__:
        return f"import {name}"
    package, _, last = module.__name__.rpartition(".")
    if name == last and package != "torch":
        return f"from {package} import {last}"
    return f"import {module.__name__} as {name}"


def _home(name: str, value: Any) -> str | None:
    for home in (*_HOMES, getattr(value, "__module__", None) or "builtins"):
        try:
            if getattr(importlib.import_module(home), name, None) is value:
                return home
        except ImportError:
            continue
    return None


def _assignment(name: str, value: Any, module: ModuleType) -> str:
    """The statement that gives a module's constant its value."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        if isinstance(value, bool | int | str | tuple) or (isinstance(value, float) and math.isfinite(value)):
            return f"{name} = {value!r}"
        raise ValueError(f"{name} is used, and where it comes from is unknown") from None
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
            return _assignment(name, value, importlib.import_module(home))
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.get_source_segment(source, node) or ""
    raise ValueError(f"{name} is used, and {module.__name__} does not define it in one statement")
