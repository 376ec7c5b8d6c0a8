"""How long each lesson takes from the start of its kernel to its last cell, with nothing solved and with everything."""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from tests.lessons.course import LESSONS, copy_course, executed  # noqa: E402

SECONDS = 30.0


def measure(report: Callable[[Row], None]) -> None:
    """Each lesson once in each course."""
    with tempfile.TemporaryDirectory() as folder:
        for name, solved in (("nothing", False), ("everything", True)):
            course = copy_course(Path(folder, name), solved)
            for lesson in LESSONS:
                report(rows.below(f"{lesson}, {name} solved", seconds_of(lesson, course), SECONDS, "s"))


def seconds_of(lesson: str, course: Path) -> float:
    """All cells of a lesson, with the start of its kernel."""
    begin = time.monotonic()
    executed(course, lesson)
    return time.monotonic() - begin


if __name__ == "__main__":
    rows.main("lessons", measure)
