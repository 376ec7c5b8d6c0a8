"""`rankwise hint | reset | solution`: help with a puzzle."""

from typing import Annotated

from typer import Argument, Option

from rankwise.naming import MEANT, Root, attempt_of, course_of, own_puzzle

Name = Annotated[str, Argument(help=f"The puzzle: {MEANT}.", show_default=False)]


def hint(name: Name, course: Root = None) -> None:
    """Show the next hint for a puzzle: each time one more, from a nudge to nearly the answer."""
    from puzzles.grading import hints

    home = course_of(course)
    print(hints.hint(own_puzzle(name, home), course=home))


def reset(
    name: Name,
    to: Annotated[
        int | None,
        Option(
            metavar="NUMBER",
            help="Put back this attempt, by its number in `rankwise history NAME`, and not the empty puzzle.",
            show_default=False,
        ),
    ] = None,
    course: Root = None,
) -> None:
    """Begin a puzzle anew: its file is again as it came. What was there stays in the history."""

    home = course_of(course)
    puzzle = own_puzzle(name, home)
    if to is not None:
        attempt_of(home, puzzle, to)  # before torch is imported
    from puzzles.grading import checking

    print(checking.reset(puzzle, course=home, to=to))


def solution(
    name: Name,
    give_up: Annotated[bool, Option("--give-up", help="Show it although you have not passed.")] = False,
    course: Root = None,
) -> None:
    """Print the course's own solution of a puzzle, once you have passed it."""

    home = course_of(course)
    puzzle = own_puzzle(name, home)
    from puzzles.grading import checking

    print(checking.solution(puzzle, course=home, give_up=give_up), end="")


COMMANDS = (hint, reset, solution)
