"""A learner's functions, to run on ranks: a text is loaded there as a check loads it, the course out of reach."""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from reference.errors import BadInput

from ..grading import driver


@dataclass(frozen=True)
class Own:
    """The function of a text. It travels to ranks as such, and is compiled where it is called.

    Attributes:
        puzzle: whose solution it is.
        source, filename: the text, and the name that its lines go by.
        entry: the function in it.
        given: by module of the course, the names that the text may import from it.
    """

    puzzle: str
    source: str
    filename: str
    entry: str
    given: tuple[tuple[str, tuple[str, ...]], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _compiled(self)(*args, **kwargs)


@functools.lru_cache(maxsize=256)
def _compiled(own: Own) -> Callable[..., Any]:
    module = ModuleType("solution")
    module.__file__ = own.filename
    for home, _ in own.given:
        importlib.import_module(home)  # before it is out of reach
    with driver.concealed(dict(own.given)):
        exec(compile(driver.program(own.source), own.filename, "exec"), module.__dict__)
    return getattr(module, own.entry)


def own(name: str, source: str, filename: str = "") -> Own:
    """The function of a text that solves the puzzle `name`."""
    from .. import catalog
    from ..grading import text

    puzzle = catalog.find(name)
    given = tuple(text.given(replace(puzzle, drawn=())).items())
    return Own(puzzle.name, source, filename or f"{name.partition('.')[2]}.py", puzzle.entry, given)


def of_answers(names: tuple[str, ...]) -> dict[str, Own]:
    """The course's own solutions of these puzzles, as if a learner had written them."""
    from .. import catalog
    from ..grading import text

    return {name: own(name, text.solution(catalog.find(name))) for name in names}


@dataclass(frozen=True)
class Found:
    """What a learner has: functions by puzzle, and why others that were begun have no seat."""

    functions: Mapping[str, Own]
    refused: Mapping[str, str]


def of_history(course: Any, names: tuple[str, ...]) -> Found:
    """The last text of each puzzle that has passed."""
    passed: dict[str, Own] = {}
    for attempt in course.state.history():
        if attempt.passed and attempt.puzzle in names:
            passed[attempt.puzzle] = own(attempt.puzzle, attempt.source, str(course.file_of(attempt.puzzle)))
    return Found(passed, {})


def of_folder(folder: Any, names: tuple[str, ...]) -> Found:
    """The texts of a folder `puzzles` as they stand, solved or not: the controls will tell.

    A text that calls what its puzzle forbids has no seat.

    Raises:
        BadInput: for a folder without puzzles.
    """
    from .. import catalog
    from ..grading import style, text

    home = folder / "puzzles" if (folder / "puzzles").is_dir() else folder
    chapters = {name.partition(".")[0] for name in names}
    if not any((home / chapter).is_dir() for chapter in chapters):
        raise BadInput(f"{folder} holds no puzzles: give a folder with {', '.join(sorted(chapters)[:3])}, ... in it")
    functions, refused = {}, {}
    for name in names:
        puzzle, path = catalog.find(name), home.joinpath(*name.split(".")).with_suffix(".py")
        if not path.is_file():
            continue
        try:
            source = path.read_text(encoding="utf-8-sig")
            if text.untouched(puzzle, source):
                continue
            findings = style.inspect(puzzle, style.parse(puzzle, source))
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            refused[name] = f"it can't be read: {error}"
            continue
        if findings:
            refused[name] = str(findings[0])
        else:
            functions[name] = own(name, source, str(path))
    return Found(functions, refused)
