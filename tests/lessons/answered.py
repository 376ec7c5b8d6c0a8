"""Which cells of a lesson can tell whether its puzzles are solved: the others run the same with nothing solved."""

import ast
from collections.abc import Iterator, Sequence


def needed(sources: Sequence[str]) -> list[bool]:
    """Of each code cell, whether it sets a puzzle, asks for an answer, or defines what one of those needs.

    Args:
        sources: of all code cells, from top to bottom.
    """
    keep = [source.startswith("%%puzzle") or "yours(" in source or "%load_ext" in source for source in sources]
    wanted: set[str] = set()
    for place in reversed(range(len(sources))):
        if not sources[place].startswith("%%"):
            names = list(names_in(sources[place]))
            keep[place] |= any(isinstance(context, ast.Store) and name in wanted for name, context in names)
            if keep[place]:
                wanted |= {name for name, context in names if isinstance(context, ast.Load)}
    return keep


def names_in(source: str) -> Iterator[tuple[str, ast.expr_context]]:
    """Each name of a cell, and whether the cell defines it (Store) or uses it (Load). Lines of magic have none."""
    lines = ("pass" if line.startswith(("%", "!")) else line for line in source.splitlines())
    for node in ast.walk(ast.parse("\n".join(lines))):
        match node:
            case ast.Name():
                yield node.id, node.ctx
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, ast.Store()
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0], ast.Store()
