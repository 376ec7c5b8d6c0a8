"""Grade a text: run it on every case of its puzzle, and say in one verdict what came of it.

First the values (`trial.py`), then the budgets, then the calls, and at last what a process weighs (`weigh.py`).
"""

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

from . import scale, style, text, weigh
from .cases import new_seed
from .pool import BACKWARD, Pool, shared
from .puzzle import Budget, Measure, Puzzle
from .runs import Broken, Circumstances, Run, Solution, run_cases
from .trial import Trial, by_world_size, lines, unsolved
from .verdict import Row, Stage, Verdict

_COSTS = {
    Measure.BYTES_SENT: ("rank {rank} sent", "B"),
    Measure.STEPS: ("it takes", "steps"),
    Measure.CALLS: ("a rank makes", "calls"),
    Measure.PEAK_BYTES: ("it keeps alive", "B"),
    Measure.KEPT_BYTES: ("when it has returned it still holds", "B"),
    Measure.MICROSECONDS: ("on a slow link it takes", "µs"),
    Measure.BUBBLE: ("the bubble is", "units of time"),
    Measure.ACTIVATIONS: ("a rank holds", "activations"),
    Measure.ALL_ACTIVATIONS: ("all ranks together hold", "activations"),
    Measure.ROOM: ("where sends block, a channel must have room for", "messages"),
    Measure.LINES: ("it runs", "lines"),
}
_ONE = {
    "steps": "step", "calls": "call", "units of time": "unit of time", "activations": "activation",
    "messages": "message", "lines": "line",
}  # fmt: skip
_OF_MEMORY = (Measure.PEAK_BYTES, Measure.KEPT_BYTES)
_LOOKS_AT_MEMORY = 3
_PLAUSIBLE = 0.5  # of the bytes that the best known program sends: with less, data has come another way
_PICTURED = 4  # ranks of the case that a verdict shows


def grade(
    puzzle: Puzzle, source: str, *, filename: str = "", pool: Pool | None = None, seed: int | None = None
) -> Verdict:
    """The verdict on a solution's text. Nothing is stored.

    Args:
        filename: what its lines go by in messages; the puzzle's own file name by default.
        pool: clusters to run on; the shared ones by default.
        seed: of values, and of the sizes of some cases; by default a new one, which the verdict names.
    """
    begin = time.monotonic()
    seed = new_seed() if seed is None else seed
    pool = pool or shared()
    solution = Solution(puzzle.dealt(seed), source, filename or f"{puzzle.name.partition('.')[2]}.py")
    with pool.lock, pool.forgetting():
        verdict = _grade(solution, pool)
    return replace(verdict, seconds=time.monotonic() - begin, seed=seed, unenforced=pool.unenforced)


def passes(puzzle: Puzzle, source: str, *, pool: Pool | None = None) -> bool:
    """Whether a text passes, without a word why; it stops at the first fault."""
    pool, puzzle = pool or shared(), puzzle.dealt(0)
    solution = Solution(puzzle, source, "solution.py")
    try:
        findings = style.inspect(puzzle, style.parse(puzzle, source))
        runs: list[Run] = []
        with pool.lock, pool.forgetting():
            _prepare(puzzle, pool)
            for _, cases in by_world_size(puzzle.cases):
                found = run_cases(solution, cases, pool)
                if not all(run.right for run in found):
                    return False
                runs += _settled(solution, found, pool)
            if scale.verdict(solution, pool) or weigh.verdict(solution, pool):
                return False
    except (SyntaxError, Broken):
        return False
    return not (findings or _problem(puzzle, runs) or _forbidden(puzzle, runs))


def _grade(solution: Solution, pool: Pool) -> Verdict:
    puzzle = solution.puzzle
    if text.untouched(puzzle, solution.source) and not puzzle.is_to_mend:
        return unsolved(puzzle)
    try:
        findings = style.inspect(puzzle, style.parse(puzzle, solution.source))
    except SyntaxError as error:
        return Verdict(puzzle.name, Stage.TEXT, str(error.msg))
    _prepare(puzzle, pool)
    trial = Trial(solution, pool)
    verdict, runs = trial.values(), trial.runs
    if verdict is None:
        runs = _settled(solution, runs, pool)
        verdict = (
            _costs(puzzle, runs)
            or scale.verdict(solution, pool, _compared(runs))
            or _calls(puzzle, runs, findings)
            or weigh.verdict(solution, pool, _compared(runs))  # last: what it imports weighs, too
        )
    if findings or any(run.of_call.patched or run.of_call.left for run in runs):
        pool.distrust()
    return verdict or _passed(puzzle, runs)


def _prepare(puzzle: Puzzle, pool: Pool) -> None:
    """Begin to start the ranks that a puzzle needs."""
    pool.need(puzzle.preload or (BACKWARD if puzzle.pipe else ()))
    sizes = dict.fromkeys(case.world_size for case in puzzle.cases)
    pool.prepare(sizes, spare=[puzzle.large.world_size] if puzzle.large and puzzle.large.world_size in sizes else [])


def _settled(solution: Solution, runs: list[Run], pool: Pool) -> list[Run]:
    """The same runs; one that held too much memory is taken again, up to twice.

    A thread of gloo's may hold a tensor for a moment after the request for it is done. No program can help that, and it
    rarely happens twice. A solution that really holds too much does so every time: the first of these ends the search.
    """
    budgets = [budget for budget in solution.puzzle.budgets if budget.measure in _OF_MEMORY]

    def excess(run: Run) -> float:
        return max((run.measured(budget.measure) - budget.target(run.case) for budget in budgets), default=0)

    settled = list(runs)
    for index, run in enumerate(runs):
        for _ in range(_LOOKS_AT_MEMORY - 1):
            if excess(settled[index]) <= 0:
                break
            with contextlib.suppress(Broken):
                (other,) = run_cases(solution, [run.case], pool)
                settled[index] = min(settled[index], other, key=excess) if other.right else settled[index]
        if excess(settled[index]) > 0:
            break
    return settled


def _costs(puzzle: Puzzle, runs: list[Run]) -> Verdict | None:
    """The verdict on what it cost; None where every budget holds."""
    rows = table(puzzle, runs)
    problem = _problem(puzzle, runs)
    if problem is None:
        return None
    run, reason = problem
    return _verdict(puzzle, Stage.BUDGETS, reason, run, rows, _compared(runs))


def _compared(runs: list[Run]) -> int:
    return sum(each.comparison.compared for each in runs)


def _problem(puzzle: Puzzle, runs: list[Run]) -> tuple[Run, str] | None:
    """The first thing that is wrong with runs whose values are right, and how to say it."""
    said = _narrowed(runs) or _shared(runs)
    return said or _over_budget(puzzle, runs) or _impossible(puzzle, runs) or _objection(runs)


def _narrowed(runs: list[Run]) -> tuple[Run, str] | None:
    """A message in a narrower dtype than its numbers."""
    return next(((run, f"right here, but {run.narrowed}") for run in runs if run.narrowed), None)


def _shared(runs: list[Run]) -> tuple[Run, str] | None:
    """A result that is no new tensor."""
    run = next((run for run in runs if run.shared), None)
    said = "right, but a result shares its memory with {} ({}): a new tensor is asked for, such as `.clone()` makes"
    return (run, said.format(run.shared[0], run.case)) if run else None


def _objection(runs: list[Run]) -> tuple[Run, str] | None:
    """What the judge says of right values."""
    return next(((run, f"right, but {run.objection} ({run.case})") for run in runs if run.objection), None)


def _over_budget(puzzle: Puzzle, runs: list[Run]) -> tuple[Run, str] | None:
    """The first run above a target, and how to say it."""
    for budget, run in itertools.product(puzzle.budgets, runs):
        yours, target = run.measured(budget.measure), budget.target(run.case)
        if yours > target:
            who, unit = _COSTS[budget.measure]
            who, unit = who.format(rank=run.worst_sender), _ONE.get(unit, unit) if yours == 1 else unit
            fact = f"right, but {who} {yours:,.10g} {unit} where {target:,.10g} must do ({run.case})"
            return run, lines(fact, budget.why)
    return None


def _impossible(puzzle: Puzzle, runs: list[Run]) -> tuple[Run, str] | None:
    """A run whose ranks know each other's data without a message."""
    for budget, run in itertools.product(puzzle.budgets, runs):
        if budget.measure is Measure.BYTES_SENT:
            sent, best = run.measured(Measure.BYTES_SENT), budget.best(run.case)
            if sent < _PLAUSIBLE * best:
                said = f"no rank sent more than {sent:,.10g} of {best:,.10g} B" if sent else "nothing was sent"
                said = f"the values are right, yet {said} ({run.case}): data must travel by torch.distributed"
                return run, said + (", in a dtype that also holds large numbers" if sent else "")
    return None


def row(budget: Budget, run: Run) -> Row:
    """What a run has cost. A run that beats the best that was known sets a new one."""
    yours = run.measured(budget.measure)
    return Row(budget.measure, run.case, budget.target(run.case), yours, min(yours, budget.best(run.case)))


def table(puzzle: Puzzle, runs: list[Run]) -> tuple[Row, ...]:
    """Each budget in the first case that breaks it, else in the case with the most ranks."""
    rows = []
    for budget in puzzle.budgets:
        found = [row(budget, run) for run in runs]
        worst = next((each for each in found if not each.holds), None)
        rows.append(worst or max(found, key=lambda each: (each.case.n, each.target)))
    return tuple(rows)


def _calls(puzzle: Puzzle, runs: list[Run], findings: list[style.Finding]) -> Verdict | None:
    """The verdict on the means; None where all of them are allowed."""
    said = [str(finding) for finding in findings[:3]] or _forbidden(puzzle, runs)
    if not said:
        return None
    run, compared = pictured(runs), _compared(runs)
    reason = lines("right, but", *said)
    return _verdict(puzzle, Stage.STYLE, reason, run, table(puzzle, runs), compared)


def _forbidden(puzzle: Puzzle, runs: list[Run]) -> list[str]:
    """Calls in the trace that the puzzle does not allow, and functions that were replaced."""
    allowed = style.allowed_operations(puzzle)
    said = [
        f"line {line} calls {operation}; allowed here: {style.allowed_calls(puzzle)}"
        for run in runs
        for operation, _, line, _ in run.operations()
        if operation not in allowed
    ]
    said += [complaint for run in runs for complaint in _complaints(run.of_call)]
    return list(dict.fromkeys(said))[:3]


def _complaints(call: Circumstances) -> Iterator[str]:
    """What a whole call shows that its cases do not."""
    yield from (f"it replaces {name}: a solution leaves alone what it imports" for name in call.patched)
    yield from (f"it leaves {name} in another state: put back what you change, best by `with`" for name in call.left)
    for operation, line in call.loose:
        yield f"line {line} calls {operation} outside of the function: what it needs, it must send when it is called"
    if call.hidden:
        yield (
            f"the kernel counted {call.hidden:,} B between the ranks that the trace does not have: "
            "data must travel by the calls of the puzzle"
        )


def _passed(puzzle: Puzzle, runs: list[Run]) -> Verdict:
    """Every rank finished, every value was compared, and everything holds."""
    run, compared = pictured(runs), _compared(runs)
    sizes = sorted({each.case.n for each in runs})
    where = f" at {', '.join(map(str, sizes))} ranks" if len(sizes) > 1 else ""
    reason = f"right in {len(runs)} cases{where}: {compared:,} values compared"
    return _verdict(puzzle, Stage.PASSED, reason, run, table(puzzle, runs), compared)


def _verdict(puzzle: Puzzle, stage: Stage, reason: str, run: Run, rows: tuple[Row, ...], compared: int) -> Verdict:
    """A verdict that speaks of a run whose values are right."""
    picture = {"trace": run.trace, "step": run.step and run.step.simulation}
    return Verdict(puzzle.name, stage, reason, run.case, rows, compared=compared, output=run.output, **picture)


def pictured(runs: list[Run]) -> Run:
    """The run to show: four ranks where there are such, and something was said."""

    def order(run: Run) -> tuple[bool, int, bool]:
        return not any(run.trace.events), abs(run.case.n - _PICTURED), run.case.members is not None

    return min(runs, key=order)
