"""What every face of the course does: check, reset, solution. Cell, pytest and command line end up here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reference.errors import BadInput

from .. import catalog
from . import engine, text
from .course import Course, here, unreadable
from .my_solution import Text
from .puzzle import Puzzle
from .verdict import Verdict


def check(
    name: str,
    solution: str | Path | Callable | None = None,
    *,
    course: Course | None = None,
    face: str = "python",
    seed: int | None = None,
) -> Verdict:
    """Grade a solution, and keep the attempt with its verdict. Where it can't be kept, the verdict's reason says so.

    Of a course that is `visited` nothing is kept: its files are read, and that is all.

    Args:
        name: of the puzzle: "ranks.ring_shift", or "ring_shift" where that is clear.
        solution: its text, the path of a file, or a function; the learner's file by default.
        course: where files and history are; the course that this package belongs to by default.
        face: the one that asks, for the history.
        seed: of values and of some sizes, as an earlier verdict names it; by default a new one.

    Raises BadInput: there is no such puzzle, or no such file, or the solution is none of these.
    """
    course = course or here()
    puzzle = catalog.find(name)
    source, filename = read(puzzle, solution, course)
    if course.visited or text.untouched(puzzle, source):
        return engine.grade(puzzle, source, filename=filename, seed=seed)  # the stub is not an attempt
    return _attempt(puzzle, source, Text(source, filename, puzzle.entry), course, face, seed)


def _attempt(puzzle: Puzzle, source: str, shown: Text, course: Course, face: str, seed: int | None = None) -> Verdict:
    """Grade a text by the lines and the file name that its reader sees, and keep the attempt."""
    try:
        attempt = course.state.begin(puzzle.name, source, face)
    except BadInput as error:
        return _not_kept(engine.grade(puzzle, shown.source, filename=shown.filename, seed=seed), error)
    verdict = engine.grade(puzzle, shown.source, filename=shown.filename, seed=seed)
    try:
        course.state.finish(attempt, verdict.stage, verdict.reason, verdict.seconds)
    except BadInput as error:
        return _not_kept(verdict, error)
    return verdict


def _not_kept(verdict: Verdict, error: BadInput) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason}\nnot kept: {error}")


def read(puzzle: Puzzle, solution: str | Path | Callable | None, course: Course) -> tuple[str, str]:
    """A solution's text, and the file name that its lines go by. Raises BadInput."""
    if solution is None:
        return course.read(puzzle), str(course.file(puzzle))
    if isinstance(solution, Text):
        return solution.source, solution.filename
    if callable(solution):
        try:
            return text.standalone(solution), f"{puzzle.entry}.py"
        except ValueError as error:
            raise BadInput(str(error)) from None
    if not isinstance(solution, str | Path):
        raise BadInput(f"{solution!r} is no solution: give its text, the path of its file, or a function")
    looks_like_a_path = "\n" not in str(solution) and str(solution).endswith(".py")
    if not isinstance(solution, Path) and not looks_like_a_path:
        return solution, f"{puzzle.entry}.py"
    try:
        return Path(solution).read_text(encoding="utf-8-sig"), str(Path(solution).resolve())
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(Path(solution), error) from None


def save_and_check(
    name: str, cell: str, *, course: Course | None = None, face: str = "notebook"
) -> tuple[Verdict, str]:
    """Save a notebook's cell as the puzzle's file and check that.

    An untouched stub replaces nothing: then the file is checked as it is. Else the verdict counts lines as
    the cell does, whose first one is the magic.

    Returns: the verdict, and a line that says what happened to the file ("" where nothing is to be said).
    """
    course = course or here()
    puzzle = catalog.find(name)
    cell = cell if cell.endswith("\n") else cell + "\n"
    shown = Text(text.as_numbered_in_cell(puzzle, cell), "cell", puzzle.entry)
    if not text.untouched(puzzle, cell):
        written = text.with_imports(puzzle, cell)
        course.write(puzzle, written, "replaced")
        return _attempt(puzzle, written, shown, course, face), ""
    if text.untouched(puzzle, course.read(puzzle)):
        return engine.grade(puzzle, shown.source, filename=shown.filename), ""  # the stub is not an attempt
    note = f"the cell holds the stub, so your solution in {_shown(course, puzzle)} was checked and left as it is"
    return check(puzzle.name, course=course, face=face), note


def reset(name: str, *, course: Course | None = None, to: int | None = None) -> str:
    """Put the stub back into the puzzle's file, or the text of its attempt `to`; the present text is kept.

    Returns: a line that says what happened. Raises BadInput where there is no such attempt.
    """
    course = course or here()
    puzzle = catalog.find(name)
    source, what = text.stub(puzzle), "the stub"
    if to is not None:
        attempt = course.state.attempt(puzzle.name, to)
        if attempt is None:
            raise BadInput(f"{puzzle.name} has no attempt {to}: see `rankwise history {puzzle.name}`")
        source, what = attempt.source, f"attempt {to}"
    course.write(puzzle, source, "reset")
    return f"{_shown(course, puzzle)} holds {what} again; what was there is in `rankwise history {puzzle.name}`"


def solution(name: str, *, course: Course | None = None, give_up: bool = False) -> str:
    """The reference solution, once the puzzle has been passed. Raises BadInput before, unless one gives up."""
    course = course or here()
    puzzle = catalog.find(name)
    if not give_up and not course.state.passed(puzzle.name):
        raise BadInput(
            f"{puzzle.name} is not passed yet: solve it first, ask for a hint, or --give-up to see the solution"
        )
    return text.solution(puzzle)


def _shown(course: Course, puzzle: Puzzle) -> str:
    return str(course.file(puzzle).relative_to(course.root))
