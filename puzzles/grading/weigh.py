"""What a process really holds: a case with tensors of tens of megabytes, where its own peak decides.

The meters of memory follow tensors. What is copied into a list, a numpy array or a global of a module they do not see;
the kernel does. So a solution runs once more, on tensors so large that no copy of them can hide, in processes that have
run nothing before; and its processes may grow by what those of the reference solution grow by, measured the same way,
and by what the budgets leave beyond that.
"""

import functools
from dataclasses import replace
from typing import Any

from . import text, witness
from .drives import all_tensors
from .pool import Pool
from .puzzle import Measure
from .runs import Broken, Run, Solution, patiently, run_once
from .verdict import Stage, Verdict

ROOM = 4 << 20  # bytes by which two runs of one program may differ: pages of libraries, the allocator's
_LOOKS = 2  # at a process that grows too much: a thread of gloo's may hold a tensor for a moment too long
OF_MEMORY = (Measure.PEAK_BYTES, Measure.KEPT_BYTES)


def verdict(solution: Solution, pool: Pool, compared: int = 0) -> Verdict | None:
    """What is wrong with the memory of a large case; None where nothing is, or the puzzle has none.

    Args:
        compared: values that were compared before, and are right.
    """
    puzzle, case = solution.puzzle, solution.puzzle.large
    if case is None:
        return None
    try:
        allowed = allowance(puzzle.name, pool)
        for _ in range(_LOOKS):
            run, grown = weighed(solution, pool)
            if not run.right or grown is None or allowed is None or grown <= allowed + ROOM:
                break
    except Broken as broken:
        if broken.busy:
            return Verdict(puzzle.name, Stage.ERROR, f"{broken}\n({case})", case)
        return Verdict(puzzle.name, Stage.BUDGETS, f"right where tensors are small, but ({case}):\n{broken}", case)
    if not run.right:
        first = run.said or str(next(iter(run.comparison.differences), "no value was compared"))
        reason = f"right where tensors are small, but ({case}): {first}"
        return Verdict(puzzle.name, Stage.VALUES, reason, case, (), None, compared)
    if grown is None or allowed is None or grown <= allowed + ROOM:
        return None
    reason = (
        f"right, but a rank's process grows by {_megabytes(grown)} besides its arguments where {_megabytes(allowed)} "
        f"must do ({case})\nwhatever holds it counts: tensors, lists, numpy arrays, names of the module"
    )
    return Verdict(puzzle.name, Stage.BUDGETS, reason, case, (), None, compared)


@functools.lru_cache(maxsize=256)
def allowance(name: str, pool: Pool) -> float | None:
    """By how many bytes a process may grow besides its arguments; None where the kernel does not say.

    By what the reference solution's grow by, and by what the budgets leave above the best known program.
    """
    from .. import catalog

    puzzle = catalog.find(name)
    case, budgets = puzzle.large, [budget for budget in puzzle.budgets if budget.measure in OF_MEMORY]
    _, grown = weighed(Solution(puzzle, text.solution(puzzle), "solution.py"), pool)
    left = max((budget.target(case) - budget.best(case) for budget in budgets), default=0)
    return None if grown is None else grown + left * case.get("times", 1)


def weighed(solution: Solution, pool: Pool) -> tuple[Run, int | None]:
    """Run the large case on new ranks. Returns how it went, and by how much a process grew besides its arguments.

    The largest counts; None where the kernel does not say. Raises Broken.
    """
    return patiently(_weighed, solution, pool)


def _weighed(solution: Solution, pool: Pool) -> tuple[Run, int | None]:
    case = solution.puzzle.large
    large = replace(solution.puzzle, cases=(case,), budgets=())  # without meters: they hold something, too
    processes = pool.fresh(case.world_size).ready()
    before = [witness.memory(process) for process in processes]
    (run,) = run_once(replace(solution, puzzle=large), [case], pool)
    after = [witness.most_memory(process) for process in processes]
    if None in before or None in after:
        return run, None
    grown = zip(after, before, map(_bytes_in, run.inputs), strict=True)
    return run, max(most - least - given for most, least, given in grown)


def _bytes_in(arguments: Any) -> int:
    """Of all tensors in them."""
    return sum(each.nbytes for each in all_tensors(arguments))


def _megabytes(size: float) -> str:
    return f"{size / 2**20:,.0f} MB"
