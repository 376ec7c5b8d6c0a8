"""The rooms import each other only as CONTRIBUTING.md allows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "reference": set(),
    "visualizations": {"reference"},
    "puzzles": {"reference", "visualizations"},
    "rankwise": {"reference", "visualizations", "puzzles"},
}
ROOMS = {*MAY_IMPORT, "tests"}


def imported(path: Path) -> Iterator[str]:
    """The packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_rooms_that_it_may(room: str) -> None:
    modules = sorted((ROOT / room).rglob("*.py"))
    assert modules
    found = {(str(path.relative_to(ROOT)), name) for path in modules for name in imported(path) if name in ROOMS}
    assert not [(path, name) for path, name in sorted(found) if name not in MAY_IMPORT[room] | {room}]
