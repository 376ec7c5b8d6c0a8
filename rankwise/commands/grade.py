"""`rankwise grade`: the puzzles of a class."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from rankwise.classroom.assignment import Assignment
    from rankwise.classroom.crew import Limits, Task
    from rankwise.classroom.journal import Graded, Journal
    from rankwise.classroom.marks import Fared, Report
    from rankwise.classroom.similar import Pair
    from rankwise.classroom.submissions import Submission

_PAIRS = 10  # similar submissions that the terminal shows


def grade(
    folder: Annotated[
        Path, Argument(help="Holds a folder, zip file or notebook for each learner, named by it.", show_default=False)
    ],
    assignment: Annotated[
        Path | None,
        Option(metavar="FILE", help="Grade the puzzles of this assignment, by its rules.", show_default=False),
    ] = None,
    csv: Annotated[
        Path | None, Option(metavar="FILE", help="Write a line for each learner.", show_default=False)
    ] = None,
    json: Annotated[Path | None, Option(metavar="FILE", help="Write all that is known.", show_default=False)] = None,
    junit: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a suite for each learner, as JUnit.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Write a page for each learner and one for the class.", show_default=False),
    ] = None,
    gradescope: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Write Gradescope's results.json for each learner.", show_default=False),
    ] = None,
    github: Annotated[
        Path | None,
        Option(
            metavar="FOLDER", help="Write for each learner what GitHub Classroom's reporter reads.", show_default=False
        ),
    ] = None,
    cores: Annotated[
        int | None, Option(help="Use no more than this many cores. By default all.", show_default=False)
    ] = None,
    memory: Annotated[
        float | None,
        Option(metavar="GB", help="Use no more than this. By default 4/5 of what is free.", show_default=False),
    ] = None,
    journal: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Keep verdicts here: another run grades only what is new. By default in the course's `.rankwise`.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Grade what a class has handed in. A run that was stopped continues where it was; nothing in FOLDER is changed.

    A folder that itself holds puzzle files is graded as one submission. With a seed in the assignment no page and no
    file tells it.
    """
    from rankwise.classroom import assignment as assignments
    from rankwise.classroom import crew, marks, similar, submissions
    from rankwise.classroom.journal import Journal
    from reference.errors import require_other_file

    require_other_file("--journal", journal, assignment)
    for option, file in {"--csv": csv, "--json": json, "--junit": junit}.items():
        require_other_file(option, file, assignment)
        require_other_file(option, file, journal)
    asked = assignments.load(assignment) if assignment else assignments.Assignment()
    limits = crew.usual_limits(cores, memory)
    handed_in = submissions.read(folder, asked.points)
    kept = Journal(journal or _usual_journal(folder))
    seed = _seed(asked, kept)
    verdicts = _verdicts(handed_in, seed, asked.seed is not None, html is not None, kept, limits)
    found = marks.reports(handed_in, asked, verdicts, seed)
    alike = similar.pairs(handed_in, list(asked.points))
    _write(found, alike, asked, seed, {"csv": csv, "json": json, "junit": junit})
    _write_each(found, gradescope, github)
    fared = marks.by_puzzle(found)
    if html:
        from rankwise.classroom import pages

        pages.write_pages(html, asked.title, found, fared, alike, kept.card)
    _show(found, fared, alike)
    return 0


def _usual_journal(folder: Path) -> Path:
    """The journal of a class: in the course, by the folder's name and place."""
    import hashlib
    import os

    from puzzles.grading.course import here
    from reference.errors import BadInput

    try:
        home = here().root
    except BadInput:
        home = Path.home()
    place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    return home / ".rankwise" / "classes" / f"{folder.resolve().name}-{place}.db"


def _seed(asked: "Assignment", kept: "Journal") -> int:
    from puzzles.grading.cases import new_seed

    return kept.seed(new_seed()) if asked.seed is None else asked.seed


def _verdicts(
    handed_in: "list[Submission]", seed: int, secret: bool, cards: bool, kept: "Journal", limits: "Limits"
) -> "dict[str, Graded]":
    """All verdicts by their keys: those that the journal has, and the others graded now."""
    from rankwise.classroom import crew

    verdicts = kept.known(cards)
    batches = _batches(handed_in, seed, secret, cards, set(verdicts))
    count, of = 0, sum(map(len, batches))

    def done(task: "Task", graded: "Graded", card: str | None) -> None:
        nonlocal count
        if not graded.of_machine:
            kept.keep(task.key, graded, card)
        verdicts[task.key] = graded
        count += 1
        if sys.stderr.isatty():
            print(f"\r\x1b[K{count} of {of} graded, last: {task.name}", end="", file=sys.stderr, flush=True)

    crew.grade(batches, limits, done)
    if of and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return verdicts


_BATCH = 10  # texts of one learner that one worker grades in a row


def _batches(
    handed_in: "list[Submission]", seed: int, secret: bool, cards: bool, known: set[str]
) -> "list[list[Task]]":
    """What is to be graded, each text once, in batches of one learner each."""
    from rankwise.classroom.crew import Task
    from rankwise.classroom.journal import key

    batches = []
    for one in handed_in:
        tasks = {key(name, source, seed): (name, source) for name, source in one.texts.items()}
        new = [Task(k, name, source, seed, secret, cards) for k, (name, source) in tasks.items() if k not in known]
        known |= {task.key for task in new}
        batches += [new[at : at + _BATCH] for at in range(0, len(new), _BATCH)]
    return batches


def _write(
    found: "list[Report]", alike: "list[Pair]", asked: "Assignment", seed: int, files: dict[str, Path | None]
) -> None:
    from rankwise.classroom import exports

    told = seed if asked.seed is None else None
    contents = {
        "csv": lambda: exports.as_csv(found),
        "json": lambda: exports.as_json(found, alike, asked.title, told),
        "junit": lambda: exports.as_junit(found),
    }
    for kind, path in files.items():
        if path:
            exports.write(path, contents[kind]())


def _write_each(found: "list[Report]", gradescope: Path | None, github: Path | None) -> None:
    """A file for each learner: in the folder itself where there is one learner, else in one of each learner's."""
    from rankwise.classroom import exports

    names = exports.file_names([one.learner for one in found])
    for one in found:
        below = names[one.learner] if len(found) > 1 else ""
        if gradescope:
            exports.write(gradescope / below / "results.json", exports.as_gradescope(one))
        if github:
            exports.write(github / below / "results.base64", exports.as_github(one))


def _show(found: "list[Report]", fared: "list[Fared]", alike: "list[Pair]") -> None:
    """The class on the terminal."""
    from rankwise.classroom.pages import counted

    width = max(len(one.learner) for one in found)
    print(f"{'':{width}}  points    of  passed")
    for one in found:
        late = "  late" if one.late else ""
        print(f"{one.learner:{width}}  {one.points:6.4g}  {one.of:4.4g}  {one.passed:6}{late}")
        for line in one.remarks:
            print(f"{'':{width}}  {line}")
    tried = [each for each in fared if sum(counted(each)[:2])]
    if tried:
        longest = max(len(each.name) for each in tried)
        print(f"\n{'':{longest}}  passed  wrong  most frequent wrong solution")
    for each in tried:
        passed, wrong, _ = counted(each)
        most = f"{each.mistakes[0][0]} ({each.mistakes[0][1]})" if each.mistakes else ""
        print(f"{each.name:{longest}}  {passed:6}  {wrong:5}  {most}".rstrip())
    if alike:
        print("\nalike, for a human to look at (what the stub and much of the class have does not count):")
    for pair in alike[:_PAIRS]:
        print(f"  {pair.name}: {pair.one} and {pair.other} share {pair.shared} fingerprints, {pair.share:.0%}")
    if len(alike) > _PAIRS:
        print(f"  and {len(alike) - _PAIRS} pairs more: see --json or --html")


COMMANDS = (grade,)
