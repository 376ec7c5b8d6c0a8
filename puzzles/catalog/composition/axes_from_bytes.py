"""composition.axes_from_bytes: the mesh of a run, read from what its ranks have sent to each other."""

import itertools
import math
import random

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.composition.answers.read_axes import axes_from_bytes

MB = 1_000_000
MESHES = {
    "heaviest innermost": (("pp", 2), ("dp", 2), ("tp", 4)),
    "heaviest outermost": (("tp", 4), ("dp", 2), ("pp", 2)),
    "heaviest between": (("pp", 3), ("tp", 2), ("dp", 4)),
    "five axes": (("pp", 2), ("dp_replicate", 2), ("cp", 3), ("dp_shard", 2), ("tp", 2)),
    "five axes with one of 1 rank": (("dp_shard", 3), ("tp", 2), ("dp_replicate", 1), ("pp", 2), ("cp", 4)),
    "one long axis": (("cp", 1), ("tp", 5), ("dp", 1)),
    "two equally long": (("dp", 3), ("cp", 3)),
    "the same two turned round": (("cp", 3), ("dp", 3)),
    "one rank": (("dp", 1),),
    "eight axes": tuple((f"axis {number}", 2) for number in (5, 2, 7, 0, 3, 6, 1, 4)),
}
USUAL = {"pp": 40 * MB, "dp_replicate": 60 * MB, "dp": 90 * MB, "dp_shard": 150 * MB, "cp": 320 * MB, "tp": 900 * MB}
STRANGE = {"pp": 700 * MB, "dp_replicate": 500 * MB, "dp": 80, "dp_shard": 96, "cp": 60 * MB, "tp": 7 * MB}
LOADS = {"usual": USUAL, "strange": STRANGE}


def mesh_of(case):
    """The axes, the outermost first; those of a shuffled mesh as the case's seed has it."""
    axes = list(MESHES[case.mesh])
    return random.Random(case.seed).sample(axes, len(axes)) if case.shuffled else axes


def load(case):
    """What a rank sends along each axis."""
    known = LOADS[case.load]
    return {axis: known.get(axis, 1000 + sum(map(ord, axis))) * (size > 1) for axis, size in mesh_of(case)}


def sent_between(mesh, each):
    """(source, target) -> bytes, for ranks seated one by one on a mesh, around the rings of its axes."""
    places = list(itertools.product(*(range(size) for _, size in mesh)))
    seats = {place: rank for rank, place in enumerate(places)}
    sent = {}
    for rank, place in enumerate(places):
        for number, (axis, size) in enumerate(mesh):
            if size > 1:
                after = (*place[:number], (place[number] + 1) % size, *place[number + 1 :])
                sent[rank, seats[after]] = each[axis]
    return sent


def messages_of_a_run(case, rank):
    """The arguments: what is sent comes in several messages of unequal sizes, and these come in any order."""
    chance, messages, each = random.Random(case.seed), [], load(case)
    for (source, target), size in sent_between(mesh_of(case), each).items():
        cuts = sorted(chance.sample(range(1, size), case.messages - 1))
        messages += [(source, target, b - a) for a, b in itertools.pairwise([0, *cuts, size])]
    chance.shuffle(messages)
    names = sorted(axis for axis, _ in mesh_of(case))
    sizes = dict(mesh_of(case))
    return {"messages": messages, "sizes": {n: sizes[n] for n in names}, "each": {n: each[n] for n in names}}


def makes_the_same_bytes(case, inputs, outputs, trace):
    """Ranks on a mesh of this order send what was sent. Where several orders do, any of them will do."""
    said, sizes = outputs[0]["returns"], dict(mesh_of(case))
    names = isinstance(said, list | tuple) and all(isinstance(axis, str) for axis in said)
    if not names or sorted(said) != sorted(sizes):
        return [Claim(False, f"it must return all axes, each once: {', '.join(sorted(sizes))}")]
    each = load(case)
    would, was = sent_between([(axis, sizes[axis]) for axis in said], each), sent_between(mesh_of(case), each)
    pair = next((pair for pair in {**would, **was} if would.get(pair) != was.get(pair)), None)
    if pair is None:
        return [Claim(True, "")]
    source, target = pair
    here, there = (f"{sent.get(pair, 0):,}" for sent in (would, was))
    order = ", ".join(said)
    return [Claim(False, f"{order}: rank {source} would send {here} B to rank {target}, and has sent {there}")]


def of(load, *meshes, messages=(2,)):
    return cases(worlds=(1,), mesh=meshes, load=(load,), messages=messages, shuffled=(False,))


def ranks(case):
    """How many ranks there are."""
    return math.prod(size for _, size in mesh_of(case))


PUZZLE = Puzzle(
    name="composition.axes_from_bytes",
    title="The mesh of a run, from its bytes",
    statement="""
        A run is slow, and the order of its axes is not known. There is a list of what its ranks have sent in one
        step. From the configuration you know how many ranks each axis has, and what a rank sends along it. Which axis
        is innermost?

        Along each axis all ranks send around rings: from each to the next one on the axis, and from the last to the
        first; in several messages, which add up to `each[axis]` bytes for every rank. An axis of one rank sends
        nothing. Ranks fill the mesh row-major: along the last axis they are neighbours.

            2 x 2 ranks; along dp a rank sends 9 B, along tp 100
            messages: 0 to 1 100, 1 to 0 60, 0 to 2 9, 1 to 3 9, 1 to 0 40, ...
            order: dp, tp

        A heavy axis ought to be innermost. Here it may be anywhere.

        Args:
            messages: a list of (source, target, bytes), in any order.
            sizes: ranks along each axis, by name, in alphabetical order.
            each: bytes that each rank sends along an axis, by name; other ones for each axis of more than one rank.

        Returns: a list of the names, the outermost first. Where several orders are equally good, any of them will do:
        an axis of one rank may stand anywhere.

        Budget: one look at each message. To try all orders takes too long for eight axes.
        """,
    function=axes_from_bytes,
    cases=of("usual", "heaviest outermost", "heaviest innermost", "heaviest between")
    + of("strange", "heaviest innermost", "heaviest between")
    + of("usual", "five axes", "five axes with one of 1 rank", messages=(3,))
    + of("strange", "five axes", messages=(1,))
    + of("usual", "one long axis", "two equally long", "the same two turned round", messages=(1, 4))
    + of("usual", "one rank"),
    drawn=tuple(
        drawn(worlds=(1,), mesh=(mesh,), load=tuple(LOADS), messages=(1, 2, 5), shuffled=(True,))
        for mesh in ("heaviest between", "five axes", "five axes with one of 1 rank")
    ),
    scale=Scale(of("usual", "eight axes"), "the number of orders"),
    inputs=messages_of_a_run,
    judge=makes_the_same_bytes,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 150 + 6 * case.messages * ranks(case) * len(MESHES[case.mesh]),
            optimum=lambda case: 6 + 2 * case.messages * ranks(case) * len(MESHES[case.mesh]),
            why="to whom one rank sends what an axis sends, says where the axis is: no order has to be tried",
        ),
    ),
    hints=(
        "Add up what rank 0 has sent to each other rank. Which axis does each of these sums belong to? Why is rank 0 "
        "easier to read than the last rank?",
        "Rank 0 is first on each axis, so it sends to the second. Along the innermost axis that is rank 1. Along the "
        "next one it is as far away as the innermost axis is long, and so forth: its number is the stride of the axis.",
        "strides = {bytes: target for target, bytes in sums of rank 0}; then sort the axes by strides[each[axis]], the "
        "largest first, with `strides.get` for axes that send nothing.",
    ),
    wrong=(
        Wrong(
            "the heaviest axis is innermost, as it ought to be",
            diagnosis=r"pp, dp, tp: rank 0 would send 40,000,000 B to rank 8, and has sent 0",
            body="return sorted(sizes, key=lambda axis: each[axis])",
        ),
        Wrong(
            "the usual order of axes",
            diagnosis=r"rank 0 would send [\d,]+ B to rank \d+, and has sent [\d,]+",
            body="""
                usual = ["pp", "dp_replicate", "dp_shard", "dp", "cp", "tp"]
                return sorted(sizes, key=lambda axis: usual.index(axis) if axis in usual else len(usual))
                """,
        ),
        Wrong(
            "the innermost first",
            diagnosis=r"rank 0 would send [\d,]+ B to rank \d+, and has sent [\d,]+",
            edits=((", reverse=True", ""),),
        ),
        Wrong(
            "one message is all that a rank sends to another",
            diagnosis=r"rank 0 would send [\d,]+ B to rank \d+, and has sent [\d,]+",
            edits=(("sent.get(target, 0) + size", "size"),),
        ),
        Wrong(
            "the largest message alone is looked at",
            diagnosis=r"rank 0 would send [\d,]+ B to rank \d+, and has sent [\d,]+",
            edits=(("sent.get(target, 0) + size", "max(size, sent.get(target, 0))"),),
        ),
        Wrong(
            "what rank 0 receives is added to what it sends",
            diagnosis=r"rank 0 would send [\d,]+ B to rank \d+, and has sent [\d,]+",
            edits=(
                ("        if source == 0:\n", "        if source == 0 or target == 0:\n            target += source\n"),
            ),
        ),
        Wrong(
            "a name for each rank that rank 0 sends to, and so none for an axis that sends nothing",
            diagnosis=r"it must return all axes, each once: cp, dp_replicate, dp_shard, pp, tp",
            edits=(
                (
                    "    return sorted(sizes, key=lambda axis: strides.get(each[axis], 0), reverse=True)",
                    "    names = {size: axis for axis, size in each.items()}\n"
                    "    return [names[size] for size in sorted(strides, key=strides.get, reverse=True)]",
                ),
            ),
        ),
        Wrong(
            "axes by their lengths: the longest is innermost",
            diagnosis=r"rank 0 would send [\d,]+ B to rank \d+, and has sent [\d,]+",
            body="return sorted(sizes, key=lambda axis: sizes[axis])",
        ),
        Wrong(
            "an axis that sends nothing is an error",
            diagnosis=r"KeyError",
            edits=(("strides.get(each[axis], 0)", "strides[each[axis]]"),),
        ),
        Wrong(
            "all orders are tried",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*no order has to be tried",
            body="""
                from itertools import permutations
                from math import prod

                sent = {}
                for source, target, size in messages:
                    sent[source, target] = sent.get((source, target), 0) + size
                for order in permutations(sizes):
                    fits = True
                    for number, axis in enumerate(order):
                        stride = prod(sizes[inner] for inner in order[number + 1 :])
                        for rank in range(prod(sizes.values())):
                            place = rank // stride % sizes[axis]
                            target = rank - place * stride + (place + 1) % sizes[axis] * stride
                            if sizes[axis] > 1 and sent.get((rank, target)) != each[axis]:
                                fits = False
                    if fits:
                        return list(order)
                """,
        ),
    ),
)
