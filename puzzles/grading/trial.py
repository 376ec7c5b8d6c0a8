"""Find out whether a solution is right, and if not, where and why.

All cases of one world size are one call on one warm cluster. Only where something is wrong are cases run one by one,
so that the verdict speaks of the first case that fails, alone; and other world sizes are tried, because "right at 4
ranks, wrong at 3" says more than either.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reference.cluster import OutputFlood, RankError, RemoteException, TimeLimit

from . import diagnosis
from .drives import all_tensors
from .pool import Pool
from .puzzle import UNWRITTEN, Case, Puzzle, short
from .runs import Broken, Run, Solution, run_cases
from .verdict import Stage, Verdict

_ENDLESS = (TimeLimit, OutputFlood)  # errors that need no second look: each look takes seconds
_TELLING = 4  # ranks of the world that is tried first for comparison: neither too few nor odd
_LOOKS = 2  # worlds that are tried after an error
_READABLE = 500  # characters of arguments; of longer ones, the case is shown instead


def by_world_size(cases: Sequence[Case]) -> Iterator[tuple[int, list[Case]]]:
    """The cases of each world size, in the order in which the sizes come first."""
    for world_size in dict.fromkeys(case.world_size for case in cases):
        yield world_size, [case for case in cases if case.world_size == world_size]


@dataclass
class Trial:
    """A solution on its way through the cases."""

    solution: Solution
    pool: Pool
    runs: list[Run] = field(default_factory=list)
    judged: list[tuple[Case, bool]] = field(default_factory=list)  # every case that was tried, and whether it was right

    def values(self) -> Verdict | None:
        """Run everything. None where all values are right, else the verdict on the first case that fails."""
        groups = list(by_world_size(self.solution.puzzle.cases))
        for index, (_, cases) in enumerate(groups):
            failure = self.attempt(cases)
            if failure is not None:
                failure = self.narrow(cases, failure)
                self.probe([later for _, later in groups[index + 1 :]], failure)
                return self.explain(failure)
        return None

    def attempt(self, cases: list[Case]) -> Run | Broken | None:
        """Run cases in one call. Returns the first that fails, or what ended the call; None if all are right."""
        try:
            runs = run_cases(self.solution, cases, self.pool)
        except Broken as broken:
            self.judged += [(case, False) for case in cases]
            return broken
        self.runs += runs
        self.judged += [(run.case, run.right) for run in runs if not (run.right and run.comparison.empty)]
        return next((run for run in runs if not run.right), None)

    def narrow(self, cases: list[Case], failure: Run | Broken) -> Run | Broken:
        """Run the cases of a failed call one by one, each in a call of its own. Returns what fails then."""
        if len(cases) == 1 or (isinstance(failure, Broken) and isinstance(failure.error, _ENDLESS)):
            return failure
        together = {case: right for case, right in self.judged if case in cases}
        self.judged = [(case, right) for case, right in self.judged if case not in cases]
        self.runs = [run for run in self.runs if run.case not in cases]
        alone = None
        for case in cases:
            found = self.attempt([case])
            alone = alone or found
            if isinstance(found, Broken):
                break
        if alone is None:
            self.judged = [(c, r) for c, r in self.judged if c not in cases] + list(together.items())
        return alone or failure

    def probe(self, groups: list[list[Case]], failure: Run | Broken) -> None:
        """Try other world sizes, to learn what sets right and wrong apart. Fewer where each may end in an error."""
        if isinstance(failure, Broken):
            if isinstance(failure.error, _ENDLESS) or self.unwritten(failure.error):
                return
            groups = sorted(groups, key=lambda cases: abs(cases[0].world_size - _TELLING))[:_LOOKS]
        for cases in groups:
            whole = [case for case in cases if case.members is None] or cases
            self.attempt(whole[:1] if isinstance(failure, Broken) else whole)  # an error hides which case made it

    def explain(self, failure: Run | Broken) -> Verdict:
        """The verdict on a case that failed."""
        puzzle, case = self.solution.puzzle, failure.case
        between = diagnosis.between_cases(self.judged)
        if isinstance(failure, Broken):
            if isinstance(failure.error, _ENDLESS):
                between = None  # what was not tried has not failed
            if self.unwritten(failure.error):
                return unsolved(puzzle)
            reason = lines(str(failure.error), self.quoted(failure.error), f"({case})", between)
            return Verdict(puzzle.name, Stage.ERROR, reason, case, (), failure.error.trace, output=failure.output)
        wrong = [run for run in self.runs if not run.right and not run.said]
        inputs = {run.case: run.inputs for run in wrong}
        within = diagnosis.in_values([run.comparison for run in wrong], inputs) if wrong else None
        reason = lines(_difference(puzzle, failure), between, within, failure.narrowed or failure.cut)
        compared = sum(run.comparison.compared for run in self.runs)
        return Verdict(puzzle.name, Stage.VALUES, reason, case, (), failure.trace, compared, output=failure.output)

    def quoted(self, error: RankError) -> str:
        """The line that an error blames, as it stands in the solution: in a notebook lines are not counted."""
        line = self.blamed(error)
        return f"    {error.line} | {line[:100]}" if line else ""

    def unwritten(self, error: RankError) -> bool:
        """Whether the stub's own line has raised it."""
        return isinstance(error, RemoteException) and self.blamed(error).startswith(UNWRITTEN.partition("(")[0])

    def blamed(self, error: RankError) -> str:
        """The line of the solution that an error names; "" where it names another file's."""
        text = self.solution.source.splitlines()
        known = error.file == self.solution.filename and 1 <= error.line <= len(text)
        return text[error.line - 1].strip() if known else ""


def _difference(puzzle: Puzzle, run: Run) -> str:
    """The fact: where the first difference is."""
    if run.said:
        return f"{run.case}: {run.said}"
    if not run.comparison.differences:
        return f"{run.case}: no value was compared"
    first = run.comparison.differences[0]
    formula = not all_tensors(run.inputs)
    if run.case.world_size == 1 and not puzzle.takes_group and formula:
        arguments = ", ".join(f"{name}={short(value)}" for name, value in run.inputs[0].items())
        place = "" if first.place == "result" else f" {first.place}:"
        if len(arguments) <= _READABLE:
            return f"{puzzle.entry}({arguments}):{place} expected {first.expected}, got {first.got}"
    return f"{run.case}: {first}"


def unsolved(puzzle: Puzzle) -> Verdict:
    """The verdict on a stub."""
    return Verdict(puzzle.name, Stage.UNSOLVED, f"not solved yet: write `{puzzle.entry}`, or ask for a hint")


def lines(*parts: str | None) -> str:
    """What there is to say, one below the other."""
    return "\n".join(part for part in parts if part)
