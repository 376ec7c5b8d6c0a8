"""collectives.halving_doubling: swap halves, quarters, eighths to add up, and go the same way back."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import halving_doubling, ring
from reference.collectives.exchange import exchange, exchange_reduce
from reference.collectives.hypercube import fold, hypercube, unfold
from reference.collectives.reduction import finish

from .common import every_rank_has_the_sum, fewest_steps, one_tensor, size_of


def half(case):
    """Bytes of the longer half; a whole tensor where ranks sit out."""
    return size_of(case) if case.n & (case.n - 1) else 4 * -(-case.length // 2)


PUZZLE = Puzzle(
    name="collectives.halving_doubling",
    title="All-reduce by halving and doubling",
    statement="""
        Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of all of them, in place.

        As in recursive doubling, ranks that differ in one bit are partners. But they share the work: one of the two
        adds up the first half and the other the second. So each sends only the half that it does not keep, and
        continues with the other: a quarter in the next step, then an eighth. When every rank has a small part of the
        sum, they go the same way back, in reverse order, and give each other what they have.

        Given are `cube = hypercube(rank, n)`, this rank's place among the greatest power of two within n:
        `cube.vertex` is its number there, `cube.neighbours` are pairs (distance, rank) of its partners, distances 1, 2,
        4, ...; and `cube.sits_out` is true for a rank beyond. `fold(x, cube, group, op)` hands what those have to
        a partner, `unfold(x, cube, group)` gives them the sum at the end. Then there are
        `exchange(outgoing, target, incoming, source, group)`,
        `exchange_reduce(outgoing, target, accumulator, source, group, op)` and `finish(x, n, op)`.

        Args:
            x: contiguous, of the same shape and dtype on every rank. Its length need not divide.
            group: n ranks. Any n.
            op: how to combine.

        Budget: with n a power of two, 2 log2 n steps and 2(n-1)/n of the tensor sent, as around a ring. Memory for half
        of the tensor. Otherwise two more steps, a whole tensor more, and memory for a whole one.
        """,
    function=halving_doubling,
    cases=cases(worlds=(4, 2, 3, 1, 5, 8), length=(24,))
    + cases(worlds=(4, 2), length=(10, 1))
    + cases(worlds=(4,), members=(0, 2, 3), length=(9,))
    + cases(worlds=(2,), length=(24,), dtype=(torch.int32,))
    + cases(worlds=(3,), length=(12,), shape=((3, 4),), op=("AVG", "MAX"))
    + cases(worlds=(4,), length=(12,), op=("AVG", "MAX")),
    drawn=on_any_ranks(length=range(2, 60), op=("SUM", "AVG", "MAX")),
    large=case(2, length=5_000_000),
    inputs=one_tensor,
    oracle=every_rank_has_the_sum,
    calls=POINT_TO_POINT,
    given=(exchange, exchange_reduce, finish, hypercube, fold, unfold),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(halving_doubling).most(case.n, case.length, 4),
            optimum=lambda case: min(cost.of(each).most(case.n, case.length, 4) for each in (halving_doubling, ring)),
            why="send the half that your partner adds up, then half of your half: never a whole tensor",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(halving_doubling).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="one step for each bit of a rank on the way there, and one on the way back",
        ),
        Budget(
            Measure.PEAK_BYTES, target=half, why="halves are views: the only memory needed is what is received into"
        ),
    ),
    hints=(
        "`lower, upper = mine.tensor_split(2)`: what is kept? Both partners must come to one conclusion without a "
        "word, and it must not be the same half for both.",
        "The bit that they differ in decides: with `cube.vertex & distance` keep the upper half, without it the lower "
        "one. Send the other half, add what comes to the one you keep.",
        "For the way back, note (mine, theirs, neighbour) of each step, and go through the notes in reverse: now send "
        "`mine` and receive into `theirs`.",
        "`finish` what you have when you turn around: it is a part of the sum, and the others will get it from you.",
    ),
    wrong=(
        Wrong(
            "whole tensors: doubling without halving",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*never a whole tensor",
            body="""
                cube, x = hypercube(dist.get_rank(group), dist.get_world_size(group)), x.view(-1)
                fold(x, cube, group, op)
                if not cube.sits_out:
                    for _, neighbour in cube.neighbours:
                        exchange_reduce(x, neighbour, x, neighbour, group, op)
                    finish(x, cube.n, op)
                unfold(x, cube, group)
                """,
        ),
        Wrong(
            "both keep the lower half",
            diagnosis=r"sends \d+ elements|expected -?[\d.]+, got -?[\d.]+",
            edits=(("(upper, lower) if cube.vertex & distance else (lower, upper)", "(lower, upper)"),),
        ),
        Wrong(
            "the way back in the order of the way there",
            diagnosis=r"sends \d+ elements|expected -?[\d.]+, got -?[\d.]+",
            edits=(("reversed(way_back)", "way_back"),),
        ),
        Wrong(
            "halves of one length",
            diagnosis=r"the remainder|expected -?[\d.]+, got -?[\d.]+|length=1",
            edits=(
                (
                    "lower, upper = mine.tensor_split(2)",
                    "half = mine.numel() // 2\n            lower, upper = mine[:half], mine[half : 2 * half]",
                ),
            ),
        ),
        Wrong(
            "no way back",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+|must be the same on every rank",
            edits=(("            exchange(mine, neighbour, theirs, neighbour, group)\n", "            pass\n"),),
        ),
        Wrong(
            "those who sit out are forgotten at the end",
            diagnosis=r"powers of two only|right on rank",
            edits=(("    unfold(x, cube, group)\n", ""),),
        ),
        Wrong(
            "a copy of everything",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*halves are views",
            edits=(("mine, way_back = x, []", "before, mine, way_back = x.clone(), x, []"),),
        ),
        Wrong(
            "divided in every step",
            diagnosis=r"op=AVG: rank 0.*\n.*too little: averaged",
            edits=(
                (
                    "            way_back.append((mine, theirs, neighbour))\n        finish(mine, cube.n, op)\n",
                    "            way_back.append((mine, theirs, neighbour))\n            finish(mine, cube.n, op)\n",
                ),
            ),
        ),
        Wrong(
            "only the first step heeds op",
            diagnosis=r"op=MAX: rank 0.*expected",
            edits=(
                (
                    "exchange_reduce(theirs, neighbour, mine, neighbour, group, op)",
                    "exchange_reduce(theirs, neighbour, mine, neighbour, group, "
                    "op if distance == 1 else dist.ReduceOp.SUM)",
                ),
            ),
        ),
    ),
)
