"""`rankwise init` and `rankwise update` without git: the newer course comes, and nothing of the learner's goes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from puzzles.grading import course as courses
from rankwise import made
from rankwise.cli import BAD_INPUT, run
from reference.errors import BadInput

STUB, SOLVED, NEWER = "def pair():\n    ...\n", "def pair():\n    return 1\n", "def pair():\n    pass\n"
PUZZLE, NOTEBOOK, CONFTEST = "puzzles/ranks/pair.py", "lessons/01_ranks.ipynb", "puzzles/conftest.py"


def notebook(*cells: str, printed: str = "") -> str:
    outputs = [{"output_type": "stream", "name": "stdout", "text": printed}]
    return json.dumps({"cells": [{"cell_type": "code", "source": cell, "outputs": outputs} for cell in cells]})


FIRST = {PUZZLE: STUB, NOTEBOOK: notebook("1 + 1"), CONFTEST: "old\n"}


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Calling it makes a package with these files."""
    return lambda files: monkeypatch.setattr(made, "shipped", lambda: files)


@pytest.fixture
def mine(tmp_path: Path, ship: Callable[..., None]) -> Path:
    """A learner's course, made by a package with the first files."""
    ship(FIRST)
    made.make(tmp_path / "my-course")
    return tmp_path / "my-course"


def held(root: Path) -> dict[str, str]:
    """All that is in a course."""
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_nothing_new(mine: Path) -> None:
    before = held(mine)
    assert made.renew(mine) == made.Renewal()
    assert held(mine) == before and before.keys() == {*FIRST, courses.MADE}


def test_what_nobody_edited_is_renewed_and_what_went_goes(ship: Callable[..., None], mine: Path) -> None:
    newer = {PUZZLE: NEWER, NOTEBOOK: notebook("1 + 2"), "puzzles/ranks/next.py": STUB}
    ship(newer)
    assert set(made.renew(mine).new) == {*newer, CONFTEST}
    assert held(mine).items() >= newer.items() and not (mine / CONFTEST).exists()
    assert made.renew(mine) == made.Renewal()


def test_a_solution_stays(ship: Callable[..., None], mine: Path) -> None:
    (mine / PUZZLE).write_text(SOLVED)
    for newer in (NEWER, STUB):
        ship(FIRST | {PUZZLE: newer})
        assert made.renew(mine).kept == (PUZZLE,)
        assert (mine / PUZZLE).read_text() == SOLVED


def test_an_edited_notebook_stays_until_the_course_changes_it(ship: Callable[..., None], mine: Path) -> None:
    edited, newer = notebook("1 + 1", "my own cell"), notebook("1 + 2")
    (mine / NOTEBOOK).write_text(edited)
    assert made.renew(mine).kept == (NOTEBOOK,)
    assert (mine / NOTEBOOK).read_text() == edited
    ship(FIRST | {NOTEBOOK: newer})
    ((path, beside),) = made.renew(mine).beside
    assert (path, (mine / NOTEBOOK).read_text(), (mine / beside).read_text()) == (NOTEBOOK, newer, edited)


def test_a_notebook_that_was_only_run_is_not_edited(ship: Callable[..., None], mine: Path) -> None:
    (mine / NOTEBOOK).write_text(notebook("1 + 1", printed="2"))
    assert made.renew(mine) == made.Renewal()
    assert "2" in json.loads((mine / NOTEBOOK).read_text())["cells"][0]["outputs"][0]["text"]
    ship(FIRST | {NOTEBOOK: notebook("1 + 2")})
    assert made.renew(mine) == made.Renewal(new=(NOTEBOOK,))


def test_a_deleted_file_begins_anew(mine: Path) -> None:
    (mine / PUZZLE).unlink()
    assert made.renew(mine).new == (PUZZLE,)
    assert (mine / PUZZLE).read_text() == STUB


def test_what_both_have_changed_and_is_not_the_learners_stops_all(ship: Callable[..., None], mine: Path) -> None:
    (mine / CONFTEST).write_text("mine\n")
    before = held(mine)
    ship({PUZZLE: NEWER, NOTEBOOK: notebook("1 + 2"), CONFTEST: "new\n"})
    with pytest.raises(BadInput, match=f"you have changed {CONFTEST}, and so has the course"):
        made.renew(mine)
    assert held(mine) == before


@pytest.mark.parametrize("writes", range(4))
def test_an_update_that_was_killed_is_done_by_the_next(
    writes: int, ship: Callable[..., None], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = notebook("my own cell")
    (mine / NOTEBOOK).write_text(edited)
    newer = {PUZZLE: NEWER, NOTEBOOK: notebook("1 + 2"), CONFTEST: "new\n"}
    ship(newer)
    left, write = [None] * writes, made.write_whole

    def killed(path: Path, content: str) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(made, "write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            made.renew(mine)
    made.renew(mine)
    assert held(mine).items() >= newer.items()
    assert [path.read_text() for path in (mine / "lessons" / "mine").iterdir()] == [edited]
    assert made.renew(mine) == made.Renewal()


def test_a_damaged_note_says_what_to_do(mine: Path) -> None:
    (mine / courses.MADE).write_text("{")
    with pytest.raises(BadInput, match=r"rankwise\.json is damaged: make a new course"):
        made.renew(mine)


@pytest.mark.parametrize("there", ["file", "folder"])
def test_a_folder_that_is_not_empty_is_refused(there: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    place = tmp_path / "my-course"
    (place if there == "file" else tmp_path / "my-course" / "notes").parent.mkdir(exist_ok=True)
    (place if there == "file" else place / "notes").write_text("mine")
    before = held(tmp_path)
    assert run(["init", str(place)]) == BAD_INPUT
    assert f"{place} is not an empty folder" in capsys.readouterr().err
    assert held(tmp_path) == before


def test_commands_mean_the_course_that_one_stands_in(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(mine / "lessons")
    assert courses.here().root == mine.resolve()
    assert not courses.at(mine).visited and courses.at(courses.house()).visited
    assert run(["update"]) == 0
    assert "this is the course of rankwise" in capsys.readouterr().out
    assert run(["update", "origin/main"]) == BAD_INPUT
    assert "has no branches" in capsys.readouterr().err


def test_a_new_course_has_each_lesson_and_each_puzzles_stub() -> None:
    files = made.shipped()
    house = courses.house()
    assert {path.relative_to(house).as_posix() for path in house.glob("lessons/[0-9]*.ipynb")} < files.keys()
    assert {courses.Course(Path()).file_of(name).as_posix() for name in made.catalog.names()} < files.keys()
    assert all(line in files["README.md"] for line in ("rankwise lab", "rankwise check ranks.pair", "rankwise update"))
