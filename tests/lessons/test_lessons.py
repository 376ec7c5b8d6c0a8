"""Lessons run with nothing solved and with everything solved, and are stored with the pictures that they speak of.

What is tested are the notebooks as they were committed: a learner's answers in them change nothing here.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.state import State
from tests.lessons.course import LESSONS, ROOT, committed, copy_course, run
from tests.lessons.store import FOLDED, VIEW, answers

MOST_LINES = 15  # of a cell that is not a puzzle; what is longer lives in a module
MOST_COLUMNS = 100  # of a line of code: a notebook beside a file list has no more
SECTIONS = ("## In the frameworks", "## Further reading", "**Next:**")


def code_cells(lesson: str) -> list[dict]:
    """The code cells, each with its text as `source`."""
    cells = json.loads(committed(lesson))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]


def puzzle_of(cell: dict) -> str:
    """The puzzle that a cell sets; "" for other cells."""
    first = cell["source"].partition("\n")[0]
    return first.removeprefix("%%puzzle ").strip() if first.startswith("%%puzzle ") else ""


class Courses:
    """A course in which nothing is solved, and one in which everything is. Their lessons run side by side."""

    def __init__(self, root: Path, asked: list[tuple[bool, str]]) -> None:
        self.roots = {solved: copy_course(root / f"solved_{solved}", solved) for solved in (False, True)}
        self.lines = {solved: ThreadPoolExecutor(1) for solved in self.roots}  # one lesson of a course at a time
        self.runs = {(solved, name): self.lines[solved].submit(run, self.roots[solved], name) for solved, name in asked}

    def after(self, solved: bool, lesson: str) -> Path:
        """Where a course lies, once a lesson of it has run. Raises AssertionError where a cell of it failed."""
        self.runs[solved, lesson].result()
        return self.roots[solved]

    def close(self) -> None:
        for line in self.lines.values():
            line.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def courses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Courses]:
    """Two courses, in which those lessons run that this session's tests ask for."""
    tests = {"test_a_lesson_runs_with_nothing_solved": False, "test_a_lesson_runs_with_everything_solved": True}
    items = [item for item in request.session.items if getattr(item, "originalname", "") in tests]
    asked = [(tests[item.originalname], item.callspec.params["lesson"]) for item in items]
    both = Courses(tmp_path_factory.mktemp("courses"), asked)
    yield both
    both.close()


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_with_nothing_solved(lesson: str, courses: Courses) -> None:
    root = courses.after(False, lesson)
    for puzzle in map(catalog.find, filter(None, map(puzzle_of, code_cells(lesson)))):
        file = root / "puzzles" / puzzle.chapter / f"{puzzle.name.partition('.')[2]}.py"
        assert file.read_text() == text.stub(puzzle), "a cell with the stub replaces nothing"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_runs_with_everything_solved(lesson: str, courses: Courses) -> None:
    state = State(courses.after(True, lesson) / ".rankwise" / "state.db")
    puzzles = list(filter(None, map(puzzle_of, code_cells(lesson))))
    assert puzzles
    assert [name for name in puzzles if not state.passed(name)] == []


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
