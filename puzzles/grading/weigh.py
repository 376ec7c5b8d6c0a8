"""What a process really holds: a case with tensors of tens of megabytes, where its own peak decides.

The meters of memory follow tensors. What is copied into a list, a numpy array or a global of a module they do not see;
the kernel does. So a solution runs once more, on tensors so large that no copy of them can hide, in processes that have
run nothing before; and its processes may grow by what those of the reference solution grow by, measured the same way.
"""

import functools
from dataclasses import replace

from . import text, witness
from .pool import Pool
from .puzzle import Case, Measure, Puzzle
from .runs import Broken, Run, Solution, run_cases
from .verdict import Stage, Verdict

ROOM = 8 << 20  # bytes by which two runs of one program may differ: pages of libraries, the allocator's
_OF_MEMORY = (Measure.PEAK_BYTES, Measure.KEPT_BYTES)


def verdict(solution: Solution, pool: Pool, compared: int = 0) -> Verdict | None:
    """What is wrong with the memory of a large case; None where nothing is, or the puzzle has none.

    Args:
        compared: values that were compared before, and are right.
    """
    puzzle, case = solution.puzzle, solution.puzzle.large
    if case is None:
        return None
    try:
        known = _known(puzzle.name, pool)
        run, grown = _run(solution, case, pool)
    except Broken as broken:
        return Verdict(puzzle.name, Stage.BUDGETS, f"right where tensors are small, but ({case}):\n{broken}", case)
    if not run.right:
        first = run.said or str(next(iter(run.comparison.differences), "no value was compared"))
        reason = f"right where tensors are small, but ({case}): {first}"
        return Verdict(puzzle.name, Stage.VALUES, reason, case, (), None, compared)
    if grown is None or known is None or grown <= known + _allowed(puzzle, case) + ROOM:
        return None
    reason = (
        f"right, but a rank's process grows by {_megabytes(grown)} where {_megabytes(known + _allowed(puzzle, case))} "
        f"must do ({case})\nwhatever holds it counts: tensors, lists, numpy arrays, names of the module"
    )
    return Verdict(puzzle.name, Stage.BUDGETS, reason, case, (), None, compared)


def _allowed(puzzle: Puzzle, case: Case) -> float:
    """Bytes that the budgets leave beyond the best known program."""
    return max((b.target(case) - b.best(case) for b in puzzle.budgets if b.measure in _OF_MEMORY), default=0)


@functools.lru_cache(maxsize=256)
def _known(name: str, pool: Pool) -> int | None:
    """By how much the reference solution's largest process grows."""
    from .. import catalog

    puzzle = catalog.find(name)
    _, grown = _run(Solution(puzzle, text.solution(puzzle), "solution.py"), puzzle.large, pool)
    return grown


def _run(solution: Solution, case: Case, pool: Pool) -> tuple[Run, int | None]:
    """Run a case on new ranks. Returns how it went, and by how much the largest process grew. Raises Broken."""
    large = replace(solution.puzzle, cases=(case,), budgets=())
    cluster = pool.fresh(case.world_size)
    processes = cluster.ready()
    before = [witness.memory(process) for process in processes]
    (run,) = run_cases(replace(solution, puzzle=large), [case], pool)
    after = [witness.most_memory(process) for process in processes]
    if None in before or None in after:
        return run, None
    return run, max(most - least for most, least in zip(after, before, strict=True))


def _megabytes(size: float) -> str:
    return f"{size / 2**20:,.0f} MB"
