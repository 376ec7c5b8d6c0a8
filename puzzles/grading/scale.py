"""The right order of growth: cases so large that nothing else ends within a limit of processor time.

A count of lines is friendly and sees little: it looks at functions, not at loops in C. So the last word has the kernel,
which knows how long a rank's process has computed. Time in which it waited for the processor does not count.
"""

from dataclasses import replace

from reference.cluster import TimeLimit

from .pool import Pool
from .puzzle import Case
from .runs import Broken, Run, Solution, run_cases
from .verdict import Stage, Verdict
from .witness import limited

SECONDS = 2.0  # of processor time for all of a puzzle's large cases; right answers take a small part of it
_READABLE = 120  # characters of a case


def verdict(solution: Solution, pool: Pool, compared: int = 0) -> Verdict | None:
    """What is wrong at scale; None where nothing is, or the puzzle has no such cases.

    Args:
        compared: values that were compared before, and are right.
    """
    puzzle = solution.puzzle
    if puzzle.scale is None:
        return None
    large = replace(puzzle, cases=puzzle.scale.cases, oracle=puzzle.scale.oracle or puzzle.oracle, budgets=())
    for case in large.cases:
        try:
            reason, run = _reason(replace(solution, puzzle=large), case, pool)
        except Broken as busy:
            return Verdict(puzzle.name, Stage.ERROR, f"{busy}\n({case})", case)
        if reason:
            stage = Stage.VALUES if run and not run.right else Stage.BUDGETS
            return Verdict(puzzle.name, stage, reason, case, (), None, compared)
    return None


def _reason(solution: Solution, case: Case, pool: Pool) -> tuple[str, Run | None]:
    """Why a case fails, and its run if there is one; ("", run) where it does not. Raises Broken on a busy machine."""
    said = f"the number of steps must not grow with {solution.puzzle.scale.grows}"
    cluster = pool.cluster(case.world_size)
    with limited(lambda: cluster.pids, SECONDS) as limit:
        try:
            (run,) = run_cases(solution, [case], pool)
        except Broken as broken:
            if broken.busy:
                raise
            if limit.exceeded or isinstance(broken.error, TimeLimit):
                return f"right, but it takes more than {SECONDS:g} s of processor time for {_sizes(case)}: {said}", None
            return f"right where numbers are small, but for {_sizes(case)}:\n{broken}\n{said}, nor may memory", None
    if run.right:
        return "", run
    first = run.said or str(next(iter(run.comparison.differences), "no value was compared"))
    return f"right where numbers are small, but for {_sizes(case)}: {first}", run


def _sizes(case: Case) -> str:
    sizes = str(case).partition(", ")[2]
    return sizes if len(sizes) <= _READABLE else f"{sizes[:_READABLE]}…"
