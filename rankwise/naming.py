"""What a person types to mean a puzzle: its name, a chapter's, or the path of either. Nothing here imports torch."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from puzzles import catalog
from puzzles.grading.course import Course, at, here
from puzzles.grading.state import Attempt
from reference.errors import BadInput

_CLOSE = 0.75  # how alike two names are where one may be a slip of the other
MEANT = "ranks.ring_shift, just ring_shift, or the path of its file"
Root = Annotated[
    Path | None,
    Option(
        "--course",
        metavar="FOLDER",
        help="Use the puzzle files and the history of this copy of the course. `check` and `watch` only read it.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Meant:
    """A puzzle, and the file that holds its solution, where that is not the learner's own."""

    name: str
    file: Path | None = None


def meant(word: str, home: Course) -> list[Meant]:
    """The puzzles that a word means: one, or all of a chapter.

    Args:
        word: "ranks.pair", "pair", "ranks", or a path that ends as the puzzle's or the chapter's does, such as
            "puzzles/ranks/pair.py", seen from here or from the top of the course.
        home: whose files need not be told.

    Raises:
        BadInput: there is no such puzzle, or no such file.
    """
    if os.sep not in word and not word.endswith(".py"):
        return [Meant(name) for name in catalog.select(word)]
    path = _found(word, home)
    if path.is_dir() and path.name in catalog.CHAPTERS:
        own = path == (home.root / "puzzles" / path.name).resolve()
        names = catalog.select(path.name)
        files = {name: path / f"{name.partition('.')[2]}.py" for name in names}
        return [Meant(name, None if own else files[name]) for name in names if own or files[name].exists()]
    name = _name(path)
    if name not in catalog.names():
        raise BadInput(_no_puzzle(word, path))
    if not path.is_file() and path != home.file_of(name).resolve():
        raise BadInput(f"there is no file {word}: did you mean {name}?")
    return [Meant(name, None if path == home.file_of(name).resolve() else path)]


def own(word: str, home: Course) -> list[str]:
    """The names of the puzzles that a word means, for what is done to the learner's own files and history.

    Raises:
        BadInput: there is no such puzzle, or the path leads out of the course.
    """
    found = meant(word, home)
    if any(each.file for each in found):
        raise BadInput(f"{word} is not in {home.root}: say which puzzle it is by its name, {found[0].name}")
    return [each.name for each in found]


def own_puzzle(word: str, home: Course) -> str:
    """The name of the one puzzle that a word means, as `own`. Raises BadInput."""
    names = own(word, home)
    if len(names) > 1:
        raise BadInput(f"{word} is a chapter: say which of its puzzles, such as {names[0]}")
    return names[0]


def _found(word: str, home: Course) -> Path:
    """The path that a word means: from here, or else from the top of the course. Raises BadInput."""
    try:
        path = Path(word).expanduser()
    except RuntimeError:
        raise BadInput(f"there is no file {word}: {Path(word).parts[0]} is no user's home") from None
    return (path if path.exists() else home.root / path).resolve()


def _name(path: Path) -> str:
    return f"{path.parent.name}.{path.stem}"


def _no_puzzle(word: str, path: Path) -> str:
    """What is wrong with a path that is no puzzle's, and what would work."""
    by_end = {name.partition(".")[2]: name for name in catalog.names()}
    close = difflib.get_close_matches(_name(path), catalog.names(), n=1, cutoff=_CLOSE)
    close = close or difflib.get_close_matches(path.stem, by_end, n=1, cutoff=_CLOSE)
    name = by_end.get(close[0], close[0]) if close else "NAME"
    if path.is_file() and path.suffix == ".py":
        return f"{word} is not named like a puzzle's file: `rankwise check {name} --file {word}` checks it as {name}"
    instead = f"did you mean puzzles/{name.replace('.', '/')}.py?" if close else "`rankwise puzzles` lists the names"
    return f"there is no file {word}: {instead}" if not path.exists() else f"{word} is no puzzle's file: {instead}"


def course_of(root: Path | None) -> Course:
    """The copy of the course that is meant: the one around this package where none is named. Raises BadInput."""
    return at(root) if root else here()


def attempt_of(home: Course, puzzle: str, number: int) -> Attempt:
    """An attempt at a puzzle, by its number. Raises BadInput where there is none."""
    found = home.state.attempt(puzzle, number)
    if found is None:
        name = f" {puzzle}" if puzzle else ""
        raise BadInput(f"there is no attempt {number}{f' at{name}' if name else ''}: see `rankwise history{name}`")
    return found
