"""A process that grades: `python -m rankwise.classroom.worker`, a list of tasks a line in, a verdict a line out.

The texts of one list are one learner's. Ranks that have run one of them may run the next, unless a text of the list
reaches around (then each has new ranks), and no rank that has run one learner's text runs another's. A worker that
is killed loses the text that it was at, and no other.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, TextIO

from puzzles import catalog
from puzzles.grading import engine, style, verdict_report
from puzzles.grading.pool import BACKWARD, Pool
from puzzles.grading.puzzle import Puzzle
from puzzles.grading.verdict import Verdict

from .journal import Graded

OF_TIME = ("this machine is busy with other programs", "still running after")  # verdicts that depend on the machine


def serve(tasks: TextIO, answers: TextIO) -> None:
    """Grade until no more comes. The first line says which puzzles may come, the others are lists of tasks."""
    pool = Pool(forgets=False)
    names = json.loads(tasks.readline())
    pool.need(module for name in names for module in needs(catalog.find(name)))
    for line in tasks:
        batch = json.loads(line)
        pool.forgets = not all(_keeps_to_itself(task) for task in batch)
        for task in batch:
            answers.write(json.dumps(answer(task, pool)) + "\n")
            answers.flush()
        pool.distrust()
        with pool.forgetting():
            pass  # the next learner's texts get new ranks
    pool.close()


def needs(puzzle: Puzzle) -> tuple[str, ...]:
    """The modules that its ranks import beside the usual ones."""
    return puzzle.preload or (BACKWARD if puzzle.pipe else ())


def _keeps_to_itself(task: dict[str, Any]) -> bool:
    """True for a text that reaches for nothing around it, as far as one can read."""
    puzzle = catalog.find(task["name"])
    try:
        return not style.inspect(puzzle, style.parse(puzzle, task["source"]))
    except SyntaxError:
        return True  # it never runs


def answer(task: dict[str, Any], pool: Pool) -> dict[str, Any]:
    """The verdict on one text, and its card where one is asked for."""
    puzzle = catalog.find(task["name"])
    verdict = engine.grade(puzzle, task["source"], pool=pool, seed=task["seed"])
    shown = replace(verdict, seed=None) if task["secret"] else verdict
    card = verdict_report.html(shown) if task["card"] else None
    return {"graded": asdict(graded(puzzle, shown)), "card": card}


def graded(puzzle: Puzzle, verdict: Verdict) -> Graded:
    """A verdict as a journal keeps it."""
    table = tuple((str(row.measure), str(row.case), row.target, row.yours, row.optimum) for row in verdict.table)
    return Graded(
        verdict.name,
        str(verdict.stage),
        verdict.reason,
        verdict.passed,
        round(verdict.seconds, 3),
        verdict.compared,
        table,
        str(verdict),
        "" if verdict.passed or verdict.unsolved else mistake(puzzle, verdict.reason),
        any(said in verdict.reason for said in OF_TIME),
    )


def mistake(puzzle: Puzzle, reason: str) -> str:
    """The usual wrong solution that is told such a reason: of several the one of which it quotes most."""

    def quoted() -> Iterator[tuple[int, str]]:
        for wrong in puzzle.wrong:
            if found := re.search(wrong.diagnosis, reason):
                yield len(found[0]), wrong.name

    return max(quoted(), default=(0, ""), key=lambda each: each[0])[1]


if __name__ == "__main__":
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed here is no answer
    try:
        serve(sys.stdin, channel)
    except (BrokenPipeError, KeyboardInterrupt):  # the one that asked is gone
        os._exit(1)
