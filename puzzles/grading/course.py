"""A learner's copy of the course: where its files are, and what is written there."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reference.errors import BadInput

from . import text
from .files import write_whole
from .puzzle import Puzzle
from .state import State


@dataclass(frozen=True)
class Course:
    """A directory with `puzzles/<chapter>/<puzzle>.py` for the learner's texts and `.rankwise/` for the rest."""

    root: Path

    @cached_property
    def state(self) -> State:
        """Attempts, hints, predictions."""
        return State(self.root / ".rankwise" / "state.db")

    def file(self, puzzle: Puzzle) -> Path:
        """The learner's file of a puzzle."""
        chapter, _, name = puzzle.name.partition(".")
        return self.root / "puzzles" / chapter / f"{name}.py"

    def read(self, puzzle: Puzzle) -> str:
        """The learner's text; the stub where the file is missing. Raises BadInput where it is no text."""
        try:
            return self.file(puzzle).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            return text.stub(puzzle)
        except (UnicodeDecodeError, OSError) as error:
            raise unreadable(self.file(puzzle), error) from None

    def write(self, puzzle: Puzzle, source: str, why: str) -> None:
        """Replace the learner's text, after what was there has been kept in the history.

        Raises BadInput, with everything as before, where what is there is no text, or can't be kept or replaced.
        """
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
    """The course that this package belongs to. Raises BadInput where it is not in a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").exists():
        raise BadInput(f"{root} is not a copy of the course: clone it and install it there, with `make setup`")
    return Course(root)


def at(root: Path) -> Course:
    """The copy of the course in a folder. Raises BadInput where there is none."""
    if not os.path.isdir(root / "puzzles"):
        raise BadInput(f"{root} is not a copy of the course: it has no folder `puzzles`")
    return Course(root.resolve())


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> BadInput:
    """The line for a solution's file that is no text."""
    why = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
    return BadInput(f"{path} can't be read: {why}; a solution is a file of UTF-8 text")
