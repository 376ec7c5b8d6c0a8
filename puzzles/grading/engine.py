"""Grade a text: run it on every case of its puzzle, and say in one verdict what came of it.

First the values, then the budgets, then the calls. All cases of one world size are one call on one warm cluster. Only
where something is wrong are cases run one by one, so that the verdict speaks of the smallest case that fails, alone;
and other world sizes are tried, because "right at 4 ranks, wrong at 3" says more than either.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from reference.cluster import OutputFlood, RankError, RemoteException, TimeLimit

from . import diagnosis, style, text
from .pool import Pool, shared
from .puzzle import Case, Measure, Puzzle, short
from .runs import Broken, Run, Solution, run_cases
from .verdict import Row, Stage, Verdict

_ENDLESS = (TimeLimit, OutputFlood)  # errors that need no second look: each look takes seconds
_COSTS = {
    Measure.BYTES_SENT: ("rank {rank} sent", "B"),
    Measure.STEPS: ("it takes", "steps"),
    Measure.CALLS: ("a rank makes", "calls"),
    Measure.PEAK_BYTES: ("it keeps alive", "B"),
    Measure.LINES: ("it runs", "lines"),
}
_PICTURED = 4  # ranks of the case that a verdict shows


def grade(puzzle: Puzzle, source: str, *, filename: str = "", pool: Pool | None = None) -> Verdict:
    """The verdict on a solution's text. Nothing is stored.

    Args:
        filename: what its lines go by in messages; the puzzle's own file name by default.
        pool: clusters to run on; the shared ones by default.
    """
    begin = time.monotonic()
    pool = pool or shared()
    solution = Solution(puzzle, source, filename or f"{puzzle.name.partition('.')[2]}.py")
    with pool.lock:
        verdict = _grade(solution, pool)
    return replace(verdict, seconds=time.monotonic() - begin)


def passes(puzzle: Puzzle, source: str, *, pool: Pool | None = None) -> bool:
    """Whether a text passes, without a word why; it stops at the first fault."""
    pool = pool or shared()
    solution = Solution(puzzle, source, "solution.py")
    try:
        findings = style.inspect(puzzle, style.parse(puzzle, source))
        runs: list[Run] = []
        with pool.lock:
            for _, cases in by_world_size(puzzle.cases):
                found = run_cases(solution, cases, pool)
                if not all(run.right for run in found):
                    return False
                runs += found
    except (SyntaxError, Broken):
        return False
    return not (findings or _problem(puzzle, runs) or _forbidden(puzzle, runs))


def by_world_size(cases: Sequence[Case]) -> Iterator[tuple[int, list[Case]]]:
    """The cases of each world size, in the order in which the sizes come first."""
    for world_size in dict.fromkeys(case.world_size for case in cases):
        yield world_size, [case for case in cases if case.world_size == world_size]


def _grade(solution: Solution, pool: Pool) -> Verdict:
    puzzle = solution.puzzle
    if text.untouched(puzzle, solution.source) and "NotImplementedError" in puzzle.body:
        return _unsolved(puzzle)
    try:
        findings = style.inspect(puzzle, style.parse(puzzle, solution.source))
    except SyntaxError as error:
        return Verdict(puzzle.name, Stage.TEXT, str(error.msg))
    pool.prepare(dict.fromkeys(case.world_size for case in puzzle.cases))
    trial = Trial(solution, pool)
    verdict = trial.values() or _costs(puzzle, trial.runs) or _calls(puzzle, trial.runs, findings)
    if findings or any(run.patched for run in trial.runs):
        for world_size, _ in by_world_size(puzzle.cases):
            pool.discard(world_size)
    return verdict or _passed(puzzle, trial.runs)


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
            if isinstance(failure.error, _ENDLESS) or _not_written(failure.error):
                return
            groups = sorted(groups, key=lambda cases: abs(cases[0].world_size - _PICTURED))[:2]
        for cases in groups:
            whole = [case for case in cases if case.members is None] or cases
            self.attempt(whole[:1] if isinstance(failure, Broken) else whole)  # an error hides which case made it

    def explain(self, failure: Run | Broken) -> Verdict:
        """The verdict on a case that failed."""
        puzzle, case = self.solution.puzzle, failure.case
        between = diagnosis.between_cases(self.judged)
        if isinstance(failure, Broken):
            if _not_written(failure.error):
                return _unsolved(puzzle)
            reason = _lines(str(failure.error), f"({case})", between)
            return Verdict(
                puzzle.name, Stage.ERROR, reason, case, trace=failure.error.trace, output=failure.output
            )  # fmt: skip
        wrong = [run for run in self.runs if not run.right and not run.said]
        inputs = {run.case: run.inputs for run in wrong}
        within = diagnosis.in_values([run.comparison for run in wrong], inputs) if wrong else None
        reason = _lines(_difference(puzzle, failure), between, within)
        compared = sum(run.comparison.compared for run in self.runs)
        return Verdict(
            puzzle.name, Stage.VALUES, reason, case, trace=failure.trace, compared=compared, output=failure.output
        )  # fmt: skip


def _difference(puzzle: Puzzle, run: Run) -> str:
    """The fact: where the first difference is."""
    if run.said:
        return f"{run.case}: {run.said}"
    if not run.comparison.differences:
        return f"{run.case}: no value was compared"
    first = run.comparison.differences[0]
    if run.case.world_size == 1 and "group" not in puzzle.function.__code__.co_varnames:
        arguments = ", ".join(f"{name}={short(value)}" for name, value in run.inputs[0].items())
        return f"{puzzle.entry}({arguments}): expected {first.expected}, got {first.got}"
    return f"{run.case}: {first}"


def _costs(puzzle: Puzzle, runs: list[Run]) -> Verdict | None:
    """The verdict on what it cost; None where every budget holds."""
    rows = table(puzzle, runs)
    problem = _problem(puzzle, runs)
    if problem is None:
        return None
    run, reason = problem
    compared = sum(each.comparison.compared for each in runs)
    return Verdict(puzzle.name, Stage.BUDGETS, reason, run.case, rows, run.trace, compared, output=run.output)


def _problem(puzzle: Puzzle, runs: list[Run]) -> tuple[Run, str] | None:
    """The first thing that is wrong with runs whose values are right, and how to say it."""
    return _over_budget(puzzle, runs) or _impossible(puzzle, runs) or _objection(runs)


def _objection(runs: list[Run]) -> tuple[Run, str] | None:
    """What the judge says of right values."""
    return next(((run, f"right, but {run.objection} ({run.case})") for run in runs if run.objection), None)


def _over_budget(puzzle: Puzzle, runs: list[Run]) -> tuple[Run, str] | None:
    """The first run above a target, and how to say it."""
    for budget, run in itertools.product(puzzle.budgets, runs):
        yours, target = run.measured(budget.measure), budget.target(run.case)
        if yours > target:
            who, unit = _COSTS[budget.measure]
            who = who.format(rank=run.worst_sender)
            fact = f"right, but {who} {yours:,.10g} {unit} where {target:,.10g} must do ({run.case})"
            return run, _lines(fact, budget.why)
    return None


def _impossible(puzzle: Puzzle, runs: list[Run]) -> tuple[Run, str] | None:
    """A run whose ranks know each other's data without a message."""
    for budget, run in itertools.product(puzzle.budgets, runs):
        silent = budget.measure is Measure.BYTES_SENT and not run.measured(Measure.BYTES_SENT)
        if silent and budget.best(run.case) > 0:
            reason = f"the values are right, yet nothing was sent ({run.case}): data must travel by torch.distributed"
            return run, reason
    return None


def table(puzzle: Puzzle, runs: list[Run]) -> tuple[Row, ...]:
    """Each budget in the first case that breaks it, else in the case with the most ranks."""
    rows = []
    for budget in puzzle.budgets:
        found = [
            Row(budget.measure, run.case, budget.target(run.case), run.measured(budget.measure), budget.best(run.case))
            for run in runs
        ]
        worst = next((row for row in found if not row.holds), None)
        rows.append(worst or max(found, key=lambda row: (row.case.n, row.target)))
    return tuple(rows)


def _calls(puzzle: Puzzle, runs: list[Run], findings: list[style.Finding]) -> Verdict | None:
    """The verdict on the means; None where all of them are allowed."""
    said = [str(finding) for finding in findings[:3]] or _forbidden(puzzle, runs)
    if not said:
        return None
    run, compared = pictured(runs), sum(each.comparison.compared for each in runs)
    reason = _lines("right, but", *said)
    return Verdict(puzzle.name, Stage.STYLE, reason, run.case, table(puzzle, runs), run.trace, compared)


def _forbidden(puzzle: Puzzle, runs: list[Run]) -> list[str]:
    """Calls in the trace that the puzzle does not allow, and functions that were replaced."""
    allowed = style.allowed_operations(puzzle)
    said = [
        f"line {line} calls {operation}; allowed here: {style.allowed_calls(puzzle)}"
        for run in runs
        for operation, _, line, _ in run.operations()
        if operation not in allowed
    ]
    patched = sorted({name for run in runs for name in run.patched})
    said += [f"it replaces {name}: a solution leaves alone what it imports" for name in patched]
    return list(dict.fromkeys(said))[:3]


def _passed(puzzle: Puzzle, runs: list[Run]) -> Verdict:
    """Every rank finished, every value was compared, and everything holds."""
    run, compared = pictured(runs), sum(each.comparison.compared for each in runs)
    sizes = sorted({each.case.n for each in runs})
    where = f" at {', '.join(map(str, sizes))} ranks" if len(sizes) > 1 else ""
    reason = f"right in {len(runs)} cases{where}: {compared:,} values compared"
    rows = table(puzzle, runs)
    return Verdict(puzzle.name, Stage.PASSED, reason, run.case, rows, run.trace, compared, output=run.output)


def pictured(runs: list[Run]) -> Run:
    """The run to show: four ranks where there are such, and something was said."""

    def order(run: Run) -> tuple[bool, int, bool]:
        return not any(run.trace.events), abs(run.case.n - _PICTURED), run.case.members is not None

    return min(runs, key=order)


def _unsolved(puzzle: Puzzle) -> Verdict:
    return Verdict(puzzle.name, Stage.UNSOLVED, f"not solved yet: write `{puzzle.entry}`, or ask for a hint")


def _not_written(error: RankError) -> bool:
    return isinstance(error, RemoteException) and any("NotImplementedError" in line for line in error.details)


def _lines(*parts: str | None) -> str:
    return "\n".join(part for part in parts if part)
