"""`rankwise check | watch`: verdicts on what a learner has written."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from rankwise.naming import MEANT, Meant, Root, course_of, meant, own

if TYPE_CHECKING:
    from puzzles.grading.course import Course
    from puzzles.grading.verdict import Verdict

FACE = "rankwise"
PASSED, FAILED, UNCHECKED = 0, 1, 2


def check(
    names: Annotated[
        list[str] | None,
        Argument(
            help=f"Puzzles ({MEANT}) and chapters. By default every puzzle whose file you have changed.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        Option(metavar="FILE", help="Check this file as the one puzzle that you name.", show_default=False),
    ] = None,
    picture: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw what the ranks of the one puzzle did into this PNG.", show_default=False),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print each verdict as one line of JSON, for programs.")] = False,
    seed: Annotated[
        int | None,
        Option(help="Check with the values and sizes of the verdict that names this seed.", show_default=False),
    ] = None,
    course: Root = None,
) -> int:
    """Grade solutions on processes of this machine, and keep each attempt in your history.

    The exit code is 0 where all of them pass, 1 where one fails, 2 where one can't be read.
    """
    from reference.errors import BadInput, require_other_file

    home = course_of(course)
    chosen = list(dict.fromkeys(each for name in names or [] for each in meant(name, home)))
    if file and not file.exists():
        raise BadInput(f"there is no file {file}")
    if names:
        _require_one(chosen, file, picture)
    _warm_up()
    if not names:
        chosen = _begun(home)
        _require_one(chosen, file, picture)
    if not chosen:
        _remark("no puzzle has been begun: `rankwise puzzles` lists them, `rankwise hint NAME` helps to start")
        return FAILED
    codes = []
    for each in chosen if file is None else [Meant(chosen[0].name, file)]:
        require_other_file("--picture", picture, each.file or home.file_of(each.name))
        verdict = _checked(home, each, seed)
        codes.append(UNCHECKED if verdict is None else PASSED if verdict.passed else FAILED)
        if verdict:
            print(_as_json(verdict)) if json else show(verdict)
            if picture:
                _draw(verdict, picture)
    return max(codes)


def _require_one(chosen: list[Meant], file: Path | None, picture: Path | None) -> None:
    """Raises BadInput where an option for one puzzle meets none or several, or one file meets another."""
    from reference.errors import BadInput

    if (file or picture) and len(chosen) != 1:
        raise BadInput("--file and --picture go with the name of one puzzle")
    if file and chosen[0].file:
        raise BadInput(f"{chosen[0].file} and --file {file} are two files: give one of them")


def watch(
    names: Annotated[
        list[str] | None,
        Argument(help=f"Puzzles ({MEANT}) and chapters to look at. By default all.", show_default=False),
    ] = None,
    course: Root = None,
) -> None:
    """Check a puzzle each time its file is saved, until Ctrl-C."""
    import watchfiles

    from puzzles import catalog

    home = course_of(course)
    chosen = dict.fromkeys(each for name in names for each in own(name, home)) if names else catalog.names()
    _warm_up()
    files = {home.file_of(name).resolve(): name for name in chosen}
    print(
        f"watching {len(files)} puzzle{'s' if len(files) > 1 else ''} under {home.root / 'puzzles'}; Ctrl-C ends",
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it, in the middle of a check as well
        for changes in watchfiles.watch(home.root / "puzzles", debounce=200, step=50):
            paths = {Path(name).resolve() for _, name in changes}
            for name in sorted(files[path] for path in paths & files.keys() if path.exists()):
                verdict = _checked(home, Meant(name))
                if verdict:
                    show(verdict)


COMMANDS = (check, watch)


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


def _checked(home: "Course", one: Meant, seed: int | None = None) -> "Verdict | None":
    """The verdict on a solution; None, and a line that says why, where it can't be read."""
    from puzzles.grading import checking
    from reference.errors import BadInput

    try:
        return checking.check(one.name, one.file, course=home, face=FACE, seed=seed)
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
    from puzzles.grading import verdict_report
    from reference.errors import BadInput

    picture = verdict_report.draw(verdict)
    if picture is None:
        _remark("nothing was said, so there is nothing to draw")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    except OSError as error:
        raise BadInput(f"the picture {path} can't be written: {error.strerror}") from None
    _remark(f"the run is drawn in {path}")


def _begun(home: "Course") -> list[Meant]:
    """The puzzles whose files are no longer the stub."""
    from puzzles import catalog

    return [Meant(name) for name in catalog.names() if _is_begun(home, name)]


def _is_begun(home: "Course", name: str) -> bool:
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
