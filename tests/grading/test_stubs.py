"""Writing the stubs that ship: an author's change reaches them, and no solution is lost."""

import shutil
import subprocess
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import stubs, text
from puzzles.grading.course import Course
from puzzles.grading.puzzle import Puzzle

PAIR, SHIFT = catalog.find("ranks.pair"), catalog.find("ranks.ring_shift")
OLDER = text.stub(SHIFT).replace("Returns:", "It returns:")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with all stubs, committed."""
    root = tmp_path_factory.mktemp("course")
    assert len(stubs.write(root)) == len(catalog.names())
    git(root, "init", "--quiet")
    return commit(root)


@pytest.fixture
def shipped(first: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(first, tmp_path / "course")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)


def commit(root: Path) -> Path:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")
    return root


def put(root: Path, puzzle: Puzzle, source: str) -> Path:
    path = Course(root).file(puzzle)
    path.write_text(source)
    return path


def test_an_older_stub_is_renewed(shipped: Path) -> None:
    path = put(shipped, SHIFT, OLDER)
    assert stubs.stale(shipped) == [path]
    assert stubs.write(commit(shipped)) == [path]
    assert path.read_text() == text.stub(SHIFT)
    assert not stubs.stale(shipped)


@pytest.mark.parametrize("committed", [False, True])
def test_a_solution_stays(shipped: Path, committed: bool) -> None:
    path = put(shipped, PAIR, text.solution(PAIR))
    if committed:
        commit(shipped)
    assert stubs.write(shipped) == []
    assert path.read_text() == text.solution(PAIR)


def test_what_is_not_committed_stays(shipped: Path) -> None:
    path = put(shipped, SHIFT, OLDER)
    assert path not in stubs.write(shipped)
