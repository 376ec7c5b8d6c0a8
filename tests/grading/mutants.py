"""Mutants of a program: small mistakes made by rule, to see whether the cases of a puzzle would notice them.

One mutant has one change: a comparison or an arithmetic operator is another, a number is off by one, a condition is
negated, a statement is gone, two arguments have changed places.

A mutant that computes the same thing at the same cost is *equivalent*: no test can tell it from the original. Those
are listed by hand, with the reason, in `test_mutants.py`. `python -m tests.grading.mutants <puzzle>` says which live.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitXor: ast.BitOr, ast.BitAnd: ast.BitOr,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A changed program. `change` is the line before and after, without its number: so it outlives edits elsewhere."""

    change: str
    source: str


@dataclass(frozen=True)
class _Site:
    """A node, the statement that it belongs to, and the block that holds the statement."""

    node: ast.AST
    statement: ast.stmt
    block: list[ast.stmt]


def mutants(source: str, function: str) -> list[Mutant]:
    """All mutants of one function of a text, each once."""
    original = ast.unparse(ast.parse(source))
    found: dict[str, Mutant] = {}
    place = change = 0
    while True:
        tree = ast.parse(source)
        sites = list(_in_block(_body(tree, function)))
        if place == len(sites):
            return list(found.values())
        site = sites[place]
        changes = list(_changes(site))
        if change == len(changes):
            place, change = place + 1, 0
            continue
        before = _head(site.statement)
        changes[change]()
        after = _head(site.statement) if site.statement in site.block else "nothing"
        mutated = ast.unparse(ast.fix_missing_locations(tree))
        if mutated != original:
            found.setdefault(mutated, Mutant(f"{before}  ->  {after}", mutated))
        change += 1


def _head(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]


def _body(tree: ast.Module, function: str) -> list[ast.stmt]:
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function).body


def _in_block(block: list[ast.stmt]) -> Iterator[_Site]:
    """Every node of a block, and of the blocks in it, where a change could be made."""
    for statement in block:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        yield _Site(statement, statement, block)
        nested = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        own = [child for child in ast.iter_child_nodes(statement) if not any(child in inner for inner in nested)]
        yield from (_Site(node, statement, block) for child in own for node in ast.walk(child))
        for inner in nested:
            yield from _in_block(inner)


def _changes(site: _Site) -> Iterator[Callable[[], None]]:
    """What can be done to a node: functions that change the tree in place."""
    node = site.node
    match node:
        case ast.Expr() | ast.Assign() | ast.AugAssign() if len(site.block) > 1:
            yield lambda: site.block.remove(site.statement)
        case ast.If() | ast.While():
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Compare() if type(node.ops[0]) in _SWAPS:
            yield lambda: node.ops.__setitem__(0, _SWAPS[type(node.ops[0])]())
        case ast.Constant() if type(node.value) is int:
            yield lambda: setattr(node, "value", node.value + 1)
            yield lambda: setattr(node, "value", node.value - 1)
        case ast.Constant() if type(node.value) is bool:
            yield lambda: setattr(node, "value", not node.value)
        case ast.UnaryOp(op=ast.USub()):
            yield lambda: setattr(node, "op", ast.UAdd())
        case ast.Call() if len(node.args) > 1:
            yield lambda: node.args.__setitem__(slice(0, 2), node.args[1::-1])
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _SWAPS:
        yield lambda: setattr(node, "op", _SWAPS[type(node.op)]())


def survivors(name: str) -> tuple[int, list[Mutant]]:
    """How many mutants of a puzzle's solution there are, and those that pass."""
    from puzzles import catalog
    from puzzles.grading import text
    from puzzles.grading.engine import passes

    puzzle = catalog.find(name)
    made = mutants(text.solution(puzzle), puzzle.entry)
    return len(made), [mutant for mutant in made if passes(puzzle, mutant.source)]


if __name__ == "__main__":
    for puzzle_name in sys.argv[1:]:
        count, alive = survivors(puzzle_name)
        print(
            f"{puzzle_name}: {count - len(alive)} of {count} mutants rejected", *(m.change for m in alive), sep="\n  "
        )
