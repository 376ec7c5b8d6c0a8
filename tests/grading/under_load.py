"""Check right solutions where far more wants to run than can: `python -m tests.grading.under_load 2000`.

Several graders side by side, each with ranks of its own, are the load. Each check draws its values and some of its
sizes anew. No right solution may be refused, however long it takes; one that the machine was too busy for says so, and
counts for neither. The exit code is 1 if one is refused.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.engine import grade
from reference.cluster.verdict import BUSY

GRADERS = 6  # each keeps some 50 ranks ready, of 50 MB


class Checked(NamedTuple):
    """One verdict, and how long the queue for a processor was."""

    name: str
    seed: int | None
    passed: bool
    said: str
    seconds: float
    load: float


def main() -> None:
    """Check, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.grading.under_load", description=__doc__.splitlines()[0])
    parser.add_argument("checks", type=int, nargs="?", default=2000, help="how many")
    parser.add_argument("--graders", type=int, default=GRADERS, help="how many processes check side by side")
    options = parser.parse_args()
    if min(options.checks, options.graders) < 1:
        parser.error("1 check or more, by 1 grader or more")
    began, refused, busy, found = time.monotonic(), 0, 0, []
    for one in verdicts(options.checks, options.graders):
        found.append(one)
        if not one.passed:
            is_busy = BUSY in one.said
            busy, refused = busy + is_busy, refused + (not is_busy)
            print(f"\n{one.name}, seed {one.seed}, after {one.seconds:.0f} s at a load of {one.load:.0f}:\n{one.said}")
        print(f"\r{len(found)} checked, {refused} refused, {busy} met a machine that was too busy", end="", flush=True)
    loads, longest = [one.load for one in found], max(one.seconds for one in found)
    print(f"; load {min(loads):.0f} to {max(loads):.0f}, {statistics.mean(loads):.0f} in the mean", end="")
    print(f"; the longest took {longest:.0f} s; {(time.monotonic() - began) / 60:.0f} minutes")
    sys.exit(refused > 0)


def verdicts(checks: int, graders: int) -> Iterator[Checked]:
    """So many, of all puzzles in turn, as they come."""
    names = catalog.names()
    with ProcessPoolExecutor(graders, multiprocessing.get_context("spawn")) as pool:
        for each in as_completed([pool.submit(checked, names[number % len(names)]) for number in range(checks)]):
            yield each.result()


def checked(name: str) -> Checked:
    """The verdict on a puzzle's own solution."""
    puzzle = catalog.find(name)
    verdict = grade(puzzle, text.solution(puzzle))
    return Checked(name, verdict.seed, verdict.passed, str(verdict), verdict.seconds, os.getloadavg()[0])


if __name__ == "__main__":
    main()
