"""`rankwise capstone`: the course's training on a learner's own solutions, with a report card."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from rankwise.naming import Root, course_of

if TYPE_CHECKING:
    from puzzles.grading.course import Course

FAILED = 1


def capstone(
    puzzles: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Take the texts of this folder as they stand; by default those of your history that have passed.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Only this engine, such as data or tensor; may be said again.", show_default=False),
    ] = None,
    challenges: Annotated[
        bool, Option("--challenges", help="The open challenges and your table of records, instead of the card.")
    ] = False,
    json: Annotated[
        Path | None, Option(metavar="FILE", help="Write the card as JSON, too.", show_default=False)
    ] = None,
    course: Root = None,
) -> int:
    """Train a GPT and a mixture of experts on your own solutions: each takes its seat, the reference has the rest.

    The exit code is 0 where every control holds, 1 where one fails; then the card says whose code is to blame.
    """
    from puzzles.capstone import card, seats, texts, told
    from puzzles.capstone.engines import MACHINES
    from reference.errors import BadInput

    if unknown := [name for name in engine or () if name not in MACHINES]:
        raise BadInput(f"there is no engine {unknown[0]!r}: there are {', '.join(MACHINES)}")
    if challenges and (engine or json):
        raise BadInput(f"{'--engine' if engine else '--json'} is for the card: --challenges shows a table instead")
    home = course_of(course)
    found = texts.of_folder(puzzles, seats.KNOWN) if puzzles else texts.of_history(home, seats.KNOWN)
    if challenges:
        return _challenged(found.functions, home)
    engines = tuple(name for name in MACHINES if not engine or name in engine)
    made = card.card_of(found.functions, found.refused, engines=engines, say=_say)
    print("\n".join(told.lines(made)))
    if json:
        _write(json, made.as_json())
    return 0 if made.passed else FAILED


def _challenged(functions: dict, home: "Course") -> int:
    from puzzles.capstone import challenges, told

    before, found = challenges.records(home.root), challenges.all_of(functions, home.root, _say)
    table = challenges.entered_in(before, found) if home.visited else challenges.keep(home.root, found)
    print("\n".join(told.records(table, found)))
    return 0


def _say(line: str) -> None:
    """Where it is, on stderr: stdout holds the card alone."""
    print(f"rankwise: {line} ...", file=sys.stderr, flush=True)


def _write(path: Path, told: dict) -> None:
    import json

    from puzzles.grading.files import write_whole
    from reference.errors import BadInput

    try:
        write_whole(path, json.dumps(told, indent=1) + "\n")
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from None


COMMANDS = (capstone,)
