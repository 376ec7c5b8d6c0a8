"""The pages of the site: each lesson, chapter and puzzle has one, and each link between them leads to a page."""

import ast
import io
import re
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

from puzzles import catalog

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """What mkdocs would be given, by path."""
    found: dict[str, str] = {}

    @contextmanager
    def opened(path: str, mode: str):
        file = io.BytesIO() if "b" in mode else io.StringIO()
        yield file
        text = file.getvalue()
        found[path] = text.decode(errors="replace") if isinstance(text, bytes) else text

    stand_in = ModuleType("mkdocs_gen_files")
    stand_in.open = opened
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mkdocs_gen_files", stand_in)
        runpy.run_path(str(ROOT / "docs/site/generate.py"))
    return found


def test_each_lesson_and_chapter_has_a_page(pages: dict[str, str]) -> None:
    lessons = {f"lessons/{file.name}" for file in (ROOT / "lessons").glob("*.ipynb")}
    chapters = {f"reference/{file.parent.name}.md" for file in (ROOT / "reference").glob("*/__init__.py")}
    puzzles = {f"puzzles/{file.name}.md" for file in (ROOT / "puzzles/catalog").iterdir() if file.name[0] not in "_."}
    assert lessons | chapters | {p for p in puzzles if not p.endswith(".py.md")} <= set(pages)
    named = set(re.findall(r"\]\((.*?)\)", pages["SUMMARY.md"]))
    assert lessons | chapters <= named <= set(pages)


def test_each_link_leads_to_a_page(pages: dict[str, str]) -> None:
    for path, text in pages.items():
        if not path.endswith(".md") or path == "SUMMARY.md":
            continue
        prose = re.sub(r"```.*?```|`[^`\n]*`|^::: .*$", "", text, flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose):
            if "://" not in target:
                parts: list[str] = []
                for part in (PurePosixPath(path).parent / target).parts:
                    parts = parts[:-1] if part == ".." else [*parts, part]
                assert "/".join(parts) in pages, (path, target)


def links_by_reference(docstring: str) -> list[str]:
    """What Markdown takes for a link with its target elsewhere: two pairs of brackets, outside of code."""
    prose = "\n".join(line for line in docstring.split("\n") if not line.startswith("    "))
    return re.findall(r"\[[^\]\n]+\]\[[^\]\n]+\]", re.sub(r"`[^`\n]*`", "", prose))


def test_no_docstring_has_two_pairs_of_brackets_that_are_no_link() -> None:
    nodes = (
        (path, node)
        for path in sorted((ROOT / "reference").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    )
    found = [(str(path), link) for path, node in nodes for link in links_by_reference(ast.get_docstring(node) or "")]
    assert not found


def test_such_brackets_are_seen() -> None:
    assert links_by_reference("What x[receiver][sender] is.") == ["[receiver][sender]"]
    assert not links_by_reference("What `x[receiver][sender]` is, [B, S] and [D].\n\n    x[0][1]")


def test_a_puzzle_is_told_without_its_answer(pages: dict[str, str]) -> None:
    """A puzzle is a stub; one that is to be mended has a fault."""
    page = pages["puzzles/collectives.md"]
    for cell in page.split("%%puzzle ")[1:]:
        name = cell.split()[0]
        assert catalog.find(name).is_to_mend or 'raise NotImplementedError("not solved yet")' in cell, name
