"""How long each lesson takes from the start of its kernel to its last cell, with nothing solved and with everything."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from tests.lessons.course import LESSONS, copy_course, run  # noqa: E402

SECONDS = 30.0


def measure(report: Callable[[Row], None]) -> None:
    """Each lesson once in each course."""
    with tempfile.TemporaryDirectory() as folder:
        for name, solved in (("nothing", False), ("everything", True)):
            course = copy_course(Path(folder, name), solved)
            for lesson in LESSONS:
                report(rows.below(f"{lesson}, {name} solved", run(course, lesson), SECONDS, "s"))


if __name__ == "__main__":
    rows.main("lessons", measure)
