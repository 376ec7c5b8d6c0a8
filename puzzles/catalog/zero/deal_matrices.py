"""zero.deal_matrices: owners of matrices have as much to do as each other."""

import random
from queue import PriorityQueue

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.zero.answers.matrices import deal_matrices

BLOCK = [(64, 64), (16, 64), (16, 64), (64, 64), (192, 64), (192, 64), (64, 192)]
EXPERTS = [(4, 64)] + [(48, 64)] * 6 + [(64, 48)] * 3
MODELS = {
    "blocks": 2 * BLOCK,
    "one large": [(8, 8)] * 5 + [(32, 32)] + [(8, 8)] * 4,
    "long and square": [(4, 400), (40, 40), (40, 40), (4, 400), (20, 80), (1, 1000)],
    "equal": [(6, 6)] * 7,
    "experts": EXPERTS,
    "fewer than ranks": [(5, 9), (9, 5)],
    "none": [],
}

MANY = 1000  # matrices, all alike


def shapes_of(case):
    if case.model in MODELS:
        return list(MODELS[case.model])
    if case.model >= MANY:
        return [(64, 64)] * case.model
    chance = random.Random(case.model)
    return [(chance.randint(1, 60), chance.randint(1, 60)) for _ in range(case.model)]


def one_after_another(case, inputs):
    """Look at all ranks for each matrix, the most expensive first."""
    shapes, loads = inputs[0]["shapes"], [0] * case.owners
    left, found = list(range(len(shapes))), [None] * len(shapes)
    cost = {i: sorted(shapes[i])[0] ** 2 * (sorted(shapes[i])[0] + 2 * sorted(shapes[i])[1]) for i in left}
    while left:
        costliest = left[0]
        for other in left:
            if cost[other] > cost[costliest]:
                costliest = other
        rank = loads.index(min(loads))
        found[costliest], loads[rank] = rank, loads[rank] + cost[costliest]
        left.remove(costliest)
    return [found]


def from_a_queue(case, inputs):
    """The rank with least to do is the first of a queue."""
    shapes, queue = inputs[0]["shapes"], PriorityQueue()
    for rank in range(case.owners):
        queue.put((0, rank))
    sides = [sorted(shape) for shape in shapes]
    found = [None] * len(shapes)
    for cost, number in sorted((-(a * a * (a + 2 * b)), number) for number, (a, b) in enumerate(sides)):
        load, found[number] = queue.get()
        queue.put((load - cost, found[number]))
    return [found]


def arguments(case, rank):
    return {"shapes": shapes_of(case), "owners": case.owners}


PUZZLE = Puzzle(
    name="zero.deal_matrices",
    title="Deal matrices by what they cost",
    statement="""
        Each matrix of a model gets an owner, who makes its updates orthogonal, while all others wait for the one who
        has most to do. A round of Newton-Schulz multiplies X of s rows and l columns, s ≤ l, by its own transpose (s²·l
        multiplications), that by itself (s³), and that by X (s²·l again): 2·s²·l + s³. A matrix on its side costs the
        same. So matrices with equally many elements may cost very different amounts, and to deal them out in turn, or
        by elements, leaves ranks idle.

        Deal as follows, which is never more than a third worse than the best: the most expensive matrix first, and of
        equally expensive ones the first in the list; each to the rank that has the least so far, and of those that have
        equally little, to the lowest.

        Args:
            shapes: (rows, columns) of each matrix.
            owners: how many ranks there are.

        Returns: a list with the rank of each matrix, in the order of `shapes`.

        Budget: a model has thousands of matrices, with experts a million, and there are thousands of ranks: to look at
        all ranks for each matrix takes too long.
        """,
    function=deal_matrices,
    cases=cases(worlds=(1,), model=("blocks",), owners=(4, 2))
    + cases(worlds=(1,), model=("one large", "long and square"), owners=(2, 3))
    + cases(worlds=(1,), model=("equal", "experts"), owners=(3, 1))
    + cases(worlds=(1,), model=("fewer than ranks", "none"), owners=(5,)),
    drawn=(drawn(worlds=(1,), model=range(3, 40), owners=range(1, 9)),),
    scale=Scale(
        cases(worlds=(1,), model=(5_000,), owners=(50_000,)),
        "matrices times ranks",
        oracle=from_a_queue,
    ),
    inputs=arguments,
    oracle=one_after_another,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40 + 12 * len(shapes_of(case)),
            optimum=lambda case: 6 + 5 * len(shapes_of(case)),
            why="a heap of (load, rank) always has the next rank on top",
        ),
    ),
    hints=(
        "Sort by cost. Python's `sorted` keeps the order of equal ones: what key puts the most expensive first?",
        "Which rank is next? A heap of pairs (load, rank) has the one with the least load on top, and of equal "
        "ones the lowest rank.",
        "`load, rank = loads[0]`, then `heapq.heapreplace(loads, (load + cost, rank))`.",
    ),
    wrong=(
        Wrong(
            "in turn",
            diagnosis=r"model=blocks[\s\S]*expected|expected",
            body="""
                return [number % owners for number in range(len(shapes))]
                """,
        ),
        Wrong(
            "by elements",
            diagnosis=r"expected",
            edits=(("2 * min(shape) ** 2 * max(shape) + min(shape) ** 3", "shape[0] * shape[1]"),),
        ),
        Wrong(
            "by the cube of the rows",
            diagnosis=r"expected",
            edits=(("2 * min(shape) ** 2 * max(shape) + min(shape) ** 3", "shape[0] ** 3"),),
        ),
        Wrong(
            "rows are taken for the short side",
            diagnosis=r"expected",
            edits=(
                ("2 * min(shape) ** 2 * max(shape) + min(shape) ** 3", "2 * shape[0] ** 2 * shape[1] + shape[0] ** 3"),
            ),
        ),
        Wrong(
            "in the order of the list",
            diagnosis=r"expected",
            edits=(("sorted(range(len(shapes)), key=lambda number: -costs[number])", "range(len(shapes))"),),
        ),
        Wrong(
            "the cheapest first",
            diagnosis=r"expected",
            edits=(("-costs[number]", "costs[number]"),),
        ),
        Wrong(
            "of equal ones the last first",
            diagnosis=r"expected",
            edits=(
                (
                    "sorted(range(len(shapes)), key=lambda number: -costs[number])",
                    "sorted(range(len(shapes)), key=lambda number: costs[number])[::-1]",
                ),
            ),
        ),
        Wrong(
            "looks at all ranks for each matrix",
            diagnosis=r"right, but .*matrices times ranks|right, but",
            body="""
                costs = [2 * min(shape) ** 2 * max(shape) + min(shape) ** 3 for shape in shapes]
                loads, found = [0] * owners, [0] * len(shapes)
                for number in sorted(range(len(shapes)), key=lambda number: -costs[number]):
                    found[number] = loads.index(min(loads))
                    loads[found[number]] += costs[number]
                return found
                """,
        ),
    ),
)
