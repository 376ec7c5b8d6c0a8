"""A small puzzle, an all-reduce of which anything can be asked, and what grading says of a solution."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from puzzles.grading import text
from puzzles.grading.engine import grade
from puzzles.grading.puzzle import Budget, Measure, Puzzle, cases
from puzzles.grading.verdict import Verdict


def total(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over all ranks, for puzzles of these tests."""
    return x


def puzzle(**changes: object) -> Puzzle:
    """All-reduce with everything allowed, changed as a test needs it."""
    description = dict(
        name="tests.total",
        title="Sum",
        statement="Sum.",
        function=total,
        cases=cases(worlds=(2, 3, 4), length=(6, 7)),
        inputs=lambda case, rank: {"x": case.tensor(rank, case.length)},
        oracle=lambda case, inputs: [sum(each["x"] for each in inputs)] * case.n,
        calls=(dist.all_reduce,),
    )
    return Puzzle(**(description | changes))


def check(body: str, **changes: object) -> Verdict:
    """Grade a body of `total`, on one world size where nothing else is said."""
    changes.setdefault("cases", cases(worlds=(3,), length=(6,)))
    asked = puzzle(**changes)
    return grade(asked, text.with_body(asked, body))


RIGHT = "y = x.clone()\ndist.all_reduce(y, group=group)\nreturn y"


def budget(measure: Measure, target: float, optimum: float = 0) -> tuple[Budget, ...]:
    return (Budget(measure, lambda case: target, lambda case: optimum, why="spend less"),)
