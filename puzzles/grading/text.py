"""From a puzzle to text: the stub that a learner gets, and the solution that the reference function is.

Both have the same imports and the same signature, taken from the reference function and its module, so that there is
one place to change.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from . import rules
from .puzzle import Puzzle, Wrong
from .sources import Gathered, global_names, header, import_block
from .wrapping import wrapped, wrapped_header

COLUMNS = 80  # of a statement, as wide as an editor beside a lesson


def stub(puzzle: Puzzle) -> str:
    """The text that a learner starts from, exactly as it ships in the puzzle's file."""
    return with_body(puzzle, puzzle.body)


def solution(puzzle: Puzzle) -> str:
    """The reference function as a file of its own."""
    if puzzle.answer:
        return with_body(puzzle, puzzle.answer)
    gathered = Gathered(puzzle.helpers).take(puzzle.function)
    return _file(puzzle, gathered.imports, list(gathered.definitions.values()))


def wrong(puzzle: Puzzle, mistake: Wrong) -> str:
    """The text of a wrong solution. Raises ValueError where an edit does not fit the solution's text."""
    if mistake.text:
        return mistake.text
    if mistake.body:
        return with_body(puzzle, mistake.body)
    text = solution(puzzle)
    for old, new in mistake.edits:
        if text.count(old) != 1:
            raise ValueError(f"{puzzle.name}: {mistake.name!r} edits {old!r}, which is there {text.count(old)} times")
        text = text.replace(old, new)
    return text


def with_body(puzzle: Puzzle, body: str) -> str:
    """The stub with another body for its function."""
    statement = wrapped(textwrap.dedent(puzzle.statement).strip(), COLUMNS - 4)
    docstring = [f'"""{_sentence(puzzle.title)}', "", *statement.splitlines(), '"""']
    lines = [*docstring, *textwrap.dedent(body).strip("\n").splitlines()]
    return _file(puzzle, *_stub_parts(puzzle, textwrap.indent("\n".join(lines), "    ")))


@functools.lru_cache(maxsize=1024)
def given(puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
    """The names of this course that the stub imports, by module: what a solution may use of it."""
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(ast.parse(stub(puzzle))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("reference.", "puzzles.")):
            found[node.module] = (*found.get(node.module, ()), *(alias.name for alias in node.names))
    return found


def cell(puzzle: Puzzle) -> str:
    """The stub as a notebook's cell: the magic and the function; missing imports are added when it is saved."""
    definition = stub(puzzle).rpartition("\n\n\n")[2]
    return f"%%puzzle {puzzle.name}\n{definition}"


def standalone(function: Callable[..., Any]) -> str:
    """A function given as an object, with all that it uses, as the text of a file.

    Raises ValueError where its source can't be found.
    """
    try:
        gathered = Gathered().take(function)
    except (OSError, TypeError, KeyError) as error:
        raise ValueError(f"the source of {function!r} is unknown: give its text or its file instead") from error
    return "\n\n\n".join([import_block(gathered.imports), *gathered.definitions.values()]) + "\n"


def untouched(puzzle: Puzzle, text: str) -> bool:
    """True for the stub, whatever its imports, comments, docstrings and layout."""
    if not puzzle.is_to_mend and "NotImplementedError" not in text:
        return not text.strip()  # all that a stub does is gone: most texts need no closer look
    try:
        return not text.strip() or _program(with_imports(puzzle, text)) == _program(stub(puzzle))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def with_imports(puzzle: Puzzle, text: str) -> str:
    """A text with those imports and constants of the stub that it uses and lacks: a cell need not repeat them."""
    imports, constants = _missing(puzzle, text)
    head = "\n\n".join(part for part in (import_block(imports), "\n".join(constants)) if part)
    line = _end_of_future(text)[0] if head else 0
    if not line:
        return f"{head}\n\n\n{text}" if head else text
    lines = text.split("\n")
    first, rest = "\n".join(lines[:line]), "\n".join(lines[line:]).lstrip("\n")
    return f"{first}\n\n{head}\n\n\n{rest}"


def as_numbered_in_cell(puzzle: Puzzle, text: str) -> str:
    """The same, where each line has its number in the cell: what is added stands in that of the magic.

    Where the text imports from `__future__`, which must come first, it stands in that line.
    """
    imports, constants = _missing(puzzle, text)
    added = "; ".join([*filter(None, import_block(imports).splitlines()), *constants])
    line, column = _end_of_future(text) if added else (0, 0)
    if not line:
        return f"{added}\n{text}"
    lines = text.split("\n")
    lines[line - 1] = f"{lines[line - 1][:column]}; {added}{lines[line - 1][column:]}"
    return "\n" + "\n".join(lines)


def _end_of_future(text: str) -> tuple[int, int]:
    """Line and column where the imports from `__future__` end, which must come first; (0, 0) where there are none."""
    found = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return (found[-1].end_lineno or 0, found[-1].end_col_offset or 0) if found else (0, 0)


def _missing(puzzle: Puzzle, text: str) -> tuple[list[str], list[str]]:
    """The imports and constants of the stub, a line each, that a text uses and lacks."""
    try:
        used = set(global_names(text))
        bound = {name for node in ast.parse(text).body for name in _bound(node)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], []
    imports, definitions = _stub_parts(puzzle, "    ...")
    constants = [line for line in definitions[:-1] if _name(line) in used - bound]
    used |= set(global_names("\n".join(constants)))
    return [line for line in imports if _name(line) in used - bound], constants


def _sentence(title: str) -> str:
    """A title with an end."""
    return title if title[-1] in ".?!" else f"{title}."


def _stub_parts(puzzle: Puzzle, body: str) -> tuple[list[str], list[str]]:
    """Imports and definitions of a file whose function has this body."""
    head = wrapped_header(header(puzzle.function), COLUMNS)
    gathered = Gathered(puzzle.helpers)
    gathered.take_names(f"{head}\n    ...", inspect.getmodule(puzzle.function), puzzle.entry)
    imports = gathered.imports + [each.line for each in puzzle.helpers]
    if puzzle.takes_group or (puzzle.given and not puzzle.pipe) or puzzle.calls:
        imports += ["import torch", "import torch.distributed as dist"]
    elif any(line.split()[1].partition(".")[0] == "torch" for line in imports):
        imports.append("import torch")  # a function that is given tensors makes some
    return imports, [*gathered.definitions.values(), f"{head}\n{body}"]


def _file(puzzle: Puzzle, imports: list[str], definitions: list[str]) -> str:
    """A whole file: what it is and how to check it, imports, constants, functions."""
    name = puzzle.name
    title = _sentence(puzzle.title)
    first = f'"""{name}: {title}'
    first = first if len(first) <= COLUMNS else f'"""{name}:\n{title}'
    about = "\n".join([first, "", f"rankwise check {name}", f"rankwise hint {name}", "", importable(), '"""'])
    constants = [each for each in definitions if not each.startswith(("def ", "class ", "@"))]
    functions = [each for each in definitions if each not in constants]
    head = "\n\n".join(part for part in (about, import_block(imports), "\n".join(constants)) if part)
    return "\n\n\n".join([head, *functions]) + "\n"


def importable() -> str:
    """What a solution may import, in words and in lines of a stub's width."""
    ours = sorted(name.removeprefix("torch.") for name in rules.MODULES if name.startswith("torch."))
    others = sorted(name for name in rules.MODULES if name.partition(".")[0] not in ("torch", "__future__"))
    words = (
        f"A solution may import what is imported below, torch with its {', '.join(ours[:-1])} and {ours[-1]}, and of "
        f"the standard library {', '.join(others[:-1])} and {others[-1]}; nothing else."
    )
    return wrapped(words, COLUMNS)


def _name(line: str) -> str:
    """The name that an import or a constant's line binds."""
    return _bound(ast.parse(line).body[0])[0]


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]


def _program(text: str) -> list[str]:
    """A file's statements without imports and docstrings, in a form that compares."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return [ast.dump(node) for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
