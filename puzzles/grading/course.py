"""A learner's copy of the course: where its files are, and what is written there.

A list, a hint and a history need no torch, so what does is imported where it is used.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from reference.errors import BadInput

from .files import write_whole
from .state import State

if TYPE_CHECKING:
    from .puzzle import Puzzle

MADE = "rankwise.json"  # what `rankwise init` leaves on top of a course that it makes


@dataclass(frozen=True)
class Course:
    """A directory with `puzzles/<chapter>/<puzzle>.py` for the learner's texts and `.rankwise/` for the rest.

    Attributes:
        root: the directory.
        visited: another learner's, to be graded and looked at: checks and lists leave it as it is.
    """

    root: Path
    visited: bool = False

    @cached_property
    def state(self) -> State:
        """Attempts, hints, predictions."""
        return State(self.root / ".rankwise" / "state.db", visited=self.visited)

    def file(self, puzzle: "Puzzle") -> Path:
        """The learner's file of a puzzle."""
        return self.file_of(puzzle.name)

    def file_of(self, name: str) -> Path:
        """The learner's file of the puzzle with this whole name."""
        chapter, _, puzzle = name.partition(".")
        return self.root / "puzzles" / chapter / f"{puzzle}.py"

    def read(self, puzzle: "Puzzle") -> str:
        """The learner's text; the stub where the file is missing. Raises BadInput where it is no text."""
        from . import text

        try:
            return self.file(puzzle).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            return text.stub(puzzle)
        except (UnicodeDecodeError, OSError) as error:
            raise unreadable(self.file(puzzle), error) from None

    def write(self, puzzle: "Puzzle", source: str, why: str) -> None:
        """Replace the learner's text, after what was there has been kept in the history.

        Raises BadInput, with everything as before, where what is there is no text, or can't be kept or replaced.
        """
        from . import text

        path, before = self.file(puzzle), self.read(puzzle)
        if before == source and path.exists():
            return
        if not text.untouched(puzzle, before):
            self.state.keep(puzzle.name, before, why)
        try:
            write_whole(path, source)
        except OSError as error:
            raise BadInput(f"{path} can't be written: {error.strerror or error}; it is as it was") from None


def here() -> Course:
    """The course that one stands in, made by `rankwise init`; else the checkout that this package belongs to.

    Raises BadInput where there is neither.
    """
    root = _own()
    if not any((root / name).exists() for name in (MADE, "pyproject.toml")):
        raise BadInput(
            f"{root} is not a copy of the course: `rankwise init my-course` makes one, then `cd my-course`; "
            f"or clone the course and install it there, with `make setup`"
        )
    return Course(root)


def at(root: Path) -> Course:
    """The copy of the course in a folder; where it is not the one of `here`, it is `visited`.

    Raises BadInput where there is none.
    """
    if not os.path.isdir(root / "puzzles"):
        raise BadInput(f"{root} is not a copy of the course: it has no folder `puzzles`")
    return Course(root.resolve(), visited=root.resolve() != _own())


def house() -> Path:
    """The folder that holds this package and its sisters."""
    return Path(__file__).resolve().parents[2]


def _own() -> Path:
    """The nearest folder above that `rankwise init` has made; else the one that holds this package."""
    try:
        below = Path.cwd()
    except FileNotFoundError:  # deleted since
        return house()
    return next((folder for folder in (below, *below.parents) if (folder / MADE).is_file()), house())


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> BadInput:
    """The line for a solution's file that is no text."""
    why = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
    return BadInput(f"{path} can't be read: {why}; a solution is a file of UTF-8 text")
