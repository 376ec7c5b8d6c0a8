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
    """Fetch the newest course with git. Solutions stay as they are; notebooks that you have edited are kept."""
    from puzzles.grading.course import here
    from rankwise import updating

    root = course.resolve() if course else here().root
    report = updating.update(root, upstream)
    if not report.commits:
        print("this is the newest course")
        return
    print(f"updated: {report.commits} new commit{'s' if report.commits > 1 else ''}")
    for path in report.kept:
        print(f"  yours, as it was: {path}")
    for path, mine in report.beside:
        print(f"  {path} is the course's new one; yours is {mine}")
    if report.setup:
        print("what it needs has changed: run `make setup`")


COMMANDS = (update,)
