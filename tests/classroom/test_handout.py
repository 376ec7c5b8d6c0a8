"""A handout checks its puzzles, and no file of it holds an answer."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text
from rankwise import cli
from rankwise.classroom import handout
from rankwise.classroom.assignment import load
from rankwise.classroom.stripped import LEFT_OUT
from reference.errors import BadInput

pytestmark = pytest.mark.long  # a handout is tried before it is given out

NAMES = ("ranks.ring_shift", "collectives.ring_all_reduce", "zero.own_a_slice")
"""One whose answer is its function, one with an answer of its own, and one whose checks use another puzzle's answer."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "week3"
    assert cli.run(["assignment", *NAMES, "--to", str(folder), "--title", "Week 3"]) == 0
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "rankwise", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def statements(source: str, entry: str) -> set[str]:
    """What the function of a solution does, statement by statement, without those that any program may have."""
    (function,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == entry)
    inner = [node for top in function.body for node in ast.walk(top) if isinstance(node, ast.stmt)]
    return {
        said for node in inner if len(said := ast.unparse(node)) > 50 and not said.startswith(('"', "'", "return "))
    }


def test_no_file_holds_a_statement_of_an_answer(made: Path) -> None:
    files = {path: path.read_text() for path in made.rglob("*.py")}
    whole = {path: ast.unparse(ast.parse(source)) for path, source in files.items()}
    looked_for = 0
    for puzzle in map(catalog.find, NAMES):
        for said in statements(text.solution(puzzle), puzzle.entry):
            if said in text.stub(puzzle) + "".join(puzzle.hints):
                continue
            looked_for += 1
            assert [str(path) for path, source in whole.items() if said in source] == []
    assert looked_for >= 4
    described = [files[made / "puzzles/catalog" / f"{name.replace('.', '/')}.py"] for name in NAMES]
    assert not [source for source in described if re.search(r"\b(wrong|answer|large)\s*=", source)]
    head = files[made / "reference/collectives/all_reduce.py"].partition("def ring(")[2]
    assert LEFT_OUT in head.partition("\n\n\n")[0]


def test_a_handout_checks_its_puzzles(made: Path) -> None:
    listed = run(made, "puzzles")
    assert "0 of 3 passed" in listed.stdout, listed.stderr
    file = made / "puzzles/ranks/ring_shift.py"
    assert file.read_text() == text.stub(catalog.find("ranks.ring_shift"))
    file.write_text(text.solution(catalog.find("ranks.ring_shift")))
    try:
        assert "✓ ranks.ring_shift: passed" in run(made, "check").stdout
        assert LEFT_OUT in run(made, "solution", "ranks.ring_shift").stdout
    finally:
        file.write_text(text.stub(catalog.find("ranks.ring_shift")))


def test_the_assignment_stays_with_the_instructor(made: Path) -> None:
    asked = load(made.with_name("week3.toml"))
    assert (asked.title, list(asked.points)) == ("Week 3", list(NAMES)) and asked.seed > 999_999
    assert not [path for path in made.rglob("*") if path.is_file() and str(asked.seed).encode() in path.read_bytes()]


@pytest.mark.parametrize("title", ["Week 3 🚀", 'a "b" \\ c\n'])
def test_a_title_may_be_any_text(tmp_path: Path, title: str) -> None:
    (tmp_path / "week3.toml").write_text(handout._assignment(NAMES, title), encoding="utf-8")
    assert load(tmp_path / "week3.toml").title == title


@pytest.mark.parametrize("folder", [".", "/"])
def test_a_folder_without_a_name_is_refused(folder: str) -> None:
    with pytest.raises(BadInput, match="is no name for a new folder"):
        handout.write(["ranks.pair"], Path(folder), "")


def test_git_hub_s_workflow_has_a_step_for_each_puzzle(made: Path) -> None:
    workflow = (made / ".github/workflows/classroom.yml").read_text()
    assert all(f"rankwise check {name}\n" in workflow for name in NAMES)
    assert "ZERO-OWN-A-SLICE_RESULTS: ${{steps.zero-own-a-slice.outputs.result}}" in workflow


def test_nothing_is_overwritten(made: Path) -> None:
    with pytest.raises(BadInput, match="is there already"):
        handout.write(["ranks.pair"], made, "")


def test_a_puzzle_that_gives_another_s_answer_away_is_not_in_the_same_handout(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gives its learners the answer of"):
        handout.write(["collectives.ring_all_gather", "collectives.hierarchical_all_reduce"], tmp_path / "a", "")
    assert list(tmp_path.iterdir()) == []
