"""composition.batch_loss_and_gradient_groups: three groups of a rank that differ by an axis each."""

import itertools
import math

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.whose_sums import batch_loss_and_gradient_groups
from reference.composition.plain import coordinates_of_a_rank, rank_at

SAME = {"pp": "layers", "dp_replicate": "windows", "dp_shard": "windows", "cp": "tokens", "tp": "matrices"}
ALL = (("pp", 2), ("dp_replicate", 2), ("dp_shard", 3), ("cp", 2), ("tp", 2))
DENSE = (("dp_shard", 2), ("cp", 2), ("tp", 2))
INSIDE_OUT = (("tp", 2), ("cp", 3), ("dp_shard", 2), ("pp", 2))
BARE = (("dp_shard", 4),)
HYBRID = (("dp_replicate", 2), ("dp_shard", 2), ("tp", 3))
LONG = (("pp", 3), ("cp", 4))
SLICED = (("pp", 2), ("cp", 2), ("dp_replicate", 3))
ONE = (("tp", 2), ("pp", 1))


def arguments(case, rank):
    """The mesh by names."""
    return {"rank": case.rank, "sizes": dict(case.sizes)}


def by_what_ranks_have(case, inputs):
    """All ranks are asked what they have; those that differ in nothing but this belong together."""
    names, places = [name for name, _ in case.sizes], list(itertools.product(*(range(n) for _, n in case.sizes)))

    def differing_in(*kinds):
        def rest(place):
            return [at for name, at in zip(names, place, strict=True) if SAME[name] not in kinds]

        return tuple(rank for rank, place in enumerate(places) if rest(place) == rest(places[case.rank]))

    return [(differing_in("windows"), differing_in("windows", "tokens", "layers"), differing_in("windows", "tokens"))]


def by_strides(case, inputs):
    """The same, where there are too many ranks to ask."""
    strides, here, rest = {}, {}, case.rank
    for name, size in reversed(case.sizes):
        strides[name] = math.prod(n for _, n in case.sizes[case.sizes.index((name, size)) + 1 :])
        here[name] = rest % size
        rest //= size

    def group(*axes):
        ranks = [case.rank - sum(here[axis] * strides[axis] for axis in axes if axis in here)]
        for name, size in case.sizes:
            if name in axes:
                ranks = [rank + k * strides[name] for rank in ranks for k in range(size)]
        return tuple(ranks)

    dp = ("dp_replicate", "dp_shard")
    return [(group(*dp), group("pp", *dp, "cp"), group(*dp, "cp"))]


def of(rank, *sizes):
    return cases(worlds=(1,), rank=rank, sizes=sizes)


def ranks_of(so_far):
    return range(math.prod(n for _, n in so_far.sizes))


def together(case):
    """How many ranks the three groups have, all of them counted."""
    sizes = dict(case.sizes)
    windows = sizes.get("dp_replicate", 1) * sizes.get("dp_shard", 1)
    tokens = windows * sizes.get("cp", 1)
    return windows + tokens + tokens * sizes.get("pp", 1)


PUZZLE = Puzzle(
    name="composition.batch_loss_and_gradient_groups",
    title="Three groups: windows, losses, gradients",
    statement="""
        Three groups of a training loop. They differ by an axis each, and are easily confused:

            windows     ranks that read different windows: a sampler deals them out by the place in this group
            losses      ranks whose parts of the loss add up to that of the batch: those with other tokens, on any
                        stage. A stage that is not the last adds 0, so that all stages come to know the loss
            gradients   ranks whose gradients add up, of a matrix of this stage that is not split along the data axes:
                        those with other tokens

        What the axes are for: along dp_replicate and dp_shard, ranks read other windows; along cp they have other
        tokens of the same windows; along tp they share the matrices of a layer, and compute with the same tokens; along
        pp they have other layers.

        Mistakes here are silent. A gradient that is summed over dp without cp was a group of one rank in VeOmni
        (PR1115): no sum at all, and training went on. In Megatron-LM (#779) a loss was averaged over the wrong ranks.

        Args:
            rank: of all of them.
            sizes: ranks along each axis of the mesh, the outermost first. The last counts fastest. The axes may be in
                any order, and one that is not there has 1 rank.

        You have `coordinates_of_a_rank(rank, sizes)` and its inverse, `rank_at(coordinates, sizes)`, with a tuple of
        sizes.

        Returns: a tuple of three tuples: the ranks of these groups that `rank` is in, in order, itself included.

        Budget: no look at all ranks of the mesh.
        """,
    function=batch_loss_and_gradient_groups,
    given=(coordinates_of_a_rank, rank_at),
    cases=of((5,), DENSE, ALL)
    + of((0, 17, 47), ALL)
    + of((9, 22), INSIDE_OUT)
    + of((2,), BARE)
    + of((7,), HYBRID, LONG)
    + of((8,), SLICED)
    + of((1,), ONE),
    drawn=(
        drawn(worlds=(1,), sizes=(ALL, DENSE, INSIDE_OUT, HYBRID, LONG, SLICED), rank=ranks_of),
        drawn(
            worlds=(1,),
            sizes=(
                (("cp", 3), ("pp", 2), ("tp", 2), ("dp_shard", 3)),
                (("dp_shard", 2), ("tp", 3), ("dp_replicate", 2), ("cp", 2)),
            ),
            rank=ranks_of,
        ),
    ),
    scale=Scale(
        of((3 * 2**41 + 2**20 + 5,), (("pp", 4), ("tp", 2**40), ("dp_shard", 8), ("cp", 2))),
        "the number of ranks",
        oracle=by_strides,
    ),
    inputs=arguments,
    oracle=by_what_ranks_have,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 80 + 40 * together(case),
            optimum=lambda case: 10 + together(case),
            why="let the places along the axes of a group run, and keep the others: no rank outside is looked at",
        ),
    ),
    hints=(
        "Go through the five axes for each group: do two ranks that stand apart along this axis alone belong to it? "
        "How is it with tp, whose ranks all have the same loss?",
        "windows: dp_replicate and dp_shard. gradients: these and cp. losses: these, cp and pp. tp is in none of them: "
        "its ranks have read the same tokens, and would count them once more.",
        "For each axis take range(size) where it is among the group's axes, and (place,), this rank's own, where it is "
        "not. `itertools.product` of these has the coordinates of the group's ranks, in order.",
    ),
    wrong=(
        Wrong(
            "gradients are summed over dp without cp",
            diagnosis=r"'cp': 2.*result\[2\]: expected 4 values, got 2 values",
            edits=(("tokens), together(*tokens)", "tokens), together(*windows)"),),
        ),
        Wrong(
            "the loss is that of dp without cp",
            diagnosis=r"'cp': 2.*result\[1\]: expected 4 values, got 2 values",
            edits=(('together("pp", *tokens)', 'together("pp", *windows)'),),
        ),
        Wrong(
            "ranks that share a window are dealt different ones",
            diagnosis=r"'cp': 2.*result\[0\]: expected 2 values, got 4 values",
            edits=(("return together(*windows),", "return together(*tokens),"),),
        ),
        Wrong(
            "only the last stage knows the loss",
            diagnosis=r"'pp': 2.*result\[1\]: expected 24 values, got 12 values",
            edits=(('together("pp", *tokens)', "together(*tokens)"),),
        ),
        Wrong(
            "the loss is summed over all ranks: tensor-parallel ones have it alike",
            diagnosis=r"'tp': 2.*result\[1\]: expected 4 values, got 8 values",
            edits=(('together("pp", *tokens)', 'together("pp", "tp", *tokens)'),),
        ),
        Wrong(
            "gradients of different stages are added up",
            diagnosis=r"'pp': 2.*result\[2\]: expected 12 values, got 24 values",
            edits=(("tokens), together(*tokens)", 'tokens), together("pp", *tokens)'),),
        ),
        Wrong(
            "shards alone: replicas are forgotten",
            diagnosis=r"'dp_replicate': 2.*result\[0\]: expected 6 values, got 3 values",
            edits=(
                (
                    'windows, tokens = ("dp_replicate", "dp_shard"), ("dp_replicate", "dp_shard", "cp")',
                    'windows, tokens = ("dp_shard",), ("dp_shard", "cp")',
                ),
            ),
        ),
        Wrong(
            "axes by their place, not by their name",
            diagnosis=r"sizes=\{'dp_shard': 2, 'cp': 2, 'tp': 2\}.*result\[0\]",
            edits=(
                (
                    "    counts = ",
                    '    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")\n'
                    "    sizes = dict(zip(names, sizes.values()))\n    counts = ",
                ),
            ),
        ),
        Wrong(
            "an axis that is not there is an error",
            diagnosis=r"KeyError",
            edits=(("    counts = ", '    replicas = sizes["dp_replicate"]\n    counts = '),),
        ),
        Wrong(
            "the innermost axis comes first",
            diagnosis=r"expected",
            edits=(
                ("counts = tuple(sizes.values())", "counts = tuple(sizes.values())[::-1]"),
                ("zip(sizes.items(), here,", "zip(list(sizes.items())[::-1], here,"),
            ),
        ),
        Wrong(
            "all ranks are asked where they stand",
            diagnosis=r"right, but it (runs [\d,]+ lines where .*\n.*no rank outside|takes more than 2 s)",
            body="""
                from math import prod

                counts, names = tuple(sizes.values()), list(sizes)
                here = coordinates_of_a_rank(rank, counts)
                windows, tokens = ("dp_replicate", "dp_shard"), ("dp_replicate", "dp_shard", "cp")
                groups = []
                for axes in (windows, ("pp", *tokens), tokens):
                    group = []
                    for other in range(prod(counts)):
                        there = coordinates_of_a_rank(other, counts)
                        alike = True
                        for name, one, two in zip(names, here, there):
                            if name not in axes and one != two:
                                alike = False
                        if alike:
                            group.append(other)
                    groups.append(tuple(group))
                return tuple(groups)
                """,
        ),
    ),
)
