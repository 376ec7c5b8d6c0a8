"""`rankwise init`: a course of one's own, without a clone."""

from pathlib import Path
from typing import Annotated

from typer import Argument


def init(
    folder: Annotated[
        Path,
        Argument(help="Where the course is to be: a new or an empty folder, such as my-course.", show_default=False),
    ],
) -> None:
    """Write the lessons and the puzzles to solve into a new folder. A clone of the course has them already."""
    from rankwise import made

    count = made.make(folder)
    print(f"{folder} is yours: {count} files, of lessons and of puzzles to solve")
    print(f"type `cd {folder}`, then `rankwise lab`; README.md there says the rest")


COMMANDS = (init,)
