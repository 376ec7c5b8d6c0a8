"""collectives.ring_all_reduce: sum chunks around a ring, then pass the sums around."""

import torch

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.collectives.exchange import exchange, exchange_reduce
from reference.collectives.reduction import finish

from .common import chunk_of, every_rank_has_the_sum, fewest_steps, neighbours_only, one_tensor

PUZZLE = Puzzle(
    name="collectives.ring_all_reduce",
    title="All-reduce around a ring",
    statement="""
        Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of all of them, in place.

        Cut `x` into n chunks. In the first half, chunks travel to the right and every rank adds its own to what
        comes; after n-1 steps every rank holds one chunk of the sum. In the second half those travel around.

        Given are two ways to send to one rank while you receive from another:
        `exchange(outgoing, target, incoming, source, group)` puts what comes into `incoming`,
        `exchange_reduce(outgoing, target, accumulator, source, group, op)` adds it to what is there. And
        `finish(chunk, n, op)` ends the reduction of a chunk: it divides where `op` is the average.

        Args:
            x: contiguous, of the same shape and dtype on every rank. n need not divide the number of its elements.
            group: n ranks. Any n.
            op: how to combine.

        Budget: 2(n-1) steps, 2(n-1)/n of the tensor sent by each rank, and one chunk of memory.
        """,
    function=ring,
    answer="""
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = x.view(-1).tensor_split(n)
        for step in range(n - 1):
            exchange_reduce(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left, group, op)
        finish(chunks[right], n, op)
        for step in range(n - 1):
            exchange(chunks[(right - step) % n], right, chunks[(rank - step) % n], left, group)
        """,
    cases=cases(worlds=(2, 3, 4, 1), length=(24,))
    + cases(worlds=(3, 4), length=(10, 1))
    + cases(worlds=(4,), members=(0, 2, 3), length=(9,))
    + cases(worlds=(2,), length=(24,), dtype=(torch.int32,))
    + cases(worlds=(3,), length=(12,), shape=((4, 3),), op=("AVG", "MAX")),
    drawn=on_any_ranks(length=range(2, 60), op=("SUM", "AVG", "MAX")),
    large=case(3, length=4_500_000),
    inputs=one_tensor,
    oracle=every_rank_has_the_sum,
    judge=neighbours_only,
    calls=POINT_TO_POINT,
    given=(exchange, exchange_reduce, finish),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, case.length, 4),
            why="a ring moves chunks, never the whole tensor",
        ),
        Budget(
            Measure.STEPS,
            target=lambda case: cost.of(ring).steps(case.n, case.length, 4),
            optimum=fewest_steps,
            why="each half takes n-1 exchanges: no rank needs to see its own chunk come back",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: chunk_of(case) if case.n > 1 else 0,
            why="one buffer of the size of a chunk is enough; tensor_split makes views, not copies",
        ),
    ),
    hints=(
        "`x.view(-1).tensor_split(n)` gives n chunks that are views of `x`, also where n does not divide its length.",
        "If every rank begins with another chunk and they all move to the right, no two ever meet. Which one does rank "
        "r send in step s, and into which one goes what comes from the left?",
        "In step s of the first half rank r sends chunk (r - s) % n and adds to chunk (r - s - 1) % n.",
        "After that, rank r holds the sum of chunk (r + 1) % n: `finish` it, and let the second half begin with it.",
    ),
    wrong=(
        Wrong(
            "a ring that moves whole tensors",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*chunks, never the whole tensor",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                every = [torch.empty_like(x) for _ in range(n)]
                every[rank].copy_(x)
                for step in range(n - 1):
                    came, next_one = every[(rank - step) % n], every[(rank - step - 1) % n]
                    exchange(came, (rank + 1) % n, next_one, (rank - 1) % n, group)
                x.copy_(torch.stack(every).amax(0) if op == dist.ReduceOp.MAX else torch.stack(every).sum(0))
                finish(x, n, op)
                """,
        ),
        Wrong(
            "the remainder is left out",
            diagnosis=r"the remainder",
            edits=(("x.view(-1).tensor_split(n)", "x.view(-1)[: x.numel() // n * n].tensor_split(n)"),),
        ),
        Wrong(
            "averaged where the sum is asked",
            diagnosis=r"off by exactly the world size, too little",
            edits=(("finish(chunks[right], n, op)", "chunks[right].div_(n)"),),
        ),
        Wrong(
            "the average is a sum",
            diagnosis=r"off by exactly the world size, too much: summed, and not averaged",
            edits=(("    finish(chunks[right], n, op)\n", ""),),
        ),
        Wrong(
            "only the first half",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(("for step in range(n - 1):\n        exchange(", "for step in range(0):\n        exchange("),),
        ),
        Wrong(
            "the second half begins with one's own chunk",
            diagnosis=r"expected -?[\d.]+, got -?[\d.]+",
            edits=(
                (
                    "exchange(chunks[(right - step) % n], right, chunks[(rank - step) % n]",
                    "exchange(chunks[(rank - step) % n], right, chunks[(left - step) % n]",
                ),
            ),
        ),
        Wrong(
            "a copy of everything",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            edits=(("chunks = x.view", "before = x.clone()\n    chunks = x.view"),),
        ),
        Wrong(
            "group ranks taken for global ranks",
            diagnosis=r"group rank \d is global rank \d|not a global rank",
            body="""
                rank, n = dist.get_rank(group), dist.get_world_size(group)
                chunks = list(x.view(-1).tensor_split(n))
                received = torch.empty_like(chunks[0])
                for step in range(2 * (n - 1)):
                    ours, theirs = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
                    into = received[: theirs.numel()] if step < n - 1 else theirs
                    requests = [dist.irecv(into, (rank - 1) % n, group), dist.isend(ours, (rank + 1) % n, group)]
                    for request in requests:
                        request.wait()
                    if step < n - 1:
                        larger = op == dist.ReduceOp.MAX
                        theirs.copy_(torch.maximum(theirs, into) if larger else theirs + into)
                    if step == n - 2:
                        finish(theirs, n, op)
                """,
        ),
        Wrong(
            "torch's own",
            diagnosis=r"uses dist.all_reduce; allowed here: send, ",
            body="dist.all_reduce(x, op, group)",
        ),
    ),
)
