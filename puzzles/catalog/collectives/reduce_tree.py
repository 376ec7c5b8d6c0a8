"""collectives.reduce_tree: pairs, then pairs of pairs: a broadcast that runs backwards."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.reduce import tree
from reference.collectives.reduction import combine, finish

from .common import reduced, size_of, tensor_and_root


def the_root_has_the_sum(case, inputs):
    """The others may end with whatever they like."""
    return [{"x": reduced(case, [each["x"] for each in inputs])} if rank == case.root else {} for rank in range(case.n)]


PUZZLE = Puzzle(
    name="collectives.reduce_tree",
    title="Reduce along a tree",
    statement="""
        Every rank brings a tensor; afterwards the root's `x` holds the sum of all of them. The ranks add up in pairs,
        then in pairs of pairs: a broadcast along a tree, run backwards.

        Given are `combine(accumulator, received, op)`, which adds `received` to `accumulator` in place (or takes the
        larger of the two, or whatever `op` says), and `finish(x, n, op)`, which ends a reduction over n ranks: it
        divides where `op` is the average.

        Args:
            x: contiguous, of the same shape and dtype on every rank. What is in it afterwards matters on the root only.
            root: group rank of the one who gets the sum.
            group: n ranks. Any n, also one that is no power of two.
            op: how to combine.

        Budget: ⌈log2 n⌉ steps, one tensor sent by each rank but the root, memory for one more tensor.
        """,
    function=tree,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        vertex, distance = (rank - root) % n, 1
        received = torch.empty_like(x)
        while distance < n:
            if vertex % (2 * distance) == distance:
                dist.send(x, group=group, group_dst=(rank - distance) % n)
                return
            if vertex + distance < n:
                dist.recv(received, group=group, group_src=(rank + distance) % n)
                combine(x, received, op)
            distance *= 2
        finish(x, n, op)
        """,
    cases=cases(worlds=(4, 2, 3, 1, 5), root=lambda n: {0, n - 1}, length=(6,))
    + cases(worlds=(8, 6), root=(3,), length=(6,))
    + cases(worlds=(4,), members=(0, 2, 3), root=(1,), length=(5,))
    + cases(worlds=(2,), root=(1,), length=(6,), dtype=(torch.int32,))
    + cases(worlds=(3,), root=(1,), length=(6,), op=("AVG", "MAX"), shape=((2, 3),)),
    drawn=on_any_ranks(root=lambda so_far: range(so_far.n), length=range(2, 40), op=("SUM", "AVG", "MAX")),
    large=case(3, root=1, length=3_000_000),
    inputs=tensor_and_root,
    oracle=the_root_has_the_sum,
    scratch=("x",),
    calls=POINT_TO_POINT,
    given=(combine, finish),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(tree).most(case.n, case.length, 4),
            why="every rank but the root sends once: the sum of all that it has collected",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(tree).steps(case.n, case.length, 4),
            why="half of those who are left hand in their sum in each step, all at the same time",
        ),
        Budget(Measure.PEAK_BYTES, target=size_of, why="one buffer is enough: combine it before the next one comes"),
    ),
    hints=(
        "Turn the arrows of the broadcast around. Its last step is your first: which rank hands in, and to which?",
        "Let `distance` be 1, 2, 4, ... and count ranks from the root: `vertex = (rank - root) % n`. A vertex that is "
        "an odd multiple of `distance` sends to the one `distance` to its left, and is done.",
        "All others receive from `distance` to their right, if there is one, and combine. Which is left at the end?",
    ),
    wrong=(
        Wrong(
            "only for powers of two",
            diagnosis=r"works for powers of two only|waits|finished",
            edits=(("if vertex + distance < n:", "if True:"),),
        ),
        Wrong(
            "received over its own",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("            combine(x, received, op)\n", "            x.copy_(received)\n"),),
        ),
        Wrong(
            "the average is a sum",
            diagnosis=r"off by exactly the world size, too much: summed, and not averaged",
            edits=(("    finish(x, n, op)\n", ""),),
        ),
        Wrong(
            "one after another",
            diagnosis=r"right, but it takes \d steps where \d must do.*\n.*all at the same time",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.send(x, group=group, group_dst=root)
                    return
                received = torch.empty_like(x)
                for other in range(n):
                    if other != root:
                        dist.recv(received, group=group, group_src=other)
                        combine(x, received, op)
                finish(x, n, op)
                """,
        ),
        Wrong(
            "collects everything first",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*one buffer",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != root:
                    dist.send(x, group=group, group_dst=root)
                    return
                received = {other: torch.empty_like(x) for other in range(n) if other != root}
                requests = [dist.irecv(each, group=group, group_src=other) for other, each in received.items()]
                for request in requests:
                    request.wait()
                for each in received.values():
                    combine(x, each, op)
                finish(x, n, op)
                """,
        ),
        Wrong(
            "only for root 0",
            diagnosis=r"right with root=0, wrong with root=|right on|expected -?[\d.]+, got -?[\d.]+",
            edits=(
                ("vertex, distance = (rank - root) % n, 1", "vertex, distance = rank, 1"),
                ("group_dst=(rank - distance) % n", "group_dst=rank - distance"),
                ("group_src=(rank + distance) % n", "group_src=rank + distance"),
            ),
        ),
        Wrong(
            "rank 0 finishes, whatever the root is",
            diagnosis=r"off by exactly the world size, too much: summed, and not averaged",
            edits=(("    finish(x, n, op)\n", "    if rank == 0:\n        finish(x, n, op)\n"),),
        ),
    ),
)
