"""From verdicts to points: what each learner has, and how the class fared with each puzzle."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from puzzles.grading.verdict import Stage

from .assignment import Assignment
from .journal import Graded, key
from .submissions import Submission


@dataclass(frozen=True)
class Mark:
    """One learner's puzzle.

    Attributes:
        key: what its verdict is known by in the journal; "" where nothing was handed in.
        points: what it is worth as it is, before `best` and after a late share.
        worth: what it could be worth.
        counts: it is one of the best, where the assignment counts only these.
    """

    graded: Graded
    key: str
    points: float
    worth: float
    counts: bool = True


@dataclass(frozen=True)
class Report:
    """One learner: all puzzles of the assignment in order, and the sum that counts."""

    learner: str
    marks: tuple[Mark, ...]
    points: float
    of: float
    late: bool
    remarks: tuple[str, ...]

    @property
    def passed(self) -> int:
        """How many puzzles."""
        return sum(mark.graded.passed for mark in self.marks)


@dataclass(frozen=True)
class Fared:
    """How a class fared with a puzzle: learners by stage, and the wrong solutions, the most frequent first."""

    name: str
    stages: Mapping[str, int]
    mistakes: tuple[tuple[str, int], ...]


def reports(
    handed_in: Sequence[Submission], assignment: Assignment, verdicts: Mapping[str, Graded], seed: int
) -> list[Report]:
    """All learners in the order of their names."""
    return [_report(one, assignment, verdicts, seed) for one in handed_in]


def _report(one: Submission, assignment: Assignment, verdicts: Mapping[str, Graded], seed: int) -> Report:
    late = assignment.is_late(one.received)
    marks = []
    for name in assignment.points:
        known, graded = "", Graded(name, str(Stage.UNSOLVED), "nothing was handed in", False)
        if name in one.texts:
            known = key(name, one.texts[name], seed)
            graded = verdicts[known]
        worth = assignment.worth(name)
        share = assignment.counts.get(graded.stage, 0.0) * (assignment.late if late else 1.0)
        marks.append(Mark(graded, known, worth * share, worth))
    best = sorted(marks, key=lambda mark: mark.points, reverse=True)[: assignment.best]
    points = sum(mark.points for mark in best)
    marks = tuple(replace(mark, counts=mark in best) for mark in marks)
    return Report(one.learner, marks, points, assignment.total, late, tuple(one.remarks))


def by_puzzle(found: Sequence[Report]) -> list[Fared]:
    """How the class fared, by puzzle."""
    fared = []
    for marks in zip(*(report.marks for report in found), strict=True):
        stages = Counter(mark.graded.stage for mark in marks)
        wrong = Counter(said for mark in marks if (said := wrong_solution(mark.graded)))
        fared.append(Fared(marks[0].graded.name, stages, tuple(wrong.most_common())))
    return fared


def wrong_solution(graded: Graded) -> str:
    """What is wrong with a text, so that equal mistakes read equal; "" where nothing is, or nothing was handed in."""
    if graded.passed or graded.stage == Stage.UNSOLVED:
        return ""
    return graded.mistake or graded.stage
