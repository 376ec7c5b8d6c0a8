"""collectives.ring_reduce_scatter: each partial sum visits every rank, its own last."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.exchange import exchange
from reference.collectives.reduce_scatter import ring
from reference.collectives.reduction import combine, finish

from .common import chunk_of, fewest_steps, neighbours_only, one_tensor, reduced, shape_of


def tensor_and_room(case, rank):
    """A tensor, and room for this rank's chunk of the sum."""
    arguments = one_tensor(case, rank)
    own = arguments["x"].view(-1).tensor_split(case.n)[rank]
    return {**arguments, "out": in_rows(case, case.tensor(rank, *own.shape, name="left over"))}


def in_rows(case, chunk):
    """A chunk in rows like those of `x`; flat where n does not divide the rows."""
    rows, *rest = shape_of(case)
    return chunk if rows % case.n else chunk.view(-1, *rest)


def every_rank_has_one_chunk(case, inputs):
    """Rank i has chunk i of the sum."""
    total = reduced(case, [each["x"] for each in inputs]).view(-1)
    return [{"out": in_rows(case, chunk)} for chunk in total.tensor_split(case.n)]


PUZZLE = Puzzle(
    name="collectives.ring_reduce_scatter",
    title="Reduce-scatter around a ring",
    statement="""
        Every rank brings a tensor `x`, cut into n chunks. Afterwards rank i has, in `out`, the sum of every rank's i-th
        chunk. The ranks stand in a ring and talk to their neighbours only: a partial sum travels to the right, every
        rank adds its own part, and after n-1 steps it is complete, on the rank that it belongs to.

        Given are `exchange(outgoing, target, incoming, source, group)`, which sends to one rank while it receives from
        another; `combine(accumulator, received, op)`, which adds in place; and `finish(out, n, op)`, which ends a
        reduction over n ranks: it divides where `op` is the average.

        Args:
            x: contiguous, of the same shape and dtype on every rank. Its chunks are those of the flat tensor's
                `tensor_split(n)`: n need not divide. Leave it as it is.
            out: contiguous; the place for this rank's chunk. It may have more dimensions than one.
            group: n ranks. Any n.
            op: how to combine.

        Budget: n-1 steps; every rank sends n-1 chunks. Memory for two chunks.
        """,
    function=ring,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = x.view(-1).tensor_split(n)
        partial = chunks[left]
        for step in range(n - 1):
            mine = chunks[(rank - step - 2) % n]
            received = torch.empty_like(mine)
            exchange(partial, right, received, left, group)
            combine(received, mine, op)
            partial = received
        out.view(-1).copy_(partial)
        finish(out, n, op)
        """,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), length=(24,))
    + cases(worlds=(3, 4), length=(10, 1))
    + cases(worlds=(4,), members=(0, 2, 3), length=(9,))
    + cases(worlds=(2,), length=(24,), dtype=(torch.int32,))
    + cases(worlds=(3,), length=(18,), shape=((6, 3),), op=("AVG", "MAX"))
    + cases(worlds=(3,), length=(12,), shape=((4, 3),)),
    drawn=on_any_ranks(length=range(2, 60), op=("SUM", "AVG", "MAX")),
    large=case(4, length=4_500_000),
    inputs=tensor_and_room,
    oracle=every_rank_has_one_chunk,
    judge=neighbours_only,
    calls=POINT_TO_POINT,
    given=(exchange, combine, finish),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * chunk_of(case),
            optimum=lambda case: cost.of(ring).most(case.n, case.length, 4),
            why="in each step one chunk moves: a partial sum on its way to its own rank",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(ring).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="a partial sum has n ranks to visit, and begins at one of them",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 2 * chunk_of(case),
            optimum=lambda case: chunk_of(case) if case.n > 1 else 0,
            why="what is being sent and what is being received: two chunks, not a copy of the tensor",
        ),
    ),
    hints=(
        "Follow one chunk. The sum of chunk i must be complete when it reaches rank i. If it moves one to the right in "
        "each step, where does its journey begin?",
        "It begins at rank i + 1, right after its own, and visits all others first. So rank r begins by sending its "
        "part of chunk r - 1.",
        "In step s rank r receives the partial sum of chunk (r - s - 2) % n, adds its own part, and sends that in the "
        "next step. What it received last is chunk r.",
    ),
    wrong=(
        Wrong(
            "begins with its own chunk",
            diagnosis=r"rank \d holds what rank \d should hold",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                size = -(-x.numel() // n)
                padded = torch.nn.functional.pad(x.view(-1), (0, n * size - x.numel())).view(n, size)
                partial = padded[rank]
                for step in range(n - 1):
                    received = torch.empty_like(partial)
                    exchange(partial, (rank + 1) % n, received, (rank - 1) % n, group)
                    combine(received, padded[(rank - step - 1) % n], op)
                    partial = received
                out.view(-1).copy_(partial[: out.numel()])
                finish(out, n, op)
                """,
        ),
        Wrong(
            "sums whole tensors, keeps one chunk",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*in each step one chunk moves",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                total, passing, received = x.clone(), x.clone(), torch.empty_like(x)
                for _ in range(n - 1):
                    exchange(passing, (rank + 1) % n, received, (rank - 1) % n, group)
                    combine(total, received, op)
                    passing, received = received, passing
                out.view(-1).copy_(total.view(-1).tensor_split(n)[rank])
                finish(out, n, op)
                """,
        ),
        Wrong(
            "adds up in the input",
            diagnosis=r", x\[.*expected",
            edits=(
                ("combine(received, mine, op)", "combine(mine, received, op)"),
                ("partial = received", "partial = mine"),
            ),
        ),
        Wrong(
            "a copy of everything to add up in",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*not a copy of the tensor",
            edits=(("chunks = x.view(-1)", "chunks = x.clone().view(-1)"),),
        ),
        Wrong(
            "straight to where it belongs",
            diagnosis=r"right, but this is no ring: rank \d sends to \d, \d",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = x.view(-1).tensor_split(n)
                out.view(-1).copy_(chunks[rank])
                received = torch.empty_like(out)
                for step in range(1, n):
                    exchange(chunks[(rank + step) % n], (rank + step) % n, received, (rank - step) % n, group)
                    combine(out, received, op)
                finish(out, n, op)
                """,
        ),
        Wrong(
            "the average is a sum",
            diagnosis=r"off by exactly the world size, too much: summed, and not averaged",
            edits=(("    finish(out, n, op)\n", ""),),
        ),
        Wrong(
            "the remainder is left out",
            diagnosis=r"the remainder|size|shape|elements",
            edits=(("x.view(-1).tensor_split(n)", "x.view(-1)[: x.numel() // n * n].tensor_split(n)"),),
        ),
        Wrong(
            "added to what is in `out`",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("    out.view(-1).copy_(partial)\n", "    out.view(-1).add_(partial)\n"),),
        ),
        Wrong(
            "cut along dim 0",
            diagnosis=r"size of tensor|shape",
            edits=(("x.view(-1).tensor_split(n)", "[rows.view(-1) for rows in x.tensor_split(n)]"),),
        ),
    ),
)
