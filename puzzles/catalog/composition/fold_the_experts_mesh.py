"""composition.fold_the_experts_mesh: the same ranks, as attention sees them and as experts do."""

import itertools

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.folding import fold_the_experts_mesh

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def arguments(case, rank):
    """The sizes by their names."""
    return {"rank": case.rank, "sizes": dict(zip(AXES, case.sizes, strict=True)), "ep": case.ep, "etp": case.etp}


def seated_one_by_one(case, inputs):
    """All ranks take their places in a box of five axes, and those that differ in one place alone are a group."""
    pp, replicas, shards, cp, tp = case.sizes
    edp, left = divmod(shards * cp * tp, case.ep * case.etp)
    if left:
        return [None]
    places = list(itertools.product(*map(range, (pp, replicas, edp, case.ep, case.etp))))
    here = places[case.rank]

    def along(axis):
        elsewhere = [number for number in range(5) if number != axis]
        return tuple(r for r, place in enumerate(places) if all(place[k] == here[k] for k in elsewhere))

    return [(here, along(2), along(3), along(4))]


def by_strides(case, inputs):
    """The same, where there are too many ranks to seat."""
    _, replicas, shards, cp, tp = case.sizes
    edp = shards * cp * tp // (case.ep * case.etp)
    counts = (replicas, edp, case.ep, case.etp)
    strides = [edp * case.ep * case.etp * replicas, edp * case.ep * case.etp, case.ep * case.etp, case.etp, 1]
    here = (case.rank // strides[0], *(case.rank // s % n for s, n in zip(strides[1:], counts, strict=True)))
    groups = []
    for axis in (2, 3, 4):
        first = case.rank - here[axis] * strides[axis]
        groups.append(tuple(range(first, first + counts[axis - 1] * strides[axis], strides[axis])))
    return [(here, *groups)]


def of(rank, sizes, ep, etp):
    return cases(worlds=(1,), rank=rank, sizes=(sizes,), ep=ep, etp=etp)


PUZZLE = Puzzle(
    name="composition.fold_the_experts_mesh",
    title="Fold the mesh of the experts",
    statement="""
        Attention splits matrices along tp and sequences along cp. An expert is small, and in it no token looks at
        another: it needs neither. So layers of experts see the same ranks in another way ("parallel folding"). Outside,
        nothing changes: stages (pp) and replicas (dp_replicate) are whole blocks of ranks. Inside a block, the row of
        dp_shard x cp x tp ranks gets other axes, here 2 x 4 x 1 in the place of 2 x 2 x 2:

            ranks of a block     0   1   2   3   4   5   6   7
            dp_shard, cp, tp   000 001 010 011 100 101 110 111
            edp, ep, etp       000 010 020 030 100 110 120 130

        edp    replicas of the same experts. Over these their gradients are summed, and over dp_replicate.
        ep     ranks with different experts: tokens travel among them.
        etp    ranks that share each matrix of the same experts. It need not be tp.

        In this order, the outermost first: etp counts fastest.

        Args:
            rank: of all of them.
            sizes: ranks along each axis as attention sees them, by name: "pp", "dp_replicate", "dp_shard", "cp", "tp",
                the outermost first.
            ep, etp: ranks along the axes of the experts. edp follows.

        Returns: a tuple of four tuples: the rank's coordinates on (pp, dp_replicate, edp, ep, etp), and the ranks of
        its group along edp, along ep and along etp, each in order, itself included. None where the row of a block does
        not divide into ep x etp.

        Budget: a rank knows its own groups without a look at all ranks.
        """,
    function=fold_the_experts_mesh,
    cases=of((5, 0), (1, 1, 2, 2, 2), (4,), (1,))
    + of((5,), (1, 1, 2, 2, 2), (2, 1, 8), (2, 1))
    + of((22,), (2, 2, 3, 1, 2), (3, 2), (1, 2))
    + of((13,), (2, 1, 3, 2, 2), (4,), (3,))
    + of((7,), (1, 2, 2, 1, 2), (1,), (2, 1))
    + of((3,), (1, 1, 2, 3, 1), (4, 6), (1,))
    + of((0,), (2, 1, 3, 1, 1), (2,), (1,))
    + of((0,), (1, 1, 1, 1, 1), (1,), (1,)),
    drawn=(
        drawn(
            worlds=(1,),
            sizes=((2, 2, 2, 1, 3), (3, 1, 2, 3, 2), (1, 3, 4, 2, 1), (2, 1, 5, 1, 2)),
            rank=lambda so_far: range(so_far.sizes[0] * so_far.sizes[1] * so_far.sizes[2]),
            ep=(1, 2, 3, 4, 5),
            etp=(1, 1, 2),
        ),
        drawn(
            worlds=(1,),
            sizes=((2, 3, 4, 3, 2), (3, 2, 6, 2, 2)),
            rank=range(24, 140),
            ep=(2, 3, 4, 6),
            etp=(1, 2),
        ),
    ),
    scale=Scale(
        of((2**51 + 2**20 + 11,), (2**20, 2**20, 8, 2, 4), (4, 16), (2, 1)),
        "the number of ranks",
        oracle=by_strides,
    ),
    inputs=arguments,
    oracle=seated_one_by_one,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40 + 6 * sum(case.sizes) + 6 * (case.sizes[2] * case.sizes[3] * case.sizes[4]),
            optimum=lambda case: 8,
            why="remainders say where a rank stands, and strides which ranks are with it: no other block matters",
        ),
    ),
    hints=(
        "How many ranks has a block? Which block is this rank in, and where in its row? What is edp?",
        "row = dp_shard * cp * tp, edp = row // (ep * etp). divmod(rank, row) is the block and the place in its row; "
        "three more remainders make pp and dp_replicate of the one, and edp, ep and etp of the other.",
        "The rank at (d, e, t) of this block is block * row + (d * ep + e) * etp + t. Along edp let d run over "
        "range(edp), with this rank's e and t; along ep let e run; along etp let t.",
    ),
    wrong=(
        Wrong(
            "an expert's matrices are shared as attention's are: etp is tp",
            diagnosis=r"ep=4, etp=1\): result\[0\]\[2\]: expected 1, got 0",
            edits=(("    row = sizes", '    etp = sizes["tp"]\n    row = sizes'),),
        ),
        Wrong(
            "experts are shared out among data-parallel ranks alone",
            diagnosis=r"ep=4, etp=1\): expected 4 values, got None",
            edits=(('sizes["dp_shard"] * sizes["cp"] * sizes["tp"]', 'sizes["dp_shard"]'),),
        ),
        Wrong(
            "tensor-parallel ranks are left out",
            diagnosis=r"result\[0\]|expected",
            edits=((' * sizes["cp"] * sizes["tp"]', ' * sizes["cp"]'),),
        ),
        Wrong(
            "ep counts slower than edp",
            diagnosis=r"ep=4, etp=1\): result\[0\]\[3\]: expected 1, got 2",
            edits=(("d, e = divmod(rest, ep)", "e, d = divmod(rest, edp)"), ("(d * ep + e)", "(e * edp + d)")),
        ),
        Wrong(
            "etp counts slower than ep",
            diagnosis=r"ep=2, etp=2\): result\[0\]\[3\]: expected 0, got 1",
            edits=(
                (
                    "rest, t = divmod(at, etp)\n    d, e = divmod(rest, ep)",
                    "rest, e = divmod(at, ep)\n    d, t = divmod(rest, etp)",
                ),
                ("(d * ep + e) * etp + t", "(d * etp + t) * ep + e"),
            ),
        ),
        Wrong(
            "each group is that of the first block",
            diagnosis=r"result\[1\]\[0\]: expected \d+, got \d",
            edits=(("return first + (d", "return (d"),),
        ),
        Wrong(
            "replicas of the whole model are among edp",
            diagnosis=r"'dp_replicate': 2.*result\[\d\]",
            edits=(
                ('row = sizes["dp_shard"]', 'row = sizes["dp_replicate"] * sizes["dp_shard"]'),
                ('divmod(block, sizes["dp_replicate"])', "(block, 0)"),
            ),
        ),
        Wrong(
            "what does not divide is rounded",
            diagnosis=r"expected None, got 4 values",
            edits=(("    if row % (ep * etp):\n        return None\n", ""),),
        ),
        Wrong(
            "ep alone must divide",
            diagnosis=r"expected None, got 4 values",
            edits=(("if row % (ep * etp):", "if row % ep:"),),
        ),
        Wrong(
            "with one expert group, gradients are summed over attention's replicas",
            diagnosis=r"ep=1, etp=\d\): result\[1\]",
            edits=(
                (
                    "    return (pp,",
                    '    if ep == 1:\n        tp = sizes["tp"]\n'
                    "        along_edp = tuple(range(first + at % tp, first + row, tp))\n    return (pp,",
                ),
            ),
        ),
        Wrong(
            "all ranks are looked at",
            diagnosis=r"right, but it (runs [\d,]+ lines where [\d,]+ must do.*\n.*no other block|takes more than 2 s)",
            body="""
                row = sizes["dp_shard"] * sizes["cp"] * sizes["tp"]
                if row % (ep * etp):
                    return None
                edp, places = row // (ep * etp), {}
                for pp in range(sizes["pp"]):
                    for replica in range(sizes["dp_replicate"]):
                        for d in range(edp):
                            for e in range(ep):
                                for t in range(etp):
                                    places[len(places)] = (pp, replica, d, e, t)
                here, groups = places[rank], []
                for axis in (2, 3, 4):
                    group = []
                    for other, place in places.items():
                        if place[:axis] + place[axis + 1 :] == here[:axis] + here[axis + 1 :]:
                            group.append(other)
                    groups.append(tuple(group))
                return (here, *groups)
                """,
        ),
    ),
)
