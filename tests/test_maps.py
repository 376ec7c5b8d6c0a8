"""The docstring of each chapter of `reference` is its map: a line for each file, none for a file that is not there."""

import ast
import re
from pathlib import Path

import pytest

from tests.test_rooms import CHAPTERS, ROOT

LINE = re.compile(r"^ {4}((?:\w+/)?\w+\.py) {2,}\S", re.MULTILINE)
CODE = 60  # lines of a chapter's plain algorithm, without docstrings, imports and empty lines


def files(chapter: str) -> list[str]:
    folder = ROOT / "reference" / chapter
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.name != "__init__.py")


def map_of(chapter: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / "reference" / chapter / "__init__.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("chapter", [chapter for chapter in CHAPTERS if chapter != "collectives"])
def test_a_map_has_one_line_for_each_file_of_its_chapter(chapter: str) -> None:
    assert sorted(LINE.findall(map_of(chapter))) == files(chapter)


def test_the_map_of_collectives_names_its_modules() -> None:
    """A table of algorithms, each under the name of its module. What is there for speed has a table of its own."""
    words = set(re.findall(r"\w+", map_of("collectives") + map_of("collectives/fast")))
    assert [name for name in files("collectives") if Path(name).stem not in words] == []


@pytest.mark.parametrize("chapter", [chapter for chapter in CHAPTERS if chapter != "collectives"])
def test_a_map_says_what_to_read_first(chapter: str) -> None:
    text = map_of(chapter)
    assert "\nRead `" in text
    assert "plain.py" in text


WITH_ENGINES = set(CHAPTERS) - {"ranks", "collectives", "composition", "planning", "frameworks"}
"""Chapters that end in something faster or more general than their plain algorithm. Meshes have theirs in `mesh.py`,
and the engines of frameworks are other people's."""


def docstrings() -> dict[str, str]:
    paths = sorted((ROOT / "reference").rglob("*.py"))
    found = {
        str(path.relative_to(ROOT)): ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in paths
    }
    return {path: text for path, text in found.items() if text}


def test_an_engine_says_what_it_adds_to_the_plain_algorithm() -> None:
    """In its second paragraph: "This is `plain.step` with: ..."."""
    engines = [
        path for path, text in docstrings().items() if re.match(r".*is `plain\.", (text + "\n\n").split("\n\n")[1])
    ]
    assert {path.split("/")[1] for path in engines} == WITH_ENGINES


def test_what_is_called_plain_is_there() -> None:
    for path, text in docstrings().items():
        for name in re.findall(r"`plain\.(\w+)`", text):
            plain = ROOT / "reference" / path.split("/")[1] / "plain.py"
            assert name == "py" or re.search(rf"^def {name}\b", plain.read_text(encoding="utf-8"), re.MULTILINE), (
                path,
                name,
            )


def code_lines(path: Path) -> int:
    """Lines that are no docstring, no import, no comment and not empty."""
    text = path.read_text(encoding="utf-8")
    tree, skipped = ast.parse(text), set()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(getattr(node, "value", None), ast.Constant)
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped.update(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(number not in skipped and bool(line.strip()) and line.lstrip()[0] != "#" for number, line in lines)


@pytest.mark.parametrize("chapter", [chapter for chapter in CHAPTERS if chapter != "collectives"])
def test_the_plain_algorithm_of_a_chapter_is_a_page(chapter: str) -> None:
    assert code_lines(ROOT / "reference" / chapter / "plain.py") <= CODE
