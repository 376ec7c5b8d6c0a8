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


CHAPTERS = (
    "ranks", "collectives", "networks", "memory", "data_parallel", "zero", "tensor_parallel", "sequence_parallel",
    "pipeline_parallel", "zero_bubble", "context_parallel", "expert_parallel", "composition", "planning",
    "resilience", "compression", "decentralized", "frameworks",
)  # fmt: skip
MEETING_PLACES = (
    "plan",
    "parallelize",
    "optimizers",
    "train",
    "options",
    "launch",
    "oracle",
    "roles",
    "saves",
    "engine",
    "updates",
    "on_mesh",
    "ledger",
    "node_order",
)
"""Files beside the chapters that know all of them. The other files there are shared: every chapter may import those."""
OF_WHOLE_PLANS = {"planning", "resilience", "decentralized", "frameworks"}
"""Chapters that are about them, and stand above the meeting places."""


def test_every_chapter_of_the_reference_has_its_place_in_the_order() -> None:
    shared = {"cluster", "models", "trace"}
    folders = {path.parent.name for path in (ROOT / "reference").glob("*/__init__.py")}
    assert folders == shared | set(CHAPTERS)


def inside_reference(path: Path) -> Iterator[str]:
    """The folders and files of `reference` that one of its modules imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        if names == ["reference"]:
            names = [f"reference.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name and name.startswith("reference."))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_imports_only_earlier_ones_and_shared_rooms(chapter: str) -> None:
    later = {*CHAPTERS[CHAPTERS.index(chapter) + 1 :], *(MEETING_PLACES if chapter not in OF_WHOLE_PLANS else ())}
    modules = sorted((ROOT / "reference" / chapter).rglob("*.py"))
    assert modules
    found = {(path.name, name) for path in modules for name in inside_reference(path)}
    assert sorted((file, name) for file, name in found if name in later) == []


BESIDE = ("answers", "lab")
"""Folders of a chapter that puzzles, lessons and pictures use. Nothing that trains does."""


def modules_imported(path: Path) -> Iterator[str]:
    """The modules of `reference` that a file imports, by whole names; for a name in a module also that name."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            home = ".".join([*above, *filter(None, [node.module])])
            yield from (home, *(f"{home}.{alias.name}" for alias in node.names))


def test_no_engine_imports_answers_or_instruments() -> None:
    """`__init__` may: what it exports, lessons import by a short name."""
    engines = [
        path
        for path in sorted((ROOT / "reference").rglob("*.py"))
        if path.name != "__init__.py" and path.parent.name not in BESIDE
    ]
    found = [(str(path.relative_to(ROOT)), name) for path in engines for name in modules_imported(path)]
    assert ("reference/zero/sharded.py", "reference.zero.shards") in found
    assert [(path, name) for path, name in found if {*BESIDE} & {*name.split(".")}] == []


@pytest.mark.parametrize("room", ["cluster", "models", "trace"])
def test_a_shared_room_imports_no_chapter(room: str) -> None:
    found = {(path.name, name) for path in (ROOT / "reference" / room).rglob("*.py") for name in inside_reference(path)}
    assert sorted((file, name) for file, name in found if name in {*CHAPTERS, *MEETING_PLACES}) == []
