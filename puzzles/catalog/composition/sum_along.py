"""composition.sum_along: process groups along the axes of a mesh, and a sum in one of them."""

import itertools

import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, drawn
from reference.collectives import all_reduce, cost
from reference.composition.plain import groups_along, sum_along

LENGTH = 24


def ranks_that_agree_elsewhere(case, inputs):
    """For each rank, the sum over those whose places agree on all other axes."""
    places = list(itertools.product(*map(range, case.sizes)))

    def together(one, other):
        return all(a == b for axis, (a, b) in enumerate(zip(one, other, strict=True)) if axis not in case.axes)

    return [
        {"x": sum(inputs[other]["x"] for other in range(case.n) if together(places[rank], places[other]))}
        for rank in range(case.n)
    ]


def group_size(case):
    size = 1
    for axis in case.axes:
        size *= case.sizes[axis]
    return size


def of(worlds, sizes, axes):
    return cases(worlds=worlds, sizes=sizes, axes=axes)


PUZZLE = Puzzle(
    name="composition.sum_along",
    title="Make the groups, and sum in yours",
    statement="""
        `dist.new_group(ranks)` makes a process group of some ranks of the world. Two rules, which frameworks follow for
        you: *every* rank of the world calls it for *every* group, also for those that it is not in; and all ranks do so
        in the same order. A rank that is not in a group gets something back that it cannot talk in.

        Make the groups of a mesh along some axes, and sum `x` over the one that this rank is in, in place. All ranks of
        the world stand in the mesh.

        Args:
            x: whole numbers, on every rank other ones.
            axes: numbers of axes, as for `groups_along`, which you have: [(0, 1), (2, 3), ...].
            sizes: ranks along each axis, the outermost first.

        Budget: one all-reduce, among those that it concerns.
        """,
    function=sum_along,
    given=(groups_along,),
    cases=of((8,), ((2, 2, 2),), ((2,), (0,), (0, 1)))
    + of((6,), ((3, 2), (2, 3)), ((0,), (1,)))
    + of((3,), ((3,),), ((0,), ()))
    + of((1,), ((1,),), ((0,),)),
    drawn=(
        drawn(worlds=(6,), sizes=((3, 2), (1, 6)), axes=((0,), (1,), (0, 1))),
        drawn(
            worlds=(9, 9, 12),
            sizes=lambda so_far: ((3, 3), (9, 1)) if so_far.n == 9 else ((3, 4), (2, 6)),
            axes=((0,), (1,), (0, 1)),
        ),
    ),
    inputs=lambda case, rank: {"x": case.tensor(rank, LENGTH), "axes": case.axes, "sizes": case.sizes},
    oracle=ranks_that_agree_elsewhere,
    calls=(dist.new_group, dist.all_reduce),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(all_reduce.ring).most(group_size(case), LENGTH, 4),
            why="one all-reduce of x, in the group of this rank alone",
        ),
        Budget(Measure.CALLS, target=lambda case: 1, why="a group along several axes sums over all of them at once"),
    ),
    hints=(
        "What does a rank do in the loop over all groups with those that it is not in?",
        "It makes them, too, and forgets them. It keeps the one group whose members it is among.",
        "group = dist.new_group(list(members)), in every round; mine = group, if dist.get_rank() in members.",
    ),
    wrong=(
        Wrong(
            "each rank makes its own group alone",
            diagnosis=r"new_group\(\[0, 1\]\).* called on rank|new_group with different ranks",
            edits=(
                (
                    "        group = dist.new_group(list(members))  # all ranks make all groups, in one order\n"
                    "        if dist.get_rank() in members:\n            mine = group",
                    "        if dist.get_rank() in members:\n            mine = dist.new_group(list(members))",
                ),
            ),
        ),
        Wrong(
            "its own group first, then the others",
            diagnosis=r"new_group with different ranks",
            edits=(
                (
                    "for members in groups_along(axes, sizes):",
                    "for members in sorted(groups_along(axes, sizes), key=lambda ranks: dist.get_rank() not in ranks):",
                ),
            ),
        ),
        Wrong(
            "in the group that was made last",
            diagnosis=r"not.*(member|in|part)",
            edits=(("        if dist.get_rank() in members:\n            mine = group", "        mine = group"),),
        ),
        Wrong(
            "in the group of all ranks",
            diagnosis=r"axes=\(2,\).*x\[0\]: expected -?[\d.]+, got -?[\d.]+",
            edits=((", group=mine", ""),),
        ),
        Wrong(
            "along the other axes",
            diagnosis=r"axes=\(2,\).*x\[0\]: expected -?[\d.]+, got -?[\d.]+",
            edits=(("groups_along(axes, sizes)", "groups_along(set(range(len(sizes))) - set(axes), sizes)"),),
        ),
        Wrong(
            "along the first of several axes",
            diagnosis=r"axes=\(0, 1\).*x\[0\]: expected -?[\d.]+, got -?[\d.]+",
            edits=(("groups_along(axes, sizes)", "groups_along(axes[:1], sizes)"),),
        ),
        Wrong(
            "the average",
            diagnosis=r"axes=\(2,\).*x\[0\]: expected -?[\d.]+, got -?[\d.]+",
            edits=(("dist.all_reduce(x, group=mine)", "dist.all_reduce(x, group=mine)\n    x /= mine.size()"),),
        ),
        Wrong(
            "a table of every rank's x",
            diagnosis=r"right, but rank 0 sent 1,344 B where 96 must do.*\n.*one all-reduce of x",
            body="""
                table = x.new_zeros(dist.get_world_size(), *x.shape)
                table[dist.get_rank()] = x
                dist.all_reduce(table)
                for members in groups_along(axes, sizes):
                    if dist.get_rank() in members:
                        x.copy_(table[list(members)].sum(0))
                """,
        ),
        Wrong(
            "one axis after the other",
            diagnosis=r"right, but .*axes=\(0, 1\)",
            body="""
                for axis in axes:
                    for members in groups_along((axis,), sizes):
                        group = dist.new_group(list(members))
                        if dist.get_rank() in members:
                            mine = group
                    dist.all_reduce(x, group=mine)
                """,
        ),
    ),
)
