"""What grading says: a `Verdict`."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .puzzle import Case, Measure


class Stage(StrEnum):
    """How far a solution came."""

    UNSOLVED = "not solved yet"  # the stub
    TEXT = "not a program"  # it does not parse, or does not define what is asked for
    ERROR = "error"  # a rank raised, waited forever, died
    VALUES = "wrong values"
    BUDGETS = "over budget"  # right, at too high a cost
    STYLE = "calls not allowed"  # right and cheap, by means that are ruled out
    PASSED = "passed"


@dataclass(frozen=True)
class Row:
    """One budget in the case where it is tightest. `optimum` is at most `yours`."""

    measure: Measure
    case: Case
    target: float
    yours: float
    optimum: float

    @property
    def holds(self) -> bool:
        """True where yours is at most the target."""
        return self.yours <= self.target

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Measure, target, yours, optimum, for people."""
        return (str(self.measure), *(f"{value:,.10g}" for value in (self.target, self.yours, self.optimum)))


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    Attributes:
        name: of the puzzle.
        stage: how far it came; `passed` is true for the last.
        reason: why, for people: first the fact, then what it looks like. At most a few lines.
        case: the case that the reason, the table and the trace speak of.
        table: one row for each budget: target, yours, optimum. Empty where there is nothing to count.
        trace: what the ranks said in that case, None where nothing was said or recorded.
        compared: how many values were compared.
        seconds: the whole check.
        output: what the ranks printed in the call that ran that case.
        seed: of the values, and of the cases that were drawn; 0 where there were none, None where it is not to be told.
        unenforced: walls around the ranks that this machine does not have: what the verdict does not vouch for.
        step: of a schedule puzzle, the learner's schedule in that case as a `Simulation`, where it makes a step.
    """

    name: str
    stage: Stage
    reason: str
    case: Case | None = None
    table: tuple[Row, ...] = ()
    trace: Any = field(default=None, repr=False)
    compared: int = 0
    seconds: float = 0.0
    output: str = field(default="", repr=False)
    seed: int | None = 0
    unenforced: tuple[str, ...] = ()
    step: Any = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """True where every rank finished, every value is right, and all budgets and rules hold."""
        return self.stage is Stage.PASSED

    @property
    def unsolved(self) -> bool:
        """True for the stub: nothing to judge."""
        return self.stage is Stage.UNSOLVED

    def __str__(self) -> str:
        from .verdict_report import text

        return text(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .verdict_report import html, text

        return {"text/plain": text(self), "text/html": html(self)}
