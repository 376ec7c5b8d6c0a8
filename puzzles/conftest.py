"""`pytest puzzles`: one test for each puzzle, of what the learner's own files hold."""

import contextlib
from pathlib import Path

import pytest

from puzzles.grading.course import Course, at, here
from reference.cluster.forkserver import shared


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own, and `--strict` where pytest (before 9) does not have it."""
    parser.addoption("--course", type=Path, default=None, help="another copy of the course")
    parser.addoption("--seed", type=int, default=None, help="check with the values and sizes of an earlier verdict")
    with contextlib.suppress(ValueError):
        parser.addoption("--strict", action="store_true", help="fail puzzles that are not solved yet")


def pytest_configure(config: pytest.Config) -> None:
    """Let the ranks' parent import torch while pytest collects."""
    shared()


@pytest.fixture
def strict(pytestconfig: pytest.Config) -> bool:
    """Whether a puzzle that is not solved yet is a failure. Since pytest 9, `--strict` sets an ini value."""
    with contextlib.suppress(ValueError):
        return bool(pytestconfig.getini("strict"))
    return bool(pytestconfig.getoption("strict"))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int | None:
    """The seed of each check; None for a new one."""
    return pytestconfig.getoption("seed")


@pytest.fixture
def course(pytestconfig: pytest.Config) -> Course:
    """The copy of the course whose files are checked."""
    root = pytestconfig.getoption("course")
    return at(root) if root else here()
