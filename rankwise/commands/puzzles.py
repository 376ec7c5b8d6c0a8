"""`rankwise puzzles | check | watch | hint | reset | history | solution`: the course at a command line."""

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from puzzles.grading.course import Course
    from puzzles.grading.verdict import Verdict

FACE = "rankwise"
PASSED, FAILED, UNCHECKED = 0, 1, 2
_BESIDE_A_NAME = 32  # columns for mark, title and attempts

Name = Annotated[str, Argument(help="A puzzle, such as ranks.ring_shift or just ring_shift.", show_default=False)]
Root = Annotated[Path | None, Option("--course", help="Another copy of the course.", show_default=False)]


def puzzles(
    chapter: Annotated[str | None, Argument(help="Only this chapter.", show_default=False)] = None,
    course: Root = None,
) -> None:
    """List the puzzles, and how far you are."""
    from rich.console import Console
    from rich.table import Table

    from puzzles import catalog

    home = _course(course)
    names = catalog.select(chapter) if chapter else catalog.names()
    history = home.state.history()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("", "puzzle", "", "attempts"):
        table.add_column(head, no_wrap=head == "puzzle")
    for name in names:
        puzzle = catalog.find(name)
        attempts = [attempt for attempt in history if attempt.puzzle == name and attempt.stage]
        passed = any(attempt.passed for attempt in attempts)
        mark = "[green]✓[/]" if passed else "[red]✗[/]" if attempts else "[dim]·[/]"
        table.add_row(mark, name, puzzle.title, str(len(attempts) or ""))
    console = Console()
    console.width = max(console.width, max(map(len, names)) + _BESIDE_A_NAME)  # a name that is cut can't be typed
    console.print(table)
    done = len({attempt.puzzle for attempt in history if attempt.passed} & set(names))
    console.print(f"\n{done} of {len(names)} passed")


def check(
    names: Annotated[
        list[str] | None, Argument(help="Puzzles or chapters; by default all that you have begun.", show_default=False)
    ] = None,
    file: Annotated[Path | None, Option(help="Check this file instead of your own.", show_default=False)] = None,
    picture: Annotated[Path | None, Option(help="Draw the run into this PNG.", show_default=False)] = None,
    json: Annotated[bool, Option("--json", help="One JSON object a line.")] = False,
    seed: Annotated[
        int | None, Option(help="Check with the values and sizes of an earlier verdict.", show_default=False)
    ] = None,
    course: Root = None,
) -> int:
    """Check solutions. The exit code is 0 where all of them pass, 1 where one fails, 2 where one can't be read."""
    from reference.errors import BadInput

    home = _course(course)
    _warm_up()
    chosen = _chosen(home, names)
    if (file or picture) and len(chosen) != 1:
        raise BadInput("--file and --picture go with the name of one puzzle")
    if not chosen:
        _remark("no puzzle has been begun: `rankwise puzzles` lists them, `rankwise hint <name>` helps to start")
        return FAILED
    codes = []
    for name in chosen:
        verdict = _checked(home, name, file, seed)
        codes.append(UNCHECKED if verdict is None else PASSED if verdict.passed else FAILED)
        if verdict:
            print(_as_json(verdict)) if json else show(verdict)
            if picture:
                _draw(verdict, picture)
    return max(codes)


def watch(
    names: Annotated[
        list[str] | None, Argument(help="Puzzles or chapters to look at; by default all.", show_default=False)
    ] = None,
    course: Root = None,
) -> None:
    """Check a puzzle each time its file is saved, until Ctrl-C."""
    import watchfiles

    from puzzles import catalog

    home = _course(course)
    _warm_up()
    chosen = [each for name in names or [] for each in catalog.select(name)] or list(catalog.names())
    files = {home.file(catalog.find(name)).resolve(): name for name in chosen}
    print(
        f"watching {len(files)} puzzle{'s' if len(files) > 1 else ''} under {home.root / 'puzzles'}; Ctrl-C ends",
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it, in the middle of a check as well
        for changes in watchfiles.watch(home.root / "puzzles", debounce=200, step=50):
            paths = {Path(name).resolve() for _, name in changes}
            for name in sorted(files[path] for path in paths & files.keys() if path.exists()):
                verdict = _checked(home, name)
                if verdict:
                    show(verdict)


def hint(name: Name, course: Root = None) -> None:
    """Show the next hint."""
    from puzzles.grading import checking

    print(checking.hint(name, course=_course(course)))


def reset(
    name: Name,
    to: Annotated[int | None, Option(help="An attempt's number, from `rankwise history`.", show_default=False)] = None,
    course: Root = None,
) -> None:
    """Put the stub back, or an earlier attempt. What was there stays in the history."""
    from puzzles.grading import checking

    print(checking.reset(name, course=_course(course), to=to))


def history(
    name: Annotated[str | None, Argument(help="Only this puzzle.", show_default=False)] = None,
    show: Annotated[int | None, Option(help="Print the text of this attempt.", show_default=False)] = None,
    course: Root = None,
) -> None:
    """List every attempt: when, what came of it, and its text with --show."""
    from puzzles import catalog
    from puzzles.grading.state import KEPT
    from reference.errors import BadInput

    home = _course(course)
    puzzle = catalog.canonical(name) if name else None
    if show is not None:
        found = home.state.attempt(show)
        if found is None or puzzle not in (None, found.puzzle):
            raise BadInput(f"there is no attempt {show}{f' of {puzzle}' if puzzle else ''}: see `rankwise history`")
        print(found.source, end="")
        return
    attempts = home.state.history(puzzle)
    if not attempts:
        print("no attempts yet")
    for attempt in attempts:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(attempt.began))
        outcome = attempt.stage or (f"kept: {attempt.face}" if attempt.face in KEPT else "the check did not finish")
        first = f": {attempt.reason.splitlines()[0]}" if attempt.reason else ""
        print(f"{attempt.id:4}  {when}  {attempt.puzzle}  {outcome}{first}")


def solution(
    name: Name,
    give_up: Annotated[bool, Option("--give-up", help="Show it although the puzzle is not passed.")] = False,
    course: Root = None,
) -> None:
    """Show the reference solution, once you have passed."""
    from puzzles.grading import checking

    print(checking.solution(name, course=_course(course), give_up=give_up), end="")


COMMANDS = (puzzles, check, watch, hint, reset, history, solution)


def show(verdict: "Verdict") -> None:
    """A verdict on the terminal, its first line in colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    first, _, rest = str(verdict).partition("\n")
    style = "bold green" if verdict.passed else "dim" if verdict.unsolved else "bold red"
    console.print(Text(first, style=style))
    if rest:
        console.print(Text(rest))


def _checked(home: "Course", name: str, file: Path | None = None, seed: int | None = None) -> "Verdict | None":
    """The verdict on a solution; None, and a line that says why, where it can't be read."""
    from puzzles.grading import checking
    from reference.errors import BadInput

    try:
        return checking.check(name, file, course=home, face=FACE, seed=seed)
    except BadInput as error:
        _remark(str(error))
        return None


def _remark(line: str) -> None:
    """What is no verdict goes to stderr: stdout may be read by a program."""
    print(f"rankwise: {line}", file=sys.stderr, flush=True)


def _as_json(verdict: "Verdict") -> str:
    import json

    rows = [
        {
            "measure": row.measure,
            "case": str(row.case),
            "target": row.target,
            "yours": row.yours,
            "optimum": row.optimum,
        }
        for row in verdict.table
    ]
    facts = {"name": verdict.name, "passed": verdict.passed, "stage": verdict.stage, "reason": verdict.reason}
    return json.dumps(
        facts
        | {"table": rows, "compared": verdict.compared, "seed": verdict.seed}
        | {"seconds": round(verdict.seconds, 4)}
    )


def _draw(verdict: "Verdict", path: Path) -> None:
    from puzzles.grading import card
    from reference.errors import BadInput

    picture = card.draw(verdict)
    if picture is None:
        _remark("nothing was said, so there is nothing to draw")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    except OSError as error:
        raise BadInput(f"the picture {path} can't be written: {error.strerror}") from None
    _remark(f"the run is drawn in {path}")


def _course(root: Path | None) -> "Course":
    from puzzles.grading.course import at, here

    return at(root) if root else here()


def _chosen(home: "Course", names: list[str] | None) -> list[str]:
    """The puzzles meant: those named, or all whose files are no longer the stub."""
    from puzzles import catalog

    if names:
        return list(dict.fromkeys(each for name in names for each in catalog.select(name)))
    return [name for name in catalog.names() if _begun(home, name)]


def _begun(home: "Course", name: str) -> bool:
    """True where a puzzle's file is no longer the stub, be it a text or not."""
    from puzzles import catalog
    from puzzles.grading import text
    from reference.errors import BadInput

    puzzle = catalog.find(name)
    try:
        return not text.untouched(puzzle, home.read(puzzle))
    except BadInput:
        return True


def _warm_up() -> None:
    """Let ranks come up while we import torch: those of the world sizes that most puzzles ask for."""
    from puzzles.grading.pool import USUAL, shared

    shared().prepare(USUAL)
