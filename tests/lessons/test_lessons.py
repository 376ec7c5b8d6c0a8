"""Lessons run with nothing solved and with everything solved, and are stored with the pictures that they speak of.

What is tested are the notebooks as they were committed: a learner's answers in them change nothing here.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.state import State
from tests.lessons.answered import needed
from tests.lessons.course import LESSONS, ROOT, committed, copy_course, executed, keep_needed
from tests.lessons.store import FOLDED, VIEW, answers

MOST_LINES = 15  # of a cell that is not a puzzle; what is longer lives in a module
MOST_COLUMNS = 100  # of a line of code: a notebook beside a file list has no more
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # a second one computes no faster beside other tests, and waits at full speed
WITHOUT_PUZZLES = "20_capstone.ipynb"  # of its own: those of all others take their seats there
SECTIONS = ("## In the frameworks", "## Further reading", "**Next:**")


def code_cells(lesson: str) -> list[dict]:
    """The code cells, each with its text as `source`."""
    cells = json.loads(committed(lesson))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]


def puzzle_of(cell: dict) -> str:
    """The puzzle that a cell sets; "" for other cells."""
    first = cell["source"].partition("\n")[0]
    return first.removeprefix("%%puzzle ").strip() if first.startswith("%%puzzle ") else ""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Where a course lies in which nothing is solved, or everything is."""

    @cache
    def of(solved: bool) -> Path:
        return copy_course(tmp_path_factory.mktemp("course") / "course", solved)

    return of


def test_what_a_cell_prints_is_stored_as_one_text_however_long_it_takes(tmp_path: Path) -> None:
    import nbformat  # takes longer than torch

    cell = nbformat.v4.new_code_cell("import time\nprint(1, flush=True)\ntime.sleep(0.3)\nprint(2, flush=True)")
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "slow.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])))
    assert [output.text for output in executed(tmp_path, "slow.ipynb").cells[0].outputs] == ["1\n2\n"]


@pytest.mark.long
@pytest.mark.turns(19)
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_with_nothing_solved(lesson: str, course: Callable[[bool], Path]) -> None:
    root = course(False)
    executed(root, lesson, **ONE_THREAD)
    for puzzle in map(catalog.find, filter(None, map(puzzle_of, code_cells(lesson)))):
        file = root / "puzzles" / puzzle.chapter / f"{puzzle.name.partition('.')[2]}.py"
        assert file.read_text() == text.stub(puzzle), "a cell with the stub replaces nothing"


@pytest.mark.long
@pytest.mark.turns(19)
@pytest.mark.parametrize("lesson", [*LESSONS[5:], *LESSONS[:5]])  # five days apart from the turn above
def test_a_lesson_runs_with_everything_solved(lesson: str, course: Callable[[bool], Path]) -> None:
    """Every cell that can tell: a puzzle, what asks for an answer, and what these need. The others run as above."""
    root = course(True)
    keep_needed(root, lesson)
    executed(root, lesson, **ONE_THREAD)
    state = State(root / ".rankwise" / "state.db")
    puzzles = list(filter(None, map(puzzle_of, code_cells(lesson))))
    assert puzzles or lesson == WITHOUT_PUZZLES
    assert [name for name in puzzles if not state.passed(name)] == []


def test_what_an_answer_needs_is_found() -> None:
    cells = [
        "%load_ext rankwise.notebook\nimport torch",
        "x = torch.ones(3)",
        "show(x)",
        "%%puzzle ranks.pair\ndef pair(): ...",
        "def shown(y):\n    return x + y",
        "z, w = 1, 2\nprint(z)",
        "shown(yours('ranks.pair')())",
        "print(x)",
    ]
    assert needed(cells) == [True, True, False, True, True, False, True, False]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_stored_as_it_ran(lesson: str) -> None:
    cells = code_cells(lesson)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "from top to bottom, once"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3, "it is read with its pictures"
    assert str(ROOT) not in committed(lesson), "a path of the machine on which it was written"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_opens_without_the_answers(lesson: str) -> None:
    """From each `predict` to the text after its `reveal` outputs are folded, and nothing else is."""
    cells = json.loads(committed(lesson))["cells"]
    shown, questions = [], {}
    for place, cell in enumerate(cells):
        source = "".join(cell["source"])
        folded = cell["metadata"].get("jupyter", {}).get("outputs_hidden", False)
        if "outputs" in cell and cell["outputs"] and not folded:
            shown.append(place)
        for said, question in re.findall(r'^(?:.*= )?(predict|reveal)\("([^"]*)"', source, re.MULTILINE):
            if said == "predict":
                questions[question] = place
            else:
                seen = [at for at in shown if questions[question] < at <= place]
                assert [at for at in seen if "predict(" not in "".join(cells[at]["source"])] == [], question
    folded = {place for place in range(len(cells)) if "jupyter" in cells[place]["metadata"]}
    assert folded == {place for place in answers(cells) if cells[place].get("outputs")}
    assert {"".join(cells[place]["outputs"][0]["data"]["text/plain"]) for place in folded} == {FOLDED}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_shows_each_question_and_what_came_of_it(lesson: str) -> None:
    for cell in code_cells(lesson):
        shown = ["".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"]]
        for question in re.findall(r'\b(?:predict|reveal)\("([^"]*)"', cell["source"]):
            assert [text for text in shown if text.startswith(question)], question


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_s_pictures_need_no_kernel_and_can_be_read_aloud(lesson: str) -> None:
    outputs = [output for cell in code_cells(lesson) for output in cell["outputs"]]
    assert not [output for output in outputs if VIEW in output.get("data", {})], "its model is gone"
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert [output for output in pictures if not output["metadata"]["image/png"].get("alt")] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_no_line_of_code_is_wider_than_the_notebook(lesson: str) -> None:
    lines = [line for cell in code_cells(lesson) for line in cell["source"].splitlines()]
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_holds_prose_and_calls(lesson: str) -> None:
    prose = "".join("".join(cell["source"]) for cell in json.loads(committed(lesson))["cells"] if "outputs" not in cell)
    assert [section for section in SECTIONS if section not in prose] == []
    for cell in code_cells(lesson):
        assert puzzle_of(cell) or len(cell["source"].splitlines()) <= MOST_LINES, cell["source"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_sets_its_puzzles_as_they_ship(lesson: str) -> None:
    chapter = lesson.removesuffix(".ipynb").partition("_")[2]
    cells = {name: cell["source"].strip() for cell in code_cells(lesson) if (name := puzzle_of(cell))}
    assert cells == {name: text.cell(catalog.find(name)).strip() for name in cells}
    assert sorted(cells) == sorted(name for name in catalog.names() if name.startswith(f"{chapter}."))
