"""`rankwise update`: the newest course, and your solutions and notebooks as they are."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def update(
    upstream: Annotated[
        str | None,
        Argument(
            help="Branch with the newer course, such as origin/main. By default the one that yours follows.",
            show_default=False,
        ),
    ] = None,
    course: Annotated[
        Path | None,
        Option("--course", metavar="FOLDER", help="Update the copy of the course in this folder.", show_default=False),
    ] = None,
) -> None:
    """Bring the newest course: with git, or, where `rankwise init` made yours, from a newer package.

    Solutions stay as they are; notebooks that you have edited are kept.
    """
    from puzzles.grading.course import MADE, here
    from rankwise import updating

    root = course.resolve() if course else here().root
    if (root / MADE).is_file():
        _renew(root, upstream)
        return
    report = updating.update(root, upstream)
    if not report.commits:
        print("this is the newest course")
        return
    print(f"updated: {report.commits} new commit{'s' if report.commits > 1 else ''}")
    _show(report.kept, report.beside)
    if report.setup:
        print("what it needs has changed: run `make setup`")


def _renew(root: Path, upstream: str | None) -> None:
    """Update a course that `rankwise init` has made."""
    from importlib.metadata import version

    from rankwise import made
    from reference.errors import BadInput

    if upstream is not None:
        raise BadInput(f"{root} has no branches: `pip install --upgrade rankwise`, then `rankwise update`")
    report = made.renew(root)
    if not report.new and not report.beside:
        print(
            f"this is the course of rankwise {version('rankwise')}; `pip install --upgrade rankwise` brings a newer one"
        )
        return
    print(f"updated to rankwise {version('rankwise')}: {len(report.new) + len(report.beside)} files are new")
    _show(report.kept, report.beside)


def _show(kept: tuple[str, ...], beside: tuple[tuple[str, str], ...]) -> None:
    for path in kept:
        print(f"  yours, as it was: {path}")
    for path, mine in beside:
        print(f"  {path} is the course's new one; yours is {mine}")


COMMANDS = (update,)
