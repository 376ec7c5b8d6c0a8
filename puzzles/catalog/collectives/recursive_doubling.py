"""collectives.recursive_doubling: swap sums with a rank 1, then 2, then 4 away."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import recursive_doubling, ring
from reference.collectives.exchange import exchange_reduce
from reference.collectives.reduction import combine, finish

from .common import every_rank_has_the_sum, fewest_steps, one_tensor, size_of

PUZZLE = Puzzle(
    name="collectives.recursive_doubling",
    title="All-reduce by recursive doubling",
    statement="""
        Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of all of them, in place.

        For a power of two p: in the first step ranks that differ in their last bit swap tensors and add, so that both
        hold the sum of two. In the next step those that differ in the last bit but one: the sum of four. Then eight.

        For any other n, let p be the greatest power of two below it. Ranks p and beyond hand their tensor to the rank p
        below them, sit out, and are given the sum at the end.

        Given are `exchange_reduce(outgoing, target, accumulator, source, group, op)`, which sends to one rank while it
        adds what comes from another to `accumulator` (all flat; the two may be the same tensor); and
        `combine(accumulator, received, op)` and `finish(x, n, op)` as before.

        Args:
            x: contiguous, of the same shape and dtype on every rank.
            group: n ranks. Any n.
            op: how to combine.

        Budget: log2 p steps, and two more where n is no power of two; a whole tensor sent in each of them. Memory for
        one more tensor.
        """,
    function=recursive_doubling,
    answer="""
        rank, n, x = dist.get_rank(group), dist.get_world_size(group), x.view(-1)
        p = 1 << n.bit_length() - 1
        if rank >= p:
            dist.send(x, group=group, group_dst=rank - p)
            dist.recv(x, group=group, group_src=rank - p)
            return
        if rank + p < n:
            received = torch.empty_like(x)
            dist.recv(received, group=group, group_src=rank + p)
            combine(x, received, op)
            del received
        distance = 1
        while distance < p:
            exchange_reduce(x, rank ^ distance, x, rank ^ distance, group, op)
            distance *= 2
        finish(x, n, op)
        if rank + p < n:
            dist.send(x, group=group, group_dst=rank + p)
        """,
    cases=cases(worlds=(4, 2, 3, 1, 5, 8), length=(6,))
    + cases(worlds=(6,), length=(1,))
    + cases(worlds=(4,), members=(1, 2, 3), length=(5,))
    + cases(worlds=(2,), length=(6,), dtype=(torch.int32,))
    + cases(worlds=(3,), length=(6,), shape=((2, 3),), op=("AVG", "MAX"))
    + cases(worlds=(4,), length=(6,), op=("AVG", "MAX")),
    drawn=on_any_ranks(length=range(2, 60), op=("SUM", "AVG", "MAX")),
    large=case(3, length=3_000_000),
    inputs=one_tensor,
    oracle=every_rank_has_the_sum,
    calls=POINT_TO_POINT,
    given=(exchange_reduce, combine, finish),
    budgets=(
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(recursive_doubling).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="after k steps a rank must know the sum of 2^k ranks: swap sums, not single tensors",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(recursive_doubling).most(case.n, case.length, 4),
            optimum=lambda case: min(cost.of(each).most(case.n, case.length, 4) for each in (recursive_doubling, ring)),
            why="one tensor in each step, to one rank",
        ),
        Budget(Measure.PEAK_BYTES, target=size_of, why="one buffer is enough"),
    ),
    hints=(
        "Four ranks first. Write the ranks in binary: 00, 01, 10, 11. Which ranks swap in step 1, which in step 2? "
        "What does each rank hold then?",
        "`rank ^ distance` flips one bit, with `distance` 1, 2, 4, ... It is the partner of both sides.",
        "The greatest power of two is `p = 1 << n.bit_length() - 1`. Ranks p and beyond: `send`, then `recv`, and "
        "return. Their partners: receive and combine before the steps, send after them.",
        "`finish` divides by the number of ranks that are in the sum, and that is n, not p.",
    ),
    wrong=(
        Wrong(
            "only for powers of two",
            diagnosis=r"ranks are 0\.\.2|works for powers of two only",
            body="""
                rank, n, x = dist.get_rank(group), dist.get_world_size(group), x.view(-1)
                distance = 1
                while distance < n:
                    exchange_reduce(x, rank ^ distance, x, rank ^ distance, group, op)
                    distance *= 2
                finish(x, n, op)
                """,
        ),
        Wrong(
            "those who sit out get nothing back",
            diagnosis=r"powers of two only|right on ranks? 0, 1.*wrong on rank|still holds its own",
            edits=(
                ("            dist.recv(x, group=group, group_src=rank - p)\n"[4:], ""),
                ("    if rank + p < n:\n        dist.send(x, group=group, group_dst=rank + p)\n", ""),
            ),
        ),
        Wrong(
            "the distance grows by one",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+|right at|wrong at",
            edits=(("distance *= 2", "distance += 1"),),
        ),
        Wrong(
            "the average over those who take part",
            diagnosis=r"off by a factor of 1\.5 everywhere",
            edits=(("    finish(x, n, op)\n", "    finish(x, p, op)\n"),),
        ),
        Wrong(
            "whole tensors around a ring",
            diagnosis=r"right, but it takes \d steps where \d must do.*\n.*swap sums, not single tensors",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                passing, received = x.clone(), torch.empty_like(x)
                right, left = (rank + 1) % n, (rank - 1) % n
                for _ in range(n - 1):
                    for request in [
                        dist.irecv(received, group=group, group_src=left),
                        dist.isend(passing, group=group, group_dst=right),
                    ]:
                        request.wait()
                    combine(x, received, op)
                    passing, received = received, passing
                finish(x, n, op)
                """,
        ),
        Wrong(
            "swaps with both neighbours",
            diagnosis=r"right at|expected -?[\d.]+, got|powers of two",
            body="""
                rank, n, x = dist.get_rank(group), dist.get_world_size(group), x.view(-1)
                distance = 1
                while distance < n:
                    exchange_reduce(x, (rank + distance) % n, x, (rank - distance) % n, group, op)
                    distance *= 2
                finish(x, n, op)
                """,
        ),
        Wrong(
            "all ranks to all ranks at once",
            diagnosis=r"right, but (rank \d sent|it keeps alive)",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                received = torch.empty(n, *x.shape, dtype=x.dtype)
                requests = []
                for other in range(n):
                    if other != rank:
                        requests.append(dist.irecv(received[other], group=group, group_src=other))
                        requests.append(dist.isend(x, group=group, group_dst=other))
                for request in requests:
                    request.wait()
                for other in range(n):
                    if other != rank:
                        combine(x, received[other], op)
                finish(x, n, op)
                """,
        ),
        Wrong(
            "divided in every step",
            diagnosis=r"op=AVG: rank 0.*\n.*too little: averaged",
            edits=(
                ("        distance *= 2\n    finish(x, n, op)\n", "        finish(x, n, op)\n        distance *= 2\n"),
            ),
        ),
        Wrong(
            "only the first step heeds op",
            diagnosis=r"op=MAX: rank 0.*expected",
            edits=(
                ("rank ^ distance, group, op)", "rank ^ distance, group, op if distance == 1 else dist.ReduceOp.SUM)"),
            ),
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"group",
            edits=(
                ("dist.send(x, group=group, group_dst=rank - p)", "dist.send(x, rank - p, group)"),
                ("dist.recv(x, group=group, group_src=rank - p)", "dist.recv(x, rank - p, group)"),
                ("dist.recv(received, group=group, group_src=rank + p)", "dist.recv(received, rank + p, group)"),
                ("dist.send(x, group=group, group_dst=rank + p)", "dist.send(x, rank + p, group)"),
            ),
        ),
    ),
)
