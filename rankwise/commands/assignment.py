"""`rankwise assignment`: a handout of chosen puzzles."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from rankwise.naming import MEANT


def assignment(
    names: Annotated[list[str], Argument(help=f"Puzzles ({MEANT}) and chapters.", show_default=False)],
    to: Annotated[Path, Option(metavar="FOLDER", help="Make this folder, which learners get.", show_default=False)],
    title: Annotated[
        str, Option(help="What the handout is called. By default as its folder.", show_default=False)
    ] = "",
) -> None:
    """Make a handout of puzzles: their stubs, and what checks them, without the course's answers.

    FOLDER.toml, beside it, stays with you: points to change, and the seed by which `rankwise grade` will draw values
    and sizes that no learner has seen.
    """
    from puzzles import catalog
    from rankwise.classroom import handout

    chosen = list(dict.fromkeys(each for name in names for each in catalog.select(name)))
    file = handout.write(chosen, to, title or to.name)
    print(f"{to} is for learners: {len(chosen)} puzzle{'s' * (len(chosen) > 1)}")
    print(f"{file} is for you: `rankwise grade SUBMISSIONS --assignment {file}`")


COMMANDS = (assignment,)
