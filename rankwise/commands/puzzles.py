"""`rankwise puzzles | history`: what there is to solve, and what has been tried."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from rankwise.naming import MEANT, Root, attempt_of, course_of, own, own_puzzle

if TYPE_CHECKING:
    from rich.text import Text

_LEAST_TITLE = 12  # columns: with less room than this, a title is left whole, and its line is longer than the terminal


def puzzles(
    chapter: Annotated[str | None, Argument(help="Only this chapter, such as ranks.", show_default=False)] = None,
    course: Root = None,
) -> None:
    """List the puzzles in their order: ✓ passed, ✗ tried, · not yet; and how many attempts you have made at each."""
    from rich.console import Console

    from puzzles import catalog

    home = course_of(course)
    names = own(chapter, home) if chapter else catalog.names()
    history = home.state.history()
    attempts = Counter(attempt.puzzle for attempt in history if attempt.stage)
    passed = {attempt.puzzle for attempt in history if attempt.passed}
    console = Console(highlight=False, soft_wrap=True)
    for line in _table(names, passed, attempts, console.width):
        console.print(line)
    console.print(f"\n{len(passed & set(names))} of {len(names)} passed")


def _table(names: Sequence[str], passed: Set[str], attempts: Mapping[str, int], width: int) -> Iterator["Text"]:
    """A head and one line for each puzzle. Titles are cut to `width`; names never are: what is shown can be typed."""
    from rich.text import Text

    from puzzles import catalog

    name_width, last = max(map(len, names)), len(" tries")
    room = width - len("✓ ") - name_width - len("  ") - last
    yield Text(f"  {'puzzle':{name_width}}  {'':{max(room, 0)}} tries", style="dim")
    for name in names:
        title = catalog.facts(name).title
        if _LEAST_TITLE <= room < len(title):
            title = title[: room - 1].rstrip() + "…"
        mark, style = ("✓", "green") if name in passed else ("✗", "red") if attempts[name] else ("·", "dim")
        line = f"{name:{name_width}}  {title:{max(room, 0)}}{attempts[name] or '':>{last}}"
        yield Text.assemble((mark, style), " ", line.rstrip())


def history(
    name: Annotated[
        str | None, Argument(help=f"Only this puzzle: {MEANT}. By default all.", show_default=False)
    ] = None,
    show: Annotated[
        int | None,
        Option(metavar="NUMBER", help="Print the text of the puzzle's attempt with this number.", show_default=False),
    ] = None,
    course: Root = None,
) -> None:
    """List every attempt, oldest first: when, which puzzle, its number there, and what came of it."""
    from puzzles.grading.state import KEPT
    from reference.errors import BadInput

    home = course_of(course)
    puzzle = own_puzzle(name, home) if name else None
    attempts = home.state.history(puzzle)
    if show is not None:
        tried = list(dict.fromkeys(attempt.puzzle for attempt in attempts))
        if puzzle is None and len(tried) > 1:
            raise BadInput(f"each puzzle's attempts have numbers of their own: `rankwise history NAME --show {show}`")
        print(attempt_of(home, puzzle or "".join(tried), show).source, end="")
        return
    if not attempts:
        print(f"no attempts{f' at {puzzle}' if puzzle else ''} yet")
    for attempt in attempts:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(attempt.began))
        outcome = attempt.stage or (f"kept: {attempt.face}" if attempt.face in KEPT else "the check did not finish")
        first = f": {attempt.reason.splitlines()[0]}" if attempt.reason else ""
        print(f"{when}  {attempt.puzzle} {attempt.number}  {outcome}{first}")


COMMANDS = (puzzles, history)
