"""ranks.find_the_deadlock: a program that looks symmetric, and that is the trouble."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.ranks.answers.neighbours import look_both_ways

from .common import shape_of


def beside(case, inputs):
    tensors = [each["x"] for each in inputs]
    beyond = torch.zeros_like(tensors[0])
    line = [beyond, *tensors, beyond]
    return [(line[rank], line[rank + 2]) for rank in range(case.n)]


BROKEN = """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    if rank < n - 1:
        dist.send(x, group=group, group_dst=rank + 1)
        dist.recv(right, group=group, group_src=rank + 1)
    if rank > 0:
        dist.send(x, group=group, group_dst=rank - 1)
        dist.recv(left, group=group, group_src=rank - 1)
    return left, right
    """

PUZZLE = Puzzle(
    name="ranks.find_the_deadlock",
    title="Find the deadlock, and mend it",
    statement="""
        The ranks of `group` stand in a line. Each wants to know what its left and its right neighbour hold; beyond the
        ends of the line are zeros. Every rank turns to the right first, then to the left: send, receive, send, receive.
        It hangs. Check it as it is and read which rank waits for which, then mend it.

        Args:
            x: a contiguous tensor, of the same shape and dtype on every rank. Leave it as it is.
            group: n ranks. With n = 1 there are no neighbours.

        Returns: (left, right), two new tensors like `x`.

        Budget: at most 4 steps, on however many ranks. One is possible.
        """,
    function=look_both_ways,
    body=BROKEN,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(4,))
    + cases(worlds=(3,), length=(0, 1))
    + cases(worlds=(4,), members=(0, 1, 3), length=(3,))
    + cases(worlds=(2,), length=(4,), dtype=(torch.int32,))
    + cases(worlds=(2,), length=(6,), shape=((2, 3),)),
    drawn=on_any_ranks(length=range(2, 40)),
    inputs=lambda case, rank: {"x": case.tensor(rank, *shape_of(case))},
    oracle=beside,
    tolerance=0,
    new=True,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(Measure.BYTES_SENT, target=lambda case: 4 * case.length * min(2, case.n - 1)),
        Budget(
            Measure.STEPS,
            target=lambda case: min(4, 2 * (case.n - 1)),
            optimum=lambda case: min(1, case.n - 1),
            why="each pair waits for the pair before it: the farther down the line, the later",
        ),
    ),
    hints=(
        "Which is the first rank that receives? Follow the line from one end to the other.",
        "Two neighbours must not do the same thing at the same time: when one sends, the other must receive. What "
        "could tell the two apart?",
        "Even ranks turn to the right first, odd ones to the left, and in each pair one sends while the other "
        "receives: 4 steps. Or post everything with one `dist.batch_isend_irecv`: 1 step.",
    ),
    wrong=(
        Wrong(
            "every rank receives first instead",
            diagnosis=r"deadlock",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                left, right = torch.zeros_like(x), torch.zeros_like(x)
                if rank < n - 1:
                    dist.recv(right, group=group, group_src=rank + 1)
                    dist.send(x, group=group, group_dst=rank + 1)
                if rank > 0:
                    dist.recv(left, group=group, group_src=rank - 1)
                    dist.send(x, group=group, group_dst=rank - 1)
                return left, right
                """,
        ),
        Wrong(
            "one pair after another",
            diagnosis=r"right, but it takes \d+ steps where 4 must do.*\n.*the farther down the line, the later",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                left, right = torch.zeros_like(x), torch.zeros_like(x)
                if rank > 0:
                    dist.recv(left, group=group, group_src=rank - 1)
                    dist.send(x, group=group, group_dst=rank - 1)
                if rank < n - 1:
                    dist.send(x, group=group, group_dst=rank + 1)
                    dist.recv(right, group=group, group_src=rank + 1)
                return left, right
                """,
        ),
        Wrong(
            "isend, and no rank waits",
            diagnosis=r"never waited for|wait\(\)",
            body=BROKEN.replace("dist.send", "dist.isend"),
        ),
        Wrong(
            "left and right swapped",
            diagnosis=r"rank 0, result\[0\].*expected 0, got",
            edits=(("return left, right", "return right, left"),),
        ),
        Wrong(
            "a ring instead of a line",
            diagnosis=r"expected 0, got",
            edits=(("        if 0 <= neighbour < n:\n", "        neighbour %= n\n        if neighbour != rank:\n"),),
        ),
        Wrong(
            "the batch is not waited for",
            diagnosis=r"unfilled until wait\(\)|never waited for",
            edits=(
                (
                    "    for work in dist.batch_isend_irecv(batch) if batch else ():\n        work.wait()\n",
                    "    if batch:\n        dist.batch_isend_irecv(batch)\n",
                ),
            ),
        ),
        Wrong(
            "a flat buffer",
            diagnosis=r"shape \(2, 3\).*shape \(6,\)",
            edits=(("torch.zeros_like(x), torch.zeros_like(x)", "x.new_zeros(x.numel()), x.new_zeros(x.numel())"),),
        ),
    ),
)
