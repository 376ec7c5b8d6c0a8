"""collectives.naive_all_reduce: everything to rank 0, and the sum back from there."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Claim, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import naive, ring
from reference.collectives.reduction import combine, finish

from .common import every_rank_has_the_sum, fewest_steps, one_tensor, size_of


def through_rank_0(case, inputs, outputs, trace):
    """Of two who talk, one is the first rank of the group."""
    first = case.global_ranks[0]
    claims = []
    for message in trace.messages:
        said = f"rank {message.src} sends to rank {message.dst}, and not everything through rank {first}"
        claims.append(Claim(first in (message.src, message.dst), said))
    return claims


PUZZLE = Puzzle(
    name="collectives.naive_all_reduce",
    title="All-reduce through rank 0",
    statement="""
        Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of all of them, in place. The obvious
        way: all send theirs to rank 0, which adds them up and sends the sum back.

        Given are `combine(accumulator, received, op)`, which adds `received` to `accumulator` in place (or takes the
        larger of the two, or whatever `op` says), and `finish(x, n, op)`, which ends a reduction over n ranks: it
        divides where `op` is the average.

        Args:
            x: contiguous, of the same shape and dtype on every rank.
            group: n ranks. Any n.
            op: how to combine.

        Budget: 2(n-1) steps. Rank 0 sends n-1 tensors, the others send one. Memory for one more tensor.
        """,
    function=naive,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        if rank != 0:
            dist.send(x, group=group, group_dst=0)
            dist.recv(x, group=group, group_src=0)
            return
        received = torch.empty_like(x)
        for other in range(1, n):
            dist.recv(received, group=group, group_src=other)
            combine(x, received, op)
        finish(x, n, op)
        for other in range(1, n):
            dist.send(x, group=group, group_dst=other)
        """,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(6,))
    + cases(worlds=(4,), members=(1, 2, 3), length=(5,))
    + cases(worlds=(2,), length=(6,), dtype=(torch.int32,))
    + cases(worlds=(3,), length=(6,), shape=((2, 3),), op=("AVG", "MAX")),
    drawn=on_any_ranks(length=range(2, 60), op=("SUM", "AVG", "MAX")),
    large=case(3, length=3_000_000),
    inputs=one_tensor,
    oracle=every_rank_has_the_sum,
    judge=through_rank_0,
    calls=POINT_TO_POINT,
    given=(combine, finish),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(naive).most(case.n, case.length, 4),
            optimum=lambda case: cost.of(ring).most(case.n, case.length, 4),
            why="each rank sends its tensor to rank 0 once, and gets one back",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(naive).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="n-1 messages to rank 0 and n-1 from there, not one more",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=size_of,
            why="one buffer is enough: combine it before the next one comes",
        ),
    ),
    hints=(
        "Two roles: rank 0 and all others. Write down, line by line, what each of them sends and receives.",
        "Rank 0 needs a second tensor to receive into: it must not lose its own. What does it do between two messages?",
        "The others: `send`, then `recv`, both of `x`. Rank 0: n-1 times receive and combine, then `finish`, then n-1 "
        "times send.",
    ),
    wrong=(
        Wrong(
            "no rank gets it back",
            diagnosis=r"right on rank 0, wrong on|still holds its own input",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != 0:
                    dist.send(x, group=group, group_dst=0)
                    return
                received = torch.empty_like(x)
                for other in range(1, n):
                    dist.recv(received, group=group, group_src=other)
                    combine(x, received, op)
                finish(x, n, op)
                """,
        ),
        Wrong(
            "averaged where the sum is asked",
            diagnosis=r"off by exactly the world size, too little: averaged, and not summed",
            edits=(("    finish(x, n, op)\n", "    x /= n\n"),),
        ),
        Wrong(
            "the average is a sum",
            diagnosis=r"off by exactly the world size, too much: summed, and not averaged",
            edits=(("    finish(x, n, op)\n", ""),),
        ),
        Wrong(
            "received over its own",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(
                ("dist.recv(received, group=group, group_src=other)", "dist.recv(x, group=group, group_src=other)"),
                ("        combine(x, received, op)\n", ""),
            ),
        ),
        Wrong(
            "sent back before all are in",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+|must be the same on every rank",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != 0:
                    dist.send(x, group=group, group_dst=0)
                    dist.recv(x, group=group, group_src=0)
                    return
                received = torch.empty_like(x)
                for other in range(1, n):
                    dist.recv(received, group=group, group_src=other)
                    combine(x, received, op)
                    dist.send(x, group=group, group_dst=other)
                finish(x, n, op)
                """,
        ),
        Wrong(
            "collects everything first",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*one buffer",
            edits=(
                ("received = torch.empty_like(x)\n", "received = torch.empty(n, *x.shape, dtype=x.dtype)\n"),
                ("dist.recv(received, group", "dist.recv(received[other], group"),
                ("combine(x, received, op)", "combine(x, received[other], op)"),
            ),
        ),
        Wrong(
            "there and back with each of them, twice",
            diagnosis=r"right, but (rank \d sent|it takes)",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                received, total = torch.empty_like(x), x.clone()
                for source in range(n):
                    for target in range(n):
                        if rank == source != target:
                            dist.send(x, group=group, group_dst=target)
                        if rank == target != source:
                            dist.recv(received, group=group, group_src=source)
                            combine(total, received, op)
                finish(total, n, op)
                x.copy_(total)
                """,
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"group",
            edits=(
                ("dist.send(x, group=group, group_dst=0)", "dist.send(x, 0, group)"),
                ("dist.recv(x, group=group, group_src=0)", "dist.recv(x, 0, group)"),
            ),
        ),
        Wrong(
            "through the last rank",
            diagnosis=r"right, but rank 1 sends to rank 2, and not everything through rank 0",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                if rank != n - 1:
                    dist.send(x, group=group, group_dst=n - 1)
                    dist.recv(x, group=group, group_src=n - 1)
                    return
                received = torch.empty_like(x)
                for other in range(n - 1):
                    dist.recv(received, group=group, group_src=other)
                    combine(x, received, op)
                finish(x, n, op)
                for other in range(n - 1):
                    dist.send(x, group=group, group_dst=other)
                """,
        ),
    ),
)
