"""What a puzzle is: everything that is known about it, in one frozen `Puzzle`.

How to write one is told in `puzzles.catalog`. Nothing here runs anything.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch.distributed as dist

from .cases import LARGE, SMALL, Case, Drawn, case, cases, dealt, divisors, drawn, magnitudes, on_any_ranks, short
from .drives import plain
from .schedules import Pipe

__all__ = [  # what `puzzles.catalog` writes puzzles with
    "LARGE",
    "POINT_TO_POINT",
    "RETURNS",
    "SMALL",
    "UNWRITTEN",
    "Budget",
    "Case",
    "Claim",
    "Drawn",
    "Given",
    "Inputs",
    "Measure",
    "Puzzle",
    "Scale",
    "Wrong",
    "case",
    "cases",
    "divisors",
    "drawn",
    "magnitudes",
    "on_any_ranks",
    "short",
]  # fmt: skip

UNWRITTEN = 'raise NotImplementedError("not solved yet")'  # what a stub does
RETURNS = "returns"  # the name under which an oracle states what the function must return

POINT_TO_POINT = (dist.send, dist.recv, dist.isend, dist.irecv, dist.batch_isend_irecv, dist.P2POp)
"""The calls that most puzzles allow: messages from one rank to another."""


class Measure(StrEnum):
    """What a budget limits. The value is how a table calls it."""

    BYTES_SENT = "bytes sent by a rank"
    STEPS = "steps"
    CALLS = "calls by a rank"  # calls to torch.distributed
    PEAK_BYTES = "peak live bytes"  # of tensors made inside the function
    KEPT_BYTES = "bytes kept afterwards"  # of those, the result included, when the function has returned
    MICROSECONDS = "µs on a slow link"  # with the work that the drive notes: see `overlap`
    BUBBLE = "bubble"  # of a schedule: for how long ranks wait in a step, in units of its pipe's costs
    ACTIVATIONS = "activations of a rank"  # that it holds at most, of one stage and one micro-batch each
    ALL_ACTIVATIONS = "activations of all ranks"  # the sum of what each of them holds at most
    ROOM = "messages that wait on a channel"  # which must have a place where sends block, or the order never ends
    LINES = "lines executed"  # for formulas: a loop over every step is right and useless at 16,384 ranks


@dataclass(frozen=True)
class Budget:
    """How much a right answer may cost.

    Attributes:
        target: the most that passes, for a case. The worst rank counts.
        optimum: what the best known program needs, by this measure alone; the target where that is best.
        why: one line for a solution above the target: what costs so much, and what to do instead.
    """

    measure: Measure
    target: Callable[[Case], float]
    optimum: Callable[[Case], float] | None = None
    why: str = ""

    def best(self, case: Case) -> float:
        """The optimum for a case."""
        return (self.optimum or self.target)(case)


@dataclass(frozen=True)
class Wrong:
    """A wrong solution that must be rejected, and what its author must be told.

    Exactly one of `edits` (old, new) of the solution's text, a `body` for the function, or a whole `text`.

    Attributes:
        name: the mistake, in words.
        diagnosis: a regular expression that the verdict's reason must match.
    """

    name: str
    diagnosis: str
    edits: tuple[tuple[str, str], ...] = ()
    body: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.edits, self.body, self.text))) != 1:
            raise ValueError(f"wrong solution {self.name!r}: give exactly one of edits, body, text")


@dataclass(frozen=True)
class Claim:
    """One thing that must hold of a run, for puzzles whose answer is a measurement: see `Puzzle.judge`."""

    holds: bool
    otherwise: str  # what to say where it does not hold


@dataclass(frozen=True)
class Given:
    """A function of `reference` that the stub imports for the learner, under a name that is not its own.

    For functions whose names differ by their modules alone: `Given(all_gather.ring, "all_gather")`.
    """

    function: Callable[..., Any]
    name: str

    @property
    def line(self) -> str:
        """The import."""
        home, own = self.function.__module__, self.function.__name__
        return f"from {home} import {own}" + (f" as {self.name}" if self.name != own else "")


Inputs = list[dict[str, Any]]
"""By group rank: the arguments of the function, by name, without the group."""


@dataclass(frozen=True)
class Scale:
    """Cases so large that only the right order of growth ends in time; `scale` runs them.

    Attributes:
        cases: of one rank each.
        oracle: as a puzzle's, but quick where that goes step by step; the puzzle's own by default.
        grows: what the number of steps must not grow with: "the number of ranks". Or more, for a sentence that begins
            with "the number of steps must not grow with".
    """

    cases: tuple[Case, ...]
    grows: str
    oracle: Callable[[Case, Inputs], Sequence[Any]] | None = None


def _parameters(case: Case, rank: int) -> dict[str, Any]:
    return dict(case.parameters)


@dataclass(frozen=True)
class Puzzle:
    """One puzzle, described once. `puzzles.catalog` tells how to write one.

    Attributes:
        name: "<chapter>.<puzzle>"; the learner's file is puzzles/<chapter>/<puzzle>.py.
        title: the task in a few words; the first line of the stub's docstring.
        statement: what to do; the rest of the docstring.
        function: the reference solution. The learner's function has its name and signature.
        cases: where it must be right.
        drawn: cases of which each check draws one anew, beside `cases`.
        scale: cases that are too large for all but the right order of growth.
        large: a case with tensors of tens of megabytes, where the memory of the ranks' processes decides: see `weigh`.
        inputs: (case, group rank) -> arguments by name, without `group`; the case's parameters where left out.
        oracle: (case, inputs) -> by group rank, what the function must return, or a dict of what must be in which
            argument afterwards ("returns" for the returned value). It sees all inputs and runs in one process.
        judge: (case, inputs, outputs, trace) -> claims, for answers that no oracle can know, such as measured times.
            `outputs` are dicts as an oracle gives them. Where there is an oracle too, the judge is asked about right
            values, and what it says is about their cost.
        drive: how the function is called on a rank; see `puzzles.grading.drives`.
        pipe: of a schedule puzzle, the pipeline for which the function gives each rank's order; see
            `puzzles.grading.schedules`. Then `inputs` are asked for each rank of the pipe, and there is no oracle.
        preload: modules that take long to import, and that its ranks need; of a schedule puzzle those of backward.
        calls: the functions of torch.distributed that a solution may call.
        without: names of torch that a solution may not use, because they are what it is asked to write.
        given: functions of `reference` that the stub imports for the learner; `Given` for another name.
        new: True where the statement asks for new tensors: then no result may share memory with an argument.
        scratch: arguments that may be overwritten where the oracle says nothing about them. All others must stay.
        tolerance: relative error allowed; None for what the dtype allows (0 for integers). 0 where values only
            move: then even the sign of a zero must be as it was.
        budgets: what it may cost.
        hints: at least two, from a nudge to nearly the answer.
        wrong: at least four wrong solutions, one of them with the right answer at the wrong cost.
        body: of the stub's function; a broken program where the puzzle is to mend it.
        answer: the body of the solution, where the reference function's own would be more than a learner needs.
    """

    name: str
    title: str
    statement: str
    function: Callable[..., Any]
    cases: tuple[Case, ...]
    drawn: tuple[Drawn, ...] = ()
    scale: Scale | None = None
    large: Case | None = None
    inputs: Callable[[Case, int], Mapping[str, Any]] = _parameters
    oracle: Callable[[Case, Inputs], Sequence[Any]] | None = None
    judge: Callable[[Case, Inputs, list[dict[str, Any]], Any], Sequence[Claim]] | None = None
    drive: Callable[..., dict[str, Any]] = plain
    pipe: Callable[[Case], Pipe] | None = None
    preload: tuple[str, ...] = ()
    calls: tuple[Callable[..., Any], ...] = ()
    without: tuple[str, ...] = ()
    given: tuple[Callable[..., Any] | Given, ...] = ()
    new: bool = False
    scratch: tuple[str, ...] = ()
    tolerance: float | None = None
    budgets: tuple[Budget, ...] = ()
    hints: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    body: str = UNWRITTEN
    answer: str = ""

    def __post_init__(self) -> None:
        chapter, _, puzzle = self.name.partition(".")
        problems = {
            "a name is <chapter>.<puzzle>": not (chapter.isidentifier() and puzzle.isidentifier()),
            "it needs cases": not self.cases,
            "it needs an oracle, a judge or a pipe": self.oracle is None and self.judge is None and self.pipe is None,
            "a pipe is its oracle": self.oracle is not None and self.pipe is not None,
        }
        if found := [text for text, holds in problems.items() if holds]:
            raise ValueError(f"puzzle {self.name!r}: {'; '.join(found)}")

    def dealt(self, seed: int) -> "Puzzle":
        """The puzzle with the cases of the check that has this seed: other values, and some other sizes."""
        return replace(self, cases=dealt(self.cases, self.drawn, seed, self.name), drawn=())

    @property
    def chapter(self) -> str:
        """ "ranks" of "ranks.ring_shift"."""
        return self.name.partition(".")[0]

    @property
    def helpers(self) -> tuple[Given, ...]:
        """What is given, each with its name."""
        return tuple(each if isinstance(each, Given) else Given(each, each.__name__) for each in self.given)

    @property
    def is_to_mend(self) -> bool:
        """Whether the stub is a program that runs, and is wrong."""
        return self.body != UNWRITTEN

    @property
    def takes_group(self) -> bool:
        """Whether the function has an argument `group`; a formula has none."""
        return "group" in inspect.signature(self.function).parameters

    @property
    def entry(self) -> str:
        """The name that a solution must define."""
        return self.function.__name__
