"""composition.coordinates_of_a_rank: where a rank stands in a mesh."""

import itertools
import math

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.plain import coordinates_of_a_rank


def seated_one_after_another(case, inputs):
    """Every place of the box, the last axis fastest; the rank-th of them."""
    places = itertools.product(*map(range, case.sizes))
    return [next(itertools.islice(places, case.rank, None))]


CUBE, LLAMA = (2, 2, 2), (16, 128, 8)  # pipe, data, tensor: this lesson's, and Llama 3's


def by_strides(case, inputs):
    """The same, where there are too many places to sit on."""
    strides = [math.prod(case.sizes[axis + 1 :]) for axis in range(len(case.sizes))]
    return [tuple(case.rank // stride % size for stride, size in zip(strides, case.sizes, strict=True))]


PUZZLE = Puzzle(
    name="composition.coordinates_of_a_rank",
    title="Where a rank stands in a mesh",
    statement="""
        A mesh is a box of ranks with an axis for each kind of parallelism. Ranks are seated one after another, and the
        last axis counts fastest, as elements lie in a tensor. In a mesh of 2 pipeline stages, 2 replicas and 2
        tensor-parallel ranks:

            rank    0      1      2      3      4      5      6      7
            stands  0,0,0  0,0,1  0,1,0  0,1,1  1,0,0  1,0,1  1,1,0  1,1,1

        So ranks that differ by one in the last number are neighbours, and share a node.

        Args:
            rank: from 0 on.
            sizes: ranks along each axis, the outermost first.

        Returns: the rank's place on each axis, a tuple as long as `sizes`.

        Budget: a few lines for each axis. Every one of 16,384 ranks asks this first of all.
        """,
    function=coordinates_of_a_rank,
    cases=cases(worlds=(1,), rank=(5, 6, 0, 7), sizes=(CUBE,))
    + cases(worlds=(1,), rank=(1, 11, 23), sizes=((4, 3, 2), (2, 3, 4), (2, 12)))
    + cases(worlds=(1,), rank=(3,), sizes=((5,), (1, 4), (4, 1), (2, 1, 2, 1)))
    + cases(worlds=(1,), rank=(16_383, 9_001), sizes=(LLAMA,)),
    drawn=(
        drawn(
            worlds=(1,),
            sizes=((3, 5, 2), (7, 4), (2, 3, 2, 5), (6, 1, 9), (13,)),
            rank=lambda so_far: range(math.prod(so_far.sizes)),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), rank=(987_654_321_987,), sizes=((10**4, 10**4, 10**4), (10**12,))),
        "the number of ranks",
        oracle=by_strides,
    ),
    oracle=seated_one_after_another,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 10 * len(case.sizes),
            optimum=lambda case: 3 + 3 * len(case.sizes),
            why="a division for each axis says it: no rank has to be seated for that",
        ),
    ),
    hints=(
        "Which place has rank 5 on the last axis, if that has 2 ranks? Which of the pairs is it in?",
        "The remainder of a division by the last size is the place there; the quotient is what the axes before divide.",
        "rank, here = divmod(rank, size) for each size, from the last to the first; turn the list around at the end.",
    ),
    wrong=(
        Wrong(
            "the first axis counts fastest",
            diagnosis=r"rank=6, sizes=\(2, 2, 2\).*expected 1, got 0",
            edits=(("reversed(sizes)", "sizes"), ("tuple(reversed(found))", "tuple(found)")),
        ),
        Wrong(
            "places from the last axis to the first",
            diagnosis=r"rank=6, sizes=\(2, 2, 2\).*expected 1, got 0",
            edits=(("tuple(reversed(found))", "tuple(found)"),),
        ),
        Wrong(
            "sizes taken from the front",
            diagnosis=r"sizes=\(4, 3, 2\)",
            edits=(("reversed(sizes)", "sizes"),),
        ),
        Wrong(
            "the quotient is the place",
            diagnosis=r"rank=5, sizes=\(2, 2, 2\).*expected 1, got 0",
            edits=(("rank, here = divmod(rank, size)", "here, rank = divmod(rank, size)"),),
        ),
        Wrong(
            "strides forgotten: a remainder for each axis",
            diagnosis=r"rank=5, sizes=\(2, 2, 2\).*expected 0, got 1",
            body="return tuple(rank % size for size in sizes)",
        ),
        Wrong(
            "nodes of eight, whatever the sizes",
            diagnosis=r"sizes=\(2, 2, 2\).*expected 3 values, got 2 values",
            body="return (rank // 8, rank % 8)",
        ),
        Wrong(
            "an axis of one rank is left out",
            diagnosis=r"sizes=\(1, 4\).*expected 2 values, got 1 values",
            edits=(("        found.append(here)", "        if size > 1:\n            found.append(here)"),),
        ),
        Wrong(
            "every rank is seated",
            diagnosis=r"right, but it runs [\d,]+ lines where \d+ must do.*\n.*no rank has to be seated",
            body="""
                found = [0] * len(sizes)
                for _ in range(rank):
                    axis = len(sizes) - 1
                    while found[axis] == sizes[axis] - 1:
                        found[axis] = 0
                        axis -= 1
                    found[axis] += 1
                return tuple(found)
                """,
        ),
    ),
)
