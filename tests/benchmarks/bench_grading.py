"""How long a learner waits for a verdict, on correct solutions of all puzzles.

Each check runs on ranks that have run nothing before, and draws some of its sizes anew.

Three waits: the whole check of a puzzle on warm ranks, all its cases at all its world sizes; one case at 4 ranks; and
the first verdict of a command line that has just been typed, where Python, torch, the fork server and the ranks all
have to start.
"""

import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from puzzles import catalog  # noqa: E402
from puzzles.grading import text  # noqa: E402
from puzzles.grading.course import Course  # noqa: E402
from puzzles.grading.engine import grade  # noqa: E402
from puzzles.grading.pool import shared  # noqa: E402
from puzzles.grading.puzzle import Puzzle  # noqa: E402

REPEATS = 3
WHOLE, CASE, COLD = 1.0, 0.15, 4.0  # seconds: what is promised
COLD_PUZZLE = "collectives.ring_all_reduce"


def measure(report: Callable[[Row], None]) -> None:
    """Report every row."""
    report(rows.below(f"first verdict from a cold shell, {COLD_PUZZLE}", cold(COLD_PUZZLE), COLD, "s"))
    puzzles = [catalog.find(name) for name in catalog.names()]
    for puzzle in puzzles:
        report(rows.below(f"whole check, {puzzle.name}", warm(puzzle), WHOLE, "s"))
    for puzzle in puzzles:
        case = next((each for each in puzzle.cases if each.world_size == 4), None)
        if case is not None:
            single = dataclasses.replace(puzzle, cases=(case,), drawn=(), large=None, scale=None)
            report(rows.below(f"one case at 4 ranks, {puzzle.name}", warm(single), CASE, "s"))


def warm(puzzle: Puzzle) -> float:
    """Median seconds of checking the puzzle's solution, once its ranks are up."""
    source = text.solution(puzzle)
    verdicts = []
    for _ in range(REPEATS + 1):
        verdicts.append(grade(puzzle, source))
        shared().ready()  # as they are when the next check comes: people read before they try again
    if refused := [verdict for verdict in verdicts if not verdict.passed]:
        raise SystemExit(f"{puzzle.name}: the solution does not pass\n{refused[0]}")
    return statistics.median(verdict.seconds for verdict in verdicts[1:])


def cold(name: str) -> float:
    """Median seconds of `rankwise check` in a process of its own, in a course that holds the solution."""
    puzzle = catalog.find(name)
    with tempfile.TemporaryDirectory() as directory:
        course = Course(Path(directory))
        course.write(puzzle, text.solution(puzzle), "benchmark")
        command = [sys.executable, "-m", "rankwise", "check", name, "--course", directory]
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


if __name__ == "__main__":
    rows.main("grading", measure)
