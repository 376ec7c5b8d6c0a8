"""A class of learners in a folder."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text

QUICK = ("networks.ring_time", "networks.alpha_beta")  # formulas: the quickest to check


def right(name: str) -> str:
    """The solution of a puzzle."""
    return text.solution(catalog.find(name))


def wrong(name: str, index: int = 0) -> str:
    """One of its wrong solutions."""
    puzzle = catalog.find(name)
    return text.wrong(puzzle, puzzle.wrong[index])


Put = Callable[[str, str | bytes], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a class hands in."""
    (tmp_path / "class").mkdir()
    return tmp_path / "class"


@pytest.fixture
def put(folder: Path) -> Put:
    """`put("alice/puzzles/ranks/pair.py", source)`; what is `.zip` before a colon is a member of that zip file."""

    def write(place: str, source: str | bytes) -> Path:
        archive, colon, member = place.partition(":")
        path = folder / archive
        path.parent.mkdir(parents=True, exist_ok=True)
        if colon:
            with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
                file.writestr(member, source)
        elif isinstance(source, bytes):
            path.write_bytes(source)
        else:
            path.write_text(source)
        return path

    return write
