"""composition.order_of_five_axes: which axes stay within nodes."""

import functools
import itertools
import math

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, divisors, drawn
from reference.composition.answers.best_order import order_of_five_axes

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
ROUNDING = 1e-9  # relative: orders that differ by less take equally long
SEATED = 2048  # ranks up to which the judge seats them one by one
GB = 1e9
H100 = {"intra": (450 * GB,), "inter": (50 * GB,)}  # NVLink 4, and a card of InfiniBand NDR for each GPU
USUAL = (0.2 * GB, 1 * GB, 3 * GB, 8 * GB, 30 * GB)  # a rank sends along pp, dp_replicate, dp_shard, cp and tp
HEAVY_SHARDS = (0.1 * GB, 2 * GB, 18 * GB, 14 * GB, 24 * GB)
LIGHT_MATRICES = (0.5 * GB, 1 * GB, 20 * GB, 12 * GB, 2 * GB)
LOADS = (
    USUAL,
    HEAVY_SHARDS,
    LIGHT_MATRICES,
    (5 * GB, 4 * GB, 4 * GB, 5 * GB, 5 * GB),
    (9 * GB, 7 * GB, 5 * GB, 3 * GB, GB),
)
SIZES = ((2, 1, 4, 2, 4), (3, 2, 2, 1, 4), (1, 2, 3, 2, 2), (2, 2, 2, 3, 3), (4, 1, 1, 5, 2), (1, 6, 2, 2, 3))


@functools.cache
def leaves_a_node(stride, size, ranks, node):
    """Whether ranks of a group so far apart are on different nodes, in any group."""
    if ranks > SEATED:
        return node % (stride * size) != 0
    first = (rank for rank in range(ranks) if rank // stride % size == 0)
    return any(rank // node != (rank + stride * (size - 1)) // node for rank in first)


def seconds(case, order):
    """What all axes take together, group by group."""
    sizes, each = (dict(zip(AXES, values, strict=True)) for values in (case.sizes, case.each))
    ranks, stride, total = math.prod(case.sizes), 1, 0.0
    for axis in reversed(order):
        if sizes[axis] > 1:
            slow = leaves_a_node(stride, sizes[axis], ranks, case.node)
            total += each[axis] / (case.inter if slow else case.intra)
            stride *= sizes[axis]
    return total


def as_quick_as_can_be(case, inputs, outputs, trace):
    """All axes, in an order that takes no longer than the best."""
    said = outputs[0]["returns"]
    names = isinstance(said, list | tuple) and all(isinstance(axis, str) for axis in said)
    if not names or sorted(said) != sorted(AXES):
        return [Claim(False, f"it must return the five axes, each once: {', '.join(AXES)}")]
    best = min(itertools.permutations(AXES), key=lambda order: seconds(case, order))
    least, takes = seconds(case, best), seconds(case, said)
    fact = f"{', '.join(said)} takes {1000 * takes:.4g} ms, and {1000 * least:.4g} ms is possible"
    return [Claim(takes <= least * (1 + ROUNDING), fact)]


def of(sizes, each, node, intra=H100["intra"], inter=H100["inter"]):
    return cases(worlds=(1,), sizes=(sizes,), each=each, node=node, intra=intra, inter=inter)


def nodes_of(so_far):
    """Ranks of a node, of which there are several or one."""
    return [size for size in divisors(math.prod(so_far.sizes)) if size <= 16]


PUZZLE = Puzzle(
    name="composition.order_of_five_axes",
    title="The order of five axes",
    statement="""
        Ranks fill nodes, one node after another. Within a node they talk over fast links, between nodes over slow ones.
        In the order of the mesh's axes, the last counts fastest: its ranks are neighbours. So the order decides what
        takes which links. Which one is best?

        An axis takes each[axis] / intra seconds if all ranks of each of its groups are on one node, and
        each[axis] / inter if any group has ranks on two: all wait for the slowest. A step takes the sum over all axes.
        An axis of one rank says nothing and takes no time.

            12 ranks, nodes of 4
            dp, tp = 3, 4     along tp 0 1 2 3         within a node
            tp, dp = 4, 3     along dp 0 1 2, 3 4 5    3 and 4 are apart: slow

        Args:
            sizes: ranks along "pp", "dp_replicate", "dp_shard", "cp" and "tp", by name.
            each: bytes that a rank sends along each axis, by the same names.
            node: ranks of a node. It divides the number of all ranks.
            intra, inter: bytes per second within nodes, and between them.

        Returns: a list of the five names, the outermost first. Where several orders are equally good, any of them will
        do.

        Budget: 120 orders may be tried, with a few lines for each axis. No look at each rank.
        """,
    function=order_of_five_axes,
    cases=of((4, 2, 4, 2, 8), (USUAL, HEAVY_SHARDS), (8,))
    + of((2, 1, 4, 2, 8), (HEAVY_SHARDS, LIGHT_MATRICES), (8,))
    + of((1, 2, 4, 2, 4), (USUAL, HEAVY_SHARDS, LIGHT_MATRICES), (8, 4))
    + of((2, 1, 4, 1, 3), (USUAL,), (4, 6))
    + of((3, 2, 2, 1, 2), (LIGHT_MATRICES,), (6,))
    + of((2, 2, 2, 2, 2), (USUAL,), (1, 32, 4))
    + of((1, 1, 8, 1, 2), (HEAVY_SHARDS,), (8,), inter=(450 * GB,))
    + of((1, 1, 1, 1, 1), (USUAL,), (1,)),
    drawn=(
        drawn(worlds=(1,), sizes=SIZES, each=LOADS, node=nodes_of, **H100),
        drawn(worlds=(1,), sizes=SIZES, each=LOADS, node=nodes_of, intra=(150 * GB,), inter=(12.5 * GB, 50 * GB)),
    ),
    scale=Scale(of((2**20, 2**10, 4, 2, 8), (HEAVY_SHARDS,), (8,)), "the number of ranks"),
    inputs=lambda case, rank: {
        "sizes": dict(zip(AXES, case.sizes, strict=True)),
        "each": dict(zip(AXES, case.each, strict=True)),
        "node": case.node,
        "intra": case.intra,
        "inter": case.inter,
    },
    judge=as_quick_as_can_be,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 12_000,
            optimum=lambda case: 300,
            why="how far an axis reaches follows from the sizes of the axes inside it: no rank has to be looked at",
        ),
    ),
    hints=(
        "An axis and all that are inside it fill blocks of consecutive ranks. How long is such a block? When do nodes "
        "cut through one?",
        "A block is the product of the sizes, from the innermost axis up to this one. If it divides `node`, no group "
        "leaves its node. If it does not, some group does, also where the block is shorter than a node.",
        "def seconds(order): go through reversed(order), multiply `block` by each size, and add each[axis] / intra if "
        "node % block == 0, else each[axis] / inter. Then min(itertools.permutations(sizes), key=seconds).",
    ),
    wrong=(
        Wrong(
            "the heaviest innermost",
            diagnosis=r"pp, dp_replicate, cp, dp_shard, tp takes [\d.]+ ms, and [\d.]+ ms is possible",
            body="return sorted(sizes, key=lambda axis: each[axis])",
        ),
        Wrong(
            "the usual order",
            diagnosis=r"pp, dp_replicate, dp_shard, cp, tp takes [\d.]+ ms, and [\d.]+ ms is possible",
            body='return ["pp", "dp_replicate", "dp_shard", "cp", "tp"]',
        ),
        Wrong(
            "what is shorter than a node stays within one",
            diagnosis=r"node=4.*takes [\d.]+ ms, and [\d.]+ ms is possible",
            edits=(("node % block == 0", "block <= node"),),
        ),
        Wrong(
            "an axis that is shorter than a node stays within one, wherever it is",
            diagnosis=r"takes [\d.]+ ms, and [\d.]+ ms is possible",
            edits=(("node % block == 0", "node % sizes[axis] == 0"),),
        ),
        Wrong(
            "the innermost first",
            diagnosis=r"takes [\d.]+ ms, and [\d.]+ ms is possible",
            edits=(
                (
                    "return list(min(permutations(sizes), key=seconds))",
                    "return list(min(permutations(sizes), key=seconds))[::-1]",
                ),
            ),
        ),
        Wrong(
            "the slowest order",
            diagnosis=r"takes [\d.]+ ms, and [\d.]+ ms is possible",
            edits=(("min(permutations", "max(permutations"),),
        ),
        Wrong(
            "fast links are slow, and slow ones fast",
            diagnosis=r"takes [\d.]+ ms, and [\d.]+ ms is possible",
            edits=(("intra if node", "inter if node"), ("else inter)", "else intra)")),
        ),
        Wrong(
            "of the axes that still fit into a node, the heaviest comes next",
            diagnosis=r"takes [\d.]+ ms, and [\d.]+ ms is possible",
            body="""
                order, left, block = [], dict(each), 1
                while left:
                    fits = [axis for axis in left if node % (block * sizes[axis]) == 0] or list(left)
                    axis = max(fits, key=left.get)
                    block *= sizes[axis]
                    order.insert(0, axis)
                    del left[axis]
                return order
                """,
        ),
        Wrong(
            "axes of one rank are left out",
            diagnosis=r"it must return the five axes, each once",
            edits=(("permutations(sizes)", "permutations([axis for axis in sizes if sizes[axis] > 1])"),),
        ),
        Wrong(
            "each rank looks where its next ones are",
            diagnosis=r"right, but it (runs [\d,]+ lines where [\d,]+ must do.*\n.*no rank has|takes more than 2 s)",
            body="""
                from itertools import permutations
                from math import prod

                ranks, known = prod(sizes.values()), {}

                def seconds(order):
                    total, stride = 0.0, 1
                    for axis in reversed(order):
                        slow = False
                        for rank in range(ranks):
                            first = rank - rank // stride % sizes[axis] * stride
                            if first // node != rank // node:
                                slow = True
                        if sizes[axis] > 1:
                            total += each[axis] / (inter if slow else intra)
                        stride *= sizes[axis]
                    return total

                return list(min(permutations(sizes), key=seconds))
                """,
        ),
    ),
)
