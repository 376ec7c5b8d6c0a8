"""composition.groups_along: which ranks are together, along one axis or several."""

import itertools
import math

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.plain import coordinates_of_a_rank, groups_along


def ranks_that_agree_elsewhere(case, inputs):
    """Ranks in the order of a box; those whose places agree on all other axes are together."""
    places = list(itertools.product(*map(range, case.sizes)))
    others = [axis for axis in range(len(case.sizes)) if axis not in case.axes]

    def key(rank):
        return [places[rank][axis] for axis in others]

    found = []
    for rank in range(len(places)):
        group = tuple(other for other in range(len(places)) if key(other) == key(rank))
        if group not in found:
            found.append(group)
    return [found]


CUBE = (2, 2, 2)


def by_their_places(case, inputs):
    """The same with one look at each rank, where there are too many to compare them all."""
    found = {}
    for rank, place in enumerate(itertools.product(*map(range, case.sizes))):
        found.setdefault(tuple(x for axis, x in enumerate(place) if axis not in case.axes), []).append(rank)
    return [[tuple(group) for group in found.values()]]


PUZZLE = Puzzle(
    name="composition.groups_along",
    title="The groups of an axis",
    statement="""
        Ranks that stand in the same place on all axes but some belong together along these: they sum gradients (data),
        share matrices (tensor), pass on activations (pipe). In a mesh of 2 x 2 x 2, the axes counted from 0:

            along axis 2          (0, 1) (2, 3) (4, 5) (6, 7)
            along axis 1          (0, 2) (1, 3) (4, 6) (5, 7)
            along axes 0 and 1    (0, 2, 4, 6) (1, 3, 5, 7)

        The last are those whose losses add up: they read different windows, or have different stages.

        Args:
            axes: numbers of axes. With all of them all ranks are together, with none each rank is alone.
            sizes: ranks along each axis, the outermost first. The last axis counts fastest.

        Returns: a list of tuples: groups in order of their first rank, the ranks of each in order.

        Budget: one look at each rank. Comparing every rank with every other takes too long for thousands.
        """,
    function=groups_along,
    given=(coordinates_of_a_rank,),
    cases=cases(worlds=(1,), axes=((2,), (1,), (0,), (0, 1)), sizes=(CUBE,))
    + cases(worlds=(1,), axes=((1,), (0, 2), (2, 0), (0, 1, 2), ()), sizes=((2, 3, 4),))
    + cases(worlds=(1,), axes=((0,), (1,)), sizes=((1, 4), (4, 1)))
    + cases(worlds=(1,), axes=((1,),), sizes=((4, 8, 4),)),
    drawn=(drawn(worlds=(1,), axes=((0,), (1,), (0, 1), (1, 2), (2, 0)), sizes=((3, 2, 4), (2, 5, 3), (4, 1, 3))),),
    scale=Scale(cases(worlds=(1,), axes=((2,),), sizes=((90, 90, 2),)), "pairs of ranks", oracle=by_their_places),
    oracle=ranks_that_agree_elsewhere,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40 + (16 + 8 * len(case.sizes)) * math.prod(case.sizes),
            optimum=lambda case: 8 + (2 + 2 * len(case.sizes)) * math.prod(case.sizes),
            why="where a rank stands on the other axes is the name of its group: one look at each rank is enough",
        ),
    ),
    hints=(
        "What do the ranks of a group have in common, and no other rank?",
        "Their places on all the *other* axes. Make a tuple of these, and use it as the key of a dictionary.",
        "for rank in range(prod(sizes)): groups.setdefault(elsewhere, []).append(rank). Dictionaries keep their order.",
    ),
    wrong=(
        Wrong(
            "the other axes: which ranks agree on these",
            diagnosis=r"expected 2 values, got 4 values|expected 4 values, got 2 values",
            edits=(("if axis not in axes", "if axis in axes"),),
        ),
        Wrong(
            "only the first axis that is named",
            diagnosis=r"axes=\(0, 1\).*expected 2 values, got 4 values",
            edits=(("if axis not in axes", "if axis != min(axes, default=-1)"),),
        ),
        Wrong(
            "always neighbours",
            diagnosis=r"axes=\(1,\).*expected 2, got 1",
            body="""
                import math

                size = math.prod(sizes[axis] for axis in axes)
                return [tuple(range(first, first + size)) for first in range(0, math.prod(sizes), size)]
                """,
        ),
        Wrong(
            "the stride is the axis's own size",
            diagnosis=r"axes=\(2,\).*expected 1, got 4",
            body="""
                import math

                size = math.prod(sizes[axis] for axis in axes)
                step = math.prod(sizes) // size
                return [tuple(range(first, math.prod(sizes), step)) for first in range(step)]
                """,
        ),
        Wrong(
            "axes counted from the innermost",
            diagnosis=r"axes=\(2,\).*expected 1, got 4",
            edits=(("enumerate(here)", "enumerate(reversed(here))"),),
        ),
        Wrong(
            "the group of rank 0 alone",
            diagnosis=r"expected 4 values, got 1 values",
            edits=(("groups.values()]", "groups.values()][:1]"),),
        ),
        Wrong(
            "lines along several axes, not planes",
            diagnosis=r"axes=\(0, 1\).*expected 2 values, got 8 values",
            body="""
                import math

                found = []
                for axis in sorted(axes):
                    groups = {}
                    for rank in range(math.prod(sizes)):
                        here = list(coordinates_of_a_rank(rank, sizes))
                        del here[axis]
                        groups.setdefault(tuple(here), []).append(rank)
                    found += [tuple(group) for group in groups.values()]
                return found
                """,
        ),
        Wrong(
            "every rank is compared with all",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*one look at each rank",
            body="""
                import math

                def elsewhere(rank):
                    here = coordinates_of_a_rank(rank, sizes)
                    return [place for axis, place in enumerate(here) if axis not in axes]

                found = []
                for rank in range(math.prod(sizes)):
                    group = []
                    for other in range(math.prod(sizes)):
                        if elsewhere(other) == elsewhere(rank):
                            group.append(other)
                    if tuple(group) not in found:
                        found.append(tuple(group))
                return found
                """,
        ),
    ),
)
